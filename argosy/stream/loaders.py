"""Loader workers: forked children of the feeder that prepare samples directly in the slots of the ring.

Contract. Workers close the feeder's connections that they inherit, so no copy of a descriptor can hide an end-of-file. A
worker that dies is replaced, and its tasks are done again. Each has one connection to the feeder and at most two tasks, and
owns the rows of a task until it answers. A worker dies with its feeder (parent-death signal, set before anything else). Its
heartbeat is a slot of the feeder's.
"""

import time
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import torch

from argosy.errors import StudyError
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Place
from argosy.stream.death import Child
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.order import Indices
from argosy.stream.ring import Ring
from argosy.stream.sources import DatasetSource, Filled, Source
from argosy.stream.wire import Peer

__all__ = ["TaskResult", "Loader", "Task", "run_task", "start_loader"]

TASKS_AHEAD = 2
"""Most tasks of a worker at a time, so that it does not wait for the feeder between tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Some rows of one block."""

    slot: int
    place: Place
    low: int
    indices: Indices
    shard: int | None = None
    """Shard of all these samples, for a stream that is not kept."""
    mark: ShardMark | None = None
    """Mark from which a process that has not read the shard can continue reading it."""
    deaths: int = 0
    """Number of workers that died on it."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task: what was filled, or the error that ends the run."""

    filled: Filled
    error: StudyError | None = None
    kept: int = 0
    """Number of kept samples, which were not prepared again."""
    cpu_seconds: float = 0.0


class Loader:
    """The feeder's handle on one worker."""

    def __init__(self, child: Child, number: int) -> None:
        self.child = child
        self.number = number
        """Number of its heartbeat slot, from 1 on."""
        self.tasks: deque[Task] = deque()

    @property
    def idle(self) -> bool:
        """Whether it can be given another task."""
        return len(self.tasks) < TASKS_AHEAD

    def give(self, task: Task) -> None:
        """Give the worker a task."""
        self.tasks.append(task)
        self.child.send(task)  # the end-of-file of a worker that has just died will bring the task back

    def take(self) -> tuple[Task, TaskResult] | None:
        """Return the task that the worker has just answered; None if it has died: end it. Its tasks are still listed then."""
        done = self.child.receive()
        return None if done is None else (self.tasks.popleft(), done)


def start_loader(
    number: int, heartbeat: Heartbeat, ring: Ring, sources: dict[str, Source], inherited: Iterable[Connection | Peer]
) -> Loader:
    """Fork a worker, which closes the inherited connections. It inherits dataset and ring, so nothing is pickled.

    `number` must be unique among the feeder's loaders; `heartbeat` is the feeder's.
    """
    work = partial(_run_worker, ring, sources)
    return Loader(Child.fork("loader", work, closing=inherited, heartbeat=heartbeat, slot=number), number)


def _run_worker(ring: Ring, sources: dict[str, Source], connection: Connection) -> int:
    # There may be a worker for each core.
    torch.set_num_threads(1)
    while True:
        try:
            task: Task = connection.recv()
            connection.send(run_task(task, ring, sources))
        except (EOFError, OSError):
            return 0  # the feeder has closed the connection


def run_task(task: Task, ring: Ring, sources: dict[str, Source]) -> TaskResult:
    """Prepare the rows of a task in their slot."""
    source, cpu = sources[task.place.split], time.process_time()
    block = source.layout.block(task.place, ring.slot(task.slot))
    try:
        if task.mark is not None:
            assert isinstance(source, DatasetSource)
            source.resume_from(task.mark)
        filled = source.fill(block, task.low, task.indices)
        kept = len(task.indices) - filled.prepared
        return TaskResult(filled, kept=kept, cpu_seconds=time.process_time() - cpu)
    except StudyError as error:
        return TaskResult(Filled(), error)
    except Exception as error:  # process boundary: the feeder must learn of any error
        trace = "".join(traceback.format_exception(error))
        return TaskResult(Filled(), StudyError(f"Data.{task.place.split}: {trace}Fix the dataset."))
