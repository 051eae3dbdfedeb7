"""Workers that only talk: they answer a driver as feeders and trainers do, but neither prepare nor train anything.

A block is a whole epoch and takes no time. Members cost as much as FLEET's hundred networks, with ten variants of each;
the files that they leave are empty. `Alone` keeps all workers in the driver's process; `fake_host.py` puts them in
processes that connect to its listener.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from planner_speed import HERE, multiplied
from torch import nn
from torch.optim import SGD

import argosy
from argosy.cli.simulated import read_networks, read_scaling
from argosy.cluster import Cluster
from argosy.planning.replay import workload_of
from argosy.profiles import Profile
from argosy.protocol.events import Checkpoint, Event, MemberRested, MemberStarted, Saved, SectionEnded, Used
from argosy.protocol.feeder import Credit, Feed, Hold, Leg, Open, Opened
from argosy.protocol.trainer import (
    Assign,
    Exit,
    Lost,
    Measure,
    Measured,
    Pause,
    Paused,
    Progress,
    SectionReport,
    StartMember,
    SumsTimed,
    TimeSums,
    Unassign,
)
from argosy.stopping import Stop
from argosy.stream.blocks import Place
from argosy.stream.course import FeedSchedule
from argosy.stream.gauges import StreamGauge, TrainerGauge
from argosy.study import Member

__all__ = ["BATCH", "LENGTH", "Alone", "FakeFeeder", "FakeTrainer", "names_of", "study_of"]

LENGTH, BATCH = 4096, 128
"""Samples of an epoch and of a step."""
MEMORY_BYTES = 16 * 10**9
VARIANTS = 10
STILL_FROM = 3
"""The epoch from which on every tenth member stops improving."""
IDLE_SECONDS = 0.01


@functools.cache
def costs() -> list[Profile]:
    """Return the costs of a thousand members, by number."""
    networks, scaling = (
        read_networks(HERE / "data/fleet_100dnns.csv"),
        read_scaling(HERE / "data/fleet_fig9_scaling.csv"),
    )
    sizes = {"device_memory_bytes": MEMORY_BYTES, "activation_bytes": 4 * 10**9}
    return multiplied(workload_of(networks, scaling=scaling, samples_per_epoch=LENGTH, **sizes).profiles, VARIANTS)


def names_of(count: int) -> list[str]:
    """Return the names of `count` members."""
    return [f"m{number:05}" for number in range(count)]


def cost_of(name: str) -> Profile:
    """Return the cost of a member by its name."""
    return costs()[int(name[1:]) % len(costs())]


def study_of(count: int, stop: Stop) -> argosy.Study:
    """Return a study of `count` members, no two of which do the same work."""
    nothing = argosy.Data(arrays=[torch.zeros(LENGTH, 1), torch.zeros(LENGTH)])
    members = [
        argosy.Member(name, model=partial(nn.Linear, 1, 1 + number), optimizer=partial(SGD, lr=0.1), batch_size=BATCH)
        for number, name in enumerate(names_of(count))
    ]
    return argosy.Study(data=nothing, members=members, stop=stop, objective="train_loss")


# ---- a feeder


class FakeFeeder:
    """Announces an epoch as soon as it has credit and all readers have taken the one before."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.course = FeedSchedule({}, per_epoch=1, block_size=LENGTH)

    def obey(self, command: Any) -> list[Any]:
        """Return the answers to a command of the driver."""
        match command:
            case Open():
                self.course = FeedSchedule({"train": LENGTH}, per_epoch=1, block_size=LENGTH)
                return [self._opened()]
            case Feed():
                return list(self.course.begin(command.leg))
            case Credit():
                self.course.allow(command)
            case Hold():
                return [self.course.hold(command)]
            case Exit():
                return [
                    *self.course.begin(Leg.empty()),
                    Used(worker=self.name, cpu_seconds=0.0, gauge=StreamGauge().to_json()),
                ]
        return []

    @property
    def place(self) -> Place | None:
        """The block that may be announced, if its readers are ready."""
        place = self.course.peek()
        return place if place is not None and self.course.assignments and self.course.may_announce(place) else None

    def announce(self, place: Place) -> list[Any]:
        """Announce the block, and return what there is to report."""
        self.course.next()
        fed = self.course.note_announced(place, place.rows)
        return [] if fed is None else [fed]

    def _opened(self) -> Opened:
        sizes = {"lengths": {"train": LENGTH}, "fingerprints": {}, "block_size": LENGTH}
        return Opened(seconds_per_sample=0.0, opening_seconds=0.0, keeping={}, **sizes)


# ---- a trainer


@dataclass(slots=True)
class _Assigned:
    leads: bool
    """Whether this trainer reports for the member."""
    epoch: int
    """The member's own epoch."""
    next: int
    """The first epoch of the stream that it still needs."""


@dataclass(kw_only=True, slots=True)
class FakeTrainer:
    """A trainer of one device; every epoch ends with a file of each member."""

    name: str
    directory: Path
    assigned: dict[str, _Assigned] = field(default_factory=dict)
    assignment: int = -1
    kept: list[tuple[Place, int]] = field(default_factory=list)
    """Blocks that arrived while measuring, or whose assignment is not known yet."""
    is_measuring: bool = False

    @property
    def ready(self) -> bool:
        """Whether the next block may come."""
        return not self.kept

    def obey(self, command: Any) -> list[Any]:
        """Return the answers to a command of the driver."""
        match command:
            case Measure():
                self.is_measuring |= command.assignment is not None
                self.assignment = self.assignment if command.assignment is None else command.assignment
                return [measured(name, command.groups) for name in command.members]
            case Assign():
                self.is_measuring = False
                left = self._leave(command.leave)
                started = [begun for start in command.start if (begun := self._start(start)) is not None]
                events = (*left, *started)
                return [*([SectionReport(events=events)] if events else []), *self._follow(command.assignment)]
            case Unassign():
                events = self._leave(command.members)
                return [SectionReport(events=events)] if events else []
            case Pause():
                events = self._leave(tuple(self.assigned))
                self.kept.clear()
                return [*([SectionReport(events=events)] if events else []), Paused()]
            case TimeSums():
                return [SumsTimed(short_seconds=1e-6, long_seconds=1e-4)]
            case Exit():
                return [Used(worker=self.name, cpu_seconds=0.0, gauge=asdict(TrainerGauge()))]
        return []

    def take(self, place: Place, assignment: int) -> list[Any]:
        """Return the reports on a block."""
        if assignment > self.assignment or self.is_measuring:
            self.kept.append((place, assignment))
            return []
        return [self._trained(place)] if assignment == self.assignment and self.assigned else []

    def progress(self) -> Progress:
        """Return progress as a trainer reports it a few times a second."""
        samples = {name: member.epoch * LENGTH for name, member in self.assigned.items()}
        losses = dict.fromkeys(self.assigned, 0.5)
        return Progress(samples=samples, losses=losses, gauge=asdict(TrainerGauge()))

    def _follow(self, assignment: int) -> list[Any]:
        self.assignment = assignment
        kept, self.kept = self.kept, []
        return [said for place, number in kept for said in self.take(place, number)]

    def _start(self, start: StartMember) -> MemberStarted | None:
        (self.directory / "members" / start.member).mkdir(parents=True, exist_ok=True)
        leads = start.group_rank is None or start.group_rank.rank == 0
        self.assigned[start.member] = _Assigned(leads=leads, epoch=start.epoch, next=start.stream_epoch)
        place = {"epoch": start.epoch, "section": 0, "position": 0, "stream_epoch": start.stream_epoch}
        return MemberStarted(member=start.member, device=self.name, threads=1, mkldnn=True, **place) if leads else None

    def _leave(self, names: Sequence[str]) -> tuple[Event, ...]:
        gone = {name: member for name in names if (member := self.assigned.pop(name, None)) is not None}
        leading = {name: member for name, member in gone.items() if member.leads}
        saved = [self._saved(name, member) for name, member in leading.items() if member.epoch]
        return (*saved, *(MemberRested(member=name, reason="") for name in leading))

    def _trained(self, place: Place) -> SectionReport:
        events: list[Event] = []
        for name, member in self.assigned.items():
            if place.section >= member.next:
                member.next = place.section + 1
                member.epoch += 1
                if member.leads:
                    events += [self._ended(name, member, place), self._saved(name, member)]
        return SectionReport(events=tuple(events), section=place.section)

    def _ended(self, name: str, member: _Assigned, place: Place) -> SectionEnded:
        epoch, still = member.epoch - 1, int(name[1:]) % VARIANTS == VARIANTS - 1
        loss = 1 / (1 + (min(epoch, STILL_FROM) if still else epoch))
        return SectionEnded(
            member=name,
            device=self.name,
            epoch=epoch,
            section=0,
            stream_epoch=place.epoch,
            position=LENGTH,
            metrics={"train_loss": loss},
            epochs=member.epoch,
            seconds=LENGTH / cost_of(name).rate(1),
            samples=LENGTH,
            digest=(0, 0, 0),
            val_digest=None,
            best=True,
            steps=member.epoch * LENGTH // BATCH,
        )

    def _saved(self, name: str, member: _Assigned) -> Saved:
        file = f"e{member.epoch:04}.pt"
        (self.directory / "members" / name / file).touch()
        saved = Checkpoint(file=file, sha256="0" * 64, epoch=member.epoch, section=0, position=0, best=file)
        return Saved(member=name, checkpoint=saved)


def measured(name: str, groups: int) -> Measured:
    """Return the measured costs of a member."""
    cost = cost_of(name)
    return Measured(
        member=name,
        samples_per_second=cost.rate(1),
        shard_seconds=tuple(BATCH / cost.rate(devices) for devices in range(2, groups + 1)),
        memory_bytes=cost.memory_bytes,
        activation_bytes=cost.activation_bytes,
        state_bytes=cost.state_bytes,
        gradient_bytes=0,
        parameter_shapes=name,
        batch_norm=False,
        whole="",
        notes=(),
    )


# ---- all of them in one process


@dataclass(kw_only=True, slots=True)
class Question:
    """The end of a section for which the driver must give credit, and the CPU time that its answer takes."""

    section: int
    """The section of the stream that has ended, or before which a node was lost."""
    lost: bool
    seconds: float
    """The driver's CPU time: its total when this was reported, and once it is answered, the difference."""
    changed_devices: int = 0
    """Trainers that got other members before there was credit."""
    ends: bool = False
    """Whether members have stopped improving by then."""


class Alone:
    """`Workers` of which only the driver takes time: its CPU time is what passes between two calls of `receive`."""

    side_by_side: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, directory: Path, *, loses: int) -> None:
        self.directory = directory
        self.node_of = {device.name: device.node for device in cluster.devices}
        self.loses = loses
        """The section of the stream before which the last node is lost."""
        self.feeders: dict[str, FakeFeeder] = {}
        self.trainers: dict[str, FakeTrainer] = {}
        self.unsent: list[tuple[str, Any]] = []
        self.said: list[tuple[str, Any]] = []
        self.answered: list[Question] = []
        self.driver_seconds = 0.0
        self._left = time.process_time()
        self._question: Question | None = None
        self._rendezvous = 0

    def start(self, name: str, role: str, node: str) -> None:
        """See `Workers.start`."""
        if role == "feeder":
            self.node_of[name], self.feeders[name] = node, FakeFeeder(name)
        else:
            self.trainers[name] = FakeTrainer(name=name, directory=self.directory)

    def send(self, worker: str, command: Any) -> None:
        """See `Workers.send`."""
        self.unsent.append((worker, command))

    def kill(self, worker: str) -> None:
        """See `Workers.kill`."""
        self.feeders.pop(worker, None)
        self.trainers.pop(worker, None)

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """See `Workers.enlist`."""

    def rendezvous(self) -> str:
        """See `Workers.rendezvous`."""
        self._rendezvous += 1
        return f"rendezvous/{self._rendezvous}"

    def heartbeat(self, worker: str) -> None:
        """See `Workers.heartbeat`."""

    def cpu_seconds(self, worker: str) -> float:
        """See `Workers.cpu_seconds`."""
        return 0.0

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`: all commands are obeyed at once, then the next epoch goes through all workers."""
        self.driver_seconds += time.process_time() - self._left
        unsent, self.unsent = self.unsent, []
        for worker, command in unsent:
            self._obey(worker, command)
        if not self.said:
            self._feed()
        if not self.said:
            time.sleep(min(timeout, IDLE_SECONDS))
        for _, message in self.said:
            if isinstance(message, SectionReport) and message.section is not None:
                self._ask(message.section)
        said, self.said = self.said, []
        self._left = time.process_time()
        return said

    def _obey(self, worker: str, command: Any) -> None:
        found = self.feeders.get(worker) or self.trainers.get(worker)
        if found is not None:
            self.said += [(worker, answer) for answer in found.obey(command)]
        question = self._question
        if question is None:
            return
        question.changed_devices += isinstance(command, Assign) and bool(command.start)
        if isinstance(command, Credit) and command.until > question.section:
            question.seconds = self.driver_seconds - question.seconds
            self.answered.append(question)
            self._question = None

    def _feed(self) -> None:
        """Pass the next epoch of every feeder that may announce it to its readers."""
        for feeder in list(self.feeders.values()):
            place = feeder.place
            if place is None or not all(self.trainers[reader].ready for reader in feeder.course.assignments):
                continue
            if place.section == self.loses:
                self._lose(next(reversed(self.node_of.values())))
                return
            for reader, assignment in feeder.course.assignments.items():
                self.said += [(reader, message) for message in self.trainers[reader].take(place, assignment)]
            self.said += [(feeder.name, message) for message in feeder.announce(place)]

    def _lose(self, node: str) -> None:
        gone = [worker for worker in (*self.feeders, *self.trainers) if self.node_of[worker] == node]
        for worker in gone:
            self.kill(worker)
        self.said += [(worker, Lost(detail="its node is gone", node_gone=True)) for worker in gone]
        self._ask(self.loses, lost=True)
        self.loses = -1

    def _ask(self, section: int, *, lost: bool = False) -> None:
        """Begin to measure the driver's answer to what it is about to receive."""
        if self._question is None:
            ends = section == STILL_FROM + 1
            self._question = Question(section=section, lost=lost, seconds=self.driver_seconds, ends=ends)

    def __enter__(self) -> "Alone":
        self._left = time.process_time()
        return self

    def __exit__(self, *error: Any) -> None:
        pass
