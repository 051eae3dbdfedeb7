"""The append-only record of a run: one writer, one event a line. A run's state is the fold of its journal."""

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
from typing import Any

from argosy.disk.files import append_flushed, check_directory, open_append_descriptor, open_plain, read_lines
from argosy.disk.json_values import convert, parse_json
from argosy.errors import RunError
from argosy.errors.system import disk_refused
from argosy.errors.wording import escape_unprintable
from argosy.protocol.events import Event, Fed, NodeCame, Passed, RunStarted, SearchBegan, Used
from argosy.running.directory.lines import from_line, to_line

__all__ = [
    "Journal",
    "Lock",
    "has_driver",
    "make_own_directory",
    "read_journal",
    "timeline",
    "wait_for_data",
    "wait_for_end",
    "wait_for_section",
]


POLL_SECONDS = 0.1
"""Seconds between two checks for new lines."""
DEFERRED_EVENTS = (Fed, Passed)
"""Events without consequences: they are written to disk with the next event that something depends on."""
NOTE_SECONDS = 1.0
"""Most seconds that notes wait for such an event."""
DRIVER_EVENTS = (NodeCame, Passed, Used)
"""Events that concern the driver that started last."""
MOST_NAMED = 8
"""Most unknown events and fields of a later version that a message names."""
ENDS = (b'{"event": "SectionEnded"', b'{"event": "RunEnded"')
"""Prefixes of the lines that end a section or the run."""
LONGEST_SIGNATURE = 512
"""Most bytes of the signature in a driver's lock."""
PATIENCE_SECONDS = 10.0
"""Most seconds that the processes of a killed driver take to end."""


class Journal:
    """The journal, open for writing; readers use `read_journal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._lines: list[str] = []
        self._due = 0.0
        """Time by which the lines must be on the disk."""

    def __enter__(self) -> "Journal":
        """Cut off a torn last line, left by a crash, so that the next event does not continue it."""
        self._descriptor = open_append_descriptor(self.path)
        os.ftruncate(self._descriptor, sum(len(line) + 1 for line in read_lines(self.path)))
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def append(self, event: Event) -> None:
        """Add the event as a line, kept until `commit`."""
        due = time.monotonic() + (NOTE_SECONDS if isinstance(event, DEFERRED_EVENTS) else 0.0)
        self._due = min(self._due, due) if self._lines else due
        self._lines.append(json.dumps({**to_line(event), "at": round(time.time(), 3)}))

    def commit_due(self) -> None:
        """Commit, unless all waiting lines are recent notes."""
        if self._lines and time.monotonic() >= self._due:
            self.commit()

    def commit(self) -> None:
        """Write all waiting lines at once and flush them to the disk, before anything depends on them.

        Raises DiskError.
        """
        if not self._lines:
            return
        try:
            append_flushed(self._descriptor, "".join(f"{line}\n" for line in self._lines).encode())
        except OSError as error:
            raise disk_refused(error, f"cannot write {self.path}") from error
        self._lines.clear()


def make_own_directory(directory: Path) -> None:
    """Create a run directory for its user alone; raises RunError if that fails or another user may write to it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise disk_refused(error, f"cannot make {directory}") from error
        raise RunError(f"{directory} cannot be used as a run directory: {error}. Choose another one.") from error
    check_directory(directory)


def read_journal(directory: Path) -> list[Event]:
    """Return all events of a run, in order, without a torn last line. Raises RunError for a file that is no journal."""
    return [event for _, event in _read_timed(directory)]


def _read_timed(directory: Path) -> list[tuple[float, Event]]:
    """Return (time of writing, event) of a run, in order."""
    path = directory / "journal.jsonl"
    if not path.exists():
        below = ", ".join(str(journal.parent) for journal in sorted(directory.glob("*/journal.jsonl")))
        advice = (
            f"runs below it: {below}."
            if below
            else "pass the directory of `argosy run --dir`; a run creates the journal in its first seconds."
        )
        raise RunError(f"{directory} holds no run (it has no journal.jsonl); {advice}")
    strange: set[str] = set()
    try:
        moments = list(_parse_lines(path, strange))
    except OSError as error:
        raise RunError(
            f"cannot read {path}: {error.strerror}. Pass the directory of a run that you are allowed to read."
        ) from error
    if strange:
        _print_once(
            f"{path} was written by a later version of argosy. This version ignores what it does not know: "
            f"{', '.join(sorted(strange)[:MOST_NAMED])}{' and more' if len(strange) > MOST_NAMED else ''}."
        )
    return [(at, event) for at, event in moments if event is not None]


def _parse_lines(path: Path, strange: set[str]) -> Iterator[tuple[float, Event | None]]:
    started = False
    for number, line in enumerate(read_lines(path), start=1):
        try:
            value = parse_json(line.decode(), infinite=True)
            at = _time_of(value)
            event = from_line(value, strange)
            started = started or isinstance(event, RunStarted)
            if isinstance(event, DRIVER_EVENTS) and not started:
                raise ValueError(f"{value['event']} comes before the start of a driver")
        except ValueError as error:
            raise RunError(
                f"{path}, line {number} is not an event: {error}. The journal was damaged or edited. Restore a "
                "copy of it, or choose another directory. The members' files are unchanged."
            ) from error
        yield at, event


def _time_of(line: Any) -> float:
    """Return when a line was written; raises ValueError if it is no line of an event.

    Its other fields are checked with it.
    """
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError("it must be an object with the name of an event")
    at: float = convert(line.get("at", 0.0), float, "at")
    return at


@functools.cache
def _print_once(sentence: str) -> None:
    """Print a sentence for the user only once, even if the same journal is read again."""
    print(escape_unprintable(sentence), file=sys.stderr)


def has_driver(directory: Path) -> bool:
    """Return whether a driver works on this run.

    A process of another host cannot be examined, so any such process that holds the lock counts.
    """
    path = directory / "run.lock"
    try:
        with open_plain(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Processes of a killed driver hold the lock a little longer than the driver lives.
        return _is_alive(*_signature(path))
    except PermissionError:  # another user's lock; the rest of the directory may be readable
        return f":{path.stat().st_ino} " in Path("/proc/locks").read_text()
    except OSError:
        return False  # without a lock there is no run
    return False


def wait_for_data(directory: Path) -> None:
    """Wait until a run's data is open (before that there is nothing to report), or no driver works on it."""
    while has_driver(directory) and not (directory / "study.json").exists():
        time.sleep(POLL_SECONDS)


def wait_for_end(directory: Path) -> None:
    """Wait until no driver works on a run."""
    while has_driver(directory):
        time.sleep(POLL_SECONDS)


def wait_for_section(directory: Path) -> None:
    """Wait until a section of any member ends, or no driver works on the run."""
    path = directory / "journal.jsonl"
    read = path.stat().st_size if path.exists() else 0
    while has_driver(directory):
        if path.exists():
            lines = list(read_lines(path, read))
            read += sum(len(line) + 1 for line in lines)
            if any(line.startswith(ENDS) for line in lines):
                return
        time.sleep(POLL_SECONDS)


def timeline(directory: Path) -> Iterator[tuple[float, Event]]:
    """Yield (seconds of drivers' work so far, event) of a run; the time between two drivers does not count."""
    seconds, before, searching = 0.0, None, False
    for at, event in _read_timed(directory):
        # A search journals its start before its data is open, other runs after that.
        begins = isinstance(event, SearchBegan) or (isinstance(event, RunStarted) and not searching)
        if isinstance(event, SearchBegan | RunStarted):
            searching = isinstance(event, SearchBegan)
        if before is not None and not begins:
            seconds += max(at - before, 0.0)
        before = at
        yield seconds, event


class Lock:
    """Lock that allows one driver per run directory.

    Workers inherit the descriptor, so the kernel holds the lock until the last process of a run has gone, in whatever
    order they are killed; a driver that follows a killed one waits for that. Programs that workers start do not inherit
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int = -1

    def __enter__(self) -> "Lock":
        there = False
        while not there:
            self.descriptor = open_append_descriptor(self.path, 0o600)
            try:
                self._wait()
                # A directory that was moved meanwhile, for example to begin anew, has taken its lock along.
                with contextlib.suppress(FileNotFoundError):
                    there = os.path.samestat(os.fstat(self.descriptor), self.path.stat())
                if there:
                    os.ftruncate(self.descriptor, 0)
                    signature = f"{os.getpid()} {socket.gethostname()} {_start_time(os.getpid())}"
                    os.pwrite(self.descriptor, signature.encode(), 0)
            except BaseException:
                os.close(self.descriptor)
                raise
            if not there:
                os.close(self.descriptor)
        return self

    def __exit__(self, *error: object) -> None:
        # The run's own workers have gone; processes that the user's code forked there may live on, and hold the lock
        # too.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._try_lock():
            if time.monotonic() > deadline - PATIENCE_SECONDS / 2:
                self._end_stopped_orphans()
            pid, host, begun = _signature(self.path)
            # The lock may name this process, after an earlier run of its own that has ended; its workers are about to
            # go.
            another = pid != str(os.getpid()) and _is_alive(pid, host, begun)
            if another or time.monotonic() > deadline:
                raise RunError(
                    f"{self.path.parent} is in use by process {pid} on {host}. Wait for it, or choose another "
                    "directory."
                )
            time.sleep(0.05)

    def _end_stopped_orphans(self) -> None:
        """Kill stopped processes that hold the lock: stopped before their tie was set, they outlive the driver."""
        import psutil  # readers do not need it

        own = self.path.resolve()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                holds = any(link.resolve() == own for link in Path(f"/proc/{process.pid}/fd").iterdir())
                if holds and process.status() == psutil.STATUS_STOPPED:
                    process.kill()

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise RunError(
                f"{self.path.parent} is on a file system that refuses locks ({error}), so two runs could write "
                "there at once. Choose a directory on another disk, or mount this one with locks."
            ) from error
        return True


def _signature(path: Path) -> tuple[str, str, str]:
    """Return pid, host and start time of the driver that has the lock, or had it last."""
    with open_plain(path) as file:
        words = file.read(LONGEST_SIGNATURE).decode(errors="replace").split()
    pid, host, begun = [*words, "?", "?", "?"][:3]
    return pid if pid.isascii() and pid.isdecimal() else "?", host, begun


def _is_alive(pid: str, host: str, begun: str) -> bool:
    """Return whether the driver with this signature lives; one on another host cannot be examined and counts as living."""
    if host != socket.gethostname():
        return pid != "?"  # a driver that has the lock and has not signed it yet will do so in a moment
    return pid != "?" and begun == _start_time(int(pid))


def _start_time(pid: int) -> str:
    """Return a process's start time, empty if there is none; it tells a driver from a later process with the same pid.

    The time is in ticks since the machine started, so setting the clock does not change it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
