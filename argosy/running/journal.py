"""The append-only record of a run: one writer, one event a line; the state of a run is the fold of its journal."""

import contextlib
import errno
import fcntl
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from argosy.errors import DiskError, RunError
from argosy.events import Event, SearchBegan, from_line, to_line

__all__ = ["Journal", "Lock", "at_work", "read_journal", "refusals_of_the_disk", "timeline"]


PATIENCE_SECONDS = 10.0
"""The longest that processes of a killed driver take to follow it."""


REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class Journal:
    """Open for writing; readers use `read_journal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._lines: list[str] = []

    def __enter__(self) -> "Journal":
        """Cut what a crash left of its last line, so that the next event is not glued to it."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        text = self.path.read_bytes()
        os.ftruncate(self._descriptor, text.rfind(b"\n") + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def append(self, event: Event) -> None:
        """One line, kept for `commit`."""
        self._lines.append(json.dumps({**to_line(event), "at": round(time.time(), 3)}))

    def commit(self) -> None:
        """All lines since the last time in one write, flushed to the disk before anybody acts on them; raises DiskError."""
        if not self._lines:
            return
        text = "".join(f"{line}\n" for line in self._lines).encode()
        before = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(text):
                written += os.write(self._descriptor, text[written:])
            os.fdatasync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise DiskError(f"cannot write {self.path}: {error}. Free disk space; the same command goes on.") from error
        self._lines.clear()


@contextmanager
def refusals_of_the_disk(directory: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into a DiskError; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise DiskError(f"cannot write in {directory}: {error}. Free disk space; the same command goes on.") from error


def read_journal(directory: Path) -> list[Event]:
    """All events of a run, in order; a torn last line is left out. Raises RunError for what is no journal."""
    path = directory / "journal.jsonl"
    if not path.exists():
        below = ", ".join(str(journal.parent) for journal in sorted(directory.glob("*/journal.jsonl")))
        advice = f"runs below it: {below}." if below else "give the directory of `argosy run --dir`."
        raise RunError(f"{directory} holds no run (no journal.jsonl there); {advice}")
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise RunError(
            f"cannot read {path}: {error.strerror}. Give the directory of a run that you may read."
        ) from error
    strange: set[str] = set()
    events = [_event(path, number, line, strange) for number, line in enumerate(lines, start=1)]
    if strange:
        _say_once(
            f"{path} was written by a later argosy; what this one does not know is left out: {', '.join(sorted(strange))}."
        )
    return [event for event in events if event is not None]


def _event(path: Path, number: int, line: bytes, strange: set[str]) -> Event | None:
    try:
        value: dict[str, Any] = json.loads(line)
        if value["event"] == "EpochEnded":
            raise RunError(
                f"{path.parent} was written by an earlier argosy, which had no sections; choose another directory."
            )
        return from_line(value, strange)
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path}, line {number} is no event: {error}. The journal was damaged or changed by hand: put back a copy of it, "
            "or choose another directory; the members' files are as they were."
        ) from error


@functools.cache
def _say_once(sentence: str) -> None:
    """To the person, and not again when the same journal is read again."""
    print(sentence, file=sys.stderr)


def at_work(directory: Path) -> bool:
    """Whether a driver has this run at hand; on another host nobody can tell, so whoever holds the lock is one."""
    path = directory / "run.lock"
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # Processes of a driver that was killed hold it a little longer than it lives.
        return _lives(*_signature(path))
    finally:
        os.close(descriptor)
    return False


def timeline(directory: Path) -> Iterator[tuple[float, Event]]:
    """(seconds that drivers had worked by then, event) of a run; the time between two drivers does not count."""
    seconds, before = 0.0, None
    for line in (directory / "journal.jsonl").read_bytes().split(b"\n")[:-1]:
        value = json.loads(line)
        event = from_line(value, set())
        if before is not None and not isinstance(event, SearchBegan):
            seconds += max(value["at"] - before, 0.0)
        before = value["at"]
        if event is not None:
            yield seconds, event


class Lock:
    """One driver per run directory.

    Workers inherit the descriptor, so the kernel holds the lock until the last process of a run has gone, whoever
    was killed first; a driver that comes after a killed one waits for that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1

    def __enter__(self) -> "Lock":
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._taken():
            if time.monotonic() > deadline - PATIENCE_SECONDS / 2:
                self._end_stopped_orphans()
            pid, host, begun = _signature(self.path)
            if _lives(pid, host, begun) or time.monotonic() > deadline:
                os.close(self.descriptor)
                raise RunError(
                    f"{self.path.parent} is in use by process {pid} on {host}; wait for it or choose another directory."
                )
            time.sleep(0.05)
        os.ftruncate(self.descriptor, 0)
        signature = f"{os.getpid()} {socket.gethostname()} {psutil.Process().create_time()}"
        os.pwrite(self.descriptor, signature.encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def _end_stopped_orphans(self) -> None:
        """A process that was stopped before the kernel knew its tie outlives a killed driver, and would for ever."""
        own = self.path.resolve()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                holds = any(link.resolve() == own for link in Path(f"/proc/{process.pid}/fd").iterdir())
                if holds and process.status() == psutil.STATUS_STOPPED:
                    process.kill()

    def _taken(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def _signature(path: Path) -> tuple[str, str, str]:
    """Process, host and time of birth of the driver that has the lock, or had it last."""
    pid, host, begun = [*path.read_text().split(), "?", "?", "?"][:3]
    return pid, host, begun


def _lives(pid: str, host: str, begun: str) -> bool:
    """Whether the driver that wrote this into the lock is still there; on another host nobody can tell, so it is."""
    if host != socket.gethostname():
        return pid != "?"  # a driver that has the lock and has not signed it yet will do so in a moment
    try:
        # Numbers of processes are used again: the time of its start tells the driver from a stranger.
        return str(psutil.Process(int(pid)).create_time()) == begun
    except psutil.NoSuchProcess:
        return False
