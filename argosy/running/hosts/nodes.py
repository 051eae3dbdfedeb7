"""The workers of a run on several nodes, each reached through its node's agent or as a process of this node.

Contract. A node's handle (`RemoteNode`, `ProcessWorkers`) decides how its workers start, get commands and are lost. The
launcher says whether nodes may join during the run, and how else it learns of their end (`NodeMonitor`). A node that joins
is reported to the driver by `Came`, after everything that its workers unpack has been put into its outbox.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from argosy.cluster import Node
from argosy.disk.files import make_folder
from argosy.errors import PlanError
from argosy.protocol.trainer import Came
from argosy.running.hosts.agent import Joined
from argosy.running.hosts.agent_listener import AgentListener, check_versions
from argosy.running.hosts.remote_node import RemoteNode
from argosy.running.launch.blobs import make_enlist
from argosy.running.launch.processes import ProcessWorkers
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.rendezvous import NetworkRendezvous
from argosy.stream.wire import Peer, poll
from argosy.study import Member

__all__ = ["NodeWorkers", "NodeMonitor"]


class NodeMonitor(Protocol):
    """What a launcher knows about the nodes of a run in progress."""

    def gone(self) -> Mapping[str, str]:
        """Return the nodes known to be gone, and why; never waits."""

    def take(self, joined: Joined, peer: Peer) -> tuple[RemoteNode, Node] | None:
        """Return the node of an agent that called; None if it calls too late."""


class NodeWorkers:
    """Workers of this node, and of other nodes by way of their agents."""

    side_by_side: ClassVar[bool] = True

    def __init__(
        self,
        remote: Sequence[RemoteNode],
        blobs: Mapping[str, int],
        listener: AgentListener,
        node_monitor: NodeMonitor,
        directory: Path,
        *,
        here: ProcessWorkers | None = None,
    ) -> None:
        self.here = here
        """The workers of the driver's own node, ``node0``; None if that node is not part of the run."""
        self.remote: list[RemoteNode] = list(remote)
        self.blobs = blobs
        """By role: descriptor of the blob that workers unpack."""
        self.listener = listener
        self.node_monitor = node_monitor
        self.directory = directory
        self._store = NetworkRendezvous(remote[0].peer.host, listener.log_refusal)
        self.mark: Path = directory / "workers" / f"mark-{os.urandom(8).hex()}"
        self._nodes: dict[str, ProcessWorkers | RemoteNode] = {place.node: place for place in remote}
        if here is not None:
            self._nodes["node0"] = here
        self._came: list[tuple[str, Came]] = []
        self._place_of: dict[str, ProcessWorkers | RemoteNode] = {}
        """By worker: the handle of its node."""

    def __enter__(self) -> "NodeWorkers":
        if self.here is not None:
            self.here.__enter__()
        make_folder(self.mark.parent)
        self.mark.touch()
        for place in self.remote:
            place.send_blobs(self.blobs, self.mark.name)
        return self

    def __exit__(self, *error: Any) -> None:
        # Nodes are closed first: files that are still being sent to them are read from these descriptors.
        with contextlib.ExitStack() as last_first:
            for descriptor in self.blobs.values():
                last_first.callback(os.close, descriptor)
            last_first.callback(self.listener.close)
            last_first.callback(self._store.close)
            last_first.callback(self.mark.unlink, missing_ok=True)
            if self.here is not None:
                last_first.callback(self.here.__exit__, *error)
            for place in self.remote:
                last_first.callback(place.close)

    def start(self, name: str, role: str, node: str) -> None:
        """Start a worker on a node."""
        self._place_of[name] = self._nodes[node]
        self._nodes[node].start(name, role)

    def send(self, worker: str, command: Any) -> None:
        """Pass the command to the worker's node."""
        self._place_of[worker].send(worker, command)

    def kill(self, worker: str) -> None:
        """Have the worker's node end it."""
        self._place_of[worker].kill(worker)

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """Implement `Workers.enlist`: send the members, pickled."""
        self.send(worker, make_enlist(members))

    def rendezvous(self) -> str:
        """Return an unused name in the store that all nodes can reach."""
        return self._store.rendezvous()

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the worker's heartbeat, from its node's handle."""
        return self._place_of[worker].heartbeat(worker)

    def cpu_seconds(self, worker: str) -> float:
        """Return the worker's CPU seconds, from its node's handle."""
        return self._place_of[worker].cpu_seconds(worker)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """Send and receive on all nodes, accept agents that call, and report nodes that are gone."""
        for place in self._nodes.values():
            place.flush_commands()
        self._wait(timeout)
        for joined, peer in self.listener.enter():
            self._take(joined, peer)
        for node, why in self.node_monitor.gone().items():
            for place in self.remote:
                if place.node == node:
                    place.mark_gone(why)
        messages = [] if self.here is None else self.here.receive(0)
        for place in self.remote:
            messages += place.receive()
        messages += self._came
        self._came.clear()
        return messages

    def _take(self, joined: Joined, peer: Peer) -> None:
        try:
            check_versions(joined)
        except PlanError as error:
            self.listener.log_refusal(str(error))  # the run can continue without that node
            peer.close()
            return
        taken = self.node_monitor.take(joined, peer)
        if taken is None:
            peer.close()
            return
        place, node = taken
        place.send_blobs(self.blobs, self.mark.name)
        self.remote.append(place)
        self._nodes[node.name] = place
        self._came.append((node.name, Came(node=node)))

    def _wait(self, seconds: float) -> None:
        """Wait until a node sends something or takes unsent data, or the time is over."""
        ends = [(place.peer, place.outbox.unsent) for place in self.remote if not place.gone]
        listening = [(end, False) for end in (self.here, self.listener) if end is not None]
        some_said = (self.here is not None and self.here.said) or any(place.said for place in self.remote)
        poll(0 if some_said else seconds, [*listening, *ends])
