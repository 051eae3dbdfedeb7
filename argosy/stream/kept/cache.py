"""The folder of kept rows: one folder for each key. A budget in bytes limits it; the least recently used rows are deleted first.

Contract. A folder of rows is created and removed by one rename each, so it is never seen incomplete. Processes that have its files open can still
use them. The folder is accessible only to its user. Its content is read as plain data: nothing is unpickled.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from argosy.disk.cached import cache_folder
from argosy.disk.files import check_directory, replacing
from argosy.disk.json_values import convert, parse_json
from argosy.disk.scratch import is_abandoned, is_locked
from argosy.stream.blocks import Layout
from argosy.stream.kept.keys import Key
from argosy.stream.kept.rows import ROWS, Rows, have_size, read_marks
from argosy.stream.kept.witnesses import Roots, Witnesses, make_notes, why_stale

__all__ = ["Entry", "Header", "RowCache", "Location", "make_header"]

VERSION = 2
HEADER = "header.json"
MAX_ENTRIES = 200
"""Most keys. Opening data that were never kept reads the headers of all of them."""
DISK_DIVISOR = 5
"""By default all rows together may take this part (a fifth) of the free disk space."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What can be known of kept rows without preparing a sample."""

    version: int = VERSION
    subject: str
    parts: Mapping[str, str]
    roots: tuple[str, ...]
    """Folders from which the samples' files were read."""
    length: int
    """Number of samples of the Dataset."""
    count: int
    """Number of rows for which there is room: samples with smaller indices are kept."""
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    fingerprint: str
    gathers: bool
    seconds_per_sample: float

    def fits(self, layout: Layout) -> bool:
        """Return whether the rows have this layout."""
        return (self.dtypes, self.shapes) == _shape(layout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """Where the rows of one split are kept."""

    name: str
    """Splits with the same name share their rows."""
    folder: Path | None
    """None if rows are in memory, for this run alone."""
    count: int
    roots: Roots = field(default_factory=Roots)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The kept rows of one Dataset, as `argosy cache` lists them."""

    folder: Path
    header: Header
    bytes: int
    """Bytes that they occupy on disk."""
    used: float
    """Time at which they were last opened, in seconds since 1970."""

    @property
    def found(self) -> int:
        """Number of kept samples; 0 if another process has just deleted them."""
        try:
            return int(np.count_nonzero(read_marks(self.folder)))
        except FileNotFoundError:
            return 0


class RowCache:
    """The kept rows of this user on this machine."""

    def __init__(self, folder: Path | None = None, *, most_bytes: int | None = None) -> None:
        self.folder: Path = folder or Path(os.environ.get("ARGOSY_CACHE") or cache_folder()) / "rows"
        self.most_bytes = most_bytes
        self._used: set[str] = set()
        """Names of rows that were found or placed by this object, which the caller is about to open."""

    def entries(self, prefix: str = "") -> list[Entry]:
        """Return the rows whose names begin with `prefix`, the least recently used first. Raises OSError, and RunError for another user's folder."""
        listed = []
        with contextlib.suppress(FileNotFoundError):
            check_directory(self.folder)
            for folder in self.folder.iterdir():
                header = _header(folder) if folder.name.startswith(prefix) and not folder.name.startswith(".") else None
                if header is not None:
                    with contextlib.suppress(OSError):
                        size = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
                        used = (folder / HEADER).stat().st_mtime
                        listed.append(Entry(folder=folder, header=header, bytes=size, used=used))
        return sorted(listed, key=lambda entry: entry.used)

    def look_up(self, key: Key, length: int | None = None) -> Entry | str:
        """Return the rows of a key, or in words why there are none. Deletes rows that are stale in the place where they were made."""
        entries = self.entries(key.prefix)[::-1]
        same = [entry for entry in entries if not key.difference(entry.header.parts)]
        # Rows that were made in this place come first; of others, those that were used last.
        for entry in sorted(same, key=lambda entry: entry.header.roots != key.roots.folders):
            change = f"it has {length} samples; earlier it had {entry.header.length}"
            if length in (None, entry.header.length):
                change = why_stale(entry.folder, key.roots)
            if not change and (usable := self._usable_entry(entry, key)) is not None:
                os.utime(usable.folder / HEADER)
                self._used.add(usable.folder.name)
                return usable
            if change and entry.header.roots == key.roots.folders:
                self.discard(entry.folder)
                return change
        if entries and not same:
            return f"changed since it was last prepared: {key.difference(entries[0].header.parts)}"
        return "never prepared here before"

    def _usable_entry(self, entry: Entry, key: Key) -> Entry | None:
        """Return the rows if they may be used for this key, moved to its place if necessary; None if they may not be extended from there.

        Complete rows may be used from any place. Incomplete rows belong to one place, because files that are still to be read may differ elsewhere.
        They are moved to the key's place if their own folders no longer exist, or only the working directory differs.
        """
        roots = entry.header.roots
        if roots == key.roots.folders or read_marks(entry.folder)[: entry.header.count].all():
            return entry
        moved = roots[:-1] == key.roots.folders[:-1] or not any(Path(root).exists() for root in roots[:-1])
        if not moved or is_locked(entry.folder / ROWS):
            return None
        folder, header = self.folder / key.name, replace(entry.header, roots=key.roots.folders)
        try:
            entry.folder.rename(folder)
        except OSError:  # another process has created the folder
            return None
        with replacing(folder / HEADER, mode=0o600) as file:
            file.write(json.dumps(asdict(header)).encode())
        return replace(entry, folder=folder, header=header)

    def create(self, key: Key, header: Header, layout: Layout) -> Path | None:
        """Create a folder for rows, or return the one that another process has just created; None if that one differs. Raises OSError, RunError."""
        with self.new() as new:
            Rows.create(new, layout, header.count)
            Witnesses(new, key.roots).write(make_notes(key.files, key.roots))
            folder = self.place(new, key, header)
        current = _header(folder)
        return folder if current is not None and current.fits(layout) and current.count == header.count else None

    @contextlib.contextmanager
    def new(self) -> Iterator[Path]:
        """Create a temporary folder that no process finds until it is placed; otherwise it is deleted at exit. Raises OSError, RunError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(self.folder)
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
        """Rename a temporary folder to its final name. Returns its path, which may hold a folder that another process has placed meanwhile."""
        (new / HEADER).write_text(json.dumps(asdict(header)))
        folder = self.folder / key.name
        self._used.add(folder.name)
        found = _header(folder)
        if found is None or found.parts != header.parts:  # there is none, or it is damaged
            self.discard(folder)
        try:
            new.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        return folder

    def room(self, bytes_wanted: int) -> int:
        """Return how many of these bytes there is room for, after deleting abandoned folders and the least recently used rows.

        With a budget of 0 bytes nothing is added and no rows are deleted.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = self.entries()
        self.delete_abandoned()
        taken = sum(entry.bytes for entry in entries)
        free = shutil.disk_usage(self.folder).free
        most = self.most_bytes if self.most_bytes is not None else (free + taken) // DISK_DIVISOR
        wanted = min(bytes_wanted, most)
        for number, entry in enumerate(entries if wanted else (), start=1):
            surplus = len(entries) - number >= MAX_ENTRIES
            spared = entry.folder.name in self._used or is_locked(entry.folder / ROWS)
            if (surplus or taken + wanted > most) and not spared:
                self.discard(entry.folder)
                taken -= entry.bytes
        return max(min(wanted, most - taken), 0)

    def clear(self) -> None:
        """Delete all rows, also damaged ones and those of other versions, and what killed processes have left."""
        self.delete_abandoned()
        for folder in self.folder.glob("[!.]*"):
            self.discard(folder)

    def delete_abandoned(self) -> None:
        """Delete temporary folders of processes that were killed, such as a half-read stream."""
        for folder in self.folder.glob(".*"):
            if is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def discard(self, folder: Path) -> None:
        """Delete rows from the cache. Processes that have them open can still use them."""
        gone = self.folder / f".{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def make_header(key: Key, facts: Any, count: int) -> Header:
    """Return the header for rows to be kept, from what `probe` found."""
    dtypes, shapes = _shape(facts.layout)
    return Header(
        subject=key.subject,
        parts=key.parts,
        roots=key.roots.folders,
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
    """Return the header of kept rows; None if there are none, they have another version, or a file is damaged, as by a loss of power."""
    try:
        header: Header = convert(parse_json((folder / HEADER).read_text()), Header, "it")
        layout = Layout(
            None, tuple(getattr(torch, name.removeprefix("torch.")) for name in header.dtypes), header.shapes
        )
        are_whole = have_size(folder, layout, header.count)
    except (OSError, ValueError, AttributeError):
        return None
    return header if header.version == VERSION and are_whole else None
