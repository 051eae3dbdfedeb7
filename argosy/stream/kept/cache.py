"""The folder of kept rows: one folder for each key, with a budget in bytes, of which the least recently used go first.

Contract. A folder of rows appears whole, by a rename, and goes by one; processes that have its files open keep them. The folder is its
user's alone. What is read from it is data: nothing there is unpickled.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from argosy.disk.cached import cache_folder
from argosy.disk.files import check_own, replacing
from argosy.disk.json_values import conforming, parsed
from argosy.stream.blocks import Layout
from argosy.stream.kept.keys import Key
from argosy.stream.kept.rows import ROWS, Rows, marked
from argosy.stream.kept.witnesses import Witnesses, fresh_record, stale

__all__ = ["NOTES", "Entry", "Header", "RowCache", "Location", "header_of"]

VERSION = 2
HEADER, NOTES = "header.json", "read.jsonl"
MOST = 200
"""Most keys: each opening of data that were never kept looks through all of them."""
YOUNG_SECONDS = 60.0
SHARE = 5
"""By default all rows together may take a fifth of what the disk has free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What is known of kept rows without preparing a sample."""

    version: int = VERSION
    subject: str
    parts: Mapping[str, str]
    roots: tuple[str, ...]
    """Folders in which files were looked for."""
    length: int
    """Samples of the Dataset."""
    count: int
    """Rows that there is room for: samples of indices below this are kept."""
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    fingerprint: str
    gathers: bool
    seconds_per_sample: float

    def fits(self, layout: Layout) -> bool:
        """Return whether rows have this layout."""
        return (self.dtypes, self.shapes) == _shape(layout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """Where the rows of one split are kept."""

    name: str
    """Splits of the same name share their rows."""
    folder: str | None
    """None in memory, for this run alone."""
    count: int
    roots: tuple[str, ...] = ()

    @property
    def witnesses(self) -> Path | None:
        """Return where is noted what samples read."""
        return None if self.folder is None else Path(self.folder, NOTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Kept rows on the cache, as `argosy cache` shows them."""

    folder: Path
    header: Header
    bytes: int
    """Bytes that they take on the disk."""
    used: float
    """When they were last opened, in seconds since 1970."""

    @property
    def found(self) -> int:
        """Number of samples that are there; 0 where another process has just taken them away."""
        try:
            return int(np.count_nonzero(marked(self.folder)))
        except FileNotFoundError:
            return 0


class RowCache:
    """The kept rows of this user on this machine."""

    def __init__(self, folder: Path | None = None, *, most_bytes: int | None = None) -> None:
        self.folder: Path = folder or Path(os.environ.get("ARGOSY_CACHE") or cache_folder()) / "rows"
        self.most_bytes = most_bytes
        self._used: set[str] = set()
        """Names of rows that were found or placed here, which the caller is about to open."""

    def entries(self, prefix: str = "") -> list[Entry]:
        """Return what is there under names that begin so, the least recently used first."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for folder in self.folder.iterdir():
                header = _header(folder) if folder.name.startswith(prefix) and not folder.name.startswith(".") else None
                if header is not None:
                    with contextlib.suppress(OSError):
                        size = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
                        used = (folder / HEADER).stat().st_mtime
                        found.append(Entry(folder=folder, header=header, bytes=size, used=used))
        return sorted(found, key=lambda entry: entry.used)

    def look_up(self, key: Key, length: int | None = None) -> Entry | str:
        """Return the rows of a key; else in words why there are none. Rows that have become stale where they were made go."""
        entries = self.entries(key.prefix)[::-1]
        same = [entry for entry in entries if not key.difference(entry.header.parts)]
        for entry in sorted(same, key=lambda entry: entry.header.roots != key.place):
            change = f"it has {length} samples, and had {entry.header.length}"
            if length in (None, entry.header.length):
                change = stale(entry.folder / NOTES, key.roots)
            if not change and (found := self._placed(entry, key)) is not None:
                os.utime(found.folder / HEADER)
                self._used.add(found.folder.name)
                return found
            if change and entry.header.roots == key.place:
                self.discard(entry.folder)
                return change
        if entries and not same:
            return f"changed since it was last prepared: {key.difference(entries[0].header.parts)}"
        return "never prepared here before"

    def _placed(self, entry: Entry, key: Key) -> Entry | None:
        """Return rows that were made where a key looks for files, or elsewhere of equal files; None where these may not be added to.

        Complete rows may be read from any place. Others belong to one place, since files that are still to be read may differ: they
        are moved where the files were.
        """
        roots = entry.header.roots
        if roots == key.place or marked(entry.folder)[: entry.header.count].all():
            return entry
        moved = roots[:-1] == key.place[:-1] or not any(Path(root).exists() for root in roots[:-1])
        if not moved or _in_use(entry.folder / ROWS):
            return None
        folder, header = self.folder / key.name, replace(entry.header, roots=key.place)
        try:
            entry.folder.rename(folder)
        except OSError:  # another process has begun there
            return None
        with replacing(folder / HEADER, mode=0o600) as file:
            file.write(json.dumps(asdict(header)).encode())
        return replace(entry, folder=folder, header=header)

    def create(self, key: Key, header: Header, layout: Layout) -> Path | None:
        """Make a folder for rows, or take the one that another process has made meanwhile; None for one of another kind. Raises OSError, RunError."""
        with self.new() as new:
            Rows.create(new, layout, header.count)
            Witnesses(new / NOTES, key.roots).write(fresh_record(key.files, key.roots))
            folder = self.place(new, key, header)
        made = _header(folder)
        return folder if made is not None and made.fits(layout) and made.count == header.count else None

    @contextlib.contextmanager
    def new(self) -> Iterator[Path]:
        """Make a folder for rows that no process finds before it was placed; without that, it goes. Raises OSError, RunError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(self.folder, self.folder.stat())
        new = self.folder / f".{secrets.token_hex(8)}"
        new.mkdir(mode=0o700)
        lock = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield new
        finally:
            os.close(lock)
            shutil.rmtree(new, ignore_errors=True)

    def place(self, new: Path, key: Key, header: Header) -> Path:
        """Give a new folder its name; return it, or that of the same name which another process has placed meanwhile."""
        (new / HEADER).write_text(json.dumps(asdict(header)))
        folder = self.folder / key.name
        self._used.add(folder.name)
        try:
            new.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        return folder

    def room(self, bytes_wanted: int) -> int:
        """Return how many of these bytes there is room for, after what was not used for longest has gone, and what was given up.

        Without a budget nothing is added, and nothing goes.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        entries = self.entries()
        taken = sum(entry.bytes for entry in entries)
        free = shutil.disk_usage(self.folder).free
        most = self.most_bytes if self.most_bytes is not None else (free + taken) // SHARE
        wanted = min(bytes_wanted, most)
        for number, entry in enumerate(entries if wanted else (), start=1):
            surplus = len(entries) - number >= MOST
            spared = entry.folder.name in self._used or _in_use(entry.folder / ROWS)
            if (surplus or taken + wanted > most) and not spared:
                self.discard(entry.folder)
                taken -= entry.bytes
        return max(min(wanted, most - taken), 0)

    def _sweep(self) -> None:
        """Take away what a process that was killed has left; a young folder may be one that is about to be locked."""
        for folder in self.folder.glob(".*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > YOUNG_SECONDS and not _in_use(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def discard(self, folder: Path) -> None:
        """Take rows from the cache; runs that use them keep what they have open."""
        gone = self.folder / f".{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def header_of(key: Key, facts: Any, count: int) -> Header:
    """Return the header of rows to be kept, from what `probe` has found."""
    dtypes, shapes = _shape(facts.layout)
    return Header(
        subject=key.subject,
        parts=key.parts,
        roots=key.place,
        length=facts.length,
        count=count,
        dtypes=dtypes,
        shapes=shapes,
        fingerprint=facts.fingerprint,
        gathers=facts.gathers,
        seconds_per_sample=facts.seconds_per_sample,
    )


def _shape(layout: Layout) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    return tuple(map(str, layout.dtypes)), layout.shapes


def _header(folder: Path) -> Header | None:
    """Return the header of kept rows; None where none are, or they are of another version."""
    try:
        found: Header = conforming(parsed((folder / HEADER).read_text()), Header, "it")
    except (OSError, ValueError):
        return None
    return found if found.version == VERSION else None


def _in_use(path: Path) -> bool:
    """Return whether a process holds a lock on a file or folder."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False
