"""Open the data in a feeder that will fork loader workers, so that no two workers share what only one process can use.

A fork shares open files (with one position in each, which every reader moves), sockets and connections, and lacks threads. So the
feeder forks a *spare*, a waiting copy of itself, before it opens the data, and another before it prepares
the first samples. There are three cases. If nothing of the kind is left open, both spares end, and workers inherit everything that was opened and
loaded. If preparing samples left something open, the second spare replaces the feeder: workers inherit
what was loaded, and each opens the rest with its own first sample. If opening the data left something open, the first spare replaces the feeder,
and has nothing loaded: each worker opens the data for itself, and compares it with what the feeder found.

Contract. The kernel ties a spare to its feeder. The spare receives one message: end or go on. A feeder that is replaced
closes its connections, waits for the spare's end, and ends; to the rest of the run the two are one process.
"""

import contextlib
import fcntl
import gc
import os
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from argosy.stream.death import die_with_parent, name_process
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.proof import Prover
from argosy.stream.opening import Opening, make_lazy_source
from argosy.stream.probing import Facts
from argosy.stream.sources import ArraySource, DatasetSource, Source
from argosy.study import Data

__all__ = ["list_unforkable", "open_for", "cache_for"]

MEMORY_DEVICES = 1
"""Major number of /dev/null, /dev/zero, /dev/urandom and similar devices."""
MAPS_WITH_STATE = "lmdb"
"""A package whose memory-mapped files must not be shared with a fork either."""
WITH_THREADS = ("blosc2", "duckdb", "polars", "tensorstore")
"""Packages with threads of their own, which Python does not list and a fork lacks: it waits for them for ever, or is ended by the package."""


_Known = Mapping[str, Facts | None]
"""What a spare has to know about the data: facts by split; None for arrays."""


def open_for(
    loaders: int,
    data: Callable[[], Data],
    *,
    seed: int,
    heartbeat: Heartbeat,
    hang_up: Callable[[], None],
    most_kept: int | None,
    shards: Mapping[str, tuple[int, ...]],
) -> dict[str, Source]:
    """Open the splits of a study's data, by name, in a process from which loader workers can be forked. May return in a spare.

    ``loaders`` is the number of these workers. ``data`` unpacks the data, anew at each call. ``hang_up`` closes the connections by which other
    processes notice the caller's end. ``most_kept`` limits the bytes of kept rows on disk. ``shards`` has known lengths of shards.
    """

    def opening() -> Opening:
        return Opening(data=data(), seed=seed, heartbeat=heartbeat, shards=shards, readers=loaders)

    def probed(here: Opening, splits: Mapping[str, Any]) -> dict[str, Source]:
        return here.sources(splits, Prover(cache_for(here.data, most_kept)))

    if not loaders:
        here = opening()
        return probed(here, here.splits())
    before = list_unforkable()
    empty, known = _Standby.fork()
    if known is not None:
        own = cache(opening)  # still empty when loader workers are forked: each unpacks the data once for all splits
        return {
            # Arrays are opened immediately.
            name: opening().open(name) if facts is None else make_lazy_source(name, facts, own, heartbeat)
            for name, facts in known.items()
        }
    here = opening()
    splits = here.splits()
    if all(isinstance(split, ArraySource) for split in splits.values()):
        empty.end()  # no loader workers
        return splits
    if _has_opened(before):
        empty.take_over(_known_of(probed(here, splits)), hang_up)
    loaded, known = _Standby.fork()
    if known is not None:
        return {
            name: split if (facts := known[name]) is None else here.source(split, name, facts)
            for name, split in splits.items()
        }
    sources = probed(here, splits)
    empty.end()
    if _has_opened(before):
        loaded.take_over(_known_of(sources), hang_up)
    loaded.end()
    return sources


def _known_of(sources: Mapping[str, Source]) -> _Known:
    return {name: source.facts if isinstance(source, DatasetSource) else None for name, source in sources.items()}


def cache_for(data: Data, most_bytes: int | None) -> RowCache | None:
    """Return the cache for prepared samples of these data; None if they are not kept."""
    return RowCache(most_bytes=most_bytes) if data.keep else None


class _Standby:
    """The feeder's handle on a spare."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection

    @classmethod
    def fork(cls) -> "tuple[_Standby, _Known | None]":
        """Fork a waiting copy of this process. In this process there is no message; in a spare that goes on it is what was received."""
        theirs, ours = Pipe(duplex=False)
        feeder = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # as for loader workers
        pid = os.fork()
        if pid == 0:
            ours.close()
            return cls(pid, theirs), _wait(feeder, theirs)
        theirs.close()
        return cls(pid, ours), None

    def end(self) -> None:
        """End the spare and wait for it."""
        self._send(b"")
        os.waitpid(self.pid, 0)

    def take_over(self, message: _Known, hang_up: Callable[[], None]) -> NoReturn:
        """Let the spare replace this process, which ends when the spare does."""
        # cloudpickle: a sample may be a named tuple defined in the user's script.
        self._send(cloudpickle.dumps(message))
        hang_up()
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            os.kill(os.getpid(), -code)  # so that the parent sees how the spare ended
        os._exit(max(code, 0))

    def _send(self, data: bytes) -> None:
        # A spare that was killed receives nothing. If it was to go on, this process ends in the same way.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(data)
        self.connection.close()


def _wait(feeder: int, connection: Connection) -> _Known:
    """Wait in a spare for the message to go on; on any other the process ends."""
    try:
        die_with_parent(feeder)
        name_process("spare")
        pickled = connection.recv_bytes()
        if pickled:
            name_process("feeder")
            message: _Known = cloudpickle.loads(pickled)
            return message
    except EOFError:
        pass
    os._exit(0)


def _has_opened(before: frozenset[str]) -> bool:
    """Return whether something was opened since then that a fork must not inherit; the log names it."""
    unforkable = list_unforkable() - before
    if unforkable:
        gc.collect()  # it may be garbage by now
        unforkable = list_unforkable() - before
    if unforkable:
        print(f"not usable in a fork: {', '.join(sorted(unforkable))}. Each loader worker opens its own.", flush=True)
    return bool(unforkable)


def list_unforkable() -> frozenset[str]:
    """Return in words what this process has open that it cannot share with a fork.

    A fork may share files that are only written or only mapped into memory, folders, and devices such as /dev/null.
    """
    files: Counter[str] = Counter()
    others = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # the numbers, not paths
        # The descriptor used for the listing is closed by now.
        with contextlib.suppress(OSError):
            descriptor, target = int(name), str(Path(f"/proc/self/fd/{name}").readlink())
            if _is_read(descriptor):
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    files[target] += 1
                else:
                    others.add(target)
    if MAPS_WITH_STATE not in sys.modules:
        # Python's mappings hold a descriptor of their own, which is never read.
        files -= Counter(_mapped_files())
    # The monitor thread of tqdm only watches progress bars, and every process that shows one starts its own.
    threads = {thread.name for thread in threading.enumerate() if not type(thread).__module__.startswith("tqdm")}
    if len(os.listdir("/proc/self/task")) > threading.active_count():  # noqa: PTH208
        threads |= {f"the threads of {package}" for package in WITH_THREADS if package in sys.modules}
    return frozenset(files.elements()) | others | threads


def _is_read(descriptor: int) -> bool:
    """Return whether the descriptor has a position or bytes that a read would consume."""
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode) or not stat.S_IFMT(status.st_mode):
        return False
    if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == MEMORY_DEVICES:
        return False
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY


def _mapped_files() -> list[str]:
    """Return the files that this process maps, each as many times as it is mapped."""
    fields = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return [field[5] for field in fields if len(field) == 6]
