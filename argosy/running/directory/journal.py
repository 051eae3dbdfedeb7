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
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from argosy.disk.files import append_descriptor, check_directory, lines_of, opened
from argosy.disk.json_values import conforming, parsed
from argosy.errors import RunError
from argosy.errors.system import disk_refused
from argosy.errors.wording import visible
from argosy.protocol.events import Event, Fed, NodeCame, Passed, RunStarted, SearchBegan, Used
from argosy.running.directory.lines import from_line, to_line

__all__ = [
    "Journal",
    "Lock",
    "at_work",
    "own_directory",
    "read_journal",
    "timeline",
    "wait_for_data",
    "wait_for_section",
]


LOOK_SECONDS = 0.1
"""Between two looks for what was journaled."""
NOTES = (Fed, Passed)
"""Events that nothing follows from: they go to the disk with the next one that somebody acts on."""
NOTE_SECONDS = 1.0
"""The longest that they wait for it."""
OF_DRIVERS = (NodeCame, Passed, Used)
"""Events that are told of the driver which started last."""
MOST_NAMED = 8
"""Things of a later version that are named."""
ENDS = (b'{"event": "SectionEnded"', b'{"event": "RunEnded"')
"""How lines begin of a section's end, and of the run's."""
LONGEST_SIGNATURE = 512
"""Bytes of what a driver writes into its lock."""
PATIENCE_SECONDS = 10.0
"""The longest that processes of a killed driver take to follow it."""


class Journal:
    """Open for writing; readers use `read_journal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._lines: list[str] = []
        self._due = 0.0
        """When they are to be on the disk."""

    def __enter__(self) -> "Journal":
        """Cut what a crash left of its last line, so that the next event is not glued to it."""
        self._descriptor = append_descriptor(self.path)
        os.ftruncate(self._descriptor, sum(len(line) + 1 for line in lines_of(self.path)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def append(self, event: Event) -> None:
        """One line, kept for `commit`."""
        due = time.monotonic() + (NOTE_SECONDS if isinstance(event, NOTES) else 0.0)
        self._due = min(self._due, due) if self._lines else due
        self._lines.append(json.dumps({**to_line(event), "at": round(time.time(), 3)}))

    def commit_due(self) -> None:
        """`commit`, unless all lines that wait are notes of a moment ago."""
        if self._lines and time.monotonic() >= self._due:
            self.commit()

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
            raise disk_refused(error, f"cannot write {self.path}") from error
        self._lines.clear()


def own_directory(directory: Path) -> None:
    """Make a run's directory, for its user alone; raises RunError where that cannot be, or where another user may write there."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise disk_refused(error, f"cannot make {directory}") from error
        raise RunError(f"{directory} cannot be the directory of a run: {error}. Choose another one.") from error
    check_directory(directory)


def read_journal(directory: Path) -> list[Event]:
    """All events of a run, in order; a torn last line is left out. Raises RunError for what is no journal."""
    return [event for _, event in _moments(directory)]


def _moments(directory: Path) -> list[tuple[float, Event]]:
    """(time at which it was written, event) of a run, in order."""
    path = directory / "journal.jsonl"
    if not path.exists():
        below = ", ".join(str(journal.parent) for journal in sorted(directory.glob("*/journal.jsonl")))
        advice = f"runs below it: {below}." if below else "give the directory of `argosy run --dir`."
        raise RunError(f"{directory} holds no run (no journal.jsonl there); {advice}")
    strange: set[str] = set()
    try:
        moments = list(_moments_of(path, strange))
    except OSError as error:
        raise RunError(
            f"cannot read {path}: {error.strerror}. Give the directory of a run that you may read."
        ) from error
    if strange:
        _say_once(
            f"{path} was written by a later argosy; what this one does not know is left out: "
            f"{', '.join(sorted(strange)[:MOST_NAMED])}{' and more' if len(strange) > MOST_NAMED else ''}."
        )
    return [(at, event) for at, event in moments if event is not None]


def _moments_of(path: Path, strange: set[str]) -> Iterator[tuple[float, Event | None]]:
    started = False
    for number, line in enumerate(lines_of(path), start=1):
        try:
            value = parsed(line.decode(), infinite=True)
            at = _time_of(value)
            if value["event"] == "EpochEnded":
                raise RunError(
                    f"{path.parent} was written by an earlier argosy, which had no sections; choose another directory."
                )
            event = from_line(value, strange)
            started = started or isinstance(event, RunStarted)
            if isinstance(event, OF_DRIVERS) and not started:
                raise ValueError(f"{value['event']} comes before any driver")
        except ValueError as error:
            raise RunError(
                f"{path}, line {number} is no event: {error}. The journal was damaged or changed by hand: put back a copy of it, "
                "or choose another directory; the members' files are as they were."
            ) from error
        yield at, event


def _time_of(line: Any) -> float:
    """When a line was written; raises ValueError for what is no line of an event. What else is in it, its event tells."""
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError("an object with the name of an event is wanted")
    at: float = conforming(line.get("at", 0.0), float, "at")
    return at


@functools.cache
def _say_once(sentence: str) -> None:
    """To the person, and not again when the same journal is read again."""
    print(visible(sentence), file=sys.stderr)


def at_work(directory: Path) -> bool:
    """Whether a driver has this run at hand; on another host nobody can tell, so whoever holds the lock is one."""
    path = directory / "run.lock"
    try:
        with opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Processes of a driver that was killed hold it a little longer than it lives.
        return _lives(*_signature(path))
    except OSError:
        return False  # where there are no locks, there are no runs
    return False


def wait_for_data(directory: Path) -> None:
    """Until a run's data is open, before which there is nothing to tell of it, or nobody is at work there."""
    while at_work(directory) and not (directory / "study.json").exists():
        time.sleep(LOOK_SECONDS)


def wait_for_section(directory: Path) -> None:
    """Until a section of any member has ended from now on, or nobody is at work there."""
    path = directory / "journal.jsonl"
    read = path.stat().st_size if path.exists() else 0
    while at_work(directory):
        if path.exists():
            lines = list(lines_of(path, read))
            read += sum(len(line) + 1 for line in lines)
            if any(line.startswith(ENDS) for line in lines):
                return
        time.sleep(LOOK_SECONDS)


def timeline(directory: Path) -> Iterator[tuple[float, Event]]:
    """(seconds that drivers had worked by then, event) of a run; the time between two drivers does not count."""
    seconds, before, searching = 0.0, None, False
    for at, event in _moments(directory):
        # A search says so before its data is open, other runs only then.
        begins = isinstance(event, SearchBegan) or (isinstance(event, RunStarted) and not searching)
        if isinstance(event, SearchBegan | RunStarted):
            searching = isinstance(event, SearchBegan)
        if before is not None and not begins:
            seconds += max(at - before, 0.0)
        before = at
        yield seconds, event


class Lock:
    """One driver per run directory.

    Workers inherit the descriptor, so the kernel holds the lock until the last process of a run has gone, whoever
    was killed first; a driver that comes after a killed one waits for that. The programs that they start do not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1

    def __enter__(self) -> "Lock":
        self.descriptor = append_descriptor(self.path, 0o600)
        try:
            self._wait()
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, f"{os.getpid()} {socket.gethostname()} {_begun(os.getpid())}".encode(), 0)
        except BaseException:
            os.close(self.descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The run's own workers have gone; processes that a person's code forked there may live on, and hold it as well.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._taken():
            if time.monotonic() > deadline - PATIENCE_SECONDS / 2:
                self._end_stopped_orphans()
            pid, host, begun = _signature(self.path)
            # This process has ended its own run there, whose workers are about to go.
            another = pid != str(os.getpid()) and _lives(pid, host, begun)
            if another or time.monotonic() > deadline:
                raise RunError(
                    f"{self.path.parent} is in use by process {pid} on {host}; wait for it or choose another directory."
                )
            time.sleep(0.05)

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
        except BlockingIOError:
            return False
        except OSError as error:
            raise RunError(
                f"{self.path.parent} is on a file system where no lock can be taken ({error}), so nothing would keep two "
                "runs from writing there at once. Choose a directory on another disk, or mount this one with locks."
            ) from error
        return True


def _signature(path: Path) -> tuple[str, str, str]:
    """Process, host and time of birth of the driver that has the lock, or had it last."""
    with opened(path) as file:
        words = file.read(LONGEST_SIGNATURE).decode(errors="replace").split()
    pid, host, begun = [*words, "?", "?", "?"][:3]
    return pid if pid.isascii() and pid.isdecimal() else "?", host, begun


def _lives(pid: str, host: str, begun: str) -> bool:
    """Whether the driver that wrote this into the lock is still there; on another host nobody can tell, so it is."""
    if host != socket.gethostname():
        return pid != "?"  # a driver that has the lock and has not signed it yet will do so in a moment
    return pid != "?" and begun == _begun(int(pid))


def _begun(pid: int) -> str:
    """When a process began; empty for none. Numbers of processes are used again: this tells a driver from a stranger.

    In ticks since the machine was started, which no setting of its clock changes.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
