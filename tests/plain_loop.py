"""A plain PyTorch loop that trains a member and knows only the published order and seeds of Argosy.

It interprets the fields of `Member`, `Data` and `Study` as a person would who trains that member alone in a script.
"""

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau

import argosy
from argosy import stopping
from argosy.stream.order import member_seed, permutation, sample_seed

__all__ = ["Trained", "trained"]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Trained:
    """A trained member."""

    weights: dict[str, Tensor]
    rows: list[dict[str, float]] = field(default_factory=list)
    """Its history, with one row for each section."""


def trained(study: argosy.Study, member: argosy.Member, stream_epochs: Sequence[int]) -> Trained:
    """Train a member alone, on these epochs of the published order, until its rule stops it."""
    return _Loop(study, member).run(stream_epochs)


class _Loop:
    """The training of one member."""

    def __init__(self, study: argosy.Study, member: argosy.Member) -> None:
        self.study, self.member, self.data = study, member, study.data
        torch.default_generator.manual_seed(
            member_seed(study.seed, member.name) if member.seed is None else member.seed
        )
        self.model = member.model()
        if member.optimizers is None:
            self.optimizer = member.optimizer(list(self.model.parameters()))
            self.schedule = None if member.schedule is None else member.schedule(self.optimizer)
        else:
            self.optimizer = member.optimizers(self.model)
            self.schedule = None
        self.scaler = torch.amp.GradScaler("cpu", enabled=member.precision == "float16")
        self.steps = self.samples = 0

    def run(self, stream_epochs: Sequence[int]) -> Trained:
        """Train on these epochs of the stream until the stopping rule ends the member."""
        rows: list[dict[str, float]] = []
        length, sections = len(self._rows_of("train")), self.study.validations_per_epoch
        for number, epoch in enumerate(stream_epochs):
            batches = self._batches(epoch)
            behind, batch = next(batches, (0, None))
            total, count = 0.0, 0
            for section in range(1, sections + 1):
                self.model.train()
                # A batch that is not full at the end of a section belongs to the next section.
                while batch is not None and behind <= section * length // sections:
                    if len(batch[1]):
                        losses = self._step(batch)
                        total, count = total + float(losses.double().sum()), count + len(losses)
                    behind, batch = next(batches, (0, None))
                row = {"train_loss": total / count if count else math.nan, "lr": self._rate()}
                row |= self._validation(epoch)
                row |= {"epochs": number + section / sections, "steps": self.steps, "samples": self.samples}
                rows.append(row)
                self._move_schedule(row, ends_epoch=section == sections)
                if _stops(self.study.stop if self.member.stop is None else self.member.stop, rows):
                    return Trained(dict(self.model.state_dict()), rows)
        return Trained(dict(self.model.state_dict()), rows)

    # ---- samples

    def _rows_of(self, split: str) -> Any:
        arrays, dataset = (
            (self.data.arrays, self.data.train) if split == "train" else (self.data.val_arrays, self.data.val)
        )
        return arrays[0] if arrays is not None else dataset

    def _batch(self, split: str, epoch: int, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of these samples, without those whose preparation raises."""
        arrays = self.data.arrays if split == "train" else self.data.val_arrays
        if arrays is not None:
            x, y = (torch.as_tensor(array[list(indices)]) for array in arrays)
        else:
            samples = list(self._prepared(split, epoch, indices))
            x = torch.stack([sample[0] for sample in samples]) if samples else torch.empty(0)
            y = torch.tensor([sample[1] for sample in samples])
        return self.data.on_device((x, y)) if self.data.on_device is not None and len(y) else (x, y)

    def _prepared(self, split: str, epoch: int, indices: Sequence[int]) -> Iterator[Any]:
        """Yield samples, each prepared with its published seed; the generators' states are restored afterwards."""
        dataset = self._rows_of(split)
        generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
        for index in indices:
            seed = sample_seed(self.study.seed, split, epoch, index)
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed all accelerators too
            with contextlib.suppress(ZeroDivisionError):
                yield dataset[index]
        random.setstate(generators[0])
        np.random.set_state(generators[1])
        torch.set_rng_state(generators[2])

    def _batches(self, epoch: int) -> Iterator[tuple[int, Any]]:
        """Yield batches, each with the number of elements of the epoch's order up to and including its last sample."""
        member, length = self.member, len(self._rows_of("train"))
        order = [(place + 1, index) for place, index in enumerate(permutation(self.study.seed, epoch, length).tolist())]
        if member.subset is not None:
            order = [pair for pair in order for _ in range(list(member.subset).count(pair[1]))]
        if member.drop_last:
            order = order[: len(order) - len(order) % member.batch_size]
        for start in range(0, len(order), member.batch_size):
            pairs = order[start : start + member.batch_size]
            yield pairs[-1][0], self._batch("train", epoch, [index for _, index in pairs])

    # ---- a step

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        precision = self.member.precision
        return torch.autocast("cpu", DTYPES[precision]) if precision in DTYPES else contextlib.nullcontext()

    def _step(self, batch: Any) -> Tensor:
        """Train on a batch and return its losses, one for each sample."""
        member = self.member
        batch = member.augment(batch) if member.augment is not None else batch
        rows, losses = len(batch[1]), []
        if member.optimizers is not None:
            losses.append(_each(member.step(self.model, batch, self.optimizer), rows))
        else:
            self.optimizer.zero_grad()
            size = -(-rows // member.accumulate)
            for start in range(0, rows, size):
                part = tuple(leaf[start : start + size] for leaf in batch)
                with self._autocast():
                    loss = self._losses(part)[0]
                # The first loss scale, 65,536, is larger than the largest float16 number.
                loss = loss.float() if loss.dtype == torch.float16 else loss
                losses.append(_each(loss, len(part[1])))
                mean = loss.mean() if len(part[1]) == rows else loss.mean() * (len(part[1]) / rows)
                self.scaler.scale(mean).backward()
            self.scaler.unscale_(self.optimizer) if self.scaler.is_enabled() else None
            if member.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), member.clip_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.schedule is not None and member.schedule_per == "step":
            self.schedule.step()
        self.steps, self.samples = self.steps + 1, self.samples + rows
        return torch.cat(losses)

    def _losses(self, batch: Any) -> tuple[Tensor, Any, Any]:
        """Return losses, outputs and targets of a batch; a member's own step may leave out the last two."""
        if self.member.step is not None:
            made = self.member.step(self.model, batch)
            return made if isinstance(made, tuple) else (made, None, None)
        output = self.model(batch[0])
        loss: Callable[..., Tensor] = self.member.loss or _cross_entropy
        return loss(output, batch[1]), output, batch[1]

    def _rate(self) -> float:
        optimizer = self.optimizer if self.member.optimizers is None else next(iter(self.optimizer.values()))
        return float(optimizer.param_groups[0]["lr"])

    def _move_schedule(self, row: dict[str, float], *, ends_epoch: bool) -> None:
        if self.schedule is None or self.member.schedule_per == "step" or not ends_epoch:
            return
        if isinstance(self.schedule, ReduceLROnPlateau):
            self.schedule.step(row[self.study.objective])
        else:
            self.schedule.step()

    # ---- validation

    @torch.no_grad()
    def _validation(self, epoch: int) -> dict[str, float]:
        if not self.data.has_val:
            return {}
        self.model.eval()
        member, size = self.member, self.member.eval_batch_size or self.member.batch_size
        length = len(self._rows_of("val"))
        indices = range(length) if member.val_subset is None else sorted(member.val_subset)
        losses, outputs, targets = list[Tensor](), list[Tensor](), list[Tensor]()
        for start in range(0, len(indices), size):
            batch = self._batch("val", epoch, indices[start : start + size])
            if not len(batch[1]):
                continue
            with self._autocast():
                made = member.validate(self.model, batch) if member.validate is not None else self._losses(batch)
            loss, output, target = made if isinstance(made, tuple) else (made, None, None)
            losses.append(_each(loss, len(batch[1])).double())
            if member.metrics:
                outputs.append(output)
                targets.append(target)
        found = {"val_loss": float(torch.cat(losses).mean()) if losses else math.nan}
        for name, metric in member.metrics.items():
            found[f"val_{name}"] = _measured(metric, outputs, targets) if losses else math.nan
        return found


def _measured(metric: Any, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> float:
    """Return a metric of the whole validation set: the mean of its values per sample, or its single number."""
    if isinstance(metric, type):
        state = metric()
        for output, target in zip(outputs, targets, strict=True):
            state.update(output, target)
        return float(state.compute())
    return float(metric(torch.cat(list(outputs)), torch.cat(list(targets))).double().mean())


def _each(loss: Tensor, rows: int) -> Tensor:
    """Return one loss for each sample."""
    loss = loss.detach().double()
    return loss.expand(rows) if not loss.dim() else loss.reshape(rows, -1).mean(1)


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none")


def _stops(rule: Any, rows: Sequence[dict[str, float]]) -> bool:
    """Return whether a stopping rule ends a member with this history."""
    last = rows[-1]
    if isinstance(rule, stopping.Either):
        return _stops(rule.first, rows) or _stops(rule.second, rows)
    if isinstance(rule, stopping.Both):
        return _stops(rule.first, rows) and _stops(rule.second, rows)
    if isinstance(rule, stopping.MaxEpochs):
        return last["epochs"] >= rule.epochs - 1e-9
    if isinstance(rule, stopping.MaxSteps):
        return last["steps"] >= rule.steps
    if isinstance(rule, stopping.MaxSamples):
        return last["samples"] >= rule.samples
    if isinstance(rule, stopping.Target):
        return any(row[rule.metric] <= rule.value for row in rows[-1:])
    assert isinstance(rule, stopping.Plateau)
    best, *later = (row[rule.metric] for row in rows)
    since = 0
    for value in later:
        improves = value < best - rule.min_delta or (math.isnan(best) and not math.isnan(value))
        best, since = (value, 0) if improves else (best, since + 1)
    return since >= rule.patience
