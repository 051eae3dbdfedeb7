"""The state of a run: the fold of its journal. The last record of a member's section wins."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from argosy.protocol.events import (
    Answered,
    Assigned,
    BeganAnew,
    Checkpoint,
    Cloned,
    Constrained,
    DataOpened,
    Discarded,
    Divided,
    EnsembleChosen,
    Event,
    Fed,
    MemberEnded,
    MemberRested,
    MemberStarted,
    NodeCame,
    Passed,
    PolicyAnswered,
    Proposed,
    Retried,
    RunEnded,
    RunStarted,
    Saved,
    SearchBegan,
    SectionEnded,
    ShardsRead,
    SharingChosen,
    Skipped,
    Split,
    Used,
    WorkerLost,
)
from argosy.protocol.packs import Packed, StepsAlone
from argosy.stopping import GrowingHistory

__all__ = ["CUT_SHORT_STATUSES", "FINAL_STATUSES", "FAILED_STATUSES", "MemberState", "RunState"]

FAILED_STATUSES = ("failed", "diverged")
"""Statuses of members that failed through their own code or loss."""
CUT_SHORT_STATUSES = ("stopped", *FAILED_STATUSES)
"""Statuses of members that ended before they were done; more epochs do not bring them back."""
FINAL_STATUSES = ("done", *CUT_SHORT_STATUSES)
"""Statuses of members that have stopped training; a member that is done may be given more epochs later."""

FILES_KEPT = 4
"""Newest checkpoints of a member that are remembered; its folder has the newest two."""


@dataclass(slots=True)
class MemberState:
    """What the journal says about one member."""

    name: str
    status: str = "waiting"
    """waiting, training, resting, done, failed, diverged, stopped, or paused."""
    reason: str = ""
    device: str = ""
    parameters: int = 0
    """Number of elements in its network's parameters; 0 before it has started."""
    sections: list[SectionEnded] = field(default_factory=list)
    """Finished sections, in order."""
    behind: int = 0
    """Number of sections trained by the source, for a clone that began with the source's file."""
    history: GrowingHistory = field(default_factory=GrowingHistory)
    """One row for each finished section, as in `argosy.stopping.History`."""
    best: SectionEnded | None = None
    """The section with the best objective that this member trained itself; the earliest of equals."""
    saved: list[Checkpoint] = field(default_factory=list)
    """Newest checkpoints, oldest first."""
    assigned: list[tuple[int, int]] = field(default_factory=list)
    """(own epoch, stream epoch), as in `Assigned`, by ascending own epoch."""
    accumulate: int | None = None
    """Micro-batches per step, if more than the member's own number."""
    split: Split | None = None
    """Split over several devices; None if it trains on one."""
    source: str | None = None
    """Name of the member that this one was cloned from."""
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Hyper-parameters in which it differs from its source, as (value of the source, own value)."""
    inherited: Checkpoint | None = None
    """The source's checkpoint that a clone started from."""
    as_alone: bool = True
    """Whether its results are so far bit for bit those of training alone: no program or split of it has rounded differently."""
    packed: Packed | None = None
    """Latest choice of programs for it and similar members."""
    aside: str | None = None
    """Folder with its files from before it started over, relative to the run directory; None if it never started over."""

    @property
    def epochs(self) -> float:
        """Finished epochs: a whole number, or with several validations an epoch also a fraction."""
        epochs = self.sections[-1].epochs if self.sections else 0
        return int(epochs) if epochs == int(epochs) else epochs

    @property
    def own_epochs(self) -> float:
        """Finished epochs that it trained itself."""
        return self.epochs - (self.sections[self.behind - 1].epochs if self.behind else 0.0)

    @property
    def own_sections(self) -> list[SectionEnded]:
        """Finished sections that it trained itself."""
        return self.sections[self.behind :]

    @property
    def begun(self) -> bool:
        """Whether it has stream epochs of its own; those of a clone that has not trained are the source's."""
        return bool(self.assigned) and (self.inherited is None or bool(self.device))

    @property
    def saved_at_its_end(self) -> bool:
        """Whether its newest file was written after its last section."""
        newest = self.saved[-1] if self.saved else None
        last = self.sections[-1] if self.sections else None
        if newest is None or last is None:
            return False
        return (newest.epoch, newest.section) > (last.epoch, last.section)

    def gap(self, per_epoch: int) -> int | None:
        """Return where `sections` first has another section than belongs there, because the journal lost one; None if all are there."""
        return next((at for at, row in enumerate(self.sections) if row.epoch * per_epoch + row.section != at), None)

    def stream_epoch(self, epoch: int) -> int | None:
        """Return the stream epoch of an own epoch; None if none is assigned yet."""
        return next((at + epoch - own for own, at in reversed(self.assigned) if own <= epoch), None)

    def end_section(self, ended: SectionEnded) -> None:
        """Record a finished section. If it was trained again after a fault, it replaces the earlier record and all later ones."""
        self.forget_from(ended.epoch, ended.section)
        self.sections.append(ended)
        samples = ended.samples + (self.history[-1]["samples"] if self.history else 0)
        so_far = {"epochs": ended.epochs, "steps": ended.steps, "samples": samples}
        self.history.append({**ended.metrics, "seconds": ended.seconds, **so_far})
        if ended.best:
            self.best = ended

    def forget_from(self, epoch: int, section: int) -> None:
        """Drop this section and all later ones."""
        count = len(self.sections)
        while count and (self.sections[count - 1].epoch, self.sections[count - 1].section) >= (epoch, section):
            count -= 1
        if count < len(self.sections):
            del self.sections[count:], self.history[count:]
            self.behind = min(self.behind, count)
            self.best = next((row for row in reversed(self.own_sections) if row.best), None)

    def start(self, event: MemberStarted) -> None:
        """Continue from the point of the event, dropping what was journaled beyond it."""
        self.status, self.reason, self.device = "training", "", event.device
        self.parameters = event.parameters
        self.forget_from(event.epoch, event.section)
        position = (event.epoch, event.position)
        self.saved = [c for c in self.saved if (c.epoch, c.reaches) <= position]

    def retry(self) -> None:
        """Continue from the newest file.

        The best weights are those of that time, because the code may now train differently.
        """
        self.status, self.reason = "waiting", ""
        # Two entries for one file differ in the best weights; the later ones are newer than the file.
        if len(self.saved) > 1 and self.saved[-1].file == self.saved[-2].file:
            del self.saved[-1]

    def clone(self, event: Cloned, source: "MemberState") -> None:
        """Take over the source's sections up to the checkpoint, but not its best section."""
        self.source, self.changes, self.inherited = source.name, event.changes, event.checkpoint
        if event.checkpoint is None:
            return
        self.saved, self.assigned = [event.checkpoint], list(source.assigned)
        self.sections, self.history = (
            [replace(row, member=self.name) for row in source.sections],
            GrowingHistory(source.history),
        )
        self.forget_from(event.checkpoint.epoch, event.checkpoint.section)
        self.behind, self.best = len(self.sections), None

    def follows(self, epoch: int, stream_epoch: int) -> bool:
        """Return whether the latest assignment begins at or before this own epoch, and maps it to this stream epoch."""
        return self.stream_epoch(epoch) == stream_epoch and self.assigned[-1][0] <= epoch

    def assign(self, epoch: int, stream_epoch: int) -> None:
        """Follow the stream from `stream_epoch` on, starting with the own epoch `epoch`."""
        if not self.follows(epoch, stream_epoch):
            self.assigned = [*(pair for pair in self.assigned if pair[0] < epoch), (epoch, stream_epoch)]


@dataclass(slots=True)
class RunState:
    """The fold of a journal."""

    members: dict[str, MemberState] = field(default_factory=dict)
    started: RunStarted | None = None
    ended: RunEnded | None = None
    searches: list[SearchBegan] = field(default_factory=list)
    """Terms of a search, one entry per driver; the last one applies."""
    proposed: dict[str, Proposed] = field(default_factory=dict)
    """Trials of a search in order, by the name of their row in its report."""
    constrained: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of a search's constraints, by the name of a trial."""
    keeping: Mapping[str, str] = field(default_factory=dict)
    """By split: which prepared samples are kept, or why none are, in words."""
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split: the shard lengths of a stream that is not kept."""
    shards_read: list[ShardsRead] = field(default_factory=list)
    """How far shards were read, in the latest epoch that has such records."""
    fed: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Samples prepared for each section of the stream, by split, epoch and section."""
    discarded: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Samples that were prepared ahead and discarded, by the same keys."""
    holes: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    """Indices of broken samples, by split and stream epoch."""
    used: list[list[Used]] = field(default_factory=list)
    """Final reports of workers, by driver, since each driver names its workers anew."""
    lost: list[WorkerLost] = field(default_factory=list)
    suspects: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Members that may have made a device unusable, each until it ends a later section than this (epoch, section)."""
    passed: list[list[Passed]] = field(default_factory=list)
    """Sections that legs have passed, by driver, since each driver counts its legs anew."""
    saving: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds that trainers took for files, by number of the driver (from 1) and of the leg."""
    packed: list[Packed] = field(default_factory=list)
    """Every choice of programs, first to last."""
    policy_answers: dict[str, PolicyAnswered] = field(default_factory=dict)
    """First answer of the policy to each question; a driver that follows a killed one may ask again."""
    alone: dict[str, str] = field(default_factory=dict)
    """By member: why it could not share a program with others; only for members that were tried."""
    answered: list[Answered] = field(default_factory=list)
    sharing: SharingChosen | None = None
    ensembles: list[EnsembleChosen] = field(default_factory=list)
    """Ensembles that `Study.ensemble` selected, one per section."""
    brought: list[str] = field(default_factory=list)
    """Members that were added after the run had begun."""
    in_step: set[str] = field(default_factory=set)
    """Members whose own epochs are those of the stream, whenever they join, so that their results depend on no other member."""
    killed: int = 0
    """Number of drivers that were killed and followed by another one."""
    seconds: float = 0.0
    """Working time of all drivers that ended properly; `cpu_seconds` is of the same drivers."""
    cpu_seconds: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)
    """Energy that the whole machine used in that time, by counter."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> "RunState":
        """Fold events, first to last."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def deep_copy(self) -> "RunState":
        """Return an independent copy; events are shared."""
        copy: RunState = _copy_value(self)
        return copy

    def member(self, name: str) -> MemberState:
        """Return the member of that name; it is created if unknown."""
        state = self.members.get(name)
        if state is None:
            state = self.members[name] = MemberState(name)
        return state

    def apply(self, event: Event) -> None:
        """Apply one more event."""
        match event:
            case SectionEnded():
                self.member(event.member).end_section(event)
                if (event.epoch, event.section) > self.suspects.get(event.member, (event.epoch, event.section)):
                    del self.suspects[event.member]
            case Saved():
                leg = len(self.passed), event.leg
                self.saving[leg] = self.saving.get(leg, 0.0) + event.seconds
                saved = self.member(event.member).saved
                saved.append(event.checkpoint)
                del saved[:-FILES_KEPT]
            case MemberStarted():
                self.member(event.member).start(event)
            case MemberRested():
                self.member(event.member).status, self.member(event.member).reason = "resting", event.reason
            case MemberEnded():
                self.member(event.member).status, self.member(event.member).reason = event.status, event.reason
            case Assigned():
                for name, (epoch, stream_epoch) in event.members.items():
                    self.member(name).assign(epoch, stream_epoch)
            case BeganAnew():
                for name, aside in event.members.items():
                    self.members[name] = MemberState(name, aside=aside)
                    self.suspects.pop(name, None)
            case Retried():
                for name in event.members:
                    self.member(name).retry()
            case Cloned():
                self.member(event.member).clone(event, self.member(event.source))
            case Divided():
                self.member(event.member).accumulate = event.accumulate
            case Split():
                member = self.member(event.member)
                member.split = event if len(event.devices) > 1 else None
                member.as_alone = member.as_alone and member.split is None
            case _:
                self._apply_to_run(event)

    def _apply_to_run(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.killed += self.started is not None and self.ended is None
                self.started, self.ended = event, None
                self.passed.append([])
                self.used.append([])
            case RunEnded():
                self.ended = event
                self.seconds += event.seconds
                self.cpu_seconds += event.cpu_seconds
                for name, joules in event.joules.items():
                    self.joules[name] = self.joules.get(name, 0.0) + joules
            case SearchBegan():
                self.searches.append(event)
            case Constrained():
                self.constrained[event.member] = event.values
            case NodeCame():
                assert self.started is not None
                self.started = replace(self.started, devices=(*self.started.devices, *event.devices))
            case SharingChosen():
                self.sharing = event
            case EnsembleChosen():
                self.ensembles.append(event)
            case Fed() | Discarded():
                samples = self.fed if isinstance(event, Fed) else self.discarded
                key = (event.split, event.epoch, event.section)
                samples[key] = samples.get(key, 0) + event.samples
            case Passed():
                self.passed[-1].append(event)
            case DataOpened():
                self.keeping, self.shards = event.keeping, event.shards
            case ShardsRead():
                if self.shards_read and self.shards_read[-1].epoch != event.epoch:
                    self.shards_read.clear()
                self.shards_read.append(event)
            case Skipped():
                self.holes.setdefault((event.split, event.epoch), set()).add(event.index)
            case Used():
                self.used[-1].append(event)
            case WorkerLost():
                self.lost.append(event)
                self._suspect(event)
            case Packed():
                self.packed.append(event)
                for name in itertools.chain.from_iterable(event.programs):
                    member = self.member(name)
                    member.packed, member.as_alone = event, member.as_alone and event.exact
            case PolicyAnswered():
                self.policy_answers.setdefault(event.question, event)
            case StepsAlone():
                self.alone.update(event.reasons)
            case Proposed():
                self.proposed[event.member] = event
                names = event.members or (event.member,)
                if event.in_step or event.sections is not None:
                    self.in_step.update(names)
                elif self.started is not None:
                    self.brought.extend(names)
            case Answered():
                self.answered.append(event)

    def _suspect(self, lost: WorkerLost) -> None:
        """Suspect the members that a loss names; other suspects that were on the lost worker are cleared."""
        members_there = [name for name, member in self.members.items() if member.device == lost.worker]
        for name in members_there if lost.suspects else ():
            self.suspects.pop(name, None)
        for name in lost.suspects:
            ended = self.members[name].sections[-1:] if name in self.members else []
            self.suspects[name] = (ended[0].epoch, ended[0].section) if ended else (-1, -1)

    @property
    def skipped(self) -> dict[str, tuple[int, int]]:
        """By split: the number of samples that raised in any epoch and were left out there, and the number of all samples."""
        lengths = {} if self.started is None else self.started.lengths
        by_split: dict[str, set[int]] = {}
        for (split, _), indices in self.holes.items():
            by_split.setdefault(split, set()).update(indices)
        return {split: (len(indices), lengths[split]) for split, indices in by_split.items() if split in lengths}

    @property
    def preparations(self) -> float:
        """Mean number of times that a training sample of a section of the stream was prepared, discarded samples included.

        1.0 if all members share one stream. Samples prepared for sections that no member reached are not counted.
        """
        fed = {key: samples + self.discarded.get(key, 0) for key, samples in self.fed.items() if key[0] == "train"}
        return sum(fed.values()) / self._samples_fed

    @property
    def preparations_alone(self) -> float:
        """The same for one script per member that prepares only the samples that its member steps on."""
        samples = sum(ended.samples for member in self.members.values() for ended in member.own_sections)
        return samples / self._samples_fed

    @property
    def _samples_fed(self) -> int:
        """Number of training samples in the sections of the stream that were fed; at least 1."""
        assert self.started is not None
        length, sections = self.started.lengths["train"], self.started.validations_per_epoch
        fed = [s for split, _, s in self.fed if split == "train"]
        return max(sum((s + 1) * length // sections - s * length // sections for s in fed), 1)


def _copy_value(value: Any) -> Any:
    # `copy.deepcopy` would copy all events, which never change.
    if isinstance(value, RunState | MemberState):
        return replace(value, **{name: _copy_value(getattr(value, name)) for name in value.__slots__})
    if isinstance(value, list | set):
        return type(value)(map(_copy_value, value))
    return {key: _copy_value(item) for key, item in value.items()} if isinstance(value, dict) else value
