"""Kept samples in a file that the processes of a machine share: one column of rows for each leaf.

Contract. Rows are kept only for samples that drew no random numbers and so depend on the index alone: every process that
writes a row writes the same bytes. A row is written by ``pwrite``, so that a full disk is an error and not a signal, and marked
after that. Marks are in memory that all processes map. A mark guarantees that the row is complete until this kernel stops. Rows that must
survive a power loss are flushed to disk first and then marked as durable (`Rows.commit`): only these count afterwards.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import torch

from argosy.disk.files import flush
from argosy.stream.blocks import Block, Layout, Place, host_bytes, select_rows, signed
from argosy.stream.memory import memory_file
from argosy.stream.order import Indices

__all__ = ["ROWS", "Rows", "have_size", "read_marks"]

WRITTEN, DURABLE = 1, 2
"""Marks of a row: complete for this kernel; complete on disk too."""
CHUNK = 2**24
ROWS, MARKS, BOOT = "rows.bin", "marks.bin", "boot"


def read_marks(folder: Path) -> npt.NDArray[np.bool_]:
    """Return which rows of a folder are complete, as far as this kernel knows. Raises OSError."""
    marks = np.frombuffer((folder / MARKS).read_bytes(), dtype=np.uint8)
    return marks > 0 if (folder / BOOT).read_bytes() == _boot_id() else marks == DURABLE


def have_size(folder: Path, layout: Layout, count: int) -> bool:
    """Return whether the files of a folder have the sizes that these rows need. Raises OSError if one is missing."""
    (folder / BOOT).stat()
    return (folder / ROWS).stat().st_size == _bytes(layout, count) and (folder / MARKS).stat().st_size >= count


def _boot_id() -> bytes:
    """Return an identifier of this boot of this machine, which may change when the clock is set where the kernel has none."""
    if sys.platform != "linux":
        return str(psutil.boot_time()).encode()
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


class Rows:
    """The kept samples of one Dataset with indices below `count`."""

    def __init__(self, layout: Layout, count: int, rows: int, marks: int, folder: Path | None = None) -> None:
        """Map the files of two descriptors: the rows and their marks. They are in a folder, or in memory."""
        self.count, self.folder = count, folder
        self._descriptor = rows
        self._mapped = mmap.mmap(rows, 0)
        memory = np.frombuffer(self._mapped, dtype=np.uint8)
        place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=count, last=True)
        self._columns = layout.block(place, memory).leaves
        self._offsets = layout.offsets(count)
        self.marks: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(marks, 0), dtype=np.uint8)[:count]
        os.close(marks)
        self.full = False
        """Whether this process stops keeping rows because the disk is full or failed."""
        self.from_disk: bool = False
        """Whether the rows do not fit in memory, so most are read from disk."""
        # Last: if anything above raises, the caller still has to close the descriptor.
        weakref.finalize(self, os.close, rows).atexit = False  # also releases the lock

    @classmethod
    def in_memory(cls, layout: Layout, count: int) -> "Rows":
        """Return rows in anonymous memory, whose pages are allocated when they are written."""
        rows = memory_file("argosy-rows", _bytes(layout, count))
        return cls(layout, count, rows, memory_file("argosy-marks", max(count, 1)))

    @classmethod
    def create(cls, folder: Path, layout: Layout, count: int) -> None:
        """Create the files for rows that are not prepared yet. Raises OSError."""
        with (folder / ROWS).open("xb") as rows:
            rows.truncate(_bytes(layout, count))
        # Written, not only extended: if the disk were full, writing to a mapped page would raise a signal.
        (folder / MARKS).write_bytes(bytes(max(count, 1)))
        (folder / BOOT).write_bytes(_boot_id())

    @classmethod
    def assemble(cls, folder: Path, layout: Layout, count: int, parts: Sequence[Sequence[Path]]) -> None:
        """Create the files of rows from complete parts in order, each with one file per leaf. Deletes the files of the parts. Raises OSError."""
        cls.create(folder, layout, count)
        offsets = layout.offsets(count)
        with (folder / ROWS).open("r+b") as rows:
            for files, offset in zip(zip(*parts, strict=True), offsets, strict=True):
                rows.seek(offset)
                for file in files:
                    with file.open("rb") as column:
                        shutil.copyfileobj(column, rows, CHUNK)
                    file.unlink()
        (folder / MARKS).write_bytes(bytes([WRITTEN]) * count)

    @classmethod
    def open(cls, folder: Path, layout: Layout, count: int) -> "Rows | None":
        """Map the rows of a folder; None if a run under another kernel has them open, because this kernel cannot trust its marks.

        The rows are locked for as long as this process or one of its forks lives. Raises OSError.
        """
        rows = os.open(folder / ROWS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if (folder / BOOT).read_bytes() != _boot_id():
                fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _drop_undurable_marks(folder)
            fcntl.flock(rows, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not have_size(folder, layout, count):
                raise OSError(errno.EINVAL, "a file of another size")
            marks = os.open(folder / MARKS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            return cls(layout, count, rows, marks, folder)
        except BlockingIOError:
            os.close(rows)
            return None
        except OSError:
            os.close(rows)
            raise

    @property
    def found(self) -> int:
        """Number of kept rows."""
        return int(np.count_nonzero(self.marks))

    def has(self, indices: Indices) -> npt.NDArray[np.bool_]:
        """Return which of these samples are kept."""
        are_kept = indices < self.count
        are_kept[are_kept] = self.marks[indices[are_kept]] > 0
        return are_kept

    def keep(self, index: int, leaves: Sequence[torch.Tensor]) -> None:
        """Keep a sample if there is room for its index and it is not kept yet. Raises OSError if the disk is full."""
        if index >= self.count or self.full or self.marks[index]:
            return
        for leaf, offset in zip(leaves, self._offsets, strict=True):
            data = host_bytes(leaf)
            _write_all(self._descriptor, data, offset + index * len(data))
        # After the data: a mark says that the row is complete.
        self.marks[index] = WRITTEN

    def forget(self, indices: Indices) -> None:
        """Let these samples be prepared again."""
        self.marks[indices[indices < self.count]] = 0

    def use_random_access(self) -> None:
        """Read only requested rows from disk, and all rows of one request at once (`prefetch`).

        Otherwise the kernel would read up to megabytes around each missing page, which would be evicted before they are used.
        """
        self._mapped.madvise(mmap.MADV_RANDOM)
        self.from_disk = True

    def prefetch(self, indices: Indices) -> None:
        """Let the kernel begin to read these samples, if they come from disk."""
        advised = self.from_disk and hasattr(os, "posix_fadvise")
        for column, offset in zip(self._columns, self._offsets, strict=True) if advised else ():
            size = column.stride(0) * column.element_size()
            for index in indices.tolist():
                os.posix_fadvise(self._descriptor, offset + index * size, size, os.POSIX_FADV_WILLNEED)

    def row(self, index: int) -> list[torch.Tensor]:
        """Return a copy of one sample's leaves."""
        return [column[index].clone() for column in self._columns]

    def copy(self, block: Block, low: int, indices: Indices) -> npt.NDArray[np.bool_]:
        """Copy the kept ones of these samples to rows low, low+1, … of a block. Returns which ones were copied."""
        are_kept = self.has(indices)
        self.prefetch(indices[are_kept])
        if are_kept.all():
            wanted = torch.from_numpy(indices)
            for target, column in zip(block.leaves, self._columns, strict=True):
                select_rows(column, wanted, out=target[low : low + len(indices)])
            block.indices[low : low + len(indices)] = indices
            block.sound[low : low + len(indices)] = True
        elif are_kept.any():
            rows, kept_rows = np.flatnonzero(are_kept) + low, indices[are_kept]
            for target, column in zip(block.leaves, self._columns, strict=True):
                signed(target)[torch.from_numpy(rows)] = signed(column)[torch.from_numpy(kept_rows)]
            block.indices[rows], block.sound[rows] = kept_rows, True
        return are_kept

    def commit(self) -> None:
        """Flush all marked rows to disk and mark them as durable. If the disk fails, their marks do not change."""
        written = np.flatnonzero(self.marks == WRITTEN)
        if len(written):
            with contextlib.suppress(OSError):
                # What the samples have read too: without it, a change of a file would not be noticed later.
                for file in self.folder.iterdir() if self.folder else ():
                    flush(file, os.fsync)
                # Only rows that were marked before the flush: others may have been written meanwhile.
                self.marks[written] = DURABLE


def _drop_undurable_marks(folder: Path) -> None:
    marks = np.frombuffer((folder / MARKS).read_bytes(), dtype=np.uint8).copy()
    marks[marks != DURABLE] = 0
    (folder / MARKS).write_bytes(marks.tobytes())
    (folder / BOOT).write_bytes(_boot_id())


def _bytes(layout: Layout, count: int) -> int:
    return max(layout.block_bytes(count), 1)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
