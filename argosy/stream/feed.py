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
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from argosy.protocol.events import Skipped, Used
from argosy.protocol.feeder import (
    Credit,
    Feed,
    FeederProgress,
    Hold,
    Leg,
    Lend,
    Open,
    Parted,
    Probe,
    Probed,
    Team,
    UseLoaders,
)
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
from argosy.stream.sharing import PIPELINES, Hop
from argosy.stream.standby import open_for
from argosy.stream.wire import Peer
from argosy.study import Data

__all__ = ["feed"]

SLOTS = 4
"""Slots of the ring for blocks that trainers use or will soon use. Blocks take about 4 MiB each, of large samples more."""
SLOTS_PER_NODE = 2
"""Slots for blocks in transit: one being prepared and one being exchanged. With one node the ring has 6 slots."""
REPORT_SECONDS = 1.0
ALONE = (True, ())
"""The turn of each block that is not exchanged."""
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(eq=False)
class _Feeder:
    name: str
    driver: Peer
    preparation: Preparation
    course: FeedSchedule
    orders: Orders
    files: Sequence[MappedFile]
    """Memory-mapped files from which samples are read. No block is sent after one of them has changed."""
    readers: dict[str, Peer] = field(default_factory=dict, init=False)
    turns: Iterator[tuple[bool, tuple[Hop, ...]]] = field(default_factory=lambda: repeat(ALONE), init=False)
    """As from `Pipeline.seen_by`."""
    share: float = field(default=1.0, init=False)
    """Share of the blocks that this node prepares."""
    marks: ShardMarks = field(default_factory=ShardMarks, init=False)
    exchange: ExchangeProcess | None = field(default=None, init=False)
    held: dict[int, set[Peer | ExchangeProcess]] = field(default_factory=dict, init=False)
    """By slot, the readers and the exchange that have not released it yet."""
    running: bool = field(default=True, init=False)
    flowing: bool = field(default=False, init=False)
    """Whether a trainer has finished a block."""

    def __post_init__(self) -> None:
        self.ring, self.sources, self.gauge = self.preparation.ring, self.preparation.sources, self.preparation.gauge
        self.selector = self.preparation.selector
        self._since = self._reported_at = time.monotonic()

    def run(self, commands: Iterable[Any]) -> None:
        """Execute the driver's commands, those in `commands` first, until it sends Exit or closes the connection."""
        self.selector.register(self.driver, READ, lambda: self._obey(self.driver.receive()))
        self._obey(commands)
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
                self._start_exchange(command.team)
            elif isinstance(command, UseLoaders):
                self.preparation.wanted_loaders = min(self.preparation.wanted_loaders, max(command.count, 1))
                self.preparation.end_surplus()
            elif isinstance(command, Exit):
                self._finish()

    def _finish(self) -> None:
        self._begin(self.course.leg)
        self.preparation.end()
        times = os.times()
        seconds = times.user + times.system + times.children_user + times.children_system
        self.driver.send(Used(worker=self.name, cpu_seconds=seconds, gauge=self.gauge.to_json()))
        self.driver.flush()
        for source in self.sources.values():
            if source.kept is not None:
                source.kept.commit()  # last: if the driver kills this process meanwhile, rows survive unless the machine fails
        self.running = False

    def _begin(self, leg: Leg) -> None:
        """End the current leg, and report what was prepared for it in vain and what was fed of unfinished sections."""
        self._stop_exchange()
        for filling in self.preparation.filling:
            self.held.pop(filling.slot, None)
        for event in (*self.preparation.discard_blocks(self.course.per_epoch), *self.course.begin(leg)):
            self.driver.send(event)

    def _new_leg(self, feed: Feed) -> None:
        self._begin(feed.leg)
        self.marks = ShardMarks(feed.leg.marks)
        self.preparation.marks = {mark.shard: mark for mark in feed.leg.marks}
        self.turns, self.share, team = repeat(ALONE), 1.0, feed.team
        if team is not None and team.sharing is not None:
            pipeline = PIPELINES[team.sharing](team.nodes, team.preparing)
            self.turns, self.share = pipeline.seen_by(team.rank), pipeline.share(team.rank)
            self._start_exchange(team)

    def _start_exchange(self, team: Team) -> None:
        self.exchange = start_exchange(self.ring, team, self.preparation.connections)
        self.selector.register(self.exchange.child.connection, READ, partial(self._handle_exchange, self.exchange))

    def _stop_exchange(self) -> None:
        """End the exchange with other nodes, even if blocks are in transit."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self.selector.unregister(exchange.child.connection)
            exchange.child.end(kill=True)
            for slot in [slot for slot, holders in self.held.items() if exchange in holders]:
                self._give_back(slot, exchange)

    def _handle_exchange(self, exchange: ExchangeProcess) -> None:
        message = exchange.take()
        if isinstance(message, HopDone):
            # A block has arrived at this node or at others.
            filling = self.preparation.block_in_slot(message.slot)
            if filling is not None and not filling.own:
                filling.missing = 0
            if message.hops_left == 0:
                exchange.sending.discard(message.slot)
                self._give_back(message.slot, exchange)
            return
        self._stop_exchange()
        if isinstance(message, ExchangeFailed):
            self.driver.send(Parted(team=exchange.team, detail=message.detail))
        elif isinstance(message, MeasuredExchanges):
            gauge = self.gauge
            probed = Probed(
                cpu_seconds_per_sample=gauge.preparation_cpu_seconds / max(gauge.prepared + gauge.kept, 1),
                sample_bytes=self.sources["train"].layout.sample_bytes,
                exchanges=message.found,
            )
            self.driver.send(probed)

    def _add_reader(self, name: str, peer: Peer) -> None:
        earlier = self.readers.pop(name, None)
        if earlier is not None:
            # The trainer was told to connect again, or replaces another with the same name.
            self._lose_reader(earlier)
        layouts = {split: source.layout for split, source in self.sources.items()}
        self.ring.lend(peer, layouts, self.course.lengths, self.orders.shards)
        self.readers[name] = peer
        self.selector.register(peer, READ, partial(self._handle_released, name, peer))

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
            own, hops = next(self.turns)
            if own:
                self.preparation.start(place, self.orders.block(place), hops)
            else:
                self.preparation.expect(place, hops)

    def _start_transfers(self) -> None:
        """Hand blocks to the exchange, within each group in the order of the stream, as collectives require."""
        exchange, held_up = self.exchange, set()
        if exchange is None:
            return
        for filling in self.preparation.filling:
            if filling.handed or not filling.hops:
                continue
            if filling.own and filling.missing:
                held_up.add(filling.hops[0].group)
            elif filling.hops[0].group not in held_up:
                self._transfer(exchange, filling)

    def _transfer(self, exchange: ExchangeProcess, filling: BlockInProgress) -> None:
        if filling.own:
            # Before any other node can receive the block.
            check_files(self.files)
            self._report_holes(filling)
            exchange.sending.add(filling.slot)
        size = self.sources[filling.place.split].layout.block_bytes(filling.place.rows)
        self.held[filling.slot] = {exchange}
        filling.handed = True
        exchange.transfer(filling.slot, size, filling.hops)
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
        sending = () if self.exchange is None else self.exchange.sending
        leaving = len(sending) + sum(not f.missing and bool(f.hops) and not f.handed for f in own)
        with_readers = sum(len(holders) > (self.exchange in holders) for holders in self.held.values())
        slots = max(self.ring.slots * self.share, 1.0)
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
    lengths = {name: source.length for name, source in sources.items()}
    course = FeedSchedule(lengths, per_epoch=per_epoch, block_size=block_size)
    driver.send(make_opened(sources, block_size=block_size, seconds=time.monotonic() - began))
    wanted = count if any(source.parallel for source in sources.values()) else 0
    selector = selectors.DefaultSelector()
    preparation = Preparation(ring, sources, StreamGauge(cores=cores), heartbeat, selector, wanted)
    orders = Orders(seed, lengths, shards=sources["train"].facts.shards)
    mapped = (*files, *(file for source in sources.values() for file in source.facts.files))
    _Feeder(name, driver, preparation, course, orders, mapped).run(others)
