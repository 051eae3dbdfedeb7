"""A single member whose steps can be captured (`argosy.training.programs.graphed.whole`).

The weights lie in a parameter buffer, and one kernel steps them all, because torch's own optimizers would read their step count on the host.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from argosy.stream.batches import Batch
from argosy.training.device.recorders import InBranches, Uncaptured
from argosy.training.member.live import LiveMember
from argosy.training.member.tally import batch_total
from argosy.training.optim.kernels import Kernel
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.fingerprint import watch_behaviour
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.fused import check_all_derived
from argosy.training.programs.fused.recorded import UnrecordedSteps
from argosy.training.programs.solo import Solo

__all__ = ["Single"]


class Single:
    """A single member stepped as a whole, with the methods that `ProgramOfSeveral` has for that."""

    draws: ClassVar[None] = None
    """None: a replay draws from the device's generator, as the member alone does."""

    def __init__(self, solo: Solo, parameter_buffer: ParameterBuffer, kernel: Kernel) -> None:
        self._solo = solo
        self._live: LiveMember = solo.live
        self._parameter_buffer = parameter_buffer
        """A buffer with one row."""
        self.kernels: Sequence[Kernel] = (kernel,)
        self.made: UnrecordedSteps = UnrecordedSteps([solo.live])
        """Steps that were made as a whole."""
        self._batch: Batch | None = None
        """The batch begun as a whole step."""
        self._keeps = solo.live.augment_keeps_state
        self._tried = False
        """Whether a copy has made a step."""
        self._undoing: list[Callable[[], object]] = []
        """Functions that undo what the step begun has changed, besides buffers."""
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

    @property
    def weights(self) -> Tensor:
        """All trained weights, as one row."""
        return self._parameter_buffer.weights

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The network's buffers, each ``[1, …]``."""
        return self._parameter_buffer.buffers

    def undo(self) -> None:
        """Undo what `begin_whole` has changed since the last finished step, and drop the gradients."""
        self._solo.drop_gradients()
        for table, name, buffer in self._held:
            table[name] = buffer  # a step may have assigned another tensor
        for undo in self._undoing:
            undo()
        self._undoing = []

    def begin_whole(self, batch: Batch) -> PackInputs | None:
        """Implement `ProgramOfSeveral.begin_whole`; a batch without samples is not stepped as a whole."""
        if not batch.rows:
            return None
        if not self._tried:
            self._try(batch)
        random, average = self._live.randomness, self._live.average
        self._batch, self._undoing = batch, [partial(random.go_back, random.here())]
        if average is not None and average.recomputes:
            self._undoing.append(average.statistics_restorer())
        if self._keeps:
            self._undoing.append(self._live.called_restorer())
        self._solo.check_ahead()
        data = self._solo.augmented(batch.data)
        self._solo.recompute(data, batch.rows)
        return PackInputs(data, batch.rows, apart=False)

    def _try(self, batch: Batch) -> None:
        """Raise Uncaptured if a step, made by a copy, changes something on the host: nothing could undo that before the plain program's step."""
        self._tried, trial = True, Solo(self._live.trial())
        changed = watch_behaviour(trial.live)
        self._live.randomness.unmoved(
            lambda: trial.differentiated(trial.augmented(batch.data), batch.rows, of=batch.rows)
        )
        if what := changed():
            raise Uncaptured(f"a step changes {what}, on the host")

    def whole_gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Implement `ProgramOfSeveral.whole_gradients`."""
        live, parameters = self._live, self._parameter_buffer.parameters[0]
        self._solo.drop_gradients()
        losses = self._solo.differentiated(data.tree, data.samples, of=data.samples)
        of_parameters = [parameter.grad for parameter in parameters]
        named = zip(self._parameter_buffer.pieces, of_parameters, strict=True)
        check_all_derived([piece.name for piece, own in named if own is None])
        if live.member.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(live.model.parameters(), live.member.clip_grad_norm)
        gradients = torch.empty_like(self.weights)
        places = [piece.of(gradients[0]) for piece in self._parameter_buffer.pieces]
        torch._foreach_copy_(places, [own for own in of_parameters if own is not None])
        self._solo.drop_gradients()
        return batch_total(losses, data.samples).unsqueeze(0), gradients

    def finish_whole(self, totals: Tensor) -> int:
        """Implement `ProgramOfSeveral.finish_whole`."""
        if self._live.average is not None:
            self._live.average.step()
        samples = self.made.add((self._batch,), totals)
        self._batch, self._undoing = None, []
        return samples

    def watch(self) -> Callable[[], None]:
        """Watch attributes, the loss or own step, buffers, and draws on the host."""
        model, host = self._live.model, torch.default_generator
        changed, drawn = watch_behaviour(self._live), host.get_state()
        buffers = {name: id(buffer) for name, buffer in model.named_buffers()}

        def check() -> None:
            replaced = (f"the buffer {name!r}" for name, b in model.named_buffers() if buffers.get(name) != id(b))
            if what := changed() or next(replaced, ""):
                raise Uncaptured(f"a step changes {what}, on the host")
            # On the CPU this is the generator from which a recording itself draws.
            if self._live.backend.device.type != "cpu" and not torch.equal(drawn, host.get_state()):
                raise Uncaptured("its steps draw random numbers on the host")

        return check

    def release(self) -> None:
        """Implement `Program.release`."""
        self._solo.release()
        self.kernels[0].dissolve()
        self._parameter_buffer.dissolve()
