"""The driver's picture of its workers: which feeders are open, and which trainers read from which of them."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from argosy.cluster import Cluster, Node
from argosy.protocol.events import Used
from argosy.protocol.feeder import Credit, Feed, Leg, Open, Opened, Probe, Team
from argosy.protocol.trainer import Attach, Exit, Failed, Lost
from argosy.running.launch.launcher import Workers
from argosy.stream.heartbeat import Sign
from argosy.stream.sharing import PIPELINES
from argosy.study import Member

__all__ = ["Feeder", "WorkerPool"]


@dataclass(slots=True)
class Feeder:
    """One feeder."""

    name: str
    node: str
    opened: Opened | None = None
    """What it said when its data was open."""
    readers: set[str] = field(default_factory=set)
    """Trainers that were told to read from it."""
    team: str = ""
    """Key of the team that it exchanges blocks with."""


class WorkerPool:
    """One trainer per device, all the time, and on each node as many feeders as it has legs at once.

    The feeders that feed a leg together, one on each node that it needs, are its team.
    """

    def __init__(self, workers: Workers, cluster: Cluster, shards: Mapping[str, tuple[int, ...]]) -> None:
        self.workers = workers
        self.shards = shards
        """By split, the lengths of shards as an earlier driver has journaled them."""
        self.node_of: dict[str, str] = {device.name: device.node for device in cluster.devices}
        self.feeders: dict[str, Feeder] = {}
        self.known: dict[str, set[str]] = {}
        """Members that were defined to each trainer."""
        self._feeder_counts = dict.fromkeys(self.node_of.values(), 0)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device, node by node; each has its trainer."""
        return tuple(self.node_of)

    @property
    def side_by_side(self) -> bool:
        """Whether trainers step at the same time, so that they can wait for one another."""
        return self.workers.side_by_side

    @property
    def workers_known(self) -> tuple[str, ...]:
        """Every worker."""
        return (*self.feeders, *self.node_of)

    def knows(self, worker: str) -> bool:
        """Whether a worker belongs to the run; those of a node that was given up do not."""
        return worker in self.feeders or worker in self.node_of

    def node(self, worker: str) -> str:
        """Where a worker is that belongs to the run."""
        feeder = self.feeders.get(worker)
        return self.node_of[worker] if feeder is None else feeder.node

    def start(self) -> None:
        """One feeder on each node, and every trainer."""
        for node in self._feeder_counts:
            self.open_feeder(node)
        for device, node in self.node_of.items():
            self.workers.start_trainer(device, node)

    def send(self, commands: Mapping[str, Any]) -> None:
        """Give each of these workers its command."""
        for worker, command in commands.items():
            self.workers.send(worker, command)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """Let go what was sent, then (worker, message) of all that was said, after at most so many seconds."""
        return self.workers.receive(timeout)

    def kill(self, worker: str) -> None:
        """End a worker that does not answer."""
        self.workers.kill(worker)

    def signs(self, worker: str) -> tuple[Sign, ...] | None:
        """Signs of life of a worker: its own, then those of its loaders; None where it has no heartbeat."""
        heartbeat = self.workers.heartbeat(worker)
        return None if heartbeat is None else tuple(heartbeat.read())

    def cpu_seconds(self, worker: str) -> float:
        """CPU time of a worker and its children."""
        return self.workers.cpu_seconds(worker)

    def rendezvous(self) -> str:
        """An address at which workers that exchange tensors find each other."""
        return self.workers.rendezvous()

    def open_feeder(self, node: str) -> None:
        """Start another feeder on a node, unless one is on its way."""
        if all(feeder.opened for feeder in self.feeders.values() if feeder.node == node):
            name = f"feeder-{self._feeder_counts[node]}"
            if len(self._feeder_counts) > 1:
                name = f"{node}/{name}"
            self._feeder_counts[node] += 1
            self.feeders[name] = Feeder(name, node)
            self.workers.start_feeder(name, node)
            self.workers.send(name, Open(shards=self.shards))

    def admit(self, node: Node) -> None:
        """A further node: a feeder on it, and its trainers."""
        self._feeder_counts[node.name] = 0
        self.node_of |= {device.name: node.name for device in node.devices}
        self.open_feeder(node.name)
        for device in node.devices:
            self.workers.start_trainer(device.name, node.name)

    def free_team(self, devices: Iterable[str], busy: Iterable[str]) -> list[Feeder] | None:
        """An open feeder that feeds no leg on each node of these devices; those that lack are started, and say Opened."""
        busy, team = set(busy), []
        free = [f for f in self.feeders.values() if f.opened is not None and f.name not in busy]
        wanted = dict.fromkeys(self.node_of[device] for device in devices)
        for node in [node for node in self._feeder_counts if node in wanted]:
            found = next((feeder for feeder in free if feeder.node == node), None)
            if found is None:
                self.open_feeder(node)
            else:
                team.append(found)
        return team if len(team) == len(wanted) else None

    def feed(self, feeders: Sequence[Feeder], leg: Leg, pipeline: tuple[str, int]) -> None:
        """Let these feeders prepare a leg that they share by a pipeline of so many preparing nodes."""
        sharing, preparing = pipeline
        shared = sharing in PIPELINES and len(feeders) > 1
        teams = self._teams(len(feeders), sharing, preparing) if shared else [None] * len(feeders)
        for feeder, team in zip(feeders, teams, strict=True):
            feeder.team = team.key if team is not None else ""
            self.workers.send(feeder.name, Feed(leg=leg, team=team))

    def attach(self, feeders: Iterable[str], device: str) -> None:
        """Let a trainer read from that of these feeders which is on its node."""
        for feeder in [self.feeders[name] for name in feeders if name in self.feeders]:
            if self.node_of.get(device) == feeder.node and device not in feeder.readers:
                self._detach(device)
                feeder.readers.add(device)
                self.workers.send(device, Attach(feeder=feeder.name))

    def allow(self, feeders: Iterable[str], credit: Credit) -> None:
        """Give these feeders credit; each has it for the readers of its node."""
        for feeder in [self.feeders[name] for name in feeders if name in self.feeders]:
            assignments = {
                device: assignment
                for device, assignment in credit.assignments.items()
                if self.node_of.get(device) == feeder.node
            }
            self.workers.send(feeder.name, replace(credit, assignments=assignments))

    def probe(self, feeders: Sequence[Feeder]) -> None:
        """Let these feeders measure what sharing costs between them."""
        for feeder, team in zip(feeders, self._teams(len(feeders), None, len(feeders)), strict=True):
            feeder.team = team.key
            self.workers.send(feeder.name, Probe(team=team))

    def disband(self, feeder: str, team: str) -> bool:
        """Its team exchanges nothing any more; False where that is known, or of an earlier one."""
        if not team or feeder not in self.feeders or self.feeders[feeder].team != team:
            return False
        for one in self.feeders.values():
            if one.team == team:
                one.team = ""
        return True

    def _teams(self, nodes: int, sharing: str | None, preparing: int) -> list[Team]:
        """One team, as each of its feeders sees it."""
        rendezvous = self.workers.rendezvous()
        key = rendezvous.rpartition("/")[2]
        return [
            Team(
                sharing=sharing, preparing=min(preparing, nodes), rank=rank, nodes=nodes, key=key, rendezvous=rendezvous
            )
            for rank in range(nodes)
        ]

    def rest(self, feeders: Iterable[str]) -> None:
        """Let feeders prepare nothing; one that is gone needs no telling."""
        for feeder in feeders:
            if feeder in self.feeders:
                self.feeders[feeder].team = ""
                self.workers.send(feeder, Feed(leg=Leg.empty()))

    def define(self, trainer: str, members: Iterable[Member]) -> None:
        """Let a trainer know members that it does not know yet: once each, all in one message."""
        known = self.known.setdefault(trainer, set())
        new = tuple(member for member in members if member.name not in known)
        if new:
            known.update(member.name for member in new)
            self.workers.enlist(trainer, new)

    def forget_members(self, names: Iterable[str]) -> None:
        """Forget members: one that has one of these names later is another member."""
        for known in self.known.values():
            known.difference_update(names)

    def lost(self, worker: str) -> None:
        """Forget a feeder, start a trainer again."""
        if worker in self.feeders:
            # What those that it exchanged blocks with will say of that is known.
            self.disband(worker, self.feeders[worker].team)
            del self.feeders[worker]
        self.known.pop(worker, None)
        if worker in self.devices:
            self._detach(worker)
            self.workers.start_trainer(worker, self.node_of[worker])

    def abandon(self, node: str, *, answers: bool) -> list[str]:
        """Go on without a node: its workers are told to exit where they answer, else ended, and no longer known.

        Returns its devices.
        """
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

    def farewell(self, seconds: float) -> Iterator[tuple[str, Any]]:
        """Ask every worker to exit, and yield what they still say, until all have gone or the time is over."""
        asked = self.workers_known if self.feeders else ()
        remaining = set(asked)
        for worker in asked:
            self.workers.send(worker, Exit())
        deadline = time.monotonic() + seconds
        while remaining and time.monotonic() < deadline:
            for worker, message in self.workers.receive(0.1):
                yield worker, message
                if isinstance(message, Used | Lost | Failed):
                    remaining.discard(worker)

    def _detach(self, device: str) -> None:
        for feeder in self.feeders.values():
            feeder.readers.discard(device)
