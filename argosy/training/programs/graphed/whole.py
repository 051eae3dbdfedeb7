"""Adapters that let the full step of a `Solo` or a `Fused` program be captured in one CUDA graph.

A whole step has two parts. The host's are `inputs`, with members' own code, `Kernel.note_step` and the numbers of kernels; the
device's are `gradients` and `Kernel.move`, which can be captured. The weights of a single member lie in a parameter buffer too, so
that one kernel steps all of them: torch's own optimizers would read their step count on the host.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from argosy.stream.batches import Batch
from argosy.training.device.recorders import Uncaptured
from argosy.training.member.live import LiveMember
from argosy.training.member.randomness import Mark
from argosy.training.member.running_average import Statistics
from argosy.training.member.tally import total_of
from argosy.training.optim.kernels import Kernel, kind_of
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.fingerprint import attributes, obstacle
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.lockstep import Lockstep, length_of
from argosy.training.programs.fused.made import Made
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

__all__ = ["Single", "Several", "Whole", "obstacle_to", "whole_of"]

EffectCheck = Callable[[], None]
"""Raises Uncaptured where a captured step would leave out an effect of the work done since."""


class Whole(Protocol):
    """A program stepped as a whole."""

    @property
    def parameter_buffer(self) -> ParameterBuffer:
        """The members' weights and buffers."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels that step all members, by row; none where they cannot at present."""

    @property
    def made(self) -> Made:
        """The locksteps that the members have made as a whole."""

    def lockstep(self, batch: Any) -> Lockstep | None:
        """Return each member's batch from what the program cut; None where they are not stepped as a whole."""

    def remember(self) -> None:
        """Save the members' random states, for `undo`."""

    def forget(self) -> None:
        """Drop the saved random states, once the lockstep is made."""

    def undo(self) -> None:
        """Restore the saved random states, and drop the gradients."""

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Return the members' samples, augmented and checked; statistics of averages follow them."""

    def gradients(self, data: PackInputs) -> tuple[Tensor, Tensor]:
        """Compute loss sums, float64 ``[members]``, and clipped gradients ``[members, columns]``.

        Raises Uncaptured where kernels cannot step along them.
        """

    def follow(self) -> None:
        """Bring the averages up to date after a step."""

    def watch(self) -> EffectCheck:
        """Watch from here on; returns the check."""

    def release(self) -> None:
        """Release everything but the members' states."""


def obstacle_to(program: Program[Any]) -> str | None:
    """Return why the steps of a program cannot be made as a whole; None where they can."""
    lives = program.members
    if isinstance(program, Fused):
        stepped = sum(kernel.rows.stop - kernel.rows.start for kernel in program.kernels)
        reason = None if stepped == len(lives) else "an optimizer makes its steps itself"
    elif isinstance(program, Solo):
        reason = obstacle(lives[0])
        if reason is None and kind_of(lives[0].optimizer) is None:
            reason = "its optimizer makes its steps itself"
    else:
        reason = "it is on several devices"
    if reason is None and any(live.member.precision not in ("float32", "bfloat16") for live in lives):
        reason = "the host has to see whether gradients have overflowed"
    if reason is None and any(live.randomness.uses_others for live in lives):
        reason = "its steps draw from numpy or random, on the host"
    if reason is None and len({live.member.batch_size for live in lives}) > 1:
        reason = "its members have batches of different lengths"
    return reason


def whole_of(program: Program[Any]) -> Whole:
    """Return the adapter of a program without obstacles; raises Uncaptured where weights have made unequal numbers of steps."""
    if isinstance(program, Fused):
        return Several(program)
    assert isinstance(program, Solo)
    return Single.of(program)


class Several:
    """The `Whole` of members that are one `Fused` program."""

    def __init__(self, fused: Fused) -> None:
        self._fused = fused
        self._before: Sequence[Mark] = ()

    @property
    def parameter_buffer(self) -> ParameterBuffer:
        """The fused program's buffer."""
        return self._fused.parameter_buffer

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The fused program's kernels."""
        return self._fused.kernels

    @property
    def made(self) -> Made:
        """The fused program's locksteps."""
        return self._fused.made

    def lockstep(self, batch: Lockstep) -> Lockstep | None:
        """Return the batches if equally long."""
        return None if length_of(batch) is None else batch

    def remember(self) -> None:
        """Save each member's random state."""
        self._before = self._marks()

    def forget(self) -> None:
        """Drop the saved random states."""
        self._before = ()

    def undo(self) -> None:
        """Implement `Whole.undo`."""
        for live, mark in zip(self._fused.members, self._before, strict=False):
            live.randomness.go_back(mark)
        self._fused.undo()  # for a lockstep that was not whole, its own marks are right

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Implement `Whole.inputs`."""
        data = self._fused.inputs(lockstep)
        self._fused.recompute(data)
        return data

    def gradients(self, data: PackInputs) -> tuple[Tensor, Tensor]:
        """Implement `Whole.gradients`."""
        part = self._fused.whole(data)
        _all_have_gradients(part.idle)
        return part.totals, part.gradients

    def follow(self) -> None:
        """Implement `Whole.follow`."""
        self._fused.follow()

    def watch(self) -> EffectCheck:
        """Watch random states alone: the equivalence check has excluded other effects."""
        before = self._marks()

        def again() -> None:
            # Each draws from its own state, which the host puts into the generator; a replay does not repeat that.
            if any(one[0] is not other[0] for one, other in zip(before, self._marks(), strict=True)):
                raise Uncaptured("its members draw random numbers, each of them from a state of its own")

        return again

    def _marks(self) -> Sequence[Mark]:
        return [live.randomness.mark() for live in self._fused.members]

    def release(self) -> None:
        """Implement `Whole.release`."""
        self._fused.release()


class Single:
    """The `Whole` of a single member."""

    def __init__(self, solo: Solo, parameter_buffer: ParameterBuffer, kernel: Kernel) -> None:
        self._solo = solo
        self._parameter_buffer = parameter_buffer
        self._kernel = kernel
        self.made: Made = Made([solo.live])
        """Turns that were made as a whole."""
        self._held = [(m._buffers, name, b) for m in solo.live.model.modules() for name, b in m._buffers.items()]
        self._before: Mark | None = None
        self._statistics: Statistics | None = None
        """Statistics of the average before the step, where they are computed."""

    @classmethod
    def of(cls, solo: Solo) -> "Single":
        """Move a member into a buffer; raises Uncaptured where some of its weights have made fewer steps than others."""
        live = solo.live
        parameter_buffer = ParameterBuffer.of([live.model], [live.optimizer])
        kernel = Kernel.of([live.optimizer], parameter_buffer, 0)
        if kernel is None:
            parameter_buffer.dissolve()
            raise Uncaptured(
                "some of its weights have made fewer steps than others, or are of a type that no kernel steps"
            )
        return cls(solo, parameter_buffer, kernel)

    @property
    def _live(self) -> LiveMember:
        return self._solo.live

    @property
    def parameter_buffer(self) -> ParameterBuffer:
        """A buffer with one row."""
        return self._parameter_buffer

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The member's kernel."""
        return (self._kernel,)

    def lockstep(self, batch: Batch) -> Lockstep | None:
        """Return the batch, unless it is empty."""
        return (batch,) if batch.rows else None

    def remember(self) -> None:
        """Save the generators' state."""
        self._before = self._live.randomness.here()

    def forget(self) -> None:
        """Drop the saved random state, and statistics."""
        self._before = self._statistics = None

    def undo(self) -> None:
        """Implement `Whole.undo`."""
        self._solo.drop_gradients()
        for table, name, buffer in self._held:
            table[name] = buffer  # a step may have assigned another tensor
        if self._before is not None:
            self._live.randomness.go_back(self._before)
        if self._live.average is not None and self._statistics is not None:
            self._live.average.go_back(self._statistics)
        self.forget()

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Check labels and augment the batch."""
        (batch,) = lockstep
        assert batch is not None
        self._solo.check_ahead()
        data = self._solo.augmented(batch.data)
        if self._live.average is not None and self._live.average.recomputes:
            self._statistics = self._live.average.statistics()
            self._solo.recompute(data, batch.rows)
        return PackInputs(data, batch.rows, apart=False)

    def gradients(self, data: PackInputs) -> tuple[Tensor, Tensor]:
        """Implement `Whole.gradients`."""
        live, parameters = self._live, self._parameter_buffer.parameters[0]
        self._solo.drop_gradients()
        losses = self._solo.differentiated(data.tree, data.samples, of=data.samples)
        found = [parameter.grad for parameter in parameters]
        _all_have_gradients(
            [p.name for p, own in zip(self._parameter_buffer.pieces, found, strict=True) if own is None]
        )
        if live.member.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(live.model.parameters(), live.member.clip_grad_norm)
        gradients = torch.empty_like(self._parameter_buffer.weights)
        places = [piece.of(gradients[0]) for piece in self._parameter_buffer.pieces]
        torch._foreach_copy_(places, [own for own in found if own is not None])
        self._solo.drop_gradients()
        return total_of(losses, data.samples).unsqueeze(0), gradients

    def follow(self) -> None:
        """Implement `Whole.follow`."""
        if self._live.average is not None:
            self._live.average.step()

    def watch(self) -> EffectCheck:
        """Watch attributes, buffers and draws on the host."""
        model, host = self._live.model, torch.default_generator
        before = attributes(model), {name: id(buffer) for name, buffer in model.named_buffers()}, host.get_state()

        def again() -> None:
            held, buffers, drawn = before
            changed = [words for words, value in attributes(model).items() if held.get(words) != value]
            changed += [f"the buffer {name!r}" for name, b in model.named_buffers() if buffers.get(name) != id(b)]
            if changed:
                raise Uncaptured(f"a step changes {changed[0]}, on the host")
            # On the CPU this is the generator that a recording itself draws from.
            if self._live.backend.device.type != "cpu" and not torch.equal(drawn, host.get_state()):
                raise Uncaptured("its steps draw random numbers on the host")

        return again

    def release(self) -> None:
        """Implement `Whole.release`."""
        self._solo.release()
        self._kernel.dissolve()
        self._parameter_buffer.dissolve()


def _all_have_gradients(idle: Collection[str]) -> None:
    if idle:
        raise Uncaptured(f"the weight {min(idle)!r} gets no gradient, and its optimizer leaves it alone")
