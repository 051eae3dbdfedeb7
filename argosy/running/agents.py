"""The launcher for jobs that ``srun``, ``mpirun``, ``torchrun`` or their like have started: this node's processes, and those
that the agents of the other nodes start.

Contract. Rank 0 of the job drives, and is a node like the others. The first rank of every other node is its agent
(`argosy.running.agent`), which dials the driver and proves the run's key before either reads a word of the other. Whoever
calls without the key is hung up on, which ``workers/door.log`` tells. No node comes later; one that is gone is given up.
"""

import contextlib
import os
import select
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from argosy.cluster import Cluster
from argosy.errors import PlanError, WorkerError
from argosy.running.agent import Joined
from argosy.running.blobs import blobs_of
from argosy.running.distant import Distant
from argosy.running.gathering import board_of, certificate_in, key_in, open_door
from argosy.running.launcher import Job, node_of
from argosy.running.place import Place
from argosy.running.processes import Processes, ProcessWorkers, enlisting
from argosy.running.records import versions
from argosy.settings import Settings
from argosy.stream.door import Door
from argosy.stream.meeting import NetworkMeetings, interface_of
from argosy.stream.pulse import Pulse
from argosy.stream.wire import Peer
from argosy.study import Member

__all__ = ["Agents"]

GATHER_SECONDS = 300.0
"""How long the processes of a job may begin after one another."""
LOOK_SECONDS = 0.2
MOST_REFUSALS = 1000
"""Lines of ``door.log``: whoever knocks all day long is not to fill the disk."""


class Agents:
    """Of a job, at its rank 0."""

    def __init__(self, place: Place, directory: Path) -> None:
        self.place = place
        self.directory = directory
        """Where the job's processes look for its driver."""
        self.here = Processes()
        self._key = key_in(os.environ)
        self._certificate = certificate_in(os.environ)
        self._door: Door | None = None
        self._board = board_of(place, directory, os.environ)
        self._joined: dict[int, tuple[Joined, Peer]] = {}
        """By rank."""
        self._refusals = 0

    def warm(self) -> "Agents":
        """See `Processes.warm`."""
        self.here.warm()
        return self

    def discover(self, settings: Settings) -> Cluster:
        """See `Launcher.discover`: wait until the agents of all nodes have called."""
        if settings.nodes != self.place.nodes:
            raise PlanError(
                f"nodes is {settings.nodes}, and {self.place.launcher} has started this job on {self.place.nodes}. Leave --nodes out."
            )
        (mine,) = self.here.discover(replace(settings, nodes=1, preparing_nodes=None)).nodes
        if self._door is None:
            self._open_door()
        deadline = time.monotonic() + GATHER_SECONDS
        while len(self._joined) < self.place.nodes - 1:
            self._gather(deadline)
        nodes = [mine, *(self._joined[rank][0].node for rank in sorted(self._joined))]
        return Cluster(
            nodes=tuple(node_of(f"node{number}", node.devices, node.cores) for number, node in enumerate(nodes))
        )

    def open(self, job: Job) -> "NodeWorkers":
        """See `Launcher.open`."""
        assert self._door is not None
        blobs = blobs_of(job)
        joined, self._joined = [self._joined[rank] for rank in sorted(self._joined)], {}
        distant = [
            Distant(f"node{number}", agent.host, peer, job.directory)
            for number, (agent, peer) in enumerate(joined, start=1)
        ]
        host = distant[0].peer.host
        here = self.here.workers(blobs, directory=job.directory, lock=job.lock, interface=interface_of(host))
        door, self._door = self._door, None
        return NodeWorkers(here, distant, door, NetworkMeetings(host), job.directory)

    def close(self) -> None:
        """See `Launcher.close`."""
        self.here.close()
        for _, peer in self._joined.values():
            peer.close()
        if self._door is not None:
            self._door.close()
        self._board.clear()

    def _open_door(self) -> None:
        (self.directory / "workers").mkdir(parents=True, exist_ok=True)
        self._door = open_door(self.place, self._board, self._key, self._certificate, self._note_refusal)

    def _gather(self, deadline: float) -> None:
        """Let in who calls, for a moment."""
        assert self._door is not None
        if time.monotonic() > deadline:
            there = ", ".join(str(rank) for rank in sorted({0, *self._joined}))
            raise WorkerError(
                f"{len(self._joined) + 1} of the job's {self.place.nodes} nodes were there after {GATHER_SECONDS:g} s (ranks {there}); "
                f"what kept the others they say themselves, and {self.directory / 'workers' / 'door.log'} tells who was refused. "
                "Start the job again."
            )
        select.select([self._door], [], [], LOOK_SECONDS)
        for _, peer in self._door.enter():
            for joined in _first_word(peer):
                self._check_versions(joined)
                self._joined[joined.rank] = joined, peer

    def _check_versions(self, joined: Joined) -> None:
        own = versions()
        unlike = [name for name in own if own[name] != joined.versions.get(name)]
        if unlike:
            there, here = (", ".join(f"{n} {v.get(n)}" for n in unlike) for v in (joined.versions, own))
            raise PlanError(
                f"rank {joined.rank} on {joined.host} has {there}, and rank 0 on {socket.gethostname()} has {here}; results "
                "would depend on who trains what. Let all nodes use the same environment."
            )

    def _note_refusal(self, refusal: str) -> None:
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            with (self.directory / "workers" / "door.log").open("a") as log:
                log.write(f"{time.strftime('%F %T')} {refusal}\n")


def _first_word(peer: Peer) -> list[Joined]:
    """Empty where it has gone, or does not say it in time."""
    try:
        return peer.wait(LOOK_SECONDS * 10)
    except EOFError:
        return []


class NodeWorkers:
    """Workers of this node, and of others by way of their agents. All of one node are told and heard together."""

    side_by_side: ClassVar[bool] = True

    def __init__(
        self,
        here: ProcessWorkers,
        distant: list[Distant],
        door: Door,
        meetings: NetworkMeetings,
        directory: Path,
    ) -> None:
        self.here = here
        self.distant = distant
        self.door = door
        self.meetings = meetings
        self.mark = directory / "workers" / f"mark-{os.urandom(8).hex()}"
        self._nodes: dict[str, ProcessWorkers | Distant] = {"node0": here, **{place.node: place for place in distant}}
        self._place_of: dict[str, ProcessWorkers | Distant] = {}
        """By worker."""

    def __enter__(self) -> "NodeWorkers":
        self.here.__enter__()
        self.mark.touch()
        for place in self.distant:
            place.give(self.here.blobs, self.mark.name)
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.door.close)
            last_first.callback(self.meetings.close)
            last_first.callback(self.mark.unlink, missing_ok=True)
            last_first.callback(self.here.__exit__, *error)
            for place in self.distant:
                last_first.callback(place.close)

    def start_feeder(self, name: str, node: str) -> None:
        """See `Workers.start_feeder`."""
        self._place_of[name] = self._nodes[node]
        self._nodes[node].start(name, "feeder")

    def start_trainer(self, name: str, node: str) -> None:
        """See `Workers.start_trainer`."""
        self._place_of[name] = self._nodes[node]
        self._nodes[node].start(name, "trainer")

    def send(self, worker: str, command: Any) -> None:
        """See `Workers.send`."""
        self._place_of[worker].send(worker, command)

    def kill(self, worker: str) -> None:
        """See `Workers.kill`."""
        self._place_of[worker].kill(worker)

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """See `Workers.enlist`."""
        self.send(worker, enlisting(members))

    def meeting(self) -> str:
        """See `Workers.meeting`."""
        return self.meetings.meeting()

    def pulse(self, worker: str) -> Pulse | None:
        """See `Workers.pulse`."""
        return self._place_of[worker].pulse(worker)

    def cpu_seconds(self, worker: str) -> float:
        """See `Workers.cpu_seconds`."""
        return self._place_of[worker].cpu_seconds(worker)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`."""
        for place in self._nodes.values():
            place.let_go()
        self._wait(timeout)
        for _, stranger in self.door.enter():
            stranger.close()  # it knows the key, and comes too late
        said = self.here.receive(0)
        for place in self.distant:
            said += place.receive()
        return said

    def _wait(self, seconds: float) -> None:
        """Until somebody says something, takes what was unsent, or the time is over."""
        poll = select.poll()
        for listening in (self.here, self.door):
            poll.register(listening, select.POLLIN)
        for place in self.distant:
            if not place.gone:
                poll.register(place.peer, select.POLLIN | (select.POLLOUT if place.outbox.unsent else 0))
        waits = not self.here.said and not any(place.said for place in self.distant)
        poll.poll(seconds * 1000 if waits else 0)
