"""The append-only record of a run: one writer, one event a line. A run's state is the fold of its journal."""

import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argosy.disk.files import append_flushed, open_append_descriptor, read_lines
from argosy.disk.json_values import convert, parse_json
from argosy.errors import RunError
from argosy.errors.wording import escape_unprintable
from argosy.protocol.events import Checkpoint, Event, Fed, NodeCame, Passed, RunStarted, SearchBegan, Used
from argosy.protocol.packs import FellBack, Packed, StepsAlone

__all__ = ["Journal", "read_journal", "timeline", "to_line"]


DEFERRED_EVENTS = (Fed, Passed)
"""Events without consequences: they are written to disk with the next event that something depends on."""
NOTE_SECONDS = 1.0
"""Most seconds that notes wait for such an event."""
DRIVER_EVENTS = (NodeCame, Passed, Used)
"""Events that concern the driver that started last."""
MOST_NAMED = 8
"""Most unknown events and fields of a later version that a message names."""
LONGEST_KIND = 60
"""Most characters that are reported of an unknown event's name."""
# ``__subclasses__`` has only the classes of imported files, so those of packs are named. Checkpoints are only parts of events.
KINDS = {
    kind.__name__: kind for kind in (*Event.__subclasses__(), Packed, StepsAlone, FellBack) if kind is not Checkpoint
}


class Journal:
    """The journal, open for writing; readers use `read_journal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._lines: list[str] = []
        self._due = 0.0
        """Time by which the lines must be on the disk."""
        self._offset = time.time() - time.monotonic()
        """Added to the monotonic clock's time: differences of one driver's times are durations, though the clock is set or the machine sleeps."""

    def __enter__(self) -> "Journal":
        """Cut off a torn last line, left by a crash, so that the next event does not continue it.

        Raises RunError if there is no whole line beside checkpoints, which a run that begins would replace.
        """
        whole = sum(len(line) + 1 for line in read_lines(self.path)) if self.path.exists() else 0
        if not whole and (lost := next(self.path.parent.glob("members/*/e*.pt"), None)):
            raise RunError(
                f"{self.path} has no events, but there are checkpoints, such as {lost}, which a new run would replace. Restore a "
                "copy of the journal, or choose another directory."
            )
        self._descriptor = open_append_descriptor(self.path)
        if os.fstat(self._descriptor).st_size > whole:  # else a look at a finished run would count as a change of it
            os.ftruncate(self._descriptor, whole)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def append(self, event: Event) -> None:
        """Add the event as a line, kept until `commit`."""
        due = time.monotonic() + (NOTE_SECONDS if isinstance(event, DEFERRED_EVENTS) else 0.0)
        self._due = min(self._due, due) if self._lines else due
        self._lines.append(json.dumps({**to_line(event), "at": round(self._offset + time.monotonic(), 3)}))

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
        append_flushed(self._descriptor, "".join(f"{line}\n" for line in self._lines).encode(), self.path)
        self._lines.clear()


def read_journal(directory: Path) -> list[Event]:
    """Return all events of a run, in order, without a torn last line. Raises RunError for a file that is no journal."""
    return [event for _, event in _read_timed(directory)]


def _read_timed(directory: Path) -> list[tuple[float, Event]]:
    """Return (time of writing, event) of a run, in order."""
    path = directory / "journal.jsonl"
    strange: set[str] = set()
    try:
        moments = list(_parse_lines(path, strange))
    except (FileNotFoundError, NotADirectoryError):
        below = ", ".join(str(journal.parent) for journal in sorted(directory.glob("*/journal.jsonl")))
        advice = (
            f"runs below it: {below}."
            if below
            else "pass the directory of `argosy run --dir`; a run creates the journal in its first seconds."
        )
        raise RunError(f"{directory} holds no run (it has no journal.jsonl); {advice}") from None
    except OSError as error:
        raise RunError(
            f"cannot read {path}: {error.strerror}. Pass the directory of a run that you are allowed to read."
        ) from error
    if strange:
        _print_once(
            f"{path} was written by a later version of argosy. This version ignores what it does not know: "
            f"{', '.join(sorted(strange)[:MOST_NAMED])}{' and more' if len(strange) > MOST_NAMED else ''}."
        )
    return moments


def _parse_lines(path: Path, strange: set[str]) -> Iterator[tuple[float, Event]]:
    started = False
    for number, line in enumerate(read_lines(path), start=1):
        try:
            at, event = _parse_event(parse_json(line.decode(), infinite=True), strange)
            started = started or isinstance(event, RunStarted)
            if isinstance(event, DRIVER_EVENTS) and not started:
                raise ValueError(f"{type(event).__name__} comes before the start of a driver")
        except ValueError as error:
            raise RunError(
                f"{path}, line {number} is not an event: {error}. The journal was damaged or edited. Restore a "
                "copy of it, or choose another directory. The members' files are unchanged."
            ) from error
        if event is not None:
            yield at, event


def _parse_event(line: Any, strange: set[str]) -> tuple[float, Event | None]:
    """Return when a line was written (see `Journal`), which no decision depends on, and its event; None for a kind that this version does not know.

    What a later version wrote and this one does not know is added to `strange`, as ``Kind`` or ``Kind.field``. Raises ValueError for lines that
    no version writes.
    """
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError("it must be an object with the name of an event")
    values = {**line}
    name, at = values.pop("event"), convert(values.pop("at", 0.0), float, "at")
    kind = KINDS.get(name)
    if kind is None:
        strange.add(name[:LONGEST_KIND])
        return at, None
    return at, convert(values, kind, name, strange)


@functools.cache
def _print_once(sentence: str) -> None:
    """Print a sentence for the user only once, even if the same journal is read again."""
    print(escape_unprintable(sentence), file=sys.stderr)


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


def to_line(event: Event) -> dict[str, Any]:
    """Return the event as a plain value, with its kind under ``event``."""
    # The kind comes first: readers that look for a few events recognise lines by their first bytes.
    return {"event": type(event).__name__, **_plain(event)}


def _plain(event: Event) -> dict[str, Any]:
    """Return the fields by name. `dataclasses.asdict` copies every value below them and takes twenty times as long."""
    return {
        name: _plain(value) if isinstance(value := getattr(event, name), Event) else value
        for name in event.__dataclass_fields__
    }
