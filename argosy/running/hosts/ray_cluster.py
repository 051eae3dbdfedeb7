"""The launcher for Ray clusters: Ray reports which nodes exist, and runs an agent (`argosy.running.hosts.agent`) on each.

Contract. Ray places agents, reserves their share of each node, and reports their end. All else is as between the nodes
of any job: agents dial the driver, prove a key that was drawn for this driver, and start their node's workers as
ordinary processes. Blocks and checkpoints never pass through Ray's object store. The driver's node need not train. A
node that appears during the run gets an agent, and so does one that has lost its own, `MOST_AGENTS` times at
most.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from argosy.cluster import Cluster, Node
from argosy.errors import PlanError, WorkerError
from argosy.errors.spelling import known_keywords
from argosy.running.hosts.agent import Joined, run_agent
from argosy.running.hosts.agent_listener import AgentListener
from argosy.running.hosts.nodes import NodeWorkers
from argosy.running.hosts.notices import Notice, dial_any_address, read_certificate
from argosy.running.hosts.remote_node import RemoteNode
from argosy.running.launch.blobs import make_blobs
from argosy.running.launch.discovery import make_node, parse_devices
from argosy.running.launch.forkserver import check_linux
from argosy.running.launch.launcher import Job
from argosy.settings import Settings
from argosy.stream.wire import Peer

__all__ = ["Ray"]

GATHER_SECONDS = 300.0
"""Seconds that nodes may take to appear, and Ray to find room on them."""
BUSY_SECONDS = 30.0
"""Seconds that the first nodes wait for others. Ray may have no room on these yet; they join during the run."""
POLL_SECONDS = 0.2
"""Seconds for which calls are accepted before Ray is asked again for nodes and ended agents."""
NEWS_SECONDS = 1.0
"""Seconds between two queries to Ray during a run."""
MOST_AGENTS = 3
"""Most agents started on one node, one after the other, because the cause of their end may persist."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlacedAgent:
    """An agent that Ray was told to start."""

    node_id: str
    """Ray's id of the node."""
    host: str
    actor: Any
    life: Any
    """Ray's reference to the return value of the agent."""


class _Agent:
    """The actor that Ray runs on a node."""

    def live(self, number: int, notice: Notice, settings: Settings) -> int:
        """Run the agent of this node until the run is over."""
        certificate = read_certificate(os.environ)
        call = partial(dial_any_address, notice, bytes.fromhex(notice.key), f"agent {number}", certificate)
        return run_agent(number, call, settings)


@known_keywords("argosy.Ray")
class Ray:
    """Launcher on a Ray cluster: ``argosy.train(study, launcher=argosy.Ray())``. Needs the extra ``ray``."""

    def __init__(self, *, address: str | None = None, runtime_env: Mapping[str, Any] | None = None) -> None:
        check_linux()
        self.address = address
        """Address for `ray.init`: ``auto``, ``ray://host:10001``, ``local``.

        By default the cluster that Ray finds, else this machine.
        """
        self.runtime_env = runtime_env
        """Code, packages and data that Ray brings to the nodes. By default nothing, or the environment of the Ray job."""
        self.settings: Settings = Settings()
        self._connected = False
        self._listener: AgentListener | None = None
        self._notice: Notice | None = None
        """Notice by which agents find the driver, also while the run has the listener."""
        self._placed: dict[int, _PlacedAgent] = {}
        """Agents that Ray has not reported as ended, by number."""
        self._started: Counter[str] = Counter()
        """Number of agents started on each node, by Ray's id of the node."""
        self._names: dict[int, str] = {}
        """Names of the run's nodes, by number of the agent."""
        self._asked = 0.0
        self._job: Job | None = None

    def discover(self, settings: Settings) -> Cluster:
        """Return all nodes of the Ray cluster, as soon as there are as many as the settings want."""
        parse_devices(settings)
        self._connect()
        self.settings, listener = settings, self._listener or self._open_listener()
        began, failures, joined = time.monotonic(), "", listener.joined
        while not self._has_all_nodes(joined, time.monotonic() - began):
            self._place()
            listener.accept_agents(POLL_SECONDS)
            for number, why in self._ended().items():
                failures = f"; the last agent to end reported: {why}"
                if number in joined:
                    joined.pop(number)[1].close()
            if time.monotonic() - began > GATHER_SECONDS or (failures and not self._placed):
                raise self._missing_nodes_error(joined, failures)
        self._names = {number: f"node{place}" for place, number in enumerate(sorted(joined))}
        return Cluster(nodes=tuple(self._node(joined[number][0]) for number in self._names))

    def open(self, job: Job) -> NodeWorkers:
        """Implement `Launcher.open`: workers on the nodes of all agents that have called."""
        listener, self._listener = self._listener, None
        assert listener is not None
        listener.write_log_to(job.directory)
        self._job = replace(job, settings=replace(job.settings, nodes=max(job.settings.nodes, len(self._names))))
        remote = [self._remote_node(*joined) for joined in listener.hand_over()]
        return NodeWorkers(remote, make_blobs(self._job), listener, self, job.directory)

    def close(self) -> None:
        """Close connections and the listener, kill the agents, and leave Ray if this object joined it."""
        if self._listener is not None:
            self._listener.close()
        for placed in self._placed.values():
            ray.kill(placed.actor)
        self._placed, self._listener = {}, None
        self._started.clear()  # the next run may start as many again
        if self._connected:
            ray.shutdown()
            self._connected = False

    def gone(self) -> Mapping[str, str]:
        """Return nodes that have lost their agents, as Ray reports it; also starts agents on nodes that have none."""
        if time.monotonic() - self._asked < NEWS_SECONDS:
            return {}
        self._asked = time.monotonic()
        gone = {self._names[number]: why for number, why in self._ended().items() if number in self._names}
        self._place()
        return gone

    def take(self, joined: Joined, peer: Peer) -> tuple[RemoteNode, Node]:
        """Name the node of an agent that called during the run."""
        self._names[joined.rank] = f"node{len(self._names)}"
        return self._remote_node(joined, peer), self._node(joined)

    def _has_all_nodes(self, joined: Collection[int], waited: float) -> bool:
        """Return whether the nodes that have called can begin; they wait `BUSY_SECONDS` for agents that may never call."""
        enough = len(joined) >= max(self.settings.nodes, 1)
        return enough and (not set(self._placed) - set(joined) or waited > BUSY_SECONDS)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        try:
            with _keep_sigterm_handler():
                ray.init(address=self.address, runtime_env=dict(self.runtime_env or {}), log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise PlanError(
                f"Ray has no cluster at {self.address or 'its default address'}: {error}. Start one with ray "
                "start --head or ray up, or pass the address of a running one."
            ) from error
        self._connected = True

    def _open_listener(self) -> AgentListener:
        self._listener = listener = AgentListener("", None, read_certificate(os.environ))
        self._notice = listener.notice
        return listener

    def _place(self) -> None:
        """Have Ray start an agent on each node that has none."""
        busy = {placed.node_id for placed in self._placed.values()}
        for node in ray.nodes():
            name = node["NodeID"]
            share = share_of(self.settings, node.get("Resources", {}))
            if node["Alive"] and name not in busy and self._started[name] < MOST_AGENTS and share is not None:
                self._started[name] += 1
                self._start(name, node["NodeManagerHostname"], *share)

    def _start(self, node_id: str, host: str, settings: Settings, takes: Mapping[str, int]) -> None:
        number = self._started.total()
        on_node = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        actor = ray.remote(_Agent).options(scheduling_strategy=on_node, max_restarts=0, **takes).remote()
        life = actor.live.remote(number, self._notice, settings)
        self._placed[number] = _PlacedAgent(node_id=node_id, host=host, actor=actor, life=life)

    def _ended(self) -> dict[int, str]:
        """Return the agents that Ray knows to have ended since the last call, and why; never waits."""
        numbers = {placed.life: number for number, placed in self._placed.items()}
        over = ray.wait(list(numbers), num_returns=len(numbers), timeout=0)[0] if numbers else []
        for life in over:
            del self._placed[numbers[life]]
        return {numbers[life]: _exit_reason(life) for life in over}

    def _node(self, joined: Joined) -> Node:
        return make_node(self._names[joined.rank], joined.node.devices, joined.node.cores)

    def _remote_node(self, joined: Joined, peer: Peer) -> RemoteNode:
        assert self._job is not None
        return RemoteNode(self._names[joined.rank], joined.host, peer, self._job.directory)

    def _missing_nodes_error(self, joined: Collection[int], failures: str) -> WorkerError:
        waited = ", ".join(placed.host for number, placed in self._placed.items() if number not in joined)
        return WorkerError(
            f"agents on {len(joined)} nodes of the Ray cluster have called, but {max(self.settings.nodes, 1)} are "
            f"needed (waited for: {waited or 'none'}){failures}. Each node needs the free devices that --devices "
            "asks for, argosy installed or in the runtime_env, and a route to this host. Run ray status and ray "
            "list actors for details."
        )


def share_of(settings: Settings, resources: Mapping[str, float]) -> tuple[Settings, dict[str, int]] | None:
    """Return an agent's settings and its share of a node with these resources; None if the node lacks the devices.

    >>> share_of(Settings(devices="cpu:2", threads=2), {"CPU": 8.0})[1]
    {'num_cpus': 4}
    """
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    kind, numbers = parse_devices(settings, default="cuda" if gpus else "cpu")
    if kind == "cpu":
        slots = numbers[0] if numbers else cpus // settings.threads
        fits = 1 <= slots * settings.threads <= cpus
        return (replace(settings, devices=f"cpu:{slots}"), {"num_cpus": slots * settings.threads}) if fits else None
    count = len(numbers) or gpus
    # Ray shows an agent only the devices that it takes, numbered from 0.
    takes = {"num_cpus": min(count, cpus), "num_gpus": count}
    return (replace(settings, devices=kind), takes) if 1 <= count <= gpus else None


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restore the SIGTERM handler: Ray's exits at any point, but in Argosy the signal pauses a run."""
    earlier = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if earlier is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, earlier)


def _exit_reason(life: Any) -> str:
    """Return how an agent ended."""
    try:
        return f"its agent ended with exit code {ray.get(life)}"
    except ray.exceptions.RayError as error:
        return f"its agent ended: {' '.join(str(error).split())[:500]}"
