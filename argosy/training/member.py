"""A member on its device: builds it, steps it, evaluates it, saves it. A solo program in the words of DESIGN.md §3.3.

What it computes is a function of (member, study seed, its list of stream epochs) and of nothing else: not of its
neighbours, the block size, the device's other work, or where it was interrupted.
"""

import contextlib
import copy
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau

from argosy.errors import StudyError
from argosy.stream.batches import Batch, Cutter
from argosy.stream.blocks import Block
from argosy.stream.order import Digest, Selection, member_seed
from argosy.stream.schedule import Orders
from argosy.stream.trees import map_leaves
from argosy.study import Member
from argosy.training.heap import large_outside
from argosy.training.randomness import Randomness

__all__ = ["LiveMember", "build"]


@dataclass(slots=True)
class Tally:
    """Sums over one pass of a member over a split."""

    device: torch.device
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """Per-sample values summed in float64, in the order of the sequence."""
    rows: int = 0
    digest: Digest = field(default_factory=Digest)

    def add(self, batch: Batch, values: Mapping[str, torch.Tensor]) -> None:
        """Add a batch: per-sample values ``[rows, …]``, or means over the batch as scalars."""
        for name, value in values.items():
            value = value.detach().double()
            if value.dim() and len(value) != batch.rows:
                raise StudyError(
                    f"{name!r} gave a tensor of shape {tuple(value.shape)} for a batch of {batch.rows}; a loss or metric "
                    "gives one value per sample, or their mean as a scalar."
                )
            total = value * batch.rows if value.dim() == 0 else per_sample(value, batch.rows).sum()
            if name in self.sums:
                self.sums[name] += total
            else:
                self.sums[name] = total
        self.rows += batch.rows
        self.digest = self.digest.plus(batch.digest)

    def means(self, prefix: str) -> dict[str, float]:
        """Mean of each value over the samples so far."""
        return {f"{prefix}{name}": float(total) / max(self.rows, 1) for name, total in self.sums.items()}

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint within an epoch."""
        sums = {name: float(total) for name, total in self.sums.items()}
        return {"sums": sums, "rows": self.rows, "digest": tuple(self.digest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.sums = {k: torch.tensor(v, dtype=torch.float64, device=self.device) for k, v in state["sums"].items()}
        self.rows, self.digest = state["rows"], Digest(*state["digest"])


@dataclass(slots=True)
class LiveMember:
    """One network in training."""

    member: Member
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Any
    randomness: Randomness
    objective: str
    epoch: int = 0
    """Epochs finished."""
    seconds: float = 0.0
    """Time in this epoch's steps and validation."""
    private: bool = False
    """It writes into its input, so it gets copies."""
    steps: int = 0
    train: Tally = field(init=False)
    val: Tally = field(init=False)
    cutter: Cutter | None = None
    val_cutter: Cutter | None = None

    def __post_init__(self) -> None:
        self.train, self.val = Tally(self.device), Tally(self.device)

    # ---- an epoch

    def begin_epoch(self, orders: Orders, stream_epoch: int, position: int = 0) -> None:
        """Cut batches from this stream epoch; `position` elements of it are already behind the member."""
        member = self.member
        self.cutter = Cutter(
            selection=Selection.of(member.subset, orders.lengths["train"]),
            order=orders.epoch("train", stream_epoch),
            batch_size=member.batch_size,
            drop_last=member.drop_last,
            position=position,
        )
        if "val" in orders.lengths:
            self.val_cutter = Cutter(
                selection=Selection.of(member.val_subset, orders.lengths["val"]),
                order=orders.epoch("val", stream_epoch),
                batch_size=member.eval_batch_size or member.batch_size,
                drop_last=False,
            )
        self.model.train()

    def train_on(self, block: Block) -> int:
        """Step on the batches that this block completes; returns the samples stepped on."""
        assert self.cutter is not None
        started, before = time.perf_counter(), self.train.rows
        with self.randomness.active():
            for batch in self.cutter.take(block, private=self.private):
                if batch.rows:
                    self.step(batch)
        # No gradients while the neighbours step: that is memory, and it would lie in the middle of what they need.
        self.optimizer.zero_grad(set_to_none=True)
        self.seconds += time.perf_counter() - started
        return self.train.rows - before

    def evaluate_on(self, block: Block) -> None:
        """Evaluate on the batches that this block completes; leaves no trace in the random state."""
        assert self.val_cutter is not None
        started = time.perf_counter()
        self.model.eval()
        with torch.no_grad(), self.randomness.active(keep=True):
            for batch in self.val_cutter.take(block, private=self.private):
                if batch.rows:
                    self.val.add(batch, self._evaluate(batch.data))
        self.seconds += time.perf_counter() - started

    def end_epoch(self) -> dict[str, float]:
        """The epoch's metrics; the learning rate moves on, and the sums start again from nothing."""
        metrics = {**self.train.means("train_"), **self.val.means("val_")}
        metrics["lr"] = float(self.optimizer.param_groups[0]["lr"])
        if self.schedule is not None and self.member.schedule_per == "epoch":
            if isinstance(self.schedule, ReduceLROnPlateau):
                self.schedule.step(metrics[self.objective])
            else:
                self.schedule.step()
        self.epoch += 1
        self.cutter = self.val_cutter = None
        self.train, self.val, self.seconds = Tally(self.device), Tally(self.device), 0.0
        return metrics

    @property
    def diverged(self) -> bool:
        """Whether the training loss is no longer a number."""
        return any(not math.isfinite(float(total)) for total in self.train.sums.values())

    # ---- a step

    def step(self, batch: Batch) -> None:
        """One optimizer step on one batch, while the member's random state is active.

        The batch counts as one whatever the number of micro-batches.
        """
        with large_outside() if self.steps == 0 else contextlib.nullcontext():
            self._step(batch)

    def _step(self, batch: Batch) -> None:
        data = self.member.augment(batch.data) if self.member.augment else batch.data
        self.optimizer.zero_grad(set_to_none=True)
        parts = [self._backward(part, rows, batch.rows) for part, rows in self._parts(data, batch.rows)]
        if self.member.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.member.clip_grad_norm)
        self.optimizer.step()
        if self.schedule is not None and self.member.schedule_per == "step":
            self.schedule.step()
        self.steps += 1
        self.train.add(batch, {"loss": parts[0] if len(parts) == 1 else torch.cat(parts)})

    def _parts(self, data: Any, rows: int) -> Iterator[tuple[Any, int]]:
        """Micro-batches, each with its number of samples."""
        if self.member.accumulate == 1:
            yield data, rows
            return
        size = -(-rows // self.member.accumulate)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            yield map_leaves(operator.itemgetter(part), data), min(size, rows - start)

    def _backward(self, data: Any, rows: int, batch_rows: int) -> torch.Tensor:
        """Gradients of a micro-batch, weighted by its share of the batch; returns its losses, one per sample."""
        with self._autocast():
            losses = self._losses(data)[0]
        loss = losses.mean()
        torch.autograd.backward(loss if rows == batch_rows else loss * (rows / batch_rows))
        losses = losses.detach()
        return per_sample(losses, rows) if losses.dim() else losses.expand(rows)

    def _evaluate(self, data: Any) -> dict[str, torch.Tensor]:
        with self._autocast():
            losses, output, target = self._losses(data)
            values = {name: metric(output, target) for name, metric in self.member.metrics.items()}
        return {"loss": losses, **values}

    def _losses(self, data: Any) -> tuple[torch.Tensor, Any, Any]:
        if self.member.step is not None:
            return self.member.step(self.model, data), None, None
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise StudyError(
                f"member {self.member.name!r}: the standard step needs batches (inputs, target); these are "
                f"{type(data).__name__}. Give the member its own step: (model, batch) -> loss."
            )
        inputs, target = data
        output = self.model(inputs)
        loss: Callable[[Any, Any], torch.Tensor] = self.member.loss or cross_entropy
        return loss(output, target), output, target

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.member.precision == "float32":
            return contextlib.nullcontext()  # entered for every batch, and a tenth of what a disabled autocast costs
        return torch.autocast(self.device.type, torch.bfloat16)

    # ---- life

    def trial(self) -> "LiveMember":
        """A twin whose steps leave this member as it is."""
        model, optimizer, schedule = copy.deepcopy((self.model, self.optimizer, self.schedule))
        return LiveMember(self.member, self.device, model, optimizer, schedule, self.randomness.copy(), self.objective)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the member does next."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "random": self.randomness.state_dict(),
            "epoch": self.epoch,
            "position": 0 if self.cutter is None else self.cutter.position,
            "train": self.train.state_dict(),
            "seconds": self.seconds,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take up a saved state; returns the position in its next epoch."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.randomness.load_state_dict(state["random"])
        self.epoch, self.seconds, self.steps = state["epoch"], state["seconds"], state["steps"]
        position: int = state["position"]
        if position:
            self.train.load_state_dict(state["train"])
        else:
            self.seconds = 0.0
        return position


def build(member: Member, device: torch.device, *, study_seed: int, objective: str) -> LiveMember:
    """A member at its beginning: its network, optimizer and schedule, built under its own seed."""
    seed = member_seed(study_seed, member.name) if member.seed is None else member.seed
    randomness = Randomness.seeded(seed, device)
    with randomness.active(everything=True):
        model = member.model().to(device)
        optimizer = member.optimizer(model.parameters())
        schedule = None if member.schedule is None else member.schedule(optimizer)
    return LiveMember(member, device, model, optimizer, schedule, randomness, objective)


def per_sample(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Values ``[rows, …]`` -> their means over each sample ``[rows]``; raises where they are not so many."""
    return values if values.shape == (rows,) else values.reshape(rows, -1).mean(1)


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The default loss, per sample: output ``[B, classes]``, target ``[B]`` of class numbers -> ``[B]``."""
    return functional.cross_entropy(output, target, reduction="none")
