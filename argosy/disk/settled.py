"""Replace several files together: they are written under temporary names, flushed and renamed; after a crash each is old or new."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from argosy.disk.files import flush
from argosy.errors.system import disk_refused, resources_refused

__all__ = ["delete_if_refused", "rename_flushed"]

MANY = 4
"""Least number of files for which one flush of the file system is cheaper than flushing each (2 files: equal; 8: half)."""
LITTLE = 64 * 2**20
"""Most bytes of unwritten data with which the file system is flushed; with more, it would wait for other processes' writes."""

_libc = ctypes.CDLL(None)


def rename_flushed(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Flush (temporary, final) files to the disk and rename them; raises what `delete_if_refused` raises."""
    if not pairs:
        return
    with delete_if_refused(pairs, pairs[-1][1]):
        files = [temporary for temporary, _ in pairs]
        _flush_together(files)
        _flush_each(files)
        for temporary, path in pairs:
            os.rename(temporary, path)  # noqa: PTH104  # Path's own makes another path of the name
        folders = dict.fromkeys(path.parent for _, path in pairs)
        if not _flush_together(folders):
            _flush_each(folders)


@contextlib.contextmanager
def delete_if_refused(pairs: Sequence[tuple[Path, Path]], at: Path) -> Iterator[None]:
    """Delete temporary files and raise DiskError or WorkerError if the system refuses an operation in the block."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        for temporary, _ in pairs:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        # Torch's writer raises its own error after a refused write, without the reason.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        what = f"cannot write {at}; the checkpoint before it is untouched"
        raise resources_refused(cause, what) or disk_refused(cause, what) from error


def _flush_each(paths: Collection[Path]) -> None:
    for path in paths:
        flush(path, os.fsync)


def _flush_together(paths: Collection[Path]) -> bool:
    """Flush the file system of these files or folders if that is cheaper; returns whether this was done and succeeded."""
    together = len(paths) >= MANY and sys.platform == "linux" and _dirty_bytes() < LITTLE
    return together and flush(next(iter(paths)), _libc.syncfs) == 0


def _dirty_bytes() -> int:
    """Return the number of written bytes on this machine that are not on disk yet."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Dirty"].split()[0]) * 1024
