"""The launcher for jobs of ``srun``, ``mpirun``, ``torchrun`` and the like: processes here, and agents on other nodes.

Contract. Rank 0 of the job drives, and its node trains like the others. The first rank of every other node is its agent
(`argosy.running.hosts.agent`), which dials the driver and proves the run's key before either reads a message of the
other. A caller without the key is disconnected, and logged in ``workers/listener.log``. No node can join later; a node
that is lost is given up.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from argosy.cluster import Cluster
from argosy.errors import PlanError, WorkerError
from argosy.running.directory.lock import make_own_directory
from argosy.running.hosts.agent import Joined
from argosy.running.hosts.agent_listener import AgentListener
from argosy.running.hosts.nodes import NodeWorkers
from argosy.running.hosts.notices import interface_of, make_board, read_certificate, read_key
from argosy.running.hosts.place import JobPlace
from argosy.running.hosts.remote_node import RemoteNode
from argosy.running.launch.blobs import make_blobs
from argosy.running.launch.discovery import make_node
from argosy.running.launch.launcher import Job
from argosy.running.launch.processes import Processes
from argosy.settings import Settings
from argosy.stream.wire import Peer

__all__ = ["Agents"]

GATHER_SECONDS = 300.0
"""Most seconds between the starts of a job's processes."""
QUIET_SECONDS = 10.0
"""Seconds after which the driver says what it waits for."""
POLL_SECONDS = 0.2
"""Seconds for which calls are accepted before the number of agents is checked again."""


class Agents:
    """The launcher at rank 0 of a job."""

    def __init__(self, place: JobPlace, directory: Path) -> None:
        self.place = place
        self.directory = directory
        """Folder in which the job's processes look for the driver's notice."""
        self.here: Processes = Processes()
        self._key = read_key(os.environ)
        self._certificate = read_certificate(os.environ)
        self._listener: AgentListener | None = None
        self._board = make_board(place, directory, os.environ)
        self._told = False
        """Whether the driver has said what it waits for."""

    def warm(self) -> "Agents":
        """Start the fork server of this node, which imports while the caller continues."""
        self.here.warm()
        return self

    def discover(self, settings: Settings) -> Cluster:
        """Implement `Launcher.discover`: wait until the agents of all nodes have called."""
        if settings.nodes != self.place.nodes:
            raise PlanError(
                f"nodes is {settings.nodes}, but {self.place.launcher} started this job on {self.place.nodes}. "
                "Omit --nodes."
            )
        # This node alone: more preparing nodes than nodes would be refused.
        (mine,) = self.here.discover(replace(settings, nodes=1, preparing_nodes=None)).nodes
        listener = self._listener or self._open_listener()
        began = time.monotonic()
        while len(listener.joined) < self.place.nodes - 1:
            self._gather(listener, time.monotonic() - began)
        nodes = [mine, *(joined.node for _, (joined, _) in sorted(listener.joined.items()))]
        return Cluster(
            nodes=tuple(make_node(f"node{number}", node.devices, node.cores) for number, node in enumerate(nodes))
        )

    def open(self, job: Job) -> NodeWorkers:
        """Implement `Launcher.open`: workers of this node and of the nodes of all agents that have called."""
        assert self._listener is not None
        blobs = make_blobs(job)
        remote = [
            RemoteNode(f"node{number}", agent.host, peer, job.directory)
            for number, (agent, peer) in enumerate(self._listener.hand_over(), start=1)
        ]
        host = remote[0].peer.host
        # Copies, because both `ProcessWorkers` and `NodeWorkers` close theirs.
        own = {role: os.dup(descriptor) for role, descriptor in blobs.items()}
        here = self.here.workers(own, directory=job.directory, lock=job.lock, interface=interface_of(host))
        listener, self._listener = self._listener, None
        return NodeWorkers(remote, blobs, listener, _FixedNodes(), job.directory, here=here)

    def close(self) -> None:
        """Close the connections and the listener, and remove the notice."""
        self.here.close()
        if self._listener is not None:
            self._listener.close()
        self._board.clear()

    def _open_listener(self) -> AgentListener:
        make_own_directory(self.directory)  # for the driver's notice
        self._listener = listener = AgentListener(self.place.job, self._key, self._certificate)
        self._board.leave(listener.notice)
        listener.write_log_to(self.directory)
        return listener

    def _gather(self, listener: AgentListener, waited: float) -> None:
        """Accept the agents that call within a moment; raises WorkerError if the driver has `waited` too many seconds."""
        joined = f"{len(listener.joined) + 1} of the job's {self.place.nodes} nodes"
        ranks = ", ".join(str(rank) for rank in sorted({0, *listener.joined}))
        if waited > GATHER_SECONDS:
            raise WorkerError(
                f"{joined} had joined after {GATHER_SECONDS:g} s (ranks {ranks}). Look for the cause in the output "
                f"of the others; {self.directory / 'workers' / 'listener.log'} lists refused callers. Then start "
                "the job again."
            )
        if waited > QUIET_SECONDS and not self._told:
            self._told = True
            print(
                f"{joined} have joined (ranks {ranks}); the run waits at most {GATHER_SECONDS:g} s for the others.",
                file=sys.stderr,
            )
        listener.accept_agents(POLL_SECONDS)


class _FixedNodes:
    """The nodes of a job, which do not change while it runs."""

    def gone(self) -> Mapping[str, str]:
        """Return nothing: lost nodes are known only from their connections."""
        return {}

    def take(self, joined: Joined, peer: Peer) -> None:
        """Implement `NodeMonitor.take`: every agent that calls now is too late."""
