"""The feeder of a node: dataset -> blocks in the ring -> every trainer of the node, each sample prepared once.

Contract. One thread, one selector: it never waits for one peer while another has something to say. It prepares as far
ahead as the ring has slots, announces blocks in their order, and only when every reader of the leg is connected. What
it does not know (which members live, when to stop) the driver tells it.
"""

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

from argosy.commands import Exit, Feed, Open, Opened
from argosy.errors import WorkerError
from argosy.events import Fed, Skipped, Used
from argosy.settings import Settings
from argosy.stream.blocks import Place
from argosy.stream.gauges import StreamGauge
from argosy.stream.loaders import Done, Loader, Task, run_task, start_loader
from argosy.stream.ring import Ring
from argosy.stream.schedule import Orders, choose_block_size, places
from argosy.stream.sources import Source, open_sources
from argosy.stream.wire import Door, Peer
from argosy.study import Data

__all__ = ["feed"]

SLOTS = 6
"""Blocks that the feeder may be ahead of the slowest trainer. Unit of the ring's memory: 6 blocks of about 4 MiB."""
TRIES = 3
"""Workers that may die on one task."""
CHUNK = 32
"""Most samples of one task: small enough that the workers finish a block together."""


@dataclass(slots=True)
class _Filling:
    """A block under preparation."""

    slot: int
    place: Place
    todo: deque[Task]
    missing: int
    """Tasks not answered yet."""
    holes: list[tuple[int, str]] = field(default_factory=list)


class _Feeder:
    def __init__(
        self,
        driver: Peer,
        door: Door,
        ring: Ring,
        sources: dict[str, Source],
        wanted_loaders: int,
        block_size: int,
        seed: int,
    ) -> None:
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
        self.gauge = StreamGauge()
        self.readers: dict[str, Peer] = {}
        self.expected: tuple[str, ...] = ()
        self.places: Iterator[Place] = iter(())
        self.free = list(range(ring.slots))
        self.filling: deque[_Filling] = deque()
        self.abandoned: list[_Filling] = []
        self.held: dict[int, set[Peer]] = {}
        self.samples: dict[tuple[str, int], int] = {}
        self.selector = selectors.DefaultSelector()
        self.running = True
        self._since = time.monotonic()

    def run(self) -> None:
        """Until the driver says Exit or is gone."""
        self._watch(self.driver, self._obey)
        self._watch(self.door, self._admit)
        for _ in range(self.wanted_loaders):
            self._start_loader()
        while self.running:
            self._start_blocks()
            at_once = self._hand_out()
            self._announce()
            for key, _ in self.selector.select(timeout=0 if at_once else None):
                key.data()
            self._measure_time()

    # ---- what peers say

    def _obey(self) -> None:
        command = self.driver.recv()
        if isinstance(command, Feed):
            self._new_leg(command)
        elif isinstance(command, Exit):
            self.driver.send(Used(worker="feeder", cpu_seconds=_cpu_seconds(self.loaders), gauge=asdict(self.gauge)))
            self.running = False

    def _new_leg(self, feed: Feed) -> None:
        self.gauge.speculative += sum(f.place.rows for f in self.filling)
        # Tasks under way write into their slots to the end; the slots come back with their last answer.
        for filling in self.filling:
            filling.missing -= len(filling.todo)
            filling.todo.clear()
            if filling.missing:
                self.abandoned.append(filling)
            else:
                self.free.append(filling.slot)
        self.filling.clear()
        self.expected = feed.readers
        self.places = places(feed.leg, self.lengths, self.block_size)
        self.samples.clear()

    def _admit(self) -> None:
        for name, peer in self.door.enter():
            self.ring.lend(peer, {split: source.layout for split, source in self.sources.items()}, self.lengths)
            self.readers[name] = peer
            self._watch(peer, partial(self._released, name, peer))

    def _released(self, name: str, peer: Peer) -> None:
        try:
            self._give_back(peer.recv_bytes()[0], peer)
        except (EOFError, OSError):
            self.selector.unregister(peer)
            peer.close()
            # A trainer that took its place may be there already, under the same name.
            if self.readers.get(name) is peer:
                del self.readers[name]
            for slot in [slot for slot, holders in self.held.items() if peer in holders]:
                self._give_back(slot, peer)

    def _give_back(self, slot: int, peer: Peer) -> None:
        self.held[slot].discard(peer)
        if not self.held[slot]:
            del self.held[slot]
            self.free.append(slot)

    def _answered(self, loader: Loader) -> None:
        answer = loader.take()
        if answer is not None:
            self._finish(*answer)
            return
        self.selector.unregister(loader.connection)
        loader.connection.close()
        self.loaders.remove(loader)
        for task in loader.tasks:
            self._again(task)
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

    def _start_loader(self) -> None:
        held = [self.driver, *self.readers.values(), *(other.connection for other in self.loaders)]
        loader = start_loader(self.ring, self.sources, held)
        self.loaders.append(loader)
        self._watch(loader.connection, partial(self._answered, loader))

    # ---- preparing

    def _start_blocks(self) -> None:
        while self.free and (place := next(self.places, None)) is not None:
            slot, order = self.free.pop(), self.orders.block(place)
            size = min(CHUNK, -(-place.rows // (2 * len(self.loaders)))) if self.loaders else place.rows
            if not self.sources[place.split].parallel:
                size = place.rows
            starts = range(0, place.rows, size)
            todo = deque(Task(slot, place, low, order[low : low + size]) for low in starts)
            self.filling.append(_Filling(slot, place, todo, len(todo)))

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
        filling = next(f for f in (*self.filling, *self.abandoned) if f.slot == task.slot)
        self.tries.pop((task.slot, task.low), None)
        filling.missing -= 1
        filling.holes += done.holes
        if filling in self.abandoned and not filling.missing:
            self.abandoned.remove(filling)
            self.free.append(filling.slot)

    def _announce(self) -> None:
        ready = all(name in self.readers for name in self.expected)
        while ready and self.filling and not self.filling[0].missing:
            filling = self.filling.popleft()
            self._report_holes(filling)
            self.held[filling.slot] = {self.readers[name] for name in self.expected}
            for name in self.expected:
                self._tell(name, (filling.slot, filling.place))
            self._count(filling)

    def _tell(self, name: str, notice: tuple[int, Place]) -> None:
        # A broken connection's end-of-file is on the way and gives the slot back.
        with contextlib.suppress(OSError):
            self.readers[name].send(notice)

    def _count(self, filling: _Filling) -> None:
        place = filling.place
        key = (place.split, place.epoch)
        self.samples[key] = self.samples.get(key, 0) + place.rows
        if place.last:
            fed = Fed(leg=place.leg, split=place.split, epoch=place.epoch, samples=self.samples.pop(key))
            self.driver.send(fed)

    def _report_holes(self, filling: _Filling) -> None:
        place = filling.place
        for index, error in filling.holes:
            self.driver.send(Skipped(split=place.split, epoch=place.epoch, index=index, error=error))

    def _measure_time(self) -> None:
        elapsed = time.monotonic() - self._since
        self._since += elapsed
        if any(filling.missing for filling in self.filling):
            self.gauge.busy_seconds += elapsed
        elif len(self.held) == self.ring.slots:
            self.gauge.blocked_seconds += elapsed

    def _watch(self, source: Peer | Door, handler: Callable[[], None]) -> None:
        self.selector.register(source, selectors.EVENT_READ, handler)


def feed(driver: Peer, data: Data, settings: Settings, *, seed: int, key: bytes) -> None:
    """Life of a feeder: open the data when told so, then feed legs until told to exit."""
    command = driver.recv()
    assert isinstance(command, Open)
    sources = open_sources(data, seed=seed)
    block_size = settings.block_size or choose_block_size(sources["train"].layout)
    ring = Ring(slots=SLOTS, slot_bytes=max(s.layout.block_bytes(block_size) for s in sources.values()))
    count = settings.loader_workers if settings.loader_workers is not None else len(os.sched_getaffinity(0))
    parallel = any(source.parallel for source in sources.values())
    door = Door(key)
    driver.send(
        Opened(
            address=door.address,
            lengths={name: source.length for name, source in sources.items()},
            fingerprint=sources["train"].fingerprint(),
            block_size=block_size,
            seconds_per_sample=sources["train"].seconds_per_sample,
        )
    )
    _Feeder(driver, door, ring, sources, count if parallel else 0, block_size, seed).run()


def _cpu_seconds(loaders: list[Loader]) -> float:
    """User and system time of this process and its loader workers, which end here."""
    for loader in loaders:
        loader.connection.close()
    for loader in loaders:
        os.waitpid(loader.pid, 0)
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
