"""Files that are written beside their places, flushed to the disk together and renamed: a crash leaves the old ones or the new ones."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from argosy.errors.system import disk_refused, means_refused

__all__ = ["deleted_if_refused", "settle"]

MANY = 4
"""Files from which on one flush of the whole file system is cheaper than flushing each (2 files: equal; 8: half)."""
LITTLE = 64 * 2**20
"""Bytes of unwritten data above which the file system is not flushed: it would wait for other processes' writes."""

_libc = ctypes.CDLL(None)


def settle(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Flush written files to the disk and rename them, with the errors of `deleted_if_refused`."""
    if not pairs:
        return
    with deleted_if_refused(pairs, pairs[-1][1]):
        _flush_files([temporary for temporary, _ in pairs])
        for temporary, path in pairs:
            temporary.rename(path)
        _flush_folders(dict.fromkeys(path.parent for _, path in pairs))


@contextlib.contextmanager
def deleted_if_refused(pairs: Sequence[tuple[Path, Path]], at: Path) -> Iterator[None]:
    """Delete temporary files and raise DiskError or WorkerError where the system refuses."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        for temporary, _ in pairs:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        # Torch's writer raises its own error after a refused write, without the reason.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        what = f"cannot write {at}, and the checkpoint before it is untouched"
        raise means_refused(cause, what) or disk_refused(cause, what) from error


def _flush_files(paths: Collection[Path]) -> None:
    """Flush files to the disk."""
    _flush_together(paths)
    for path in paths:
        _flush(path, os.fsync)


def _flush_folders(paths: Collection[Path]) -> None:
    """Flush the entries of folders to the disk."""
    if not _flush_together(paths):
        for path in paths:
            _flush(path, os.fsync)


def _flush_together(paths: Collection[Path]) -> bool:
    """Flush the file system of these files or folders where that is cheaper; returns whether it was done and succeeded."""
    together = len(paths) >= MANY and _dirty_bytes() < LITTLE
    return together and _flush(next(iter(paths)), _libc.syncfs) == 0


def _flush(path: Path, flush: Callable[[int], int | None]) -> int | None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return flush(descriptor)
    finally:
        os.close(descriptor)


def _dirty_bytes() -> int:
    """Return the machine's written bytes that are not on a disk yet."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Dirty"].split()[0]) * 1024
