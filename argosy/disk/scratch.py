"""Temporary folders that the next process deletes if their own process was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch"]

YOUNG_SECONDS = 60.0
"""A process locks its folder at most this long after creating it."""


@contextlib.contextmanager
def scratch(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder ``argosy-<kind>-…`` and delete it at exit, after deleting folders of this kind that killed processes have left.

    In ``/dev/shm`` these are memory, of which each restart of a notebook during a fit would take some until the machine restarts.
    """
    parent = parent or Path(tempfile.gettempdir())
    for folder in parent.glob(f"argosy-{kind}-*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"argosy-{kind}-", dir=parent) as made:
        lock = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a disk without locks, on which nothing counts as left
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(made)
        finally:
            os.close(lock)


def _is_left(folder: Path) -> bool:
    """Return whether a folder belongs to this user and to no process."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > YOUNG_SECONDS:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        finally:
            os.close(descriptor)
    return False
