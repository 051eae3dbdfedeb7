"""The driver's view of its workers: which feeders are open, and which trainers read from them."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from argosy.cluster import Cluster, Node
from argosy.protocol.events import Used
from argosy.protocol.feeder import Credit, Feed, Leg, Open, Opened, Probe, Team
from argosy.protocol.trainer import Attach, Exit, Failed, Lost
from argosy.running.launch.launcher import Workers
from argosy.stream.heartbeat import Sign
from argosy.stream.sharing import PIPELINES
from argosy.study import Member

__all__ = ["FedLeg", "Feeder", "WorkerPool"]


@dataclass(slots=True)
class Feeder:
    """A feeder."""

    name: str
    node: str
    opened: Opened | None = None
    """Its report after it has opened the data; None before."""
    readers: set[str] = field(default_factory=set)
    """Trainers that were attached to it."""
    team: str = ""
    """Key of the team with which it exchanges blocks."""


class FedLeg(NamedTuple):
    """A leg that feeders prepare."""

    team: Sequence[Feeder]
    leg: Leg
    sharing: str
    """Name of the pipeline by which they share the preparation."""
    assignment: int
    """Number of the first assignment of its readers."""


class WorkerPool:
    """One trainer per device, permanently, and as many feeders on each node as it has legs at the same time.

    The feeders of one leg, one on each of its nodes, are a team.
    """

    def __init__(self, workers: Workers, cluster: Cluster, shards: Mapping[str, tuple[int, ...]]) -> None:
        self.workers = workers
        self.shards = shards
        """Lengths of the shards of each split, as journaled by an earlier driver."""
        self.node_of: dict[str, str] = {device.name: device.node for device in cluster.devices}
        self.feeders: dict[str, Feeder] = {}
        self.known: dict[str, set[str]] = {}
        """Members whose definitions each trainer has."""
        self._feeder_counts = dict.fromkeys(self.node_of.values(), 0)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device, node by node; each has a trainer."""
        return tuple(self.node_of)

    @property
    def all_workers(self) -> tuple[str, ...]:
        """Every worker."""
        return (*self.feeders, *self.node_of)

    def has_worker(self, worker: str) -> bool:
        """Return whether a worker belongs to the run; workers of abandoned nodes do not."""
        return worker in self.feeders or worker in self.node_of

    def node(self, worker: str) -> str:
        """Return the node of a worker of the run."""
        feeder = self.feeders.get(worker)
        return self.node_of[worker] if feeder is None else feeder.node

    def alive(self, feeders: Iterable[str]) -> list[Feeder]:
        """Return those of these feeders that are not lost."""
        return [self.feeders[name] for name in feeders if name in self.feeders]

    def start(self) -> None:
        """Start one feeder on each node, and every trainer."""
        for node in self._feeder_counts:
            self.open_feeder(node)
        for device, node in self.node_of.items():
            self.workers.start(device, "trainer", node)

    def send(self, commands: Mapping[str, Any]) -> None:
        """Send commands to workers."""
        for worker, command in commands.items():
            self.workers.send(worker, command)

    def signs(self, worker: str) -> tuple[Sign, ...] | None:
        """Return the signs of life of a worker and then of its loader workers; None if it has no heartbeat."""
        heartbeat = self.workers.heartbeat(worker)
        return None if heartbeat is None else heartbeat.read()

    def open_feeder(self, node: str) -> None:
        """Start another feeder on a node, unless one is already starting."""
        if all(feeder.opened for feeder in self.feeders.values() if feeder.node == node):
            name = f"feeder-{self._feeder_counts[node]}"
            if len(self._feeder_counts) > 1:
                name = f"{node}/{name}"
            self._feeder_counts[node] += 1
            self.feeders[name] = Feeder(name, node)
            self.workers.start(name, "feeder", node)
            self.workers.send(name, Open(shards=self.shards))

    def admit(self, node: Node) -> None:
        """Start a feeder and the trainers of a new node."""
        self._feeder_counts[node.name] = 0
        self.node_of |= {device.name: node.name for device in node.devices}
        self.open_feeder(node.name)
        for device in node.devices:
            self.workers.start(device.name, "trainer", node.name)

    def free_team(self, devices: Iterable[str], busy: Iterable[str]) -> list[Feeder] | None:
        """Return an open, idle feeder for each node of these devices; missing ones are started and report Opened."""
        busy, team = set(busy), []
        free = [f for f in self.feeders.values() if f.opened is not None and f.name not in busy]
        wanted = dict.fromkeys(self.node_of[device] for device in devices)
        for node in [node for node in self._feeder_counts if node in wanted]:
            feeder_here = next((feeder for feeder in free if feeder.node == node), None)
            if feeder_here is None:
                self.open_feeder(node)
            else:
                team.append(feeder_here)
        return team if len(team) == len(wanted) else None

    def feed(self, feeders: Sequence[Feeder], leg: Leg, pipeline: tuple[str, int]) -> None:
        """Let feeders prepare a leg that they share by a pipeline with a number of preparing nodes."""
        sharing, preparing = pipeline
        shared = sharing in PIPELINES and len(feeders) > 1
        teams = self._teams(len(feeders), sharing, preparing) if shared else [None] * len(feeders)
        for feeder, team in zip(feeders, teams, strict=True):
            feeder.team = team.key if team is not None else ""
            self.workers.send(feeder.name, Feed(leg=leg, team=team))

    def attach(self, feeders: Iterable[str], device: str) -> None:
        """Attach a trainer to the feeder on its node."""
        for feeder in self.alive(feeders):
            if self.node_of.get(device) == feeder.node and device not in feeder.readers:
                self._detach(device)
                feeder.readers.add(device)
                self.workers.send(device, Attach(feeder=feeder.name))

    def give_credit(self, feeders: Sequence[str], credit: Credit) -> None:
        """Give feeders credit, each for the readers of its node, which are attached first.

        A trainer that is to read another leg keeps its connection until it has obeyed that; blocks that came by it would be lost.
        """
        for device in credit.assignments:
            self.attach(feeders, device)
        for feeder in self.alive(feeders):
            assignments = {
                device: assignment
                for device, assignment in credit.assignments.items()
                if self.node_of.get(device) == feeder.node
            }
            self.workers.send(feeder.name, replace(credit, assignments=assignments))

    def probe(self, feeders: Sequence[Feeder]) -> None:
        """Let feeders measure the cost of sharing between them."""
        for feeder, team in zip(feeders, self._teams(len(feeders), None, len(feeders)), strict=True):
            feeder.team = team.key
            self.workers.send(feeder.name, Probe(team=team))

    def disband(self, feeder: str, team: str) -> bool:
        """Note that a feeder's team exchanges nothing any more; return False if that was known, or belongs to an earlier team."""
        if not team or feeder not in self.feeders or self.feeders[feeder].team != team:
            return False
        for one in self.feeders.values():
            if one.team == team:
                one.team = ""
        return True

    def _teams(self, nodes: int, sharing: str | None, preparing: int) -> list[Team]:
        """Return one team, as seen by each of its feeders."""
        rendezvous = self.workers.rendezvous()
        key = rendezvous.rpartition("/")[2]
        return [
            Team(
                sharing=sharing, preparing=min(preparing, nodes), rank=rank, nodes=nodes, key=key, rendezvous=rendezvous
            )
            for rank in range(nodes)
        ]

    def stop_feeding(self, feeders: Iterable[str]) -> None:
        """Let feeders stop preparing; lost ones are skipped."""
        for feeder in self.alive(feeders):
            feeder.team = ""
            self.workers.send(feeder.name, Feed(leg=Leg.empty()))

    def define(self, trainer: str, members: Iterable[Member]) -> None:
        """Send a trainer the definitions of members that it does not have yet, in one message."""
        known = self.known.setdefault(trainer, set())
        new = tuple(member for member in members if member.name not in known)
        if new:
            known.update(member.name for member in new)
            self.workers.enlist(trainer, new)

    def forget_members(self, names: Iterable[str]) -> None:
        """Forget members; a later member with one of these names is a different one."""
        for known in self.known.values():
            known.difference_update(names)

    def handle_lost(self, worker: str) -> None:
        """Handle a lost worker: forget a feeder, restart a trainer."""
        if worker in self.feeders:
            # The feeders that it exchanged blocks with will report its loss again.
            self.disband(worker, self.feeders[worker].team)
            del self.feeders[worker]
        self.known.pop(worker, None)
        if worker in self.devices:
            self._detach(worker)
            self.workers.start(worker, "trainer", self.node_of[worker])

    def abandon(self, node: str, *, answers: bool) -> list[str]:
        """Give up a node: its workers are told to exit if they answer, else killed, and forgotten. Return its devices."""
        gone = [device for device, its_node in self.node_of.items() if its_node == node]
        feeders = [feeder.name for feeder in self.feeders.values() if feeder.node == node]
        for worker in (*gone, *feeders):
            if answers:
                self.workers.send(worker, Exit())
            else:
                self.workers.kill(worker)
        for device in gone:
            self._detach(device)
            del self.node_of[device]
        for name in feeders:
            del self.feeders[name]
        del self._feeder_counts[node]
        return gone

    def exit_workers(self, seconds: float) -> Iterator[tuple[str, Any]]:
        """Ask every worker to exit, and yield their last messages until all have exited or the time is over."""
        expected = self.all_workers if self.feeders else ()
        remaining = set(expected)
        for worker in expected:
            self.workers.send(worker, Exit())
        deadline = time.monotonic() + seconds
        while remaining and time.monotonic() < deadline:
            for worker, message in self.workers.receive(0.1):
                yield worker, message
                if isinstance(message, Used | Lost | Failed):  # the last message of a worker is one of these
                    remaining.discard(worker)

    def _detach(self, device: str) -> None:
        for feeder in self.feeders.values():
            feeder.readers.discard(device)
