"""Witnesses: the files and environment variables that preparation was observed to read, which decide samples besides code and arguments.

Contract. While a sample is prepared, the process notes which files are opened for reading, which folders are listed (both from audit events of
Python) and which environment variables are read. What a sample has read is written to disk before its row is marked. Libraries that
open files without Python (HDF5, LMDB, image readers in C++) are not observed, unless the Dataset names the file or holds it open.
"""

import contextlib
import functools
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from argosy.disk.files import open_append_descriptor
from argosy.readings import is_installed

__all__ = ["RECORDER", "Roots", "Witnesses", "make_notes", "why_stale"]

NOTES = "read.jsonl"
MAX_NAMED_FILES = 16
"""If a Dataset names at most so many files, all are hashed when its samples are first kept; else only those that samples open."""
UNRELIABLE_SECONDS = 2.0
"""Age below which a file's times are unreliable, because its next change may get the same ones. It is read again at the next opening."""
MAX_HASHED_BYTES = 2**28
"""Bytes up to which the content of a file is hashed. A larger file is compared by size, times and inode."""
SOURCES = frozenset({".py", ".pyc", ".so", ".ipynb"})
"""Files of code, which the key covers."""
SYSTEM = ("/proc/", "/sys/")
WRITING = os.O_WRONLY | os.O_CREAT
DATABASE = "sqlite3.connect"
LOG = "-wal"
"""Suffix of a database's write-ahead log, which holds changes not yet copied to the database."""
ABSENT = "absent"
"""Content of a file that was looked for and did not exist."""
DIGITS = 32


class Note(NamedTuple):
    """One thing that samples were observed to read, in its state at that time."""

    kind: Literal["variable", "file", "folder"]
    root: int
    """Number of the root that contains it; -1 for none."""
    name: str
    """Path relative to the root, or the whole path; for a variable its name."""
    state: Any
    """For a file its size, times and inode, or [] while its times are unreliable; else a digest."""
    content: str | None
    """Digest of a file's content, if it was read."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that may be moved as a whole: their files are identified by relative paths.

    The last one is the working directory, for files that were opened by a relative path.
    """

    folders: tuple[str, ...] = ()

    def within(self, path: str) -> tuple[int, str]:
        """Return the number of the root that contains a path and the path relative to it; -1 and the path itself if none does."""
        if not path.startswith(os.sep):
            return len(self.folders) - 1, path
        for number, root in enumerate(self.folders[:-1]):
            if path == root or path.startswith(f"{root.rstrip(os.sep)}{os.sep}"):
                return number, path[len(root) :].lstrip(os.sep)
        return -1, path

    def path(self, number: int, name: str) -> str:
        """Return the path for a result of `within`."""
        return name if number < 0 else os.path.join(self.folders[number], name) if name else self.folders[number]  # noqa: PTH118


@dataclass(slots=True)
class _Recorder:
    """What this process reads while samples are prepared."""

    active: bool = False
    files_only: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Everything that was read, each once: ("path" or "variable", name)."""
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _installed: bool = False

    @contextlib.contextmanager
    def watching(self, *, files_only: bool = False) -> Iterator[None]:
        """Record what is read inside this context."""
        if not self._installed:
            self._install()
        before = self.active, self.files_only
        self.active, self.files_only = True, files_only
        try:
            yield
        finally:
            self.active, self.files_only = before

    def _install(self) -> None:
        """Observe all later opens in this process and its forks. An audit hook cannot be removed."""
        self._installed = True
        sys.addaudithook(self._audit)
        environment: Any = os.environ
        encode = environment.encodekey

        def audited(key: str) -> bytes:
            if self.active and not self.files_only and isinstance(key, str):
                self._note("variable", key)
            encoded: bytes = encode(key)
            return encoded

        environment.encodekey = audited

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                self._leave_out(path)
                return
        elif event == DATABASE:
            path = _database(arguments[0])
        elif event in ("os.listdir", "os.scandir") and not self.files_only:
            path = "." if arguments[0] is None else arguments[0]
        else:
            return
        if isinstance(path, str | bytes) and path:
            self._note("path", os.path.normpath(os.fsdecode(path)))
            if event == DATABASE:
                self._note("path", os.path.normpath(os.fsdecode(path) + LOG))

    def _leave_out(self, path: object) -> None:
        """Ignore a file that samples write themselves."""
        if isinstance(path, str | bytes):
            self._seen.add(("path", os.path.normpath(os.fsdecode(path))))

    def _note(self, kind: str, name: str) -> None:
        if (kind, name) not in self._seen:
            self._seen.add((kind, name))
            self.notes.append((kind, name))


RECORDER = _Recorder()


class Witnesses:
    """The notes in one folder of kept rows, to which each process appends what it has read."""

    def __init__(self, folder: Path, roots: Roots) -> None:
        self.path: Path = folder / NOTES
        self.roots = roots
        self._noted = 0
        """Number of the recorder's notes that are written."""

    def add(self) -> None:
        """Write what this process has read since the last call."""
        if self._noted == len(RECORDER.notes):
            return
        new = RECORDER.notes[self._noted :]
        self._noted += len(new)
        self.write(
            _variable_note(name) if kind == "variable" else _path_note(name, self.roots)
            for kind, name in new
            if kind == "variable" or _may_decide(name)
        )

    def write(self, notes: Iterable[Note | None]) -> None:
        """Append notes to the file."""
        text = "".join(f"{json.dumps(note)}\n" for note in notes if note is not None)
        if text:
            with os.fdopen(open_append_descriptor(self.path, 0o600), "ab", buffering=0) as file:
                file.write(text.encode(errors="surrogateescape"))


def make_notes(paths: Collection[str], roots: Roots) -> list[Note | None]:
    """Return notes for the files that a Dataset names or maps."""
    return [_path_note(path, roots, read=len(paths) <= MAX_NAMED_FILES) for path in paths if _may_decide(path)]


def why_stale(folder: Path, roots: Roots) -> str:
    """Return in words what has changed since the notes in a folder were written; empty if nothing has."""
    notes: dict[tuple[Any, ...], Note] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / NOTES).read_text(errors="surrogateescape").splitlines():
            try:
                note = Note(*json.loads(line))
            except (ValueError, TypeError):
                return "the list of the files that were read is damaged"
            key = note.kind, note.root, note.name
            before = notes.get(key, note)
            if not _has_same_content(before, note):
                return f"{note.name} changed while samples were prepared"
            # Several processes note the same file; one of them may have read its content.
            notes[key] = note if note.content is not None else before
    moved = []
    for note in notes.values():
        now = _current_note(note, roots)
        if now is None or (now.content == ABSENT != note.content):
            return f"{roots.path(note.root, note.name)} is gone"
        if now.state != note.state or now.state == []:
            if note.content is None or note.content != now.content:
                return _changed(note, roots)
            moved.append(note._replace(state=now.state, content=now.content))
    Witnesses(folder, roots).write(moved)
    return ""


def _current_note(note: Note, roots: Roots) -> Note | None:
    """Return the note as it would be written now. The file is read only if its size, times or inode differ."""
    if note.kind == "variable":
        return _variable_note(note.name)
    path = roots.path(note.root, note.name)
    now = _path_note(path, roots, read=False)
    return now if now is None or now.state == note.state or note.content is None else _path_note(path, roots)


def _changed(note: Note, roots: Roots) -> str:
    if note.kind == "variable":
        return f"the environment variable {note.name} has another value"
    return f"{roots.path(note.root, note.name)} has changed"


def _has_same_content(before: Note, note: Note) -> bool:
    """Return whether two notes record the same content."""
    if before.content is None or note.content is None:
        return before.state == note.state or [] in (before.state, note.state)
    return before.content == note.content


def _may_decide(path: str) -> bool:
    """Return whether a file's content may decide samples. Called for the files of every sample, so the answer for a folder is cached."""
    if path.startswith(SYSTEM) or os.path.splitext(path)[1] in SOURCES:  # noqa: PTH122
        return False
    if os.path.islink(path) or not path.startswith(os.sep):  # noqa: PTH114
        return not is_installed(Path(path))
    return not _installed_folder(os.path.dirname(path))  # noqa: PTH120


@functools.lru_cache(maxsize=1024)
def _installed_folder(folder: str) -> bool:
    return is_installed(Path(folder))


def _variable_note(name: str) -> Note:
    value = (os.environ.get(name) or "").encode(errors="surrogateescape")
    return Note("variable", -1, name, _digest(value), None)


def _path_note(path: str, roots: Roots, *, read: bool = True) -> Note | None:
    """Return a note for a path; None if it is neither a file nor a folder."""
    place = roots.within(path)
    path = roots.path(*place)
    try:
        status = os.stat(path)  # noqa: PTH116  # called for every file that a sample reads
        if stat.S_ISDIR(status.st_mode):
            names = "\0".join(sorted(os.listdir(path)))  # noqa: PTH208
            return Note("folder", *place, _digest(names.encode(errors="surrogateescape")), None)
        if not stat.S_ISREG(status.st_mode):
            return None
        if path.endswith(LOG) and status.st_size == 0:
            return Note("file", *place, None, ABSENT)
        read = read and status.st_size <= MAX_HASHED_BYTES
        # The state is taken before the content is read: a write in between shows as another state later.
        young = read and time.time() - status.st_ctime < UNRELIABLE_SECONDS
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        return Note("file", *place, [] if young else state, _read(path) if read else None)
    except (FileNotFoundError, NotADirectoryError):
        return Note("file", *place, None, ABSENT)
    except OSError:
        return None


def _database(argument: Any) -> Any:
    """Return the path of a database that is being opened; empty for one in memory."""
    text = os.fsdecode(argument) if isinstance(argument, str | bytes | os.PathLike) else ""
    if text.startswith("file:"):
        return unquote(urlsplit(text).path)
    return "" if text == ":memory:" else text


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # called for every file that a sample reads
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]  # the fastest hash on most processors


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data).hexdigest()[:DIGITS]
