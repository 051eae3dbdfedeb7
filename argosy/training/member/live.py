"""A member in training: all state that its next steps depend on, which can be saved and loaded. Programs step it.

Its result is a function of the member, the study's seed and its list of stream epochs, and of nothing else: not of other members, the block
size, other work of the device, or interruptions.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from argosy.errors import StudyError
from argosy.errors.traces import reason_of
from argosy.stopping import Mode, is_better
from argosy.stream.batches import Batch, Cutter, PartialBatch
from argosy.stream.order import Digest
from argosy.stream.schedule import Orders
from argosy.study import Member
from argosy.training.device.clock import DeviceClock
from argosy.training.device.devices import Backend, DeviceEvent, is_out_of_memory
from argosy.training.member.answers import Answers
from argosy.training.member.best import Best, BestWeights
from argosy.training.member.checkpoint import move_tensors, tensors_at
from argosy.training.member.copied import DATA_BYTES, called_objects, called_state, copy_together, is_plain_module
from argosy.training.member.cutting import Cutting
from argosy.training.member.mistakes import naming_part
from argosy.training.member.own import (
    load_optimizer_state,
    load_schedule_state,
    optimizer_state,
    schedule_state,
    step_schedule,
    strip_given,
)
from argosy.training.member.precision import LossScale
from argosy.training.member.randomness import Mark, Randomness
from argosy.training.member.running_average import RunningAverage
from argosy.training.member.snapshots import Snapshots, unstack_snapshots
from argosy.training.member.tally import Tally, batch_total
from argosy.training.member.validation import Validation
from argosy.training.member.weights import NetworkWeights, extra_states, load_weights

__all__ = ["BatchLengths", "LiveMember"]


class BatchLengths(NamedTuple):
    """Numbers of samples in the batches of some members."""

    train: frozenset[int]
    val: frozenset[int]
    apart: tuple[bool, bool] = (False, False)
    """Whether members of one program have different batches: in training, and in validation."""

    @classmethod
    def of(cls, lives: Sequence["LiveMember"]) -> "BatchLengths":
        """Return the batch lengths of these members in an epoch and a validation without broken samples."""
        train = {live.usual_batch for live in lives}
        train |= {live.cutter.length % live.cutter.batch_size for live in lives if live.cutter is not None}
        val = {rows for live in lives for rows in live.cutting.val_lengths}
        return cls(frozenset(train - {0}), frozenset(val - {0}))


@dataclass(slots=True)
class LiveMember:
    """One network in training."""

    member: Member
    """The member, with its own copies of the objects that it calls."""
    backend: Backend
    """Device on which it trains."""
    model: nn.Module
    optimizer: Any
    """A torch optimizer, or `OwnOptimizers`."""
    schedule: Any
    randomness: Randomness
    objective: str
    mode: Mode
    epoch: int = 0
    """Finished epochs."""
    section: int = 0
    """Finished sections of the current epoch."""
    steps: int = 0
    samples: int = 0
    """Samples stepped on in the current section."""
    private: bool = False
    """Whether it writes into its input, and therefore receives copies."""
    answering: bool = False
    """Whether it keeps the answers of its best section, for an ensemble."""
    snapshots: Snapshots | None = None
    """Set if weights of its last sections are kept, for an ensemble."""
    one_pass: bool = False
    """Whether kernels that round differently from its optimizer may step it."""
    thaws: bool = False
    """Whether its steps may unfreeze weights, of a copy also if its optimizer lacks the hook that may do it."""
    answers: tuple[int, bytes] | None = None
    """Its answers in the section that ended last, if that is its best one and it is `answering`."""
    outputs: torch.Tensor | None = None
    """A meta tensor with the shape of its network's output; set when labels are first checked against it."""
    loss_scale: LossScale | None = field(init=False)
    """Set in float16."""
    average: RunningAverage | None = field(init=False)
    """Set if the member has an average."""
    weights: NetworkWeights = field(init=False)
    best: BestWeights = field(init=False)
    clock: DeviceClock = field(init=False)
    train: Tally = field(init=False)
    """Sums over the current epoch."""
    val: Validation = field(init=False)
    """Validation of the current section."""
    average_val: Validation = field(init=False)
    """The same with the averaged weights, if it has an average."""
    half_validated: Mark | None = None
    """Generators before the next batch, if raw weights have validated it already: an error has interrupted the pass of averaged ones."""
    cutter: Cutter | None = None
    val_cutter: Cutter | None = None
    cutting: Cutting = field(init=False, repr=False)
    epoch_samples: int | None = None
    """Number of samples in its epochs; None while unknown."""
    _carried: PartialBatch | None = None
    """Part of a batch, loaded from a checkpoint; used when the epoch begins."""
    _validating: Randomness | None = None
    """Random state of the current validation, if any."""
    _unvalidated: dict[str, torch.Tensor] = field(default_factory=dict)
    """Copies of the buffers, except `DATA_BYTES` ones, from the start of this validation, which a resumed member repeats from the start."""

    def __post_init__(self) -> None:
        self.clock, self.cutting = DeviceClock(self.backend), Cutting(self.member)
        self.train = Tally(self.backend)
        self.loss_scale = LossScale(self.member.name) if self.member.precision == "float16" else None
        rule = self.member.average
        self.average = None if rule is None else RunningAverage(rule, self.model, thaws=self.thaws)
        self.weights = NetworkWeights(self.member.name, self.model, self.average, apart=self.backend.apart)
        self.best = BestWeights(self.weights)
        self.begin_validation()

    @property
    def seconds(self) -> float:
        """Device seconds spent on steps and validation of the current section. Waits for an asynchronous device."""
        return self.clock.seconds

    # ---- the stream

    def begin_epoch(self, orders: Orders, stream_epoch: int, position: int = 0) -> None:
        """Start to cut batches from this stream epoch, of which the member has already consumed `position` elements."""
        carried, self._carried = self._carried, None
        if self.average is not None and self.average.waits and self.epoch:
            # First: the best weights may be averaged ones, which the end of an epoch changes.
            self.best.keep()
            self.average.end_epoch(self.epoch - 1)
        self.cutting.begin_epoch(orders, stream_epoch)
        self.cutter = self.cutting.train(position, carried)
        self.begin_section()

    def begin_section(self) -> None:
        """Begin a section, and prepare the validation at its end."""
        self.begin_validation()
        self.val_cutter = self.cutting.val()
        self.model.train()

    def begin_validation(self) -> None:
        """Discard a validation, and prepare another one."""
        self.val, self._validating, self._unvalidated, self.half_validated = self._validation(), None, {}, None
        if self.average is not None:
            self.average_val = self._validation()

    @property
    def validating(self) -> Randomness:
        """Random state of the current validation: a copy of the training state at its start, which advances over all its blocks."""
        if self._validating is None:
            self._validating = self.randomness.clone()
            small = [(name, b) for name, b in self.model.named_buffers() if b.numel() * b.itemsize <= DATA_BYTES]
            self._unvalidated = {name: buffer.clone() for name, buffer in small}
        return self._validating

    def _validation(self) -> Validation:
        answers = Answers(self.member, self.backend) if self.answering else None
        return Validation(self.member, self.backend, answers)

    def end_validation(self) -> None:
        """Compute the metrics that are computed once per validation; called after the last batch."""
        self.val.end()
        if self.averaged is not None:
            self.average_val.end()

    @property
    def averaged(self) -> RunningAverage | None:
        """The average of its weights; None before it has averaged any."""
        return self.average if self.average is not None and self.average.count else None

    def commit(self, batch: Batch, losses: torch.Tensor | None) -> None:
        """Record a step on a batch, with its per-sample losses or their mean; None if all its samples are broken."""
        if losses is not None:
            self.train.add(batch.rows, batch.digest, {"loss": batch_total(losses, batch.rows)})
            self.samples += batch.rows
        assert self.cutter is not None
        self.cutter.commit(batch)
        self._follow_epoch()

    def commit_several(self, count: int, rows: int, digest: Digest, totals: torch.Tensor, event: DeviceEvent) -> None:
        """Record steps on `count` batches, which the cutter has committed; their loss sums are being copied to the host."""
        self.train.bring(rows, digest, "loss", totals, event)
        self.samples += rows
        self.steps += count
        self._follow_epoch()

    def _follow_epoch(self) -> None:
        """Update the average after the last step of an epoch."""
        if self.average is not None and not self.average.waits and self.cutter is not None and self.cutter.done:
            self.average.end_epoch(self.epoch)

    @property
    def usual_batch(self) -> int:
        """Number of samples in a training batch that is not the rest of an epoch: `batch_size`, or all samples if these are fewer.

        Where such a batch would end in a micro-batch of one sample, it is one longer, because BatchNorm refuses that before a message could.
        """
        size = self.member.batch_size
        if self.epoch_samples is None or self.epoch_samples >= size:
            return size
        lone = self.epoch_samples % -(-size // self.member.accumulate) == 1
        return min(self.epoch_samples + lone, size)

    @property
    def position(self) -> int:
        """Number of elements of the current epoch in finished batches."""
        return 0 if self.cutter is None else self.cutter.position

    @property
    def carried(self) -> int:
        """Number of elements after `position` that are already gathered for the next batch."""
        return 0 if self.cutter is None else self.cutter.gathered

    @property
    def again(self) -> int:
        """Number of elements before `position` that the stream must deliver again to a member that resumes there."""
        return 0 if self.cutter is None else self.cutter.again

    @property
    def diverged(self) -> bool:
        """Whether the training loss is no longer finite; on an asynchronous device, as of the previous call."""
        return not self.train.finite

    # ---- a section's end

    def end_section(self, sections: int) -> dict[str, float]:
        """End a section, one of `sections` in an epoch; returns training metrics over the epoch so far, and validation metrics.

        At the end of an epoch the schedule is stepped, and the sums are reset.
        """
        metrics = self._metrics()
        ends_epoch = self.section + 1 == sections
        if ends_epoch:
            # With the raw objective, before `_choose` replaces it: an average must not change how the weights are trained.
            self.step_schedule(metrics[self.objective])
        if self.average is not None:
            self._choose(metrics)
        self._judge(metrics[self.objective], averaged=bool(metrics.get("averaged")))
        self.section += 1
        self.begin_validation()
        self.val_cutter = None
        self.clock, self.samples = DeviceClock(self.backend), 0
        if ends_epoch:
            self.epoch, self.section = self.epoch + 1, 0
            self.train, self.cutter = Tally(self.backend), None
        return metrics

    def step_optimizer(self) -> None:
        """Let the optimizer itself step."""
        with naming_part("optimizer", self.member.optimizer):
            self.optimizer.step()

    @property
    def has_batch_schedule(self) -> bool:
        """Whether its schedule is stepped after every batch."""
        return self.schedule is not None and self.member.schedule_per == "step"

    def step_batch_schedule(self) -> None:
        """Step the schedule after a batch, if it is stepped so."""
        if self.has_batch_schedule:
            with naming_part("schedule", self.member.schedule):
                self.schedule.step()

    def step_schedule(self, objective: float) -> None:
        """Step the schedule at the end of an epoch, unless it is stepped after every batch.

        Other sections of an epoch do not step it, because weights would depend on their number.
        """
        if self.schedule is not None and not self.has_batch_schedule:
            with naming_part("schedule", self.member.schedule):
                step_schedule(self.schedule, objective)

    def _metrics(self) -> dict[str, float]:
        metrics = {"train_loss": self.train.means(["loss"])["loss"]}
        if self.val_cutter is not None:
            metrics.update({f"val_{name}": value for name, value in self.val.values().items()})
        rate = self.optimizer.param_groups[0].get("lr")
        if rate is not None:  # some optimizers choose the rate themselves
            metrics["lr"] = float(rate)
        return metrics

    def _choose(self, metrics: dict[str, float]) -> None:
        """Replace the raw metrics by those of the averaged weights, if these have the better objective, and add both under own names."""
        raw = {name: value for name, value in metrics.items() if name.startswith("val_")}
        average = {f"val_{name}": value for name, value in self.average_val.values().items()}
        averaged = is_better(average[self.objective], raw[self.objective], self.mode)
        metrics.update(average if averaged else raw)
        metrics.update({f"raw_{name}": value for name, value in raw.items()})
        metrics.update({f"average_{name}": value for name, value in average.items()}, averaged=float(averaged))

    def _judge(self, value: float, *, averaged: bool) -> None:
        self.answers = None
        if self.snapshots is not None:
            self.snapshots.add((self.epoch, self.section), self.weights.read(averaged=averaged))
        if self.best.offer(Best(self.epoch, self.section, value, averaged), self.mode):
            validation = self.average_val if averaged else self.val
            self.answers = None if validation.answers is None else validation.answers.whole()

    def forget_source(self) -> None:
        """Forget the best section and the snapshots of the clone source, whose state was just loaded into this member."""
        self.best.load(None)
        if self.snapshots is not None:
            self.snapshots.weights.clear()

    # ---- life

    def trial(self) -> "LiveMember":
        """Return a copy whose steps leave this member unchanged."""
        try:
            member, model, optimizer, schedule = copy_together(self.member, self.model, self.optimizer, self.schedule)
        except Exception as error:  # boundary to the objects of a user's network
            if is_out_of_memory(error):
                raise
            raise StudyError(
                f"member {self.member.name!r}: its network and optimizer cannot be copied ({reason_of(error)}), "
                "but steps are tried on copies. Remove whatever copy.deepcopy refuses, such as locks, open files "
                "and generators, or define __deepcopy__ on the class that holds it."
            ) from error
        trained = model, optimizer, schedule, self.randomness.copy()
        copied = LiveMember(member, self.backend, *trained, self.objective, self.mode, thaws=self.thaws)
        copied.one_pass, copied.loss_scale = self.one_pass, copy.copy(self.loss_scale)
        copied.epoch_samples = self.epoch_samples
        if self.average is not None and copied.average is not None:
            copied.average.load_state_dict(self.average.state_dict())
        return copied

    def state_dict(self, *, carried: bool = False) -> dict[str, Any]:
        """Return all state that the member's next steps depend on; called between two steps.

        With `carried`, include samples gathered for the next batch; the stream then continues after them, and otherwise at `position`.
        """
        gathered = None if self.cutter is None or not carried else self.cutter.carried
        weights = self.weights.read()
        # A resumed member repeats the validation that is under way, so it needs the buffers from before it.
        weights.update({name: buffer for name, buffer in self._unvalidated.items() if name in weights})
        called = called_state(self.member, self.model)
        placed = {**called, "network": extra_states(weights)}
        return {
            "model": weights,
            "late": self.weights.late(weights),
            "turned": self.weights.turned,
            "optimizer": strip_given(optimizer_state(self.optimizer)),
            "schedule": None if self.schedule is None else schedule_state(self.schedule),
            "random": self.randomness.state_dict(),
            "loss_scale": None if self.loss_scale is None else (self.loss_scale.value, self.loss_scale.steps),
            "average": None if self.average is None else self.average.state_dict(),
            "called": called,
            "called_here": {name: tensors_at(own, self.backend.device) for name, own in placed.items()},
            "epoch": self.epoch,
            "section": self.section,
            "position": self.position,
            "carried": None if gathered is None else _carried_state(gathered),
            "train": self.train.state_dict(),
            "seconds": self.seconds,
            "samples": self.samples,
            "steps": self.steps,
            "best": None if self.best.section is None else astuple(self.best.section),
            "snapshots": None if self.snapshots is None else self.snapshots.stacked(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Load a saved state into the same member, which was just built; returns the position for `begin_epoch`."""
        here, device = state.get("called_here", {}), self.backend.device
        extra = move_tensors(extra_states(state["model"]), here.get("network", ()), device)
        load_weights(self.model, {**state["model"], **extra}, device, late=state.get("late", ()))
        named = dict(self.model.named_parameters())  # a ScriptModule has no `get_parameter`
        for name in state.get("turned", ()):  # weights that a step has frozen or unfrozen
            weight = named[name]
            weight.requires_grad_(not weight.requires_grad)
        load_optimizer_state(self.optimizer, state["optimizer"])
        if self.schedule is not None:
            load_schedule_state(self.schedule, state["schedule"])
        self.randomness.load_state_dict(state["random"])
        if self.loss_scale is not None and state.get("loss_scale") is not None:
            self.loss_scale.value, self.loss_scale.steps = state["loss_scale"]
        if self.average is not None and state.get("average") is not None:
            self.average.load_state_dict(state["average"])
        called = state.get("called", {}).items()
        self.load_called_state({name: move_tensors(own, here.get(name, ()), device) for name, own in called})
        self.train.load_state_dict(state["train"])
        self.epoch, self.section, self.steps = state["epoch"], state["section"], state["steps"]
        self.clock, self.samples = DeviceClock(self.backend, state["seconds"]), state["samples"]
        self.best.load(None if state["best"] is None else Best(*state["best"]))
        if self.snapshots is not None:
            self.snapshots.weights = unstack_snapshots(state.get("snapshots"))
        gathered = state["carried"]
        self._carried = None if gathered is None else _carried_of(gathered, self.backend.device)
        position: int = state["position"]
        return position

    @property
    def augment_keeps_state(self) -> bool:
        """Whether its augmentation is, or binds, an object with a `state_dict`; of modules only those with buffers: a copy at each step takes 50 us."""
        objects = called_objects(self.member)
        states = called_state(self.member, self.model).items()
        return any(name.startswith("augment") and (own or not is_plain_module(objects[name])) for name, own in states)

    def called_restorer(self) -> Callable[[], None]:
        """Return a function that restores the present state of the objects that it calls, kept on its device so that the host does not wait."""
        state = tree_map_only(torch.Tensor, torch.Tensor.detach, called_state(self.member, self.model))
        return partial(self.load_called_state, copy.deepcopy(state))

    def load_called_state(self, state: Mapping[str, Any]) -> None:
        """Load what `called_state` returned into the objects that the member calls."""
        for name, held in called_objects(self.member).items():
            if is_plain_module(held):
                load_weights(held, state.get(name, {}), self.backend.device, strict=False)
            elif name in state:
                held.load_state_dict(state[name])


def _carried_state(carried: PartialBatch) -> dict[str, Any]:
    leaves = [leaf.cpu() for leaf in carried.leaves]
    sound = None if carried.sound is None else torch.from_numpy(carried.sound)
    return {"leaves": leaves, "elements": carried.elements, "digest": tuple(carried.digest), "sound": sound}


def _carried_of(state: dict[str, Any], device: torch.device) -> PartialBatch:
    leaves = [leaf.to(device) for leaf in state["leaves"]]
    sound = state.get("sound")
    return PartialBatch(leaves, state["elements"], Digest(*state["digest"]), None if sound is None else sound.numpy())
