"""Programs whose steps can be made as a whole: what all members do at once, on samples that lie ready, without the host.

A whole step is made in parts. `inputs` and what a member's own code does there, `Kernel.note_step` and the numbers of kernels are
the host's; `gradients` and `Kernel.move` are the device's, and can be recorded. Weights of a single member lie in an parameter_buffer
too, so that one kernel steps all of them: torch's own optimizers would read on the host at which step they are.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from argosy.stream.batches import Batch
from argosy.training.device.recorders import Uncaptured
from argosy.training.member.live import LiveMember
from argosy.training.member.randomness import Mark
from argosy.training.member.tally import total_of
from argosy.training.optim.kernels import Kernel, kind_of
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.fingerprint import attributes, obstacle
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.made import Made
from argosy.training.programs.fused.turns import Turn, equally_long
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

__all__ = ["Single", "Several", "Whole", "obstacle_to", "whole_of"]

Look = Callable[[], None]
"""Raises Uncaptured where what was done since would be left out of a recorded step."""


class Whole(Protocol):
    """The members of a program."""

    @property
    def parameter_buffer(self) -> ParameterBuffer:
        """Their weights and buffers."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """That step all of them, by row; none where they cannot at present."""

    @property
    def made(self) -> Made:
        """The turns that they have made as a whole."""

    def turn(self, batch: Any) -> Turn | None:
        """Of each member its batch, of what the program cuts; None where they are not stepped as a whole."""

    def remember(self) -> None:
        """Note where the members' random states stand."""

    def forget(self) -> None:
        """The turn is made: nothing leads back behind it."""

    def undo(self) -> None:
        """Let them stand there again, and the gradients be gone."""

    def inputs(self, turn: Turn) -> PackInputs:
        """What the members are stepped on: augmented, and checked."""

    def gradients(self, data: PackInputs) -> tuple[Tensor, Tensor]:
        """Sums of the losses, float64 ``[members]``, and clipped gradients ``[members, columns]``.

        Raises Uncaptured where kernels cannot step along them.
        """

    def look(self) -> Look:
        """From here on."""

    def release(self) -> None:
        """Let go of everything but the members' states."""


def obstacle_to(program: Program[Any]) -> str | None:
    """Why the steps of a program are not made as a whole; None where nothing speaks against it."""
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
    """The members of a program that has no obstacle; raises Uncaptured where their weights have not made equally many steps."""
    if isinstance(program, Fused):
        return Several(program)
    assert isinstance(program, Solo)
    return Single.of(program)


class Several:
    """See `Whole`: those that are one program already."""

    def __init__(self, fused: Fused) -> None:
        self._fused = fused
        self._rows = range(len(fused.members))
        self._before: Sequence[Mark] = ()

    @property
    def parameter_buffer(self) -> ParameterBuffer:
        """See `Whole.parameter_buffer`."""
        return self._fused.parameter_buffer

    @property
    def kernels(self) -> Sequence[Kernel]:
        """See `Whole.kernels`."""
        return self._fused.kernels

    @property
    def made(self) -> Made:
        """See `Whole.made`."""
        return self._fused.made

    def turn(self, batch: Turn) -> Turn | None:
        """See `Whole.turn`."""
        parts = equally_long(batch)
        return batch if len(parts) == 1 and len(next(iter(parts))) == len(batch) else None

    def remember(self) -> None:
        """See `Whole.remember`."""
        self._before = self._marks()

    def forget(self) -> None:
        """See `Whole.forget`."""
        self._before = ()

    def undo(self) -> None:
        """See `Whole.undo`."""
        for live, mark in zip(self._fused.members, self._before, strict=False):
            live.randomness.go_back(mark)
        self._fused.undo()  # of a turn that was no whole one it knows better

    def inputs(self, turn: Turn) -> PackInputs:
        """See `Whole.inputs`."""
        return self._fused.inputs(self._rows, turn)

    def gradients(self, data: PackInputs) -> tuple[Tensor, Tensor]:
        """See `Whole.gradients`."""
        part = self._fused.whole(data)
        _all_have_gradients(part.idle)
        return part.totals, part.gradients

    def look(self) -> Look:
        """See `Whole.look`: their code was seen to leave nothing behind when they were admitted."""
        before = self._marks()

        def again() -> None:
            # Each draws from its own state: the host puts it in the generator's place, which a recording does not do again.
            if any(one[0] is not other[0] for one, other in zip(before, self._marks(), strict=True)):
                raise Uncaptured("its members draw random numbers, each of them from a state of its own")

        return again

    def _marks(self) -> Sequence[Mark]:
        return [live.randomness.mark() for live in self._fused.members]

    def release(self) -> None:
        """See `Whole.release`."""
        self._fused.release()


class Single:
    """See `Whole`: one by itself."""

    def __init__(self, solo: Solo, parameter_buffer: ParameterBuffer, kernel: Kernel) -> None:
        self._solo = solo
        self._parameter_buffer = parameter_buffer
        self._kernel = kernel
        self.made = Made([solo.live])
        """See `Whole.made`."""
        self._held = [(m._buffers, name, b) for m in solo.live.model.modules() for name, b in m._buffers.items()]
        self._before: Mark | None = None

    @classmethod
    def of(cls, solo: Solo) -> "Single":
        """Take up a member; raises Uncaptured where some of its weights have made fewer steps than others."""
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
        """See `Whole.parameter_buffer`."""
        return self._parameter_buffer

    @property
    def kernels(self) -> Sequence[Kernel]:
        """See `Whole.kernels`."""
        return (self._kernel,)

    def turn(self, batch: Batch) -> Turn | None:
        """See `Whole.turn`."""
        return (batch,) if batch.rows else None

    def remember(self) -> None:
        """See `Whole.remember`."""
        self._before = self._live.randomness.here()

    def forget(self) -> None:
        """See `Whole.forget`."""
        self._before = None

    def undo(self) -> None:
        """See `Whole.undo`."""
        self._solo.drop_gradients()
        for table, name, buffer in self._held:
            table[name] = buffer  # a step may have assigned another
        if self._before is not None:
            self._live.randomness.go_back(self._before)
            self.forget()

    def inputs(self, turn: Turn) -> PackInputs:
        """See `Whole.inputs`."""
        (batch,) = turn
        assert batch is not None
        self._solo.check_ahead()
        return PackInputs(self._solo.augmented(batch.data), batch.rows, apart=False)

    def gradients(self, data: PackInputs) -> tuple[Tensor, Tensor]:
        """See `Whole.gradients`."""
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

    def look(self) -> Look:
        """See `Whole.look`."""
        model, host = self._live.model, torch.default_generator
        before = attributes(model), {name: id(buffer) for name, buffer in model.named_buffers()}, host.get_state()

        def again() -> None:
            held, buffers, drawn = before
            changed = [words for words, value in attributes(model).items() if held.get(words) != value]
            changed += [f"the buffer {name!r}" for name, b in model.named_buffers() if buffers.get(name) != id(b)]
            if changed:
                raise Uncaptured(f"a step changes {changed[0]}, on the host")
            # Of a device that is the host, this generator is the one that a recording draws from.
            if self._live.backend.device.type != "cpu" and not torch.equal(drawn, host.get_state()):
                raise Uncaptured("its steps draw random numbers on the host")

        return again

    def release(self) -> None:
        """See `Whole.release`."""
        self._solo.release()
        self._kernel.dissolve()
        self._parameter_buffer.dissolve()


def _all_have_gradients(idle: Collection[str]) -> None:
    if idle:
        raise Uncaptured(f"the weight {min(idle)!r} gets no gradient, and its optimizer leaves it alone")
