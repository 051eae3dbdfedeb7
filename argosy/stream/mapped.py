"""Memory-mapped arrays: such an array is sent as the name of its file, which must be, and stay, the file that it maps."""

import mmap
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from argosy.errors import StudyError
from argosy.study import Data

__all__ = ["MappedFile", "check_files", "files_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedFile:
    """A file as it was when the run began."""

    path: str
    bytes: int
    inode: int
    written_ns: int | None
    """When it was last written to; None where the study's own processes may do so."""
    host: str
    """Host on which it was checked; on another one a copy of it will do."""

    @classmethod
    def of(cls, array: Any) -> "MappedFile | None":
        """Return the file that a ``numpy.memmap`` maps; None where its name leads elsewhere by now, or it is copy-on-write.

        Raises StudyError where the file has become too short for the array: values are gone then.
        """
        if array.mode == "c" or array._mmap is None or array.filename is None:
            return None
        path = str(array.filename)
        try:
            with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as again:
                found, same = os.fstat(file.fileno()), _mapping(_address(again)) == _mapping(_address(array._mmap))
        except (OSError, ValueError):  # ValueError: it is empty
            return None
        if not same:
            return None
        end = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + len(array._mmap)
        if found.st_size < end:
            raise StudyError(
                f"{path} has {found.st_size} bytes, and an array of Data maps {end} of it: it was cut since it was opened. Write "
                "it again, and open it after that."
            )
        return cls(
            path=path,
            bytes=found.st_size,
            inode=found.st_ino,
            written_ns=found.st_mtime_ns if array.mode == "r" else None,
            host=socket.gethostname(),
        )

    def check(self) -> None:
        """Raise StudyError unless the file is as it was when the run began."""
        change = self._change()
        if change:
            raise StudyError(
                f"{self.path} changed while the run goes on: {change}. Members would train on other data than they began with; "
                "put the file back and give the same command, or begin a run on the new one in another directory."
            )

    def _change(self) -> str:
        """Return what is different, in words; empty where nothing is."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  # for each block
        except FileNotFoundError:
            return "it is gone"
        if found.st_size != self.bytes:
            return f"it has {found.st_size} bytes, and had {self.bytes}"
        if self.host != socket.gethostname():
            return ""
        if found.st_ino != self.inode:
            return "another file has its name"
        if self.written_ns is not None and found.st_mtime_ns != self.written_ns:
            return f"it was written to at {time.strftime('%T', time.localtime(found.st_mtime))}"
        return ""


def files_of(data: Data) -> tuple[MappedFile, ...]:
    """Return the files that the arrays of Data and the attributes of its Datasets map: all that shows without sending them."""
    attributes = (vars(split).values() for split in (data.train, data.val) if hasattr(split, "__dict__"))
    found = (value for values in (data.arrays or (), data.val_arrays or (), *attributes) for value in values)
    files = (MappedFile.of(value) for value in found if type(value) is np.memmap)
    return tuple(file for file in files if file is not None)


def check_files(files: Iterable[MappedFile]) -> None:
    """Raise StudyError at the first file that is not as it was when the run began."""
    for file in files:
        file.check()


def _address(memory: Any) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def _mapping(address: int) -> list[str]:
    """Return device and inode of the file that is mapped at an address, as the kernel shows them for maps."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, device, inode, *_ = line.split()
        first, end = (int(bound, 16) for bound in span.split("-"))
        if first <= address < end:
            return [device, inode]
    raise AssertionError("an array lies in no mapping")
