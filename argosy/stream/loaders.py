"""Loader workers: forked children of the feeder that prepare samples straight into the slots of the ring.

Contract. Workers close what they inherit of the feeder's connections, so no copy of a descriptor can hide an end-of-file. A
worker that dies is replaced, and its tasks are done again. Each has one connection to the feeder and at most two tasks; it
owns the rows of a task until it answers. A worker dies with its feeder (parent-death signal, set before anything else). Its
heartbeat is a slot of the feeder's.
"""

import contextlib
import os
import time
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe

import torch

from argosy.errors import StudyError
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Place
from argosy.stream.death import forked
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.order import Indices
from argosy.stream.ring import Ring
from argosy.stream.sources import DatasetSource, Source
from argosy.stream.wire import Peer

__all__ = ["Done", "Loader", "Task", "run_task", "start_loader"]

TASKS_AHEAD = 2
"""Tasks per worker at a time, so that none waits for the feeder between two."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Some rows of one block."""

    slot: int
    place: Place
    low: int
    indices: Indices
    shard: int | None = None
    """Shard of a stream that is not kept, to which all of them belong."""
    mark: ShardMark | None = None
    """Where reading of the shard can go on, in a process that has not read it."""


@dataclass(frozen=True, slots=True)
class Done:
    """A task's end: its holes as (index, error), or the error that ends the run."""

    holes: list[tuple[int, str]]
    error: StudyError | None = None
    prepared: int = 0
    """Samples prepared, holes among them."""
    kept: int = 0
    """Samples that were kept, and not prepared again."""
    cpu_seconds: float = 0.0
    marks: tuple[ShardMark, ...] = ()
    """Marks of the shards that the samples were read from."""


class Loader:
    """The feeder's end of one worker."""

    def __init__(self, pid: int, connection: Connection, number: int, heartbeat: Heartbeat) -> None:
        self.pid = pid
        self.connection = connection
        self.number = number
        """Number of its slot in the heartbeat, from 1 on."""
        self.heartbeat = heartbeat
        self.tasks: deque[Task] = deque()

    @property
    def idle(self) -> bool:
        """Whether it can take another task."""
        return len(self.tasks) < TASKS_AHEAD

    def give(self, task: Task) -> None:
        """Hand over a task."""
        self.tasks.append(task)
        # A worker that has just died does not take it; its end-of-file will bring the task back.
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def take(self) -> tuple[Task, Done] | None:
        """Return the task that the worker has just answered; None where it is gone: `end` it; its tasks are still there."""
        try:
            done = self.connection.recv()
        except (EOFError, OSError):
            return None
        return self.tasks.popleft(), done

    def end(self) -> None:
        """Hang up, and wait until the worker has gone; it finishes what it is doing."""
        self.connection.close()
        os.waitpid(self.pid, 0)
        # It may have died in the middle of a sample, and its slot would stay busy.
        self.heartbeat.rest()


def start_loader(
    number: int, heartbeat: Heartbeat, ring: Ring, sources: dict[str, Source], inherited: Iterable[Connection | Peer]
) -> Loader:
    """Fork a worker; the dataset and the ring are inherited, nothing is pickled. It closes what it must not hold.

    No other loader of this feeder has its number; the heartbeat is the feeder's.
    """
    own = heartbeat.slot(number)
    ours, theirs = Pipe()
    pid = forked(
        "loader", partial(_work, own, theirs, ring, sources), closing=[one.close for one in (ours, *inherited)]
    )
    theirs.close()
    return Loader(pid, ours, number, own)


def _work(heartbeat: Heartbeat, connection: Connection, ring: Ring, sources: dict[str, Source]) -> int:
    torch.set_num_threads(1)
    for source in sources.values():
        source.heartbeat = heartbeat
    while True:
        try:
            task: Task = connection.recv()
            connection.send(run_task(task, ring, sources))
        except (EOFError, OSError):
            return 0  # the feeder has hung up


def run_task(task: Task, ring: Ring, sources: dict[str, Source]) -> Done:
    """Prepare the rows of a task in their slot."""
    source, cpu = sources[task.place.split], time.process_time()
    block = source.layout.block(task.place, ring.slot(task.slot))
    try:
        if task.mark is not None:
            assert isinstance(source, DatasetSource)
            source.know(task.mark)
        filled = source.fill(block, task.low, task.indices)
        kept = len(task.indices) - filled.prepared
        cpu_seconds = time.process_time() - cpu
        return Done(filled.holes, prepared=filled.prepared, kept=kept, cpu_seconds=cpu_seconds, marks=filled.marks)
    except StudyError as error:
        return Done([], error)
    except Exception as error:  # process boundary: whatever it is, the feeder must learn of it
        return Done(
            [], StudyError(f"Data.{task.place.split}: {''.join(traceback.format_exception(error))}Mend the dataset.")
        )
