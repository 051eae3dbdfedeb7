"""Blocks that are being prepared: hand out their samples to loader workers, and collect the answers.

Contract. A block owns its slot from `start` until it is announced or, if it was given up, until its last task is answered.
The rows of a task belong to its worker until it answers. If the worker dies, the task is done again. Without loader workers the
feeder does the tasks itself, one at a time.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from selectors import EVENT_READ, BaseSelector
from typing import Any

import numpy as np

from argosy.errors import WorkerError
from argosy.protocol.events import Discarded
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Place
from argosy.stream.gauges import StreamGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.loaders import Loader, Task, TaskResult, run_task, start_loader
from argosy.stream.order import OPEN_SHARDS, Indices
from argosy.stream.ring import Ring
from argosy.stream.shards import shards_of
from argosy.stream.sharing import Hop
from argosy.stream.sources import Filled, Source

__all__ = ["BlockInProgress", "Preparation"]

MAX_DEATHS = 3
"""Number of workers that may die on one task before the run ends."""
TASK_SAMPLES = 32
"""Most samples in one task: few enough that all workers finish a block at about the same time."""


@dataclass(slots=True)
class BlockInProgress:
    """A block that is being written to its slot: prepared by this node, or received from another."""

    slot: int
    place: Place
    todo: deque[Task]
    missing: int
    """Number of unanswered tasks; for a block of another node, 1 until it has arrived."""
    own: bool = True
    prepared: int = 0
    """Number of samples that this node prepared for it, including holes."""
    at_once: bool = False
    """Whether the feeder gathers it itself."""
    hops: tuple[Hop, ...] = ()
    """Its hops between nodes in which this node takes part."""
    handed: bool = False
    """Whether it was handed to the exchange."""
    holes: list[tuple[int, str]] = field(default_factory=list)
    marks: list[ShardMark] = field(default_factory=list)


@dataclass(eq=False)
class Preparation:
    """Prepares one feeder's blocks. `filling` has them in the order of the stream."""

    ring: Ring
    sources: dict[str, Source]
    gauge: StreamGauge
    heartbeat: Heartbeat
    selector: BaseSelector
    """Has all connections of this process, each with the function that handles what arrives."""
    wanted_loaders: int
    loaders: list[Loader] = field(default_factory=list, init=False)
    free: list[int] = field(init=False)
    filling: deque[BlockInProgress] = field(default_factory=deque, init=False)
    abandoned: list[BlockInProgress] = field(default_factory=list, init=False)
    marks: dict[int, ShardMark] = field(default_factory=dict, init=False)
    """Marks from which reading can continue, by shard, for shards of which no training sample was read in this leg."""
    _readers: dict[str, dict[int, Loader]] = field(default_factory=dict, init=False)
    """By split, the workers that read the most recently read shards."""

    def __post_init__(self) -> None:
        self.free = list(range(self.ring.slots))

    # ---- blocks

    def start(self, place: Place, order: Indices, hops: tuple[Hop, ...]) -> None:
        """Begin a block of this node in a free slot."""
        source, slot = self.sources[place.split], self.free.pop()
        at_once = not source.parallel
        # At least two tasks for each worker, so that a small block keeps all of them busy.
        size = place.rows if at_once else min(TASK_SAMPLES, -(-place.rows // (2 * len(self.loaders) or 1)))
        if source.facts.shards:
            marks = self.marks if place.split == "train" else {}
            todo = deque(_tasks_of_shards(slot, place, order, source.facts.shards, marks))
        else:
            starts = range(0, place.rows, max(size, 1))
            todo = deque(Task(slot, place, low, order[low : low + size]) for low in starts)
        self.filling.append(BlockInProgress(slot, place, todo, len(todo), at_once=at_once, hops=hops))

    def expect(self, place: Place, hops: tuple[Hop, ...]) -> None:
        """Begin a block that another node prepares."""
        self.filling.append(BlockInProgress(self.free.pop(), place, deque(), 1, own=False, hops=hops))

    def discard_blocks(self, per_epoch: int) -> Iterator[Discarded]:
        """Discard all blocks, and yield what was prepared in vain. A slot becomes free with the last answer of its tasks."""
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

    def block_in_slot(self, slot: int) -> BlockInProgress | None:
        """Return the block that is being written to a slot."""
        return next((filling for filling in self.filling if filling.slot == slot), None)

    # ---- tasks

    def dispatch(self) -> bool:
        """Hand out the oldest tasks. Returns whether this process has more of them to do itself."""
        for filling in self.filling:
            while filling.todo and not self._is_too_early(filling):
                if not self.loaders or filling.at_once:
                    task = filling.todo.popleft()
                    self._finish(task, run_task(task, self.ring, self.sources))
                    return True
                idle = [loader for loader in self.loaders if loader.idle]
                if not idle:
                    return False
                assigned = self._next_task(filling.todo, idle)
                if assigned is None:
                    break
                assigned[1].give(assigned[0])
                filling.todo.remove(assigned[0])
        return False

    def _next_task(self, todo: Iterable[Task], idle: Sequence[Loader]) -> tuple[Task, Loader] | None:
        """Return the first task that an idle worker may do, and that worker. A shard is read by the same worker as long as that lives."""
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
                of_split[task.shard] = loader  # last, so that the first shard is the least recently read
                # While the last samples of eight shards are read, the next eight are begun.
                if len(of_split) > 2 * OPEN_SHARDS:
                    del of_split[next(iter(of_split))]
                return task, loader
        return None

    def _is_too_early(self, filling: BlockInProgress) -> bool:
        """Return whether samples of this block may still be under preparation for an earlier pass, which will keep them."""
        kept = self.sources[filling.place.split].kept
        if kept is None:
            return False
        before = itertools.takewhile(lambda other: other is not filling, self.filling)
        places = (other.place for other in before if other.own and other.missing)
        earlier = (place for place in places if _pass(place) != _pass(filling.place))
        return any(self.sources[place.split].kept is kept for place in earlier) and kept.found > 0

    def receive(self, loader: Loader) -> None:
        """Handle a worker's answer or its death."""
        answer = loader.take()
        if answer is not None:
            self._finish(*answer)
            self.end_surplus()
            return
        self._let_go(loader)
        for task in loader.tasks:
            self._retry(task)
        if len(self.loaders) < self.wanted_loaders:
            self.start_loader()

    def _finish(self, task: Task, done: TaskResult) -> None:
        if done.error is not None:
            raise done.error
        self.gauge.prepared += done.filled.prepared
        self.gauge.kept += done.kept
        self.gauge.preparation_cpu_seconds += done.cpu_seconds
        filling = self._block_of(task)
        filling.missing -= 1
        filling.prepared += done.filled.prepared
        filling.holes += done.filled.holes
        filling.marks += done.filled.marks
        if filling in self.abandoned and not filling.missing:
            self.abandoned.remove(filling)
            self.free.append(filling.slot)

    def _retry(self, task: Task) -> None:
        """Put a task back after its worker died. Raises WorkerError if it has killed several workers."""
        task = replace(task, deaths=task.deaths + 1)
        if task.deaths == MAX_DEATHS:
            raise WorkerError(
                f"{MAX_DEATHS} loader workers died while they prepared samples {task.indices.tolist()} of "
                f"{task.place.split!r}. Try --loader-workers 0: then the feeder prepares the samples, and a crash "
                "in native code becomes visible."
            )
        filling = self._block_of(task)
        if filling in self.abandoned:
            self._finish(task, TaskResult(Filled()))
        else:
            filling.todo.appendleft(task)

    def _block_of(self, task: Task) -> BlockInProgress:
        return next(filling for filling in (*self.filling, *self.abandoned) if filling.slot == task.slot)

    # ---- workers

    @property
    def connections(self) -> list[Any]:
        """Connections that a forked process must close."""
        return [key.fileobj for key in self.selector.get_map().values()]

    def start_loader(self) -> None:
        """Start another loader worker."""
        used = {loader.number for loader in self.loaders}
        number = next(n for n in range(1, len(used) + 2) if n not in used)
        loader = start_loader(number, self.heartbeat, self.ring, self.sources, self.connections)
        self.loaders.append(loader)
        self.selector.register(loader.child.connection, EVENT_READ, partial(self.receive, loader))

    def end_surplus(self) -> None:
        """End surplus workers that have no task."""
        for loader in [loader for loader in self.loaders if not loader.tasks]:
            if len(self.loaders) > max(self.wanted_loaders, 1):
                self._let_go(loader)

    def _let_go(self, loader: Loader) -> None:
        self.selector.unregister(loader.child.connection)
        self.loaders.remove(loader)
        loader.child.end()

    def end(self) -> None:
        """End all workers."""
        for loader in self.loaders:
            loader.child.connection.close()
        for loader in self.loaders:
            loader.child.end()


def _tasks_of_shards(
    slot: int, place: Place, order: Indices, shards: tuple[int, ...], marks: dict[int, ShardMark]
) -> Iterator[Task]:
    """Yield tasks of consecutive samples of one shard each. A shard's mark is sent with its first task."""
    of = shards_of(order, shards)
    cuts = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist()]
    for begin, end in itertools.pairwise([*cuts, place.rows]):
        for low in range(begin, end, TASK_SAMPLES):
            shard = int(of[low])
            yield Task(slot, place, low, order[low : min(low + TASK_SAMPLES, end)], shard, marks.pop(shard, None))


def _pass(place: Place) -> tuple[str, int]:
    """Return the pass to which a block belongs; each sample comes once in a pass over its split."""
    return place.split, place.epoch if place.split == "train" else place.section
