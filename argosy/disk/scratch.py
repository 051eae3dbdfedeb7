"""Folders that belong to a process as long as it holds their lock, and that the next process deletes if it was killed."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_locked", "is_abandoned", "is_scratch", "scratch"]

YOUNG_SECONDS = 60.0
"""A process locks its folder at most this long after creating it."""


@contextlib.contextmanager
def scratch(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder ``argosy-<kind>-…`` and delete it at exit, after deleting folders of this kind that killed processes have left.

    In ``/dev/shm`` these are memory, of which each restart of a notebook during a fit would take some until the machine restarts.
    """
    parent = parent or Path(tempfile.gettempdir())
    for folder in parent.glob(f"argosy-{kind}-*"):
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"argosy-{kind}-", dir=parent) as created:
        lock = os.open(created, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a disk without locks, on which nothing counts as left
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(created)
        finally:
            os.close(lock)


def is_scratch(folder: Path, kind: str) -> bool:
    """Return whether a directory is one of this kind, as of a ``fit``: its files are gone before a person reads of them."""
    return folder.name.startswith(f"argosy-{kind}-")


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder belongs to this user and to no process. Young ones are spared, because their process may be about to lock them."""
    try:
        status = folder.lstat()
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        return own and time.time() - status.st_mtime > YOUNG_SECONDS and not is_locked(folder)
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock on a file or folder; raises OSError where there are no locks."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False
