"""Several processes read one stream, each of them whole shards.

Contract. Reader k of n reads shards k, k + n, k + 2n, …; a shard's result does not depend on which reader reads it. A reader reports its
progress, and its result for each shard. It dies with the caller, which kills all readers before it returns.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, TypeVar

import cloudpickle

from argosy.errors import StudyError, WorkerError
from argosy.stream.death import Child
from argosy.stream.heartbeat import Heartbeat

__all__ = ["Found", "GrowthCallback", "Read", "read_in_parallel"]

GrowthCallback = Callable[[int, int, int], None]
"""Called with a shard, the number of its samples that were read, and their size in bytes."""
Found = TypeVar("Found")
Read = Callable[[int, GrowthCallback], Found]
"""Reads a shard to its end and returns a result."""

PROGRESS_BYTES = 2**20
"""A reader reports its progress after each so many bytes."""
POLL_SECONDS = 1.0


class _Reader(NamedTuple):
    """The caller's handle on one reader."""

    child: Child
    shards: set[int]
    """Shards that it has not finished."""


def read_in_parallel(
    read: Read[Found], shards: int, readers: int, heartbeat: Heartbeat, grown: GrowthCallback, doing: str
) -> list[Found]:
    """Return what `read` returns for each shard, read by up to `readers` processes. Raises what any of them raises."""
    if min(readers, shards) < 2:
        return [read(shard, grown) for shard in range(shards)]
    results: dict[int, Found] = {}
    with _started_readers(read, shards, min(readers, shards), heartbeat, doing) as processes:
        while len(results) < shards:
            heartbeat.beat(len(results))  # each reader has a heartbeat of its own
            for connection in wait(list(processes), POLL_SECONDS):
                assert isinstance(connection, Connection)
                reader = processes[connection]
                message = reader.child.receive()
                if message is None:
                    # A reader ends when it has reported all of its shards.
                    if reader.shards:
                        raise WorkerError(
                            "A process that reads shards of a stream died. Try --loader-workers 0: then one "
                            "process reads all shards, and a crash in native code becomes visible."
                        )
                    processes.pop(connection).child.end()
                    continue
                shard, *reported = message
                if isinstance(reported[0], Exception):
                    raise reported[0]
                if isinstance(reported[0], str):
                    raise StudyError(f"Shard {shard} of a stream cannot be read: {reported[0]}Fix the stream.")
                if isinstance(reported[0], bytes):
                    results[shard] = cloudpickle.loads(reported[0])
                    reader.shards.discard(shard)
                else:
                    grown(shard, *reported)
    return [results[shard] for shard in range(shards)]


@contextmanager
def _started_readers(
    read: Read[Found], shards: int, count: int, heartbeat: Heartbeat, doing: str
) -> Iterator[dict[Connection, _Reader]]:
    processes: dict[Connection, _Reader] = {}
    try:
        for number in range(count):
            its = range(number, shards, count)
            work = partial(_run_reader, heartbeat, read, its, doing)
            child = Child.fork("reader", work, heartbeat=heartbeat, slot=number + 1)
            processes[child.connection] = _Reader(child, set(its))
        yield processes
    finally:
        for reader in processes.values():
            reader.child.end(kill=True)


def _run_reader(heartbeat: Heartbeat, read: Read[Found], shards: range, doing: str, connection: Connection) -> int:
    reported = 0

    def grown(shard: int, samples: int, size: int) -> None:
        nonlocal reported
        if size >= reported + PROGRESS_BYTES:
            reported = size
            connection.send((shard, samples, size))

    for shard in shards:
        reported = 0
        try:
            with heartbeat.busy(doing):
                result = read(shard, grown)
        except Exception as error:  # process boundary: the caller must learn of any error
            trace = "".join(traceback.format_exception(error))
            connection.send((shard, error if isinstance(error, StudyError | OSError) else trace))
            return 1
        connection.send((shard, cloudpickle.dumps(result)))
    return 0
