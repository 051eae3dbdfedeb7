"""The program of one member on one device, as a plain loop would step it."""

import contextlib
import operator
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from argosy.errors import StudyError
from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.order import Digest
from argosy.stream.trees import map_leaves
from argosy.study import Member
from argosy.training.device.heap import large_outside
from argosy.training.member.averaging import check_loss, check_sizes
from argosy.training.member.checks import check_gradients, check_labels, wants_classes
from argosy.training.member.foreseen import Foreseen
from argosy.training.member.live import LiveMember
from argosy.training.member.mistakes import explain_forward, explain_loss
from argosy.training.member.precision import LossScale, autocast, widened
from argosy.training.member.tally import per_sample
from argosy.training.optim.one_pass import one_pass

__all__ = ["Solo", "cross_entropy", "pair_of"]


class Solo:
    """One whole member; see `argosy.training.programs.program.Program`."""

    def __init__(self, live: LiveMember) -> None:
        self.live = live
        self._batch: Batch | None = None
        """Begun, and not finished."""
        self._losses: torch.Tensor | None = None
        """Of that batch, per sample or their mean; None where all its samples are broken."""
        self._weights: dict[tuple[torch.Size, torch.dtype, float], torch.Tensor] = {}
        self._foreseen = Foreseen((live,))
        self._own_zero_grad = type(live.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
        stepped = {id(parameter) for group in live.optimizer.param_groups for parameter in group["params"]}
        self._strays = [parameter for parameter in live.model.parameters() if id(parameter) not in stepped]
        """Weights of no optimizer, whose gradients nobody else would drop."""

    @property
    def members(self) -> tuple[LiveMember, ...]:
        """The one."""
        return (self.live,)

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """See `Program.active`."""
        started = time.perf_counter()
        try:
            with self.live.randomness.active(keep=keep), torch.set_grad_enabled(not keep):
                yield
        finally:
            self.live.seconds += time.perf_counter() - started

    def cut(self, block: Block) -> Iterator[Batch]:
        """See `Program.cut`."""
        live = self.live
        assert live.cutter is not None
        live.keep_best()
        self.drop_gradients()
        self._foreseen.note(block, (live.cutter,), augment=True)
        return live.cutter.take(block, private=live.private)

    def begin(self, batch: Batch) -> None:
        """See `Program.begin`. The batch counts as one whatever the number of micro-batches."""
        self._batch = batch
        if batch.rows:
            self._losses = self.gradients(batch.data, batch.rows, of=batch.rows)

    def finish(self) -> int:
        """See `Program.finish`."""
        batch, losses = self._batch, self._losses
        assert batch is not None
        self._batch = self._losses = None
        if losses is not None:
            self.step()
        self.live.commit(batch, losses)
        return batch.rows

    def gradients(self, data: Any, rows: int, *, of: int) -> torch.Tensor:
        """Backward on some samples of a batch of so many, weighted by their share of it; their losses, one per sample."""
        if self.live.steps:
            return self._gradients(data, rows, of)
        with large_outside():
            return self._gradients(data, rows, of)

    def step(self) -> None:
        """Move the weights along the gradients, which are gone then; not where they have overflowed."""
        live = self.live
        if live.loss_scale is None:
            self._move()
        else:
            self._move_unless_overflowed(live.loss_scale)
        self.drop_gradients()
        if live.schedule is not None and live.member.schedule_per == "step":
            live.schedule.step()
        live.steps += 1

    def drop_gradients(self) -> None:
        """What `zero_grad` does, without what its profiling costs.

        Right after each step: while the neighbours step they are memory, and lie in the middle of what they need.
        """
        for parameter in self._strays:
            parameter.grad = None
        if self._own_zero_grad:
            self.live.optimizer.zero_grad(set_to_none=True)
            return
        for group in self.live.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def evaluate(self, block: Block) -> Iterator[None]:
        """See `Program.evaluate`."""
        live = self.live
        assert live.val_cutter is not None
        live.model.eval()
        self._foreseen.note(block, (live.val_cutter,), augment=False)
        for batch in live.val_cutter.take(block, private=live.private):
            if batch.rows:
                self._validate(batch)
            live.val_cutter.commit(batch)
            if live.val_cutter.done:
                live.val.end()
            yield

    def check_ahead(self) -> None:
        """What a step checks on the host, before one that the host only asks for as a whole."""
        for error in self._foreseen.errors().values():
            raise error

    def try_loss(self, data: Any, rows: int, whole: Any) -> None:
        """Show the network a batch, or its first micro-batch; raises StudyError where its loss has a wrong meaning.

        That is so where there is no output for a target of the whole, at which training would end and an accelerator be of no more
        use to its process.
        """
        member = self.live.member
        part, count = next(self._parts(data, rows))
        inputs, target = pair_of(member, part)
        with torch.no_grad(), self._autocast():
            output = self._output(inputs)
            if wants_classes(member.loss):
                check_labels(member, output, pair_of(member, whole)[1])
            check_loss(member, output, target, count)

    def try_sizes(self, batches: Sequence[tuple[Any, int]]) -> None:
        """Show an own validation, or step, batches of two sizes, as it will see them; raises StudyError where it adds up samples."""
        live = self.live
        live.model.eval()
        with torch.no_grad(), self._autocast():
            losses = {rows: self._validated(data)[0] for data, rows in batches}
        check_sizes(live.member, losses)
        live.model.train()

    def try_validation(self, data: Any, rows: int) -> None:
        """A validation of one batch, from the metrics' first call to their values."""
        live = self.live
        live.model.eval()
        with torch.no_grad():
            self._validate(Batch(data, rows, Digest()))
            live.val.end()
        live.val.values()
        live.model.train()

    def try_step(self, data: Any, rows: int) -> None:
        """One step on samples that belong to no stream, to measure it."""
        self.drop_gradients()
        try:
            self.begin(Batch(data, rows, Digest()))
            self._batch = self._losses = None
            self.step()
        except RuntimeError as error:
            check_gradients(self.live.member, self.live.model, error)
            raise

    def release(self) -> None:
        """See `Program.release`."""
        self.drop_gradients()
        self._weights.clear()
        self._foreseen.clear()
        self._batch = self._losses = None

    # ---- a step

    def _move(self) -> None:
        live = self.live
        if live.member.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(live.model.parameters(), live.member.clip_grad_norm)
        if not live.steps:
            with large_outside():
                live.optimizer.step()
        elif not (live.one_pass and one_pass(live.optimizer)):
            live.optimizer.step()

    def _move_unless_overflowed(self, scale: LossScale) -> None:
        sound = scale.divide(weight.grad for weight in self.live.model.parameters() if weight.grad is not None)
        if sound:
            self._move()
        else:
            self.live.optimizer._opt_called = True  # a schedule goes on, and would warn of a step that was never made
        scale.follow(overflowed=not sound)

    def _gradients(self, data: Any, rows: int, of: int) -> torch.Tensor:
        return self.differentiated(self.augmented(data), rows, of=of)

    def augmented(self, data: Any) -> Any:
        """The samples as the member wants them for a step."""
        augment = self.live.member.augment
        return augment(data) if augment else data

    def differentiated(self, data: Any, rows: int, *, of: int) -> torch.Tensor:
        """See `gradients`; of samples that are augmented."""
        if self.live.member.accumulate == 1:
            return self._backward(data, rows, of)
        return torch.cat([self._backward(part, count, of) for part, count in self._parts(data, rows)])

    def _parts(self, data: Any, rows: int) -> Iterator[tuple[Any, int]]:
        """Micro-batches, each with its number of samples."""
        size = -(-rows // self.live.member.accumulate)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            yield map_leaves(operator.itemgetter(part), data), min(size, rows - start)

    def _backward(self, data: Any, rows: int, batch_rows: int) -> torch.Tensor:
        """Gradients of a micro-batch, weighted by its share of the batch; returns its losses, one per sample."""
        if self.live.member.optimizers is None:
            with self._autocast():
                losses = self._losses_of(data)[0]
            share, scale = rows / batch_rows, self.live.loss_scale
            if scale is not None:
                losses, share = widened(losses), share * scale.value
            torch.autograd.backward(losses, self._weights_of(losses, share))
        else:
            losses = self._moved(data)
        losses = losses.detach()
        return per_sample(losses, rows) if losses.dim() else losses.expand(rows)

    def _moved(self, data: Any) -> torch.Tensor:
        """Losses of a batch along which the member's own step has moved the weights."""
        live = self.live
        assert live.member.step is not None
        return self._of_step(live.member.step(live.model, data, live.optimizer.by_name))[0]

    def _weights_of(self, losses: torch.Tensor, share: float) -> torch.Tensor | None:
        """The gradient of the mean loss times its share of the batch, to the bit as torch's own `mean` would give it.

        Made once: a mean and its derivative cost a small network an eighth of its step.
        """
        if share == 1.0 and not losses.dim():
            return None
        key = (losses.shape, losses.dtype, share)
        if key not in self._weights:
            one = torch.ones((), dtype=losses.dtype, device=losses.device)
            self._weights[key] = (one * share).expand(losses.shape) / losses.numel()
        return self._weights[key]

    # ---- what both training and validation compute

    def _validate(self, batch: Batch) -> None:
        with self._autocast():
            losses, output, target = self._validated(batch.data)
            self.live.val.add(batch.rows, batch.digest, losses, output, target)

    def _validated(self, data: Any) -> tuple[torch.Tensor, Any, Any]:
        member = self.live.member
        found = (
            self._losses_of(data) if member.validate is None else self._of_step(member.validate(self.live.model, data))
        )
        if member.metrics and member.step is not None and found[1] is None:
            raise StudyError(
                f"member {member.name!r}: its {'step' if member.validate is None else 'validate'} gave a loss alone, and its "
                "metrics need more: return (loss, outputs, targets), or leave out metrics."
            )
        return found

    def _losses_of(self, data: Any) -> tuple[torch.Tensor, Any, Any]:
        member = self.live.member
        if member.step is not None:
            return self._of_step(member.step(self.live.model, data))
        inputs, target = pair_of(member, data)
        output = self._output(inputs)
        self._foreseen.look(output)
        try:
            return self._loss((member.loss or cross_entropy)(output, target)), output, target
        except IndexError:
            explain_loss(member, output, target)
            check_labels(member, output, target)
            raise
        except (RuntimeError, ValueError):
            explain_loss(member, output, target)
            raise

    def _output(self, inputs: Any) -> Any:
        try:
            return self.live.model(inputs)
        except (RuntimeError, ValueError) as error:
            explain_forward(self.live.member, self.live.model, inputs, error)
            raise

    def _of_step(self, made: Any) -> tuple[torch.Tensor, Any, Any]:
        """Losses, outputs and targets; the latter are None where an own step gave losses alone."""
        losses, output, target = made if isinstance(made, tuple) and len(made) == 3 else (made, None, None)
        return self._loss(losses), output, target

    def _loss(self, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        member = self.live.member
        raise StudyError(
            f"member {member.name!r}: its {'loss' if member.step is None else 'step'} gave {type(value).__name__}; it must "
            "give a tensor of losses, one per sample, or their mean, from which gradients flow."
        )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.live.member, self.live.backend.device)


def pair_of(member: Member, data: Any) -> tuple[Any, Any]:
    """Inputs and target of a batch; raises StudyError where it is no pair and the member has no step of its own."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    found = f"of {len(data)} parts" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
    raise StudyError(
        f"member {member.name!r}: the standard step needs batches (inputs, target); these are {found}. Give "
        "the member its own step: (model, batch) -> loss."
    )


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The default loss, per sample: output ``[B, classes]``, target ``[B]`` of class numbers -> ``[B]``."""
    return functional.cross_entropy(output, target, reduction="none")
