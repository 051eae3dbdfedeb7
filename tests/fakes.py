"""Runs of a real driver with workers that only exchange messages (`benchmarks/fake_workers.py`), and with policies and faults of tests."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import living
import pytest

import argosy
from argosy.cluster import Cluster, Device, Node
from argosy.planning import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile
from argosy.protocol.events import Event, Proposed, Saved
from argosy.protocol.feeder import Feed, Probe, Probed
from argosy.protocol.trainer import Assign, Lost, Measure, Save, SectionReport
from argosy.results.fold import FINAL_STATUSES, RunState
from argosy.running.control.driver import drive
from argosy.running.control.verdicts import Newcomer
from argosy.running.directory.journal import Journal
from argosy.running.directory.lock import Lock
from argosy.running.launch.launcher import Job
from argosy.running.watch.view import Silent
from argosy.settings import Settings
from argosy.study import Member, Study

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from fake_workers import MEMORY_BYTES, Alone, FakeFeeder, FakeTrainer, names_of, study_of

__all__ = ["Brings", "Deals", "Script", "Vanishing", "cluster_of", "drive_fakes", "fleet", "names_of"]


def fleet(*epochs: int) -> Study:
    """Return a study of members with different costs, one for each number of epochs."""
    study = study_of(len(epochs), argosy.MaxEpochs(1))
    members = zip(study.members, epochs, strict=True)
    return replace(study, members=[replace(member, stop=argosy.MaxEpochs(count)) for member, count in members])


def cluster_of(*devices: int) -> Cluster:
    """Return a cluster with a node for each number of devices, which are named d0, d1, …"""
    names = iter(f"d{number}" for number in range(sum(devices)))

    def node(name: str, count: int) -> Node:
        here = [Device(name=next(names), node=name, kind="cpu", memory_bytes=MEMORY_BYTES) for _ in range(count)]
        return Node(name=name, devices=tuple(here), cores=4)

    return Cluster(nodes=tuple(node(f"node{number}", count) for number, count in enumerate(devices)))


@dataclass(slots=True)
class Script:
    """A policy that launches its lines in order, each when all its members wait and its devices are free.

    After the last line it launches all waiting members on the first free device.
    """

    lines: list[Mapping[str, Sequence[str]]] = field(default_factory=list)
    """For each flotilla, the devices of its members, in rank order."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        waiting = {profile.member: profile for profile in situation.waiting}
        free = [device.name for device in situation.free]
        if not self.lines:
            return (_flotilla(dict.fromkeys(waiting, free[:1]), waiting),)
        if any(name not in waiting or not set(devices) <= set(free) for name, devices in self.lines[0].items()):
            return ()
        return (_flotilla(self.lines.pop(0), waiting),)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, started, live
        return True


def _flotilla(line: Mapping[str, Sequence[str]], profiles: Mapping[str, Profile]) -> Flotilla:
    def place(profile: Profile, devices: Sequence[str]) -> Placement:
        if len(devices) == 1:
            return Placement.whole(profile, devices[0])
        return Placement.uneven(profile, dict.fromkeys(devices, 1 / len(devices)))

    return Flotilla(placements=tuple(place(profiles[name], devices) for name, devices in line.items()))


@dataclass(slots=True)
class Deals:
    """A policy that asks a function which members train where, and ends a leg as soon as members wait."""

    place: Callable[[Collection[str]], Mapping[str, Sequence[str]]]
    """Maps the names of waiting members to the devices of those that are to train."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        waiting, free = {profile.member: profile for profile in situation.waiting}, {d.name for d in situation.free}
        line = self.place(waiting.keys())
        return (_flotilla(line, waiting),) if line and free.issuperset(set().union(*line.values())) else ()

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del started, live
        return not situation.waiting


@dataclass(slots=True)
class Brings:
    """A source of members that join at once, or after the first section or the end of the member `after`."""

    members: Sequence[Member]
    after: str = ""

    def bring(self, state: RunState) -> Sequence[Newcomer]:
        """See `Bringer.bring`."""
        if self.after and not (first := state.member(self.after)).sections and first.status not in FINAL_STATUSES:
            return ()
        members, self.members = self.members, ()
        return [
            Newcomer(members=(member,), proposed=Proposed(trial=number, member=member.name, parameters={}))
            for number, member in enumerate(members)
        ]

    def found(self, state: RunState) -> Sequence[Event]:
        """See `Bringer.found`."""
        del state
        return ()

    def has_more(self, state: RunState) -> bool:
        """See `Bringer.has_more`."""
        del state
        return bool(self.members)


class Unsaving(FakeTrainer):
    """A trainer that saves only members that leave, and measures beside its assignment when the next block comes."""

    beside: tuple[Measure, ...] = ()

    def obey(self, command: Any) -> list[Any]:
        """See `FakeTrainer.obey`."""
        if isinstance(command, Measure) and command.assignment is None:
            self.beside += (command,)
            return []
        return FakeTrainer.obey(self, command)

    def take(self, place: Any, assignment: int) -> list[Any]:
        """See `FakeTrainer.take`."""
        beside, self.beside = self.beside, ()
        found = [one for command in beside for one in FakeTrainer.obey(self, command)]
        return [*found, *FakeTrainer.take(self, place, assignment)]

    def _trained(self, place: Any) -> SectionReport:
        report = FakeTrainer._trained(self, place)
        events: tuple[Event, ...] = tuple(event for event in report.events if not isinstance(event, Saved))
        return replace(report, events=events)


class Probing(FakeFeeder):
    """A feeder that measures the costs of sharing, unless a command to feed a leg comes first."""

    probes = False

    def obey(self, command: Any) -> list[Any]:
        """See `FakeFeeder.obey`."""
        if isinstance(command, Feed | Probe):
            self.probes = isinstance(command, Probe)
        return super().obey(command)

    def probed(self) -> list[Any]:
        """Return the result of a measurement that was asked for since the last call."""
        probes, self.probes = self.probes, False
        return [Probed(cpu_seconds_per_sample=0.0, sample_bytes=4, exchanges=())] if probes else []


class Vanishing(Alone):
    """Workers whose trainer of the `doomed` member is lost when this member is first to leave, before it is saved."""

    def __init__(self, cluster: Cluster, directory: Path, *, doomed: str = "") -> None:
        super().__init__(cluster, directory, loses=-1)
        self.doomed = doomed
        """Name of the member; empty: no trainer is lost."""
        self.vanished: list[str] = []
        """Trainers that were lost."""
        self.saving: list[str] = []
        """Trainers that were told to save their members at the end of the next section."""

    def start(self, name: str, role: str, node: str) -> None:
        """See `Workers.start`."""
        if role == "feeder":
            self.node_of[name], self.feeders[name] = node, Probing(name)
        else:
            self.trainers[name] = Unsaving(name=name, directory=self.directory)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`."""
        said = super().receive(timeout)
        return [*said, *((name, found) for name, feeder in self.feeders.items() for found in feeder.probed())]

    def _obey(self, worker: str, command: Any) -> None:
        if isinstance(command, Save):
            self.saving.append(worker)
        member = self.trainers[worker].assigned.get(self.doomed) if worker in self.trainers else None
        leaves = isinstance(command, Assign) and self.doomed in command.leave
        if leaves and member is not None and member.leads and not self.vanished:
            self.kill(worker)
            self.vanished.append(worker)
            self.said.append((worker, Lost(detail="in a test")))
        else:
            super()._obey(worker, command)


def drive_fakes(
    study: Study,
    directory: Path,
    patch: pytest.MonkeyPatch,
    *lines: Mapping[str, Sequence[str]],
    policy: Deals | None = None,
    cluster: Cluster | None = None,
    doomed: str = "",
    bringers: Sequence[Brings] = (),
    **settings: Any,
) -> tuple[Vanishing, RunState]:
    """Drive a whole run by lines of a `Script` or by a policy, on `Vanishing` workers."""
    cluster = cluster or cluster_of(2)
    name = living.policy(patch, policy or Script(list(lines)))
    chosen = Settings(policy=name, nodes=len(cluster.nodes), **settings)
    workers, state = Vanishing(cluster, directory, doomed=doomed), RunState.of([])
    with Lock(directory / "run.lock") as lock, Journal(directory / "journal.jsonl") as journal:
        job = Job(study=study, settings=chosen, directory=directory, lock=lock.descriptor)
        drive(job, cluster, workers, journal, state, Silent(), bringers=bringers)
    return workers, state
