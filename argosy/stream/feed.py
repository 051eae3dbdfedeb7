"""The feeder of a node: dataset -> blocks in the ring -> every trainer of the node, each sample prepared once.

Contract. One thread with one selector: it never waits for one peer while another has sent something. It prepares blocks as long as
the ring has free slots, and announces them in their order, within the driver's credit, once every reader named there is
connected (`argosy.stream.course`). If nodes share the leg, it prepares only its own blocks, and its exchange process exchanges them
for those of other nodes. A slot is free again when every reader and the exchange have released it. The driver tells it everything
else: which members are alive, when to stop, which nodes are in the team.
"""

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

from argosy.protocol.events import Skipped, Used
from argosy.protocol.feeder import Credit, Feed, FeederProgress, Hold, Lend, Open, Parted, Probe, Probed, UseLoaders
from argosy.protocol.trainer import Exit
from argosy.settings import Settings
from argosy.stream.course import FeedSchedule
from argosy.stream.exchange import ExchangeFailed, ExchangeProcess, HopDone, MeasuredExchanges, start_exchange
from argosy.stream.gauges import Queues, StreamGauge
from argosy.stream.heartbeat import MAX_LOADERS, Heartbeat
from argosy.stream.mapped import MappedFile, check_files
from argosy.stream.opening import make_opened, open_kept_rows
from argosy.stream.preparation import BlockInProgress, Preparation
from argosy.stream.ring import Ring
from argosy.stream.schedule import Orders, choose_block_size
from argosy.stream.shards import ShardMarks
from argosy.stream.sharing import PIPELINES, Turn
from argosy.stream.sources import Source
from argosy.stream.standby import open_for
from argosy.stream.wire import Peer
from argosy.study import Data

__all__ = ["feed"]

SLOTS = 4
"""Slots of the ring for blocks that trainers use or will soon use. Blocks take about 4 MiB each."""
SLOTS_PER_NODE = 2
"""Slots for blocks in transit: one being prepared and one being exchanged. With one node the ring has 6 slots."""
REPORT_SECONDS = 1.0
ALONE = Turn(owner=0, hops=())
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(eq=False)
class _Feeder:
    name: str
    driver: Peer
    ring: Ring
    sources: dict[str, Source]
    course: FeedSchedule
    orders: Orders
    heartbeat: Heartbeat
    _: KW_ONLY
    files: Sequence[MappedFile]
    """Memory-mapped files from which samples are read. No block is sent after one of them has changed."""
    wanted_loaders: InitVar[int]
    gauge: StreamGauge
    preparation: Preparation = field(init=False)
    readers: dict[str, Peer] = field(default_factory=dict, init=False)
    team: str = field(default="", init=False)
    """Key of the team of the current exchange."""
    rank: int = field(default=0, init=False)
    turns: Iterator[Turn] = field(default_factory=lambda: repeat(ALONE), init=False)
    marks: ShardMarks = field(default_factory=ShardMarks, init=False)
    own_slots: float = field(init=False)
    """Average number of slots that blocks of this node fill."""
    exchange: ExchangeProcess | None = field(default=None, init=False)
    held: dict[int, set[Peer | ExchangeProcess]] = field(default_factory=dict, init=False)
    """By slot, the readers and the exchange that have not released it yet."""
    sending: set[int] = field(default_factory=set, init=False)
    """Slots with this node's own blocks that the exchange is sending."""
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    running: bool = field(default=True, init=False)
    flowing: bool = field(default=False, init=False)
    """Whether a trainer has finished a block."""

    def __post_init__(self, wanted_loaders: int) -> None:
        self.own_slots = float(self.ring.slots)
        self.preparation = Preparation(
            *(self.ring, self.sources, self.gauge, self.heartbeat),
            wanted_loaders=wanted_loaders,
            inherited=self._connections,
            watch=lambda loader: self._watch(loader.connection, partial(self.preparation.receive, loader)),
            forget=lambda loader: self.selector.unregister(loader.connection),
        )
        self._since = self._reported_at = time.monotonic()

    def run(self, commands: Iterable[Any]) -> None:
        """Execute the driver's commands, those in `commands` first, until it sends Exit or closes the connection."""
        self._obey(commands)
        self._watch(self.driver, lambda: self._obey(self.driver.receive()))
        for _ in range(self.preparation.wanted_loaders):
            self.preparation.start_loader()
        while self.running:
            self._start_blocks()
            queues = self._queues()
            at_once = self.preparation.dispatch()
            self._start_transfers()
            self._announce()
            self._write()
            # Own tasks are done one at a time, and messages are handled in between.
            for key, events in self.selector.select(timeout=0 if at_once else REPORT_SECONDS):
                # Skip handlers that an earlier handler of this round has unregistered.
                if events & READ and self.selector.get_map().get(key.fd) is key:
                    key.data()
            self._account_time(queues)

    def _write(self) -> None:
        """Flush unsent messages, and watch the sockets that cannot accept more yet."""
        for peer in (self.driver, *self.readers.values()):
            peer.flush()
            key = self.selector.get_key(peer)
            if bool(key.events & WRITE) != peer.unsent:
                self.selector.modify(peer, READ | WRITE if peer.unsent else READ, key.data)

    # ---- messages from peers

    def _obey(self, commands: Iterable[Any]) -> None:
        """Execute the driver's commands."""
        for command in commands:
            if isinstance(command, Credit):
                self.course.allow(command)
            elif isinstance(command, Hold):
                self.driver.send(self.course.hold(command))
            elif isinstance(command, Lend):
                self._add_reader(command.reader, Peer(socket.socket(fileno=self.driver.descriptors.popleft())))
            elif isinstance(command, Feed):
                self._new_leg(command)
            elif isinstance(command, Probe):
                self._stop_exchange()
                self._start_exchange(command)
            elif isinstance(command, UseLoaders):
                self.preparation.wanted_loaders = min(self.preparation.wanted_loaders, max(command.count, 1))
                self.preparation.end_surplus()
            elif isinstance(command, Exit):
                self._finish()

    def _finish(self) -> None:
        self._stop_exchange()
        for event in (*self.preparation.discard_blocks(self.course.per_epoch), *self.course.begin(self.course.leg)):
            self.driver.send(event)
        self.preparation.end()
        times = os.times()
        seconds = times.user + times.system + times.children_user + times.children_system
        self.driver.send(Used(worker=self.name, cpu_seconds=seconds, gauge=self.gauge.to_json()))
        self.driver.flush()
        for source in self.sources.values():
            if source.kept is not None:
                source.kept.commit()  # last: if the driver kills this process meanwhile, rows survive unless the machine fails
        self.running = False

    def _new_leg(self, feed: Feed) -> None:
        self._stop_exchange()
        for filling in self.preparation.filling:
            self.held.pop(filling.slot, None)
        for event in (*self.preparation.discard_blocks(self.course.per_epoch), *self.course.begin(feed.leg)):
            self.driver.send(event)
        self.marks = ShardMarks(feed.leg.marks)
        self.preparation.marks = {mark.shard: mark for mark in feed.leg.marks}
        self.rank, self.turns = 0, repeat(ALONE)
        self.own_slots = float(self.ring.slots)
        if feed.team is not None and feed.team.sharing is not None:
            pipeline = PIPELINES[feed.team.sharing](feed.team.nodes, feed.team.preparing)
            self.rank, self.turns = feed.team.rank, pipeline.seen_by(feed.team.rank)
            owned = sum(turn.owner == self.rank for turn in pipeline.turns)
            self.own_slots = self.ring.slots * owned / len(pipeline.turns)
            self._start_exchange(feed)

    def _start_exchange(self, command: Feed | Probe) -> None:
        assert command.team is not None
        self.team = command.team.key
        others = (loader.connection for loader in self.preparation.loaders)
        self.exchange = start_exchange(self.ring, command.team, [*self._connections(), *others])
        self._watch(self.exchange.connection, self._handle_exchange)

    def _connections(self) -> list[Any]:
        """Return the connections that a forked child must close."""
        exchange: list[Connection] = [] if self.exchange is None else [self.exchange.connection]
        return [self.driver, *self.readers.values(), *exchange]

    def _stop_exchange(self) -> None:
        """End the exchange with other nodes, even if blocks are in transit."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self.selector.unregister(exchange.connection)
            exchange.end()
            self.sending.clear()
            for slot in [slot for slot, holders in self.held.items() if exchange in holders]:
                self._give_back(slot, exchange)

    def _handle_exchange(self) -> None:
        assert self.exchange is not None
        message = self.exchange.take()
        if isinstance(message, HopDone):
            self._handle_hop_done(message)
        elif isinstance(message, MeasuredExchanges):
            self._stop_exchange()
            self._answer_probe(message)
        elif isinstance(message, ExchangeFailed):
            self._stop_exchange()
            self.driver.send(Parted(team=self.team, detail=message.detail))

    def _answer_probe(self, measured: MeasuredExchanges) -> None:
        probed = Probed(
            cpu_seconds_per_sample=self.gauge.preparation_cpu_seconds / max(self.gauge.prepared + self.gauge.kept, 1),
            sample_bytes=self.sources["train"].layout.sample_bytes,
            exchanges=measured.found,
        )
        self.driver.send(probed)

    def _handle_hop_done(self, message: HopDone) -> None:
        """Handle a finished hop: a block has arrived at this node or at others."""
        assert self.exchange is not None
        filling = self.preparation.block_in_slot(message.slot)
        if filling is not None and not filling.own:
            filling.missing = 0
        if message.hops_left == 0:
            self.sending.discard(message.slot)
            self._give_back(message.slot, self.exchange)

    def _add_reader(self, name: str, peer: Peer) -> None:
        earlier = self.readers.pop(name, None)
        if earlier is not None:
            # The trainer was told to connect again, or replaces another with the same name.
            self._lose_reader(earlier)
        layouts = {split: source.layout for split, source in self.sources.items()}
        self.ring.lend(peer, layouts, self.course.lengths, self.orders.shards)
        self.readers[name] = peer
        self._watch(peer, partial(self._handle_released, name, peer))

    def _handle_released(self, name: str, peer: Peer) -> None:
        try:
            for slot in peer.receive():
                self._give_back(slot, peer)
                self.flowing = True
        except (EOFError, OSError):
            if self.readers.get(name) is peer:
                del self.readers[name]
            self._lose_reader(peer)

    def _lose_reader(self, peer: Peer) -> None:
        self.selector.unregister(peer)
        peer.close()
        for slot in [slot for slot, holders in self.held.items() if peer in holders]:
            self._give_back(slot, peer)

    def _give_back(self, slot: int, holder: Peer | ExchangeProcess) -> None:
        self.held[slot].discard(holder)
        self._free_unheld(slot)

    def _free_unheld(self, slot: int) -> None:
        # A block that is not announced yet has no reader, but its slot is not free.
        if not self.held[slot] and self.preparation.block_in_slot(slot) is None:
            del self.held[slot]
            self.preparation.free.append(slot)

    # ---- blocks

    def _start_blocks(self) -> None:
        while self.preparation.free and (place := self.course.next()) is not None:
            turn = next(self.turns)
            if turn.owner == self.rank:
                self.preparation.start(place, self.orders.block(place), turn.hops)
            else:
                self.preparation.expect(place, turn.hops)

    def _start_transfers(self) -> None:
        """Hand blocks to the exchange, within each group in the order of the stream, as collectives require."""
        held_up = set()
        for filling in self.preparation.filling if self.exchange is not None else ():
            if filling.handed or not filling.hops:
                continue
            if filling.own and filling.missing:
                held_up.add(filling.hops[0].group)
            elif filling.hops[0].group not in held_up:
                self._transfer(filling)

    def _transfer(self, filling: BlockInProgress) -> None:
        assert self.exchange is not None
        if filling.own:
            # Before any other node can receive the block.
            check_files(self.files)
            self._report_holes(filling)
            self.sending.add(filling.slot)
        size = self.sources[filling.place.split].layout.block_bytes(filling.place.rows)
        self.held[filling.slot] = {self.exchange}
        filling.handed = True
        self.exchange.transfer(filling.slot, size, filling.hops)
        self.gauge.exchanged_bytes += size

    def _announce(self) -> None:
        filling, course = self.preparation.filling, self.course
        while filling and not filling[0].missing and course.may_announce(filling[0].place):
            if any(name not in self.readers for name in course.assignments):
                return
            check_files(self.files)
            block = filling.popleft()
            self._report_holes(block)
            self.held.setdefault(block.slot, set()).update(self.readers[name] for name in course.assignments)
            fixed = self.sources[block.place.split].fixed(self.orders.block(block.place))
            marks = self.marks.after(block.marks) if block.place.split == "train" else ()
            for name, assignment in course.assignments.items():
                self.readers[name].send((block.slot, block.place, assignment, fixed, marks))
            self.gauge.delivered += block.place.rows
            fed = course.note_announced(block.place, block.prepared)
            if fed is not None:
                self.driver.send(fed)
            # Without readers it is free at once.
            self._free_unheld(block.slot)

    def _report_holes(self, filling: BlockInProgress) -> None:
        place = filling.place
        for index, error in filling.holes:
            self.driver.send(Skipped(split=place.split, epoch=place.epoch, index=index, error=error))
        filling.holes.clear()

    def _queues(self) -> Queues:
        """Return the state of the queues, which is valid until the next message."""
        own = [filling for filling in self.preparation.filling if filling.own]
        preparing = sum(filling.missing > 0 for filling in own)
        leaving = len(self.sending) + sum(not f.missing and bool(f.hops) and not f.handed for f in own)
        with_readers = sum(len(holders) > (self.exchange in holders) for holders in self.held.values())
        slots = max(self.own_slots, 1.0)
        return Queues(
            preparing=preparing > 0,
            filling=any(filling.missing for filling in self.preparation.filling),
            to_prepare=min(preparing / slots, 1.0),
            to_exchange=min(leaving / slots, 1.0),
            to_train=max(with_readers - 1, 0) / (self.ring.slots - 1),
        )

    def _account_time(self, queues: Queues) -> None:
        """Account for the time since the last call, during which the queues were in this state."""
        elapsed, gauge = time.monotonic() - self._since, self.gauge
        self._since += elapsed
        if self.course.assignments:
            gauge.note(queues, elapsed, flowing=self.flowing)
        if self.course.assignments and self._since - self._reported_at > REPORT_SECONDS:
            self._reported_at, gauge.loaders = self._since, len(self.preparation.loaders)
            self.driver.send(FeederProgress(gauge=gauge.to_json()))

    def _watch(self, source: Peer | Connection, handler: Callable[[], None]) -> None:
        self.selector.register(source, READ, handler)


def feed(
    driver: Peer,
    data: Callable[[], Data],
    settings: Settings,
    *,
    name: str,
    seed: int,
    per_epoch: int,
    cores: int,
    heartbeat: Heartbeat,
    keep_bytes: int,
    files: Sequence[MappedFile] = (),
) -> None:
    """Run a feeder that may use `cores` cores: open the data on command, then feed legs until told to exit."""
    command, *others = driver.wait()
    assert isinstance(command, Open)
    began = time.monotonic()
    count = settings.loader_workers if settings.loader_workers is not None else min(cores, MAX_LOADERS)
    with heartbeat.busy("opening the data", opaque=True):
        sources = open_for(
            count,
            data,
            seed=seed,
            heartbeat=heartbeat,
            hang_up=driver.close,
            most_kept=settings.keep_bytes,
            shards=command.shards,
        )
    open_kept_rows(sources, keep_bytes)
    block_size = settings.block_size or choose_block_size(sources["train"].layout)
    slots = SLOTS + SLOTS_PER_NODE * settings.nodes
    ring = Ring(slots=slots, slot_bytes=max(s.layout.block_bytes(block_size) for s in sources.values()))
    parallel = any(source.parallel for source in sources.values())
    lengths = {name: source.length for name, source in sources.items()}
    course = FeedSchedule(lengths, per_epoch=per_epoch, block_size=block_size)
    driver.send(make_opened(sources, block_size=block_size, seconds=time.monotonic() - began))
    _Feeder(
        name,
        driver,
        ring,
        sources,
        course,
        Orders(seed, lengths, shards=sources["train"].facts.shards),
        heartbeat,
        files=(*files, *(file for source in sources.values() for file in source.facts.files)),
        wanted_loaders=count if parallel else 0,
        gauge=StreamGauge(cores=cores),
    ).run(others)
