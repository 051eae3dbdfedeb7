"""The adapter that lets a single member's steps be captured (`argosy.training.programs.graphed.whole`).

The weights lie in a parameter buffer, and one kernel steps them all, because torch's own optimizers would read their step count on the host.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from argosy.stream.batches import Batch
from argosy.training.device.recorders import InBranches, Uncaptured
from argosy.training.member.live import LiveMember
from argosy.training.member.randomness import Mark
from argosy.training.member.running_average import Statistics
from argosy.training.member.tally import batch_total
from argosy.training.optim.kernels import Kernel
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.fingerprint import behaviour
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.lockstep import Lockstep
from argosy.training.programs.fused.recorded import UnrecordedSteps
from argosy.training.programs.graphed.whole import EffectCheck, all_have_gradients
from argosy.training.programs.solo import Solo

__all__ = ["Single"]


class Single:
    """The `Whole` of a single member."""

    draws: ClassVar[None] = None
    """None: a replay draws from the device's generator, as the member alone does."""

    def __init__(self, solo: Solo, parameter_buffer: ParameterBuffer, kernel: Kernel) -> None:
        self._solo = solo
        self._live: LiveMember = solo.live
        self.parameter_buffer: ParameterBuffer = parameter_buffer
        """A buffer with one row."""
        self.kernels: Sequence[Kernel] = (kernel,)
        self.made: UnrecordedSteps = UnrecordedSteps([solo.live])
        """Steps that were made as a whole."""
        self._held = [(m._buffers, name, b) for m in solo.live.model.modules() for name, b in m._buffers.items()]

    @classmethod
    def of(cls, solo: Solo) -> "Single":
        """Move a member into a buffer; raises Uncaptured if some of its weights have made fewer steps than others."""
        live = solo.live
        parameter_buffer = ParameterBuffer.of([live.model], [live.optimizer])
        kernel = Kernel.of([live.optimizer], parameter_buffer, 0)
        if kernel is None:
            parameter_buffer.dissolve()
            raise Uncaptured(
                "some of its weights have made fewer steps than others, or have a dtype that no kernel supports"
            )
        return cls(solo, parameter_buffer, kernel)

    def lockstep(self, batch: Batch) -> Lockstep | None:
        """Return the batch, unless it is empty."""
        return (batch,) if batch.rows else None

    def mark(self) -> tuple[Mark, Statistics | None]:
        """Return the random state, and the statistics of the member's average if it computes some."""
        average = self._live.average
        statistics = average.statistics() if average is not None and average.recomputes else None
        return self._live.randomness.here(), statistics

    def undo(self, to: tuple[Mark, Statistics | None] | None) -> None:
        """Implement `Whole.undo`."""
        self._solo.drop_gradients()
        for table, name, buffer in self._held:
            table[name] = buffer  # a step may have assigned another tensor
        if to is not None:
            self._live.randomness.go_back(to[0])
            if self._live.average is not None and to[1] is not None:
                self._live.average.go_back(to[1])

    def inputs(self, lockstep: Lockstep) -> PackInputs:
        """Check labels and augment the batch."""
        (batch,) = lockstep
        assert batch is not None
        self._solo.check_ahead()
        data = self._solo.augmented(batch.data)
        self._solo.recompute(data, batch.rows)
        return PackInputs(data, batch.rows, apart=False)

    def gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Implement `Whole.gradients`."""
        live, parameters = self._live, self.parameter_buffer.parameters[0]
        self._solo.drop_gradients()
        losses = self._solo.differentiated(data.tree, data.samples, of=data.samples)
        of_parameters = [parameter.grad for parameter in parameters]
        all_have_gradients(
            [p.name for p, own in zip(self.parameter_buffer.pieces, of_parameters, strict=True) if own is None]
        )
        if live.member.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(live.model.parameters(), live.member.clip_grad_norm)
        gradients = torch.empty_like(self.parameter_buffer.weights)
        places = [piece.of(gradients[0]) for piece in self.parameter_buffer.pieces]
        torch._foreach_copy_(places, [own for own in of_parameters if own is not None])
        self._solo.drop_gradients()
        return batch_total(losses, data.samples).unsqueeze(0), gradients

    def follow(self) -> None:
        """Implement `Whole.follow`."""
        if self._live.average is not None:
            self._live.average.step()

    def watch(self) -> EffectCheck:
        """Watch attributes, the loss or own step, buffers, and draws on the host."""
        model, host = self._live.model, torch.default_generator
        before = behaviour(self._live), {name: id(buffer) for name, buffer in model.named_buffers()}, host.get_state()

        def again() -> None:
            held, buffers, drawn = before
            changed = [words for words, value in behaviour(self._live).items() if held.get(words) != value]
            changed += [f"the buffer {name!r}" for name, b in model.named_buffers() if buffers.get(name) != id(b)]
            if changed:
                raise Uncaptured(f"a step changes {changed[0]}, on the host")
            # On the CPU this is the generator from which a recording itself draws.
            if self._live.backend.device.type != "cpu" and not torch.equal(drawn, host.get_state()):
                raise Uncaptured("its steps draw random numbers on the host")

        return again

    def release(self) -> None:
        """Implement `Whole.release`."""
        self._solo.release()
        self.kernels[0].dissolve()
        self.parameter_buffer.dissolve()
