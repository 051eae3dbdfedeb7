"""The feeder of a node: dataset -> blocks in the ring -> every trainer of the node, each sample prepared once.

Contract. One thread, one selector: it never waits for one peer while another has something to say. It prepares as far
ahead as the ring has slots, announces blocks in their order, and only when every reader of the leg is connected. Where
nodes share the leg, it prepares its own blocks alone, and its courier exchanges them for those of the others; a slot is
free again when every reader and the courier have given it back. What it does not know (which members live, when to stop,
who is in the team) the driver tells it.
"""

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat
from multiprocessing.connection import Connection
from typing import Any

from argosy.commands import Exit, Feed, Flowing, Open, Opened, Parted, Probe, Probed, UseLoaders
from argosy.errors import WorkerError
from argosy.events import Fed, Skipped, Used
from argosy.settings import Settings
from argosy.stream.blocks import Place
from argosy.stream.courier import Broken, Carried, Courier, Exchanges, start_courier
from argosy.stream.gauges import StreamGauge
from argosy.stream.loaders import Done, Loader, Task, run_task, start_loader
from argosy.stream.pulse import Pulse
from argosy.stream.ring import Ring
from argosy.stream.schedule import Orders, choose_block_size, places
from argosy.stream.sharing import PIPELINES, Hop, Turn
from argosy.stream.sources import Source, open_sources
from argosy.stream.wire import Door, Peer
from argosy.study import Data

__all__ = ["feed"]

SLOTS = 4
"""Slots of the ring for blocks that trainers have, or will have soon. Unit of its memory: blocks of about 4 MiB."""
SLOTS_PER_NODE = 2
"""Slots for blocks on their way, one that is prepared and one that is exchanged. One node alone: 6 in all."""
TRIES = 3
"""Workers that may die on one task."""
CHUNK = 32
"""Most samples of one task: small enough that the workers finish a block together."""
TELL_SECONDS = 1.0
ALONE = Turn(owner=0, hops=())


@dataclass(slots=True)
class _Filling:
    """A block on its way into its slot: prepared here, or by another node."""

    slot: int
    place: Place
    todo: deque[Task]
    missing: int
    """Tasks not answered yet; of a block that another node prepares, its arrival."""
    own: bool = True
    hops: tuple[Hop, ...] = ()
    """Its way between the nodes, as far as this one takes part."""
    handed: bool = False
    """Whether the courier has it."""
    holes: list[tuple[int, str]] = field(default_factory=list)


class _Feeder:
    def __init__(
        self,
        name: str,
        driver: Peer,
        door: Door,
        ring: Ring,
        sources: dict[str, Source],
        wanted_loaders: int,
        block_size: int,
        seed: int,
        cores: int,
        pulse: Pulse,
    ) -> None:
        self.name = name
        self.driver = driver
        self.door = door
        self.ring = ring
        self.sources = sources
        self.wanted_loaders = wanted_loaders
        self.loaders: list[Loader] = []
        self.tries: dict[tuple[int, int], int] = {}
        self.block_size = block_size
        self.lengths = {name: source.length for name, source in sources.items()}
        self.orders = Orders(seed, self.lengths)
        self.gauge = StreamGauge(cores=cores)
        self.pulse = pulse
        self.readers: dict[str, Peer] = {}
        self.expected: tuple[str, ...] = ()
        self.team = ""
        """Key of the team of its courier."""
        self.rank = 0
        self.places: Iterator[tuple[Place, Turn]] = iter(())
        self.own_slots = float(ring.slots)
        """Slots that blocks of this node fill, on average."""
        self.courier: Courier | None = None
        self.free = list(range(ring.slots))
        self.filling: deque[_Filling] = deque()
        self.abandoned: list[_Filling] = []
        self.held: dict[int, set[Peer | Courier]] = {}
        """Who has not given back a slot yet."""
        self.sending: set[int] = set()
        """Slots of this node's own blocks that the courier has."""
        self.samples: dict[tuple[str, int], int] = {}
        self.selector = selectors.DefaultSelector()
        self.running = True
        self._since = time.monotonic()
        self._told = self._since

    def run(self, early: Sequence[Any]) -> None:
        """Until the driver says Exit or is gone; `early` is what it has said already."""
        self._watch(self.driver, self._obey)
        self._watch(self.door, self._admit)
        for _ in range(self.wanted_loaders):
            self._start_loader()
        for command in early:
            self._do(command)
        while self.running:
            self._start_blocks()
            at_once = self._hand_out()
            self._send_off()
            self._announce()
            self._watch_for_room()
            for key, _ in self.selector.select(timeout=0 if at_once else TELL_SECONDS):
                # Not one that was let go since, on the word of somebody before it.
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            self._measure_time()

    # ---- what peers say

    def _obey(self) -> None:
        for command in self.driver.receive():
            self._do(command)

    def _do(self, command: Any) -> None:
        if isinstance(command, Feed):
            self._new_leg(command)
        elif isinstance(command, Probe):
            self._part()
            self._start_courier(command)
        elif isinstance(command, UseLoaders):
            self.wanted_loaders = min(self.wanted_loaders, command.count)
            self._dismiss_loaders()
        elif isinstance(command, Exit):
            self._part()
            used = Used(worker=self.name, cpu_seconds=_cpu_seconds(self.loaders), gauge=self.gauge.to_json())
            self.driver.send(used)
            self.running = False

    def _new_leg(self, feed: Feed) -> None:
        self._part()
        self.gauge.speculative += sum(f.place.rows for f in self.filling if f.own)
        # Tasks under way write into their slots to the end; the slots come back with their last answer.
        for filling in self.filling:
            filling.missing = filling.missing - len(filling.todo) if filling.own else 0
            filling.todo.clear()
            self.held.pop(filling.slot, None)
            if filling.missing:
                self.abandoned.append(filling)
            else:
                self.free.append(filling.slot)
        self.filling.clear()
        self.expected = feed.readers
        self.rank = 0
        turns: Iterator[Turn] = repeat(ALONE)
        self.own_slots = float(self.ring.slots)
        if feed.team is not None and feed.team.sharing is not None:
            pipeline = PIPELINES[feed.team.sharing](feed.team.nodes, feed.team.preparing)
            self.rank, turns = feed.team.rank, pipeline.seen_by(feed.team.rank)
            owned = sum(turn.owner == self.rank for turn in pipeline.turns)
            self.own_slots = self.ring.slots * owned / len(pipeline.turns)
            self._start_courier(feed)
        self.places = zip(places(feed.leg, self.lengths, self.block_size), turns, strict=False)
        self.samples.clear()

    def _start_courier(self, command: Feed | Probe) -> None:
        assert command.team is not None
        self.team = command.team.key
        others = (loader.connection for loader in self.loaders)
        self.courier = start_courier(self.ring, command.team, [self.driver, *self.readers.values(), *others])
        self._watch(self.courier.connection, self._hear_courier)

    def _part(self) -> None:
        """End the exchange with the other nodes, whatever is under way."""
        courier, self.courier = self.courier, None
        if courier is not None:
            self.selector.unregister(courier.connection)
            self.gauge.exchange_cpu_seconds += courier.end()
            self.sending.clear()
            for slot in [slot for slot, holders in self.held.items() if courier in holders]:
                self._give_back(slot, courier)

    def _hear_courier(self) -> None:
        assert self.courier is not None
        message = self.courier.take()
        if isinstance(message, Carried):
            self._carried(message)
        elif isinstance(message, Exchanges):
            self._part()
            self._answer_probe(message)
        elif isinstance(message, Broken):
            self._part()
            self.driver.send(Parted(team=self.team, detail=message.detail))

    def _answer_probe(self, measured: Exchanges) -> None:
        probed = Probed(
            cpu_seconds_per_sample=self.gauge.preparation_cpu_seconds / max(self.gauge.prepared, 1),
            sample_bytes=self.sources["train"].layout.sample_bytes,
            exchanges=measured.found,
        )
        self.driver.send(probed)

    def _carried(self, message: Carried) -> None:
        """A hop is done: a block has arrived here, or is where it should be."""
        assert self.courier is not None
        filling = next((f for f in self.filling if f.slot == message.slot), None)
        if filling is not None and not filling.own:
            filling.missing = 0
        if message.hops_left == 0:
            self.sending.discard(message.slot)
            self._give_back(message.slot, self.courier)

    def _admit(self) -> None:
        for name, peer in self.door.enter():
            self.ring.lend(peer, {split: source.layout for split, source in self.sources.items()}, self.lengths)
            self.readers[name] = peer
            self._watch(peer, partial(self._released, name, peer))

    def _released(self, name: str, peer: Peer) -> None:
        try:
            for slot in peer.receive():
                self._give_back(slot, peer)
        except EOFError:
            self.selector.unregister(peer)
            peer.close()
            # A trainer that took its place may be there already, under the same name.
            if self.readers.get(name) is peer:
                del self.readers[name]
            for slot in [slot for slot, holders in self.held.items() if peer in holders]:
                self._give_back(slot, peer)

    def _give_back(self, slot: int, holder: Peer | Courier) -> None:
        self.held[slot].discard(holder)
        self._free_unheld(slot)

    def _free_unheld(self, slot: int) -> None:
        # A block that was not announced yet has no reader, and is not free either.
        if not self.held[slot] and all(filling.slot != slot for filling in self.filling):
            del self.held[slot]
            self.free.append(slot)

    def _answered(self, loader: Loader) -> None:
        answer = loader.take()
        if answer is not None:
            self._finish(*answer)
            self._dismiss_loaders()
            return
        self.selector.unregister(loader.connection)
        self.loaders.remove(loader)
        loader.end()
        for task in loader.tasks:
            self._again(task)
        if len(self.loaders) < self.wanted_loaders:
            self._start_loader()

    def _again(self, task: Task) -> None:
        """Put back a task whose worker died; one that kills every worker ends the run."""
        tries = self.tries[task.slot, task.low] = self.tries.get((task.slot, task.low), 0) + 1
        if tries == TRIES:
            raise WorkerError(
                f"{TRIES} loader workers died while they prepared samples {task.indices.tolist()} of "
                f"{task.place.split!r}. --loader-workers 0 prepares them in the feeder, which shows a crash in native code."
            )
        filling = next(f for f in (*self.filling, *self.abandoned) if f.slot == task.slot)
        if filling in self.abandoned:
            self._finish(task, Done([]))
        else:
            filling.todo.appendleft(task)

    def _dismiss_loaders(self) -> None:
        """Let workers that are not wanted go, when they have nothing to do."""
        for loader in [loader for loader in self.loaders if not loader.tasks]:
            if len(self.loaders) > max(self.wanted_loaders, 1):
                self.selector.unregister(loader.connection)
                self.loaders.remove(loader)
                loader.end()

    def _start_loader(self) -> None:
        held: list[Peer | Connection] = [
            self.driver,
            *self.readers.values(),
            *(other.connection for other in self.loaders),
        ]
        if self.courier is not None:
            held.append(self.courier.connection)
        taken = {loader.number for loader in self.loaders}
        number = next(number for number in count(1) if number not in taken)
        loader = start_loader(number, self.pulse, self.ring, self.sources, held)
        self.loaders.append(loader)
        self._watch(loader.connection, partial(self._answered, loader))

    # ---- preparing

    def _start_blocks(self) -> None:
        while self.free and (next_one := next(self.places, None)) is not None:
            slot, (place, turn) = self.free.pop(), next_one
            if turn.owner != self.rank:
                self.filling.append(_Filling(slot, place, deque(), 1, own=False, hops=turn.hops))
                continue
            order = self.orders.block(place)
            size = min(CHUNK, -(-place.rows // (2 * len(self.loaders)))) if self.loaders else place.rows
            if not self.sources[place.split].parallel:
                size = place.rows
            starts = range(0, place.rows, size)
            todo = deque(Task(slot, place, low, order[low : low + size]) for low in starts)
            self.filling.append(_Filling(slot, place, todo, len(todo), hops=turn.hops))

    def _hand_out(self) -> bool:
        """Give out the oldest tasks; True if this process has more of them to do itself."""
        for filling in self.filling:
            while filling.todo:
                if not self.loaders or not self.sources[filling.place.split].parallel:
                    task = filling.todo.popleft()
                    self._finish(task, run_task(task, self.ring, self.sources))
                    return True
                idle = [loader for loader in self.loaders if loader.idle]
                if not idle:
                    return False
                min(idle, key=lambda loader: len(loader.tasks)).give(filling.todo.popleft())
        return False

    def _finish(self, task: Task, done: Done) -> None:
        if done.error is not None:
            raise done.error
        self.gauge.prepared += len(task.indices)
        self.gauge.preparation_cpu_seconds += done.cpu_seconds
        filling = next(f for f in (*self.filling, *self.abandoned) if f.slot == task.slot)
        self.tries.pop((task.slot, task.low), None)
        filling.missing -= 1
        filling.holes += done.holes
        if filling in self.abandoned and not filling.missing:
            self.abandoned.remove(filling)
            self.free.append(filling.slot)

    def _send_off(self) -> None:
        """Hand blocks to the courier: in the order of the stream within each group, as collectives demand."""
        held_up = set()
        for filling in self.filling if self.courier is not None else ():
            if filling.handed or not filling.hops:
                continue
            if filling.own and filling.missing:
                held_up.add(filling.hops[0].group)
            elif filling.hops[0].group not in held_up:
                self._carry(filling)

    def _carry(self, filling: _Filling) -> None:
        assert self.courier is not None
        if filling.own:
            # Before any other node can have the block.
            self._report_holes(filling)
            self.sending.add(filling.slot)
        size = self.sources[filling.place.split].layout.block_bytes(filling.place.rows)
        self.held[filling.slot] = {self.courier}
        filling.handed = True
        self.courier.carry(filling.slot, size, filling.hops)
        self.gauge.exchanged_bytes += size

    def _announce(self) -> None:
        ready = all(name in self.readers for name in self.expected)
        while ready and self.filling and not self.filling[0].missing:
            filling = self.filling.popleft()
            self._report_holes(filling)
            self.held.setdefault(filling.slot, set()).update(self.readers[name] for name in self.expected)
            for name in self.expected:
                self.readers[name].send((filling.slot, filling.place, 0))
            self._count(filling)
            self._free_unheld(filling.slot)

    def _count(self, filling: _Filling) -> None:
        place = filling.place
        key = (place.split, place.epoch)
        self.samples[key] = self.samples.get(key, 0) + place.rows * filling.own
        self.gauge.delivered += place.rows
        if place.last:
            fed = Fed(leg=place.leg, split=place.split, epoch=place.epoch, samples=self.samples.pop(key))
            self.driver.send(fed)

    def _report_holes(self, filling: _Filling) -> None:
        place = filling.place
        for index, error in filling.holes:
            self.driver.send(Skipped(split=place.split, epoch=place.epoch, index=index, error=error))
        filling.holes.clear()

    def _measure_time(self) -> None:
        elapsed, gauge = time.monotonic() - self._since, self.gauge
        self._since += elapsed
        if not self.expected:
            return
        own = [filling for filling in self.filling if filling.own]
        preparing = sum(filling.missing > 0 for filling in own)
        waiting = sum(not filling.missing and bool(filling.hops) and not filling.handed for filling in own)
        leaving = waiting + len(self.sending)
        with_readers = sum(len(holders) > (self.courier in holders) for holders in self.held.values())
        gauge.seconds += elapsed
        gauge.busy_seconds += elapsed * (preparing > 0)
        gauge.filling_seconds += elapsed * any(filling.missing for filling in self.filling)
        gauge.to_prepare.note(min(preparing / max(self.own_slots, 1.0), 1.0), elapsed)
        gauge.to_exchange.note(min(leaving / max(self.own_slots, 1.0), 1.0), elapsed)
        gauge.to_train.note(max(with_readers - 1, 0) / (self.ring.slots - 1), elapsed)
        if self._since - self._told > TELL_SECONDS:
            self._told, gauge.loaders = self._since, len(self.loaders)
            self.driver.send(Flowing(gauge=gauge.to_json()))

    def _watch_for_room(self) -> None:
        for peer in (self.driver, *self.readers.values()):
            peer.flush()
            key = self.selector.get_key(peer)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
            if key.events != events:
                self.selector.modify(peer, events, key.data)

    def _watch(self, source: Peer | Door | Connection, handler: Callable[[], None]) -> None:
        self.selector.register(source, selectors.EVENT_READ, handler)


def feed(driver: Peer, data: Data, settings: Settings, *, name: str, seed: int, key: bytes, pulse: Pulse) -> None:
    """Life of a feeder: open the data when told so, then feed legs until told to exit."""
    command, *early = driver.wait()
    assert isinstance(command, Open)
    door = Door(key)
    with pulse.busy("opening the data", opaque=True):
        sources = open_sources(data, seed=seed, pulse=pulse)
        fingerprint = sources["train"].fingerprint()
    block_size = settings.block_size or choose_block_size(sources["train"].layout)
    slots = SLOTS + SLOTS_PER_NODE * settings.nodes
    ring = Ring(slots=slots, slot_bytes=max(s.layout.block_bytes(block_size) for s in sources.values()))
    cores = max(len(os.sched_getaffinity(0)) // settings.nodes, 1)
    wanted = settings.loader_workers if settings.loader_workers is not None else cores
    parallel = any(source.parallel for source in sources.values())
    driver.send(
        Opened(
            address=door.address,
            lengths={name: source.length for name, source in sources.items()},
            fingerprint=fingerprint,
            block_size=block_size,
            seconds_per_sample=sources["train"].seconds_per_sample,
        )
    )
    feeder = _Feeder(name, driver, door, ring, sources, wanted if parallel else 0, block_size, seed, cores, pulse)
    feeder.run(early)


def _cpu_seconds(loaders: list[Loader]) -> float:
    """User and system time of this process and its loader workers, which end here."""
    for loader in loaders:
        loader.connection.close()
    for loader in loaders:
        loader.end()
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
