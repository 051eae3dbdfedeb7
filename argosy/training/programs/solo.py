"""The program of one member on one device, stepped as in a plain training loop."""

import contextlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from argosy.errors import StudyError
from argosy.errors.traces import USER_ERRORS
from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.order import Digest
from argosy.stream.trees import flatten, map_leaves, rebuilt
from argosy.study import IGNORED, Member
from argosy.training.device.clock import time_on_device
from argosy.training.device.heap import outside_heap
from argosy.training.member.averaging import check_loss, check_sizes, check_step
from argosy.training.member.checks import (
    are_probabilities,
    check_differentiated,
    check_gradients,
    check_labels,
    check_modes,
    check_not_doubled,
    check_step_updates,
    modes_of,
    takes_classes,
)
from argosy.training.member.copied import moded_optimizers_of
from argosy.training.member.foreseen import PendingLabels
from argosy.training.member.live import LiveMember
from argosy.training.member.mistakes import explain_forward, explain_lone_sample, explain_loss, format_given
from argosy.training.member.precision import LossScale, autocast, widen_losses
from argosy.training.member.tally import per_sample
from argosy.training.member.validation import Validation
from argosy.training.optim.one_pass import step_in_one_pass
from argosy.training.optim.parameter_buffer import copy_into

__all__ = ["Solo", "cross_entropy", "pair_of"]


class Solo:
    """The `argosy.training.programs.program.Program` of one whole member."""

    def __init__(self, live: LiveMember) -> None:
        self.live = live
        self.members: tuple[LiveMember, ...] = (live,)
        self._batch: Batch | None = None
        """The batch begun and not finished."""
        self._losses: torch.Tensor | None = None
        """Losses of that batch, per sample or their mean; None if all its samples are broken."""
        self.one_number = False
        """Whether the losses of a backward pass of several samples were one number."""
        self._weights: dict[tuple[torch.Size, torch.dtype, float], torch.Tensor] = {}
        self._foreseen = PendingLabels((live,))
        self._own_zero_grad = type(live.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad
        stepped = {id(parameter) for group in live.optimizer.param_groups for parameter in group["params"]}
        self._strays = [parameter for parameter in live.model.parameters() if id(parameter) not in stepped]
        """Weights in no optimizer, whose gradients `zero_grad` does not drop."""
        self._moded = moded_optimizers_of(live.optimizer)

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """Implement `Program.active`."""
        randomness = self.live.validating if keep else self.live.randomness
        with time_on_device((self.live.clock,), (1.0,)), randomness.active(), torch.set_grad_enabled(not keep):
            yield

    def cut(self, block: Block, *, after: Batch | None = None) -> Iterator[Batch]:
        """Implement `Program.cut`, after a batch that is begun, if any."""
        live = self.live
        assert live.cutter is not None
        live.best.keep()
        self.drop_gradients()
        self._foreseen.note(block, (live.cutter,), augment=True)
        return live.cutter.take(block, private=live.private, after=after)

    def begin(self, batch: Batch) -> None:
        """Implement `Program.begin`, for all micro-batches of the batch."""
        self._batch = batch
        if batch.rows:
            self._losses = self.gradients(batch.data, batch.rows, of=batch.rows)

    def finish(self) -> int:
        """Implement `Program.finish`."""
        batch, losses = self._batch, self._losses
        assert batch is not None
        self._batch = self._losses = None
        if losses is not None:
            self.step()
        self.live.commit(batch, losses)
        return batch.rows

    def gradients(self, data: Any, rows: int, *, of: int) -> torch.Tensor:
        """Run the backward pass on `rows` samples of a batch of size `of`, weighted by their share; returns losses per sample."""
        with outside_heap(when=not self.live.steps):
            for optimizer in self._moded:
                optimizer.train()
            data = self.augmented(data)
            self.recompute(data, rows)
            return self.differentiated(data, rows, of=of)

    @contextlib.contextmanager
    def modes_kept(self) -> Iterator[None]:
        """Leave the weights as they are validated after gradients are computed inside, because the member may be saved before it steps."""
        weights = [*self.live.model.parameters()] if self._moded else []
        before = [weight.detach().clone() for weight in weights]
        yield
        for optimizer in self._moded:
            optimizer.eval()
        copy_into(before, weights)  # without the rounding of the two changes

    def step(self) -> None:
        """Make a step as `move` does, update the average, and count the step."""
        self.move()
        if self.live.average is not None:
            self.live.average.step()
        self.live.steps += 1

    def move(self) -> None:
        """Step along the gradients unless they overflowed, drop them, and advance a per-step schedule."""
        live = self.live
        for optimizer in self._moded:
            optimizer.train()  # a device of a split member may have no samples of this batch, or have left the mode since
        if live.loss_scale is None:
            self._move()
        else:
            self._move_unless_overflowed(live.loss_scale)
        for optimizer in self._moded:
            optimizer.eval()
        self.drop_gradients()
        live.step_batch_schedule()

    def drop_gradients(self) -> None:
        """Set gradients to None as `zero_grad` does, without the cost of its profiling.

        Called right after each step, so that gradients neither hold nor fragment memory while other members step.
        """
        for parameter in self._strays:
            parameter.grad = None
        if self._own_zero_grad:
            self.live.optimizer.zero_grad()  # without arguments, as in a plain loop: an override may take none
            return
        for group in self.live.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def evaluate(self, block: Block) -> Iterator[None]:
        """Implement `Program.evaluate`."""
        live = self.live
        assert live.val_cutter is not None
        self._foreseen.note(block, (live.val_cutter,), augment=False)
        for batch in live.val_cutter.take(block, private=live.private):
            if live.model.training:  # also after a save since the last batch, which sets train()
                live.model.eval()
            self.validate(batch)
            live.val_cutter.commit(batch)
            if live.val_cutter.done:
                live.end_validation()
            yield

    def check_ahead(self) -> None:
        """Check labels on the host, before a captured step."""
        for error in self._foreseen.errors().values():
            raise error

    def try_loss(self, data: Any, rows: int, whole: Any) -> tuple[bool, bool]:
        """Check the loss of a batch, or its first micro-batch, and the labels of `whole`: one without an output would end an accelerator's process.

        Returns whether the mean loss over batches depends on their sizes, and whether cross-entropy gets probabilities. Raises StudyError.
        """
        member = self.live.member
        part, count = next(self._parts(data, rows))
        inputs, target = pair_of(member, part)
        with self._autocast():
            output = self._output(inputs)  # with gradients, as in each step: the network may set hooks on its tensors
            with torch.no_grad():
                if classes := takes_classes(member.loss):
                    check_labels(member, output, pair_of(member, whole)[1])
                return check_loss(member, output, target, count), classes and are_probabilities(output)

    def try_own(self, what: Literal["step", "validate"], data: Any, rows: int) -> bool | None:
        """Check the member's own step or validation on a batch, as `check_step` does.

        Call it on a copy: the checks use batch sizes that the member will not see, in eval() and without gradients.
        """
        model, own = self.live.model.eval(), getattr(self.live.member, what)
        with torch.no_grad(), self._autocast():
            return check_step(self.live.member, what, lambda part: self._of_step(own(model, part))[0], data, rows)

    def try_sizes(self, batches: Sequence[tuple[Any, int]]) -> None:
        """Run the member's own validation, or step, on two batch sizes that it will see; raises StudyError if it sums samples."""
        live = self.live
        live.model.eval()
        with torch.no_grad(), self._autocast():
            check_sizes(live.member, lambda data: self._validated(data)[0], batches)
        live.model.train()

    def try_validation(self, data: Any, rows: int) -> None:
        """Run a validation of one batch, up to the values of its metrics."""
        live = self.live
        modes = modes_of(live.model.eval())
        with torch.no_grad():
            try:
                output, target = self._validate(Batch(data, rows, Digest()), data, live.val)
            except RuntimeError as error:
                check_differentiated(live.member, error)
                raise
            live.val.end(tried=(output, target))
            check_modes(live.member, modes)
            with self._autocast():
                live.val.check(rows, output, target)
        live.val.values()
        live.model.train()

    def answers(self, data: Any) -> list[torch.Tensor]:
        """Return the losses of a validation batch, and the tensors of its outputs."""
        self.live.model.eval()
        with self._autocast():
            losses, output, _ = self._validated(data)
        self.live.model.train()
        return [losses, *(leaf for leaf in flatten(output)[0] if isinstance(leaf, torch.Tensor))]

    def try_step(self, data: Any, rows: int) -> None:
        """Make one step on samples from outside the stream, to measure it."""
        self.drop_gradients()
        member, live = self.live.member, self.live
        checked: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if member.optimizers is not None and not live.optimizer.in_hooks:
            checked = check_step_updates(member, live.model, live.optimizer.by_name.values())
        try:
            with checked:
                self.begin(Batch(data, rows, Digest()))
            self._batch = self._losses = None
            self.step()
        except RuntimeError as error:
            check_gradients(member, live.model, error)
            raise

    def release(self) -> None:
        """Implement `Program.release`."""
        self.drop_gradients()
        self._batch = self._losses = None

    # ---- a step

    def _move(self) -> None:
        live = self.live
        if live.member.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(live.model.parameters(), live.member.clip_grad_norm)
        with outside_heap(when=not live.steps):
            if not (live.one_pass and step_in_one_pass(live.optimizer)):
                live.step_optimizer()

    def _move_unless_overflowed(self, scale: LossScale) -> None:
        sound = scale.divide(weight.grad for weight in self.live.model.parameters() if weight.grad is not None)
        if sound:
            self._move()
        else:
            self.live.optimizer._opt_called = True  # else the schedule, which advances, would warn of the missing step
        scale.follow(overflowed=not sound)

    def recompute(self, data: Any, rows: int) -> None:
        """Pass augmented samples of a training batch through averaged weights that need them for their statistics."""
        average, randomness = self.live.average, self.live.randomness
        if average is None or not average.recomputes:
            return
        drawn, restore_called = randomness.here(), self.live.called_restorer()
        # A step of the member's own may ask for gradients, for example for adversarial samples.
        grads = self.live.member.step is not None
        for part, _ in self._parts(data, rows):
            own = map_leaves(torch.clone, part) if self.live.private else part  # the network writes into its input
            with average.recomputing(), torch.set_grad_enabled(grads), self._autocast():
                self._losses_of(own)
        restore_called()
        randomness.set_generators(drawn)  # raw weights are trained as they would be without an average

    def augmented(self, data: Any) -> Any:
        """Return the samples as the member augments them for a step."""
        augment = self.live.member.augment
        try:
            return augment(rebuilt(data)) if augment else rebuilt(data)
        except USER_ERRORS as error:
            error.add_note(f"raised by its augment of the batch {format_given(data)}")
            raise

    def differentiated(self, data: Any, rows: int, *, of: int) -> torch.Tensor:
        """Run the backward pass as `gradients` does, on samples that are already augmented."""
        if self.live.member.accumulate == 1:
            return self._backward(data, rows, of)
        return torch.cat([self._backward(part, count, of) for part, count in self._parts(data, rows)])

    def _parts(self, data: Any, rows: int) -> Iterator[tuple[Any, int]]:
        """Yield micro-batches, each with its number of samples. Raises StudyError if an augmentation changed the batch's number of samples."""
        member = self.live.member
        if member.accumulate > 1 and any(len(leaf) != rows for leaf in flatten(data)[0]):
            raise StudyError(
                f"member {member.name!r}: its augment turns {rows} samples into a batch of another length, but "
                f"accumulate={member.accumulate} splits batches into that many parts. Remove accumulate, or return "
                "as many samples as augment gets, for example both views of a sample in one tensor [samples, "
                "views, …]."
            )
        size = -(-rows // member.accumulate)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            yield map_leaves(operator.itemgetter(part), data), min(size, rows - start)

    def _backward(self, data: Any, rows: int, batch_rows: int) -> torch.Tensor:
        """Add the gradients of a micro-batch, weighted by its share of the batch; returns its losses, one per sample."""
        if self.live.member.optimizers is None:
            with self._autocast():
                losses = self._losses_of(data)[0]
            share, scale = rows / batch_rows, self.live.loss_scale
            if scale is not None:
                losses, share = widen_losses(losses), share * scale.value
            is_first = self.live.member.step is not None and not self.live.steps and share == 1.0
            weights = [*self.live.model.parameters()] if is_first else []
            left = [weight.grad if weight.grad is None else weight.grad.clone() for weight in weights]
            torch.autograd.backward(losses, self._weights_of(losses, share))
            if is_first:
                check_not_doubled(self.live.member, weights, left)
        else:
            losses = self._moved(data)
        losses = losses.detach()
        self.one_number |= rows > 1 and not losses.dim()
        return per_sample(losses, rows) if losses.dim() else losses.expand(rows)

    def _moved(self, data: Any) -> torch.Tensor:
        """Run a step that moves the weights itself; returns its losses."""
        live = self.live
        assert live.member.step is not None
        return self._of_step(live.member.step(live.model, data, live.optimizer.by_name))[0]

    def _weights_of(self, losses: torch.Tensor, share: float) -> torch.Tensor | None:
        """Return the gradient of the mean loss times its share of the batch, with the bits of torch's `mean`.

        Cached, because computing a mean and its derivative takes an eighth of a small network's step.
        """
        if share == 1.0 and not losses.dim():
            return None
        key = (losses.shape, losses.dtype, share)
        if key not in self._weights:
            one = torch.ones((), dtype=losses.dtype, device=losses.device)
            self._weights[key] = (one * share).expand(losses.shape) / losses.numel()
        return self._weights[key]

    # ---- training and validation

    def validate(self, batch: Batch) -> None:
        """Add a batch to the validation, unless all its samples are broken."""
        live = self.live
        if not batch.rows:
            return
        before = None if live.averaged is None else live.half_validated or live.randomness.here()
        # What writes into its input leaves another copy to the averaged weights, and what changes the dict another dict.
        data = map_leaves(torch.clone, batch.data) if live.private and before is not None else rebuilt(batch.data)
        if live.half_validated is None:
            self._validate(batch, data, live.val)
        live.half_validated = None
        if live.averaged is not None and before is not None:
            drawn = live.randomness.here()
            live.randomness.set_generators(before)  # draws what the raw weights drew, with which it is compared
            with live.averaged.held():
                self._validate(batch, batch.data, live.average_val)
            live.randomness.set_generators(drawn)  # raw weights are validated as they would be without an average

    def _validate(self, batch: Batch, data: Any, into: Validation) -> tuple[Any, Any]:
        with self._autocast():
            losses, output, target = self._validated(data)
            into.add(batch.rows, batch.digest, losses, output, target)
        return output, target

    def _validated(self, data: Any) -> tuple[torch.Tensor, Any, Any]:
        member, model = self.live.member, self.live.model
        own = member.validate
        values = self._losses_of(data) if own is None else self._of_step(own(model, data))
        if member.metrics and member.step is not None and values[1] is None:
            raise StudyError(
                f"member {member.name!r}: its {('step' if member.validate is None else 'validate')} returned only "
                "a loss, but its metrics need more. Return (loss, outputs, targets), or remove metrics."
            )
        return values

    def _losses_of(self, data: Any) -> tuple[torch.Tensor, Any, Any]:
        member = self.live.member
        if member.step is not None:
            try:
                return self._of_step(member.step(self.live.model, data))
            except ValueError as error:
                explain_lone_sample(member, error)
                raise
        inputs, target = pair_of(member, data)
        output = self._output(inputs)
        self._foreseen.check_output(output)
        try:
            return self._loss((cross_entropy if member.loss is None else member.loss)(output, target)), output, target
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            explain_loss(member, output, target, error)
            if isinstance(error, IndexError):
                check_labels(member, output, target)
            raise

    def _output(self, inputs: Any) -> Any:
        try:
            return self.live.model(inputs)
        except (RuntimeError, ValueError) as error:
            explain_forward(self.live.member, self.live.model, inputs, error)
            raise

    def _of_step(self, result: Any) -> tuple[torch.Tensor, Any, Any]:
        """Return losses, outputs and targets of an own step; outputs and targets are None if it returned only losses."""
        losses, output, target = result if isinstance(result, tuple) and len(result) == 3 else (result, None, None)
        return self._loss(losses), output, target

    def _loss(self, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.reshape(()) if value.dim() and value.numel() == 1 else value
        member = self.live.member
        raise StudyError(
            f"member {member.name!r}: its {('loss' if member.step is None else 'step')} returned "
            f"{type(value).__name__}; it must return a tensor of losses, one per sample, or their mean, "
            f"{'with gradients' if member.optimizers is None else 'for the report'}"
            f"{'' if member.step is None else ', alone or as (loss, outputs, targets)'}."
        )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.live.member, self.live.backend.device)


def pair_of(member: Member, data: Any) -> tuple[Any, Any]:
    """Return the inputs and target of a batch; raises StudyError if it is no pair."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    described = f"of length {len(data)}" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
    raise StudyError(
        f"member {member.name!r}: the standard step needs batches (inputs, target); these are {described}. Set a step "
        "for the member: step=(model, batch) -> loss."
    )


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the default loss per sample ``[B]`` from outputs ``[B, classes, …]`` and class numbers ``[B, …]``.

    A sample with several class numbers, for example tokens or pixels, has their mean without those that are -100, such as padding.
    """
    losses = functional.cross_entropy(output, target, reduction="none")
    if losses.dim() == 1 or target.is_floating_point():
        return losses
    counted = (target != IGNORED).flatten(1).sum(1).clamp(min=1)
    return losses.flatten(1).sum(1) / counted
