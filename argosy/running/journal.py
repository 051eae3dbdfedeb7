"""The append-only record of a run: one writer, one event a line; the state of a run is the fold of its journal."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from argosy.errors import DiskError, RunError
from argosy.events import Event, SearchBegan, from_line, to_line

__all__ = ["Journal", "Lock", "read_journal", "refusals_of_the_disk", "timeline"]


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
    """All events of a run, in order; a torn last line is left out."""
    path = directory / "journal.jsonl"
    if not path.exists():
        below = ", ".join(str(journal.parent) for journal in sorted(directory.glob("*/journal.jsonl")))
        advice = f"runs below it: {below}." if below else "give the directory of `argosy run --dir`."
        raise RunError(f"{directory} holds no run (no journal.jsonl there); {advice}")
    events = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            value: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise RunError(f"{path}, line {number} is not JSON: {error}. The journal was changed by hand.") from error
        if value["event"] == "EpochEnded":
            raise RunError(
                f"{directory} was written by an earlier argosy, which had no sections; choose another directory."
            )
        event = from_line(value)
        if event is not None:
            events.append(event)
    return events


def timeline(directory: Path) -> Iterator[tuple[float, Event]]:
    """(seconds that drivers had worked by then, event) of a run; the time between two drivers does not count."""
    seconds, before = 0.0, None
    for line in (directory / "journal.jsonl").read_bytes().split(b"\n")[:-1]:
        value = json.loads(line)
        event = from_line(value)
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
            pid, host, begun = [*self.path.read_text().split(), "?", "?", "?"][:3]
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


def _lives(pid: str, host: str, begun: str) -> bool:
    """Whether the driver that wrote this into the lock is still there; on another host nobody can tell, so it is."""
    if host != socket.gethostname():
        return pid != "?"  # a driver that has the lock and has not signed it yet will do so in a moment
    try:
        # Numbers of processes are used again: the time of its start tells the driver from a stranger.
        return str(psutil.Process(int(pid)).create_time()) == begun
    except psutil.NoSuchProcess:
        return False
