"""Blocks on their way into the ring: their samples handed out to loader workers, and put together again.

Contract. A block owns its slot from `start` until it is announced, or until its last task is answered where it was given up.
A task is done again when its worker has died; the rows of a task belong to its worker until it answers. Without loader workers the
feeder does the tasks itself, one at a time.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from argosy.errors import WorkerError
from argosy.protocol.events import Discarded
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Place
from argosy.stream.gauges import StreamGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.loaders import Done, Loader, Task, run_task, start_loader
from argosy.stream.order import SIDE_BY_SIDE, Indices
from argosy.stream.ring import Ring
from argosy.stream.shards import shards_of
from argosy.stream.sharing import Hop
from argosy.stream.sources import Source
from argosy.stream.wire import Peer

__all__ = ["Filling", "Preparation"]

TRIES = 3
"""Workers that die on one task before it ends the run."""
CHUNK = 32
"""Most samples of one task: small enough that the workers finish a block together."""


@dataclass(slots=True)
class Filling:
    """A block on its way into its slot: prepared here, or by another node."""

    slot: int
    place: Place
    todo: deque[Task]
    missing: int
    """Tasks not answered yet; for a block that another node prepares, 1 until it has arrived."""
    own: bool = True
    prepared: int = 0
    """Samples that were prepared here for it, holes among them."""
    at_once: bool = False
    """Whether the feeder gathers it itself."""
    hops: tuple[Hop, ...] = ()
    """Its hops between the nodes in which this one takes part."""
    handed: bool = False
    """Whether the exchange has it."""
    holes: list[tuple[int, str]] = field(default_factory=list)
    marks: list[ShardMark] = field(default_factory=list)


@dataclass(eq=False)
class Preparation:
    """Preparation of one feeder's blocks. `filling` has them in the order of the stream."""

    ring: Ring
    sources: dict[str, Source]
    gauge: StreamGauge
    heartbeat: Heartbeat
    _: KW_ONLY
    wanted_loaders: int
    inherited: Callable[[], Iterable[Connection | Peer]]
    """Connections that a forked worker must close."""
    watch: Callable[[Loader], None]
    forget: Callable[[Loader], object]
    loaders: list[Loader] = field(default_factory=list, init=False)
    free: list[int] = field(init=False)
    filling: deque[Filling] = field(default_factory=deque, init=False)
    abandoned: list[Filling] = field(default_factory=list, init=False)
    marks: dict[int, ShardMark] = field(default_factory=dict, init=False)
    """By shard that no training sample of the leg was read from so far, where reading can go on."""
    _tries: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    _readers: dict[str, dict[int, Loader]] = field(default_factory=dict, init=False)
    """By split, the workers that read the shards which were read last."""

    def __post_init__(self) -> None:
        self.free = list(range(self.ring.slots))

    # ---- blocks

    def start(self, place: Place, order: Indices, hops: tuple[Hop, ...]) -> None:
        """Begin a block of this node, in a slot that is free."""
        size = min(CHUNK, -(-place.rows // (2 * len(self.loaders)))) if self.loaders else CHUNK
        source = self.sources[place.split]
        at_once = not source.parallel
        if at_once:
            size = place.rows
        slot = self.free.pop()
        if source.facts.shards:
            marks = self.marks if place.split == "train" else {}
            todo = deque(_tasks_of_shards(slot, place, order, source.facts.shards, marks))
        else:
            starts = range(0, place.rows, max(size, 1))
            todo = deque(Task(slot, place, low, order[low : low + size]) for low in starts)
        self.filling.append(Filling(slot, place, todo, len(todo), at_once=at_once, hops=hops))

    def expect(self, place: Place, hops: tuple[Hop, ...]) -> None:
        """Begin a block that another node prepares."""
        self.filling.append(Filling(self.free.pop(), place, deque(), 1, own=False, hops=hops))

    def give_up(self, per_epoch: int) -> Iterator[Discarded]:
        """Discard all blocks, and yield what was prepared in vain; slots come back with the last answer of a task under way."""
        for filling in self.filling:
            if filling.own:
                prepared = filling.place.rows - sum(len(task.indices) for task in filling.todo)
                if prepared:
                    place = filling.place
                    section = place.section % per_epoch
                    yield Discarded(split=place.split, epoch=place.epoch, section=section, samples=prepared)
            filling.missing = filling.missing - len(filling.todo) if filling.own else 0
            filling.todo.clear()
            if filling.missing:
                self.abandoned.append(filling)
            else:
                self.free.append(filling.slot)
        self.filling.clear()

    def of_slot(self, slot: int) -> Filling | None:
        """Return the block that is on its way into a slot."""
        return next((filling for filling in self.filling if filling.slot == slot), None)

    # ---- tasks

    def hand_out(self) -> bool:
        """Give out the oldest tasks; True if this process has more of them to do itself."""
        for filling in self.filling:
            while filling.todo and not self._comes_too_early(filling):
                if not self.loaders or filling.at_once:
                    task = filling.todo.popleft()
                    self._finish(task, run_task(task, self.ring, self.sources))
                    return True
                idle = [loader for loader in self.loaders if loader.idle]
                if not idle:
                    return False
                given = self._given(filling.todo, idle)
                if given is None:
                    break
                given[1].give(given[0])
                filling.todo.remove(given[0])
        return False

    def _given(self, todo: Iterable[Task], idle: Sequence[Loader]) -> tuple[Task, Loader] | None:
        """Return the first task that an idle worker may have, and that worker; a shard is read by one worker as long as that lives."""
        for task in todo:
            if task.shard is None:
                return task, min(idle, key=lambda loader: len(loader.tasks))
            of_split = self._readers.setdefault(task.place.split, {})
            loader = of_split.get(task.shard)
            if loader not in self.loaders:
                busy = Counter(reader.number for reader in of_split.values())
                loader = min(self.loaders, key=lambda loader: busy[loader.number])
            if loader in idle:
                of_split.pop(task.shard, None)
                of_split[task.shard] = loader  # last: of those that are read, the first one was read longest ago
                # While the last samples of these shards are read, the next ones are begun.
                if len(of_split) > 2 * SIDE_BY_SIDE:
                    del of_split[next(iter(of_split))]
                return task, loader
        return None

    def _comes_too_early(self, filling: Filling) -> bool:
        """Return whether some of its samples may be under preparation for an earlier pass, and will be kept."""
        kept = self.sources[filling.place.split].kept
        if kept is None:
            return False
        before = itertools.takewhile(lambda other: other is not filling, self.filling)
        others = (
            other for other in before if other.own and other.missing and _pass(other.place) != _pass(filling.place)
        )
        return any(self.sources[other.place.split].kept is kept for other in others) and kept.any

    def receive(self, loader: Loader) -> None:
        """Handle a worker's answer, or its death."""
        answer = loader.take()
        if answer is not None:
            self._finish(*answer)
            self.end_surplus()
            return
        self._let_go(loader)
        for task in loader.tasks:
            self._again(task)
        if len(self.loaders) < self.wanted_loaders:
            self.start_loader()

    def _finish(self, task: Task, done: Done) -> None:
        if done.error is not None:
            raise done.error
        self.gauge.prepared += done.prepared
        self.gauge.kept += done.kept
        self.gauge.preparation_cpu_seconds += done.cpu_seconds
        filling = next(f for f in (*self.filling, *self.abandoned) if f.slot == task.slot)
        self._tries.pop((task.slot, task.low), None)
        filling.missing -= 1
        filling.prepared += done.prepared
        filling.holes += done.holes
        filling.marks += done.marks
        if filling in self.abandoned and not filling.missing:
            self.abandoned.remove(filling)
            self.free.append(filling.slot)

    def _again(self, task: Task) -> None:
        """Put back a task after its worker died; one that kills every worker ends the run."""
        tries = self._tries[task.slot, task.low] = self._tries.get((task.slot, task.low), 0) + 1
        if tries == TRIES:
            raise WorkerError(
                f"{TRIES} loader workers died while they prepared samples {task.indices.tolist()} of "
                f"{task.place.split!r}. Try --loader-workers 0: the feeder prepares them then, and a crash in native code shows."
            )
        filling = next(f for f in (*self.filling, *self.abandoned) if f.slot == task.slot)
        if filling in self.abandoned:
            self._finish(task, Done([]))
        else:
            filling.todo.appendleft(task)

    # ---- workers

    def start_loader(self) -> None:
        """Start one more loader worker."""
        held = [*self.inherited(), *(other.connection for other in self.loaders)]
        used = {loader.number for loader in self.loaders}
        number = next(n for n in range(1, len(used) + 2) if n not in used)
        loader = start_loader(number, self.heartbeat, self.ring, self.sources, held)
        self.loaders.append(loader)
        self.watch(loader)

    def end_surplus(self) -> None:
        """End surplus workers that have nothing to do."""
        for loader in [loader for loader in self.loaders if not loader.tasks]:
            if len(self.loaders) > max(self.wanted_loaders, 1):
                self._let_go(loader)

    def _let_go(self, loader: Loader) -> None:
        self.forget(loader)
        self.loaders.remove(loader)
        loader.end()

    def end(self) -> None:
        """End all workers."""
        for loader in self.loaders:
            loader.connection.close()
        for loader in self.loaders:
            loader.end()


def _tasks_of_shards(
    slot: int, place: Place, order: Indices, shards: tuple[int, ...], marks: dict[int, ShardMark]
) -> Iterator[Task]:
    """Yield tasks of consecutive samples of one shard each; a shard's mark goes with the first one."""
    of = shards_of(order, shards)
    cuts = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist()]
    for begin, end in itertools.pairwise([*cuts, place.rows]):
        for low in range(begin, end, CHUNK):
            shard = int(of[low])
            yield Task(slot, place, low, order[low : min(low + CHUNK, end)], shard, marks.pop(shard, None))


def _pass(place: Place) -> tuple[str, int]:
    """Return which pass over its split a block belongs to, in which each sample comes once."""
    return place.split, place.epoch if place.split == "train" else place.section
