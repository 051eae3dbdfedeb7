"""The exchange of a node: a child process of the feeder that exchanges blocks with the exchanges of other nodes.

Contract. An exchange serves one leg. It is the only process with communication groups (torch.distributed, gloo), so
the feeder keeps its one thread, never waits for another node, and may fork. The feeder tells it which slots to send or receive,
in an order that is the same on every node within each group, as collectives require. The exchange reports each finished
hop. It owns a slot that it receives into from the order until its first report; it only reads the slots that it sends. No
process waits for an exchange. A feeder kills one that it no longer needs; the kernel then closes its connections, and the exchanges
at the other ends break. An exchange that breaks reports why and ends. It dies with its feeder.
"""

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from argosy.errors.traces import first_line
from argosy.protocol.feeder import Team
from argosy.stream.death import Child
from argosy.stream.rendezvous import FORMING, open_store
from argosy.stream.ring import Ring
from argosy.stream.sharing import PIPELINES, Hop, Pipeline, candidates
from argosy.stream.wire import Peer

__all__ = ["ExchangeFailed", "HopDone", "ExchangeProcess", "MeasuredExchanges", "start_exchange"]

NEVER = datetime.timedelta(days=365)
"""Timeout of an exchange. Another node may legitimately be busy for long; the driver decides which nodes are lost."""
PROBE_BYTES = 2**20
PROBE_ROUNDS = 3
"""Number of blocks of each preparing node with which a link is measured, after one for warm-up."""


class Transfer(NamedTuple):
    """Message from a feeder: transfer so many bytes of a slot over these hops."""

    slot: int
    size: int
    hops: tuple[Hop, ...]


class HopDone(NamedTuple):
    """Message from an exchange: a hop of a slot is done, and so many are left."""

    slot: int
    hops_left: int


class ExchangeFailed(NamedTuple):
    """Last message from an exchange that failed."""

    detail: str


class MeasuredExchanges(NamedTuple):
    """Message from an exchange that was started to measure: the results for all candidates, as in `Probed.exchanges`."""

    found: tuple[tuple[str, int, float, float], ...]


class ExchangeProcess:
    """The feeder's handle on its exchange."""

    def __init__(self, child: Child, team: str) -> None:
        self.child = child
        self.team = team
        """Key of its team."""
        self.sending: set[int] = set()
        """Slots with this node's own blocks that it is sending."""

    def transfer(self, slot: int, size: int, hops: tuple[Hop, ...]) -> None:
        """Send a slot that is ready, or receive into one that is free."""
        self.child.send(Transfer(slot, size, hops))

    def take(self) -> Any:
        """Return its next message; ExchangeFailed if it has died."""
        return self.child.receive() or ExchangeFailed("its exchange died")


def start_exchange(ring: Ring, team: Team, inherited: Iterable[Connection | Peer]) -> ExchangeProcess:
    """Fork an exchange, which closes the inherited connections. If the team has no pipeline, it measures the candidates."""
    return ExchangeProcess(Child.fork("exchange", partial(_run_exchange, ring, team), closing=inherited), team.key)


def _run_exchange(ring: Ring, team: Team, connection: Connection) -> int:
    torch.set_num_threads(1)
    # For nodes of one machine; workers of a run on several have set it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sending = threading.Lock()

    def tell(message: Any) -> None:
        """Send the feeder a message from any thread, unless the feeder is gone."""
        with sending, contextlib.suppress(OSError):
            connection.send(message)

    try:
        store = open_store(team.rendezvous, team.nodes)  # in a variable, because torch alone would not keep it alive
        dist.init_process_group("gloo", store=store, rank=team.rank, world_size=team.nodes, timeout=FORMING)
        if team.sharing is None:
            tell(MeasuredExchanges(tuple(_measure(team, *candidate) for candidate in candidates(team.nodes))))
            return 0
        groups, queues = _groups(PIPELINES[team.sharing](team.nodes, team.preparing)), list[_BroadcastQueue]()
        queues += [_BroadcastQueue(group, ring, tell, queues) for group in groups]
        while True:
            order: Transfer = connection.recv()
            queues[order.hops[0].group].start(order)
    except (EOFError, OSError):
        return 0  # the feeder is gone
    except Exception as error:  # process boundary: report any error to the feeder
        tell(ExchangeFailed(first_line(error)))
        return 1


class _BroadcastQueue:
    """One group. Its broadcasts are started in the order of their blocks, several in progress at a time, and end in that order."""

    def __init__(self, group: Any, ring: Ring, tell: Callable[[Any], None], queues: "list[_BroadcastQueue]") -> None:
        self.group = group
        self.ring = ring
        self.tell = tell
        self.queues = queues
        self.under_way: SimpleQueue[tuple[Any, Transfer]] = SimpleQueue()
        threading.Thread(target=self._wait, daemon=True).start()

    def start(self, order: Transfer) -> None:
        """Start the first hop without waiting for it."""
        memory = torch.from_numpy(self.ring.slot(order.slot)[: order.size])
        self.under_way.put((dist.broadcast(memory, src=order.hops[0].root, group=self.group, async_op=True), order))

    def _wait(self) -> None:
        try:
            while True:
                work, order = self.under_way.get()
                work.wait()
                rest = order.hops[1:]
                self.tell(HopDone(order.slot, len(rest)))
                if rest:
                    self.queues[rest[0].group].start(order._replace(hops=rest))
        except Exception as error:  # thread boundary: after any error the exchange is useless
            self.tell(ExchangeFailed(first_line(error)))
            os._exit(1)


def _groups(pipeline: Pipeline) -> list[Any]:
    # The timeout is not inherited from the default group.
    return [dist.new_group(list(ranks), timeout=NEVER) for ranks in pipeline.groups]


def _measure(team: Team, sharing: str, preparing: int) -> tuple[str, int, float, float]:
    """Measure a pipeline on blocks that need no preparation. Returns it with its bytes/s and CPU seconds per byte."""
    pipeline = PIPELINES[sharing](team.nodes, preparing)
    groups, memory = _groups(pipeline), torch.zeros(PROBE_BYTES, dtype=torch.uint8)
    turns = pipeline.seen_by(team.rank)
    _exchange(groups, memory, [next(turns)[1] for _ in range(preparing)])
    dist.barrier()
    started, cpu = time.perf_counter(), time.process_time()
    blocks = PROBE_ROUNDS * preparing
    _exchange(groups, memory, [next(turns)[1] for _ in range(blocks)])
    dist.barrier()
    size = blocks * PROBE_BYTES
    return sharing, preparing, size / (time.perf_counter() - started), (time.process_time() - cpu) / size


def _exchange(groups: list[Any], memory: torch.Tensor, blocks: list[tuple[Hop, ...]]) -> None:
    """Transfer blocks over these hops: all first hops at once, later ones when their block has arrived."""

    def start(hop: Hop) -> Any:
        return dist.broadcast(memory, src=hop.root, group=groups[hop.group], async_op=True)

    first = [(hops[1:], start(hops[0])) for hops in blocks if hops]
    later: list[Any] = []
    for rest, work in first:
        work.wait()
        later += map(start, rest)
    for work in later:
        work.wait()
