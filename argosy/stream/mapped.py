"""Memory-mapped files: the file that an array maps must stay the file with that name, whether or not the array is sent by its name."""

import bisect
import gc
import mmap
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from argosy.errors import StudyError
from argosy.study import Data

__all__ = ["MappedFile", "check_files", "files_of_split", "files_of_data"]

ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})
"""Types of values that contain no other values."""
MEMORY = (np.ndarray, mmap.mmap)
TENSORS = (torch.Tensor, torch.nn.Parameter)
SENT_BY_VALUE = "__main__"
"""Module whose functions and classes are sent to workers with the globals that they use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedFile:
    """A file as it was when the run began, or when the study opened it."""

    path: str
    bytes: int
    inode: int
    times_ns: tuple[int, int] | None
    """Modification time, which any process may set, and time of the last change, which none can; None if the study may write to the file."""
    host: str
    """Host on which it was checked. On another host a copy of the file is accepted."""

    @classmethod
    def of(cls, array: Any) -> "tuple[MappedFile, int] | None":
        """Return the file that an array maps, and the offset of its first byte in the file.

        None if no name leads to the file any more, and for a copy-on-write map. Raises StudyError if the file has become too
        short for the array, because values are lost then.
        """
        place = _place(*_bounds(array), _maps())
        if place is None or not place[0].shared:
            return None
        region, start, end = place
        file = region.file(end, given=True)
        return None if file is None else (file, start)

    def check(self) -> None:
        """Raise StudyError unless the file is as it was when the run began."""
        change = self._change()
        if change:
            raise StudyError(
                f"{self.path} changed during the run: {change}. Members would continue on different data. Restore "
                "the file and run the same command, or start a run on the new file in another directory. If a "
                "Dataset writes to its map, open the map in the Dataset's factory."
            )

    def _change(self) -> str:
        """Return in words what is different; empty if nothing is."""
        try:
            status = os.stat(self.path)  # noqa: PTH116  # called for each block
        except FileNotFoundError:
            return "it is gone"
        if status.st_size != self.bytes:
            return f"it has {status.st_size} bytes; earlier it had {self.bytes}"
        if self.host != socket.gethostname():
            return ""
        if status.st_ino != self.inode:
            return "another file has its name"
        if self.times_ns is None or self.times_ns == _times_of(status):
            return ""
        if status.st_mtime_ns != self.times_ns[0]:
            return f"it was written to at {_clock(status.st_mtime)}"
        return f"its data or its attributes were changed at {_clock(status.st_ctime)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Region:
    """A part of a file in the memory of this process, as listed by the kernel."""

    first: int
    """Address of its first byte."""
    end: int
    shared: bool
    """Whether it is the file's memory. So is a private one, until each page is first written."""
    writable: bool
    offset: int
    """Offset of the first byte in the file."""
    identity: tuple[str, str]
    """Device and inode, which differ from those of ``stat`` on layered file systems."""
    path: str

    def file(self, end: int, *, given: bool) -> MappedFile | None:
        """Return its file, of which arrays map bytes below `end`; None if its name does not lead to it."""
        try:
            if not Path(self.path).is_file():
                return None
            with Path(self.path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as again:
                same = _place(*_bounds(again), _maps())
                if self.shared and self.writable:
                    os.fsync(file.fileno())  # some file systems update the times only when they store what was written
                status = os.fstat(file.fileno())
        except (OSError, ValueError):  # ValueError: the file is empty
            return None
        if same is None or same[0].identity != self.identity:
            return None
        if status.st_size < end:
            raise StudyError(
                f"{self.path} has {status.st_size} bytes, but an array of Data maps {end} bytes of it: it was "
                "truncated after it was opened. Write it again, and open it afterwards."
            )
        return MappedFile(
            path=self.path,
            bytes=status.st_size,
            inode=status.st_ino,
            times_ns=_times_of(status) if given or not (self.shared and self.writable) else None,
            host=socket.gethostname(),
        )


def files_of_data(data: Data) -> tuple[MappedFile, ...]:
    """Return the files that `Data` map, at any depth. The study never writes to them, whatever the mode of the maps."""
    return _files([data.train, data.val, data.arrays, data.val_arrays], given=True)


def files_of_split(opened: Any) -> tuple[MappedFile, ...]:
    """Return the files that an opened split maps, at any depth. The split may write to maps that it has opened for writing."""
    return _files(opened, given=False)


def check_files(files: Iterable[MappedFile]) -> None:
    """Raise StudyError for the first file that has changed since the run began."""
    for file in files:
        file.check()


def _files(holder: Any, *, given: bool) -> tuple[MappedFile, ...]:
    memories, ends = [*_memories(holder)], dict[_Region, int]()
    maps = _maps() if memories else []
    for memory in memories:
        place = _place(*_bounds(memory), maps)
        if place is not None:
            region, _, end = place
            ends[region] = max(end, ends.get(region, 0))
    files = (region.file(end, given=given) for region, end in ends.items())
    return tuple(dict.fromkeys(file for file in files if file is not None))


def _memories(holder: Any) -> Iterator[Any]:
    """Yield each array, dense tensor and map that an object holds at any depth, as found by the garbage collector."""
    seen, todo = set[int](), [holder]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kind = type(one)  # `isinstance` would make a proxy load the object that it stands for
        inner: Iterable[Any]
        if issubclass(kind, ModuleType):
            inner = ()
        elif issubclass(kind, np.ndarray) and one.dtype == object:
            inner = one.ravel().tolist()
        elif issubclass(kind, FunctionType):
            names = one.__code__.co_names if one.__module__ == SENT_BY_VALUE else ()
            inner = [one.__closure__, one.__defaults__, one.__kwdefaults__, vars(one), *map(one.__globals__.get, names)]
        elif issubclass(kind, type):
            inner = tuple(vars(one).values()) if one.__module__ == SENT_BY_VALUE else ()
        else:
            if issubclass(kind, MEMORY) or (
                kind in TENSORS and one.device.type == "cpu" and one.layout == torch.strided
            ):
                yield one
            inner = gc.get_referents(one)
        todo += [value for value in inner if _may_hold(value)]


def _may_hold(value: Any) -> bool:
    """Return whether a value may hold memory. Sequences of plain values do not: there may be millions, such as file names with classes."""
    kind = type(value)
    return kind not in ATOMS and not ((kind is tuple or kind is list) and ATOMS.issuperset(map(type, value)))


def _bounds(memory: Any) -> tuple[int, int]:
    """Return the address of the first byte of an array, tensor or map, and the address after its last."""
    if isinstance(memory, torch.Tensor):
        storage = memory.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    if isinstance(memory, mmap.mmap):
        memory = () if memory.closed else np.frombuffer(memory, np.uint8)
    first, end = np.lib.array_utils.byte_bounds(np.asarray(memory))
    return int(first), int(end)


def _place(first: int, end: int, maps: list[str]) -> tuple[_Region, int, int] | None:
    """Return the region that holds this memory, and the offsets in its file where it begins and ends; None if no file backs it."""
    number = bisect.bisect_right(maps, first, key=lambda line: int(line.partition("-")[0], 16)) - 1
    region = _region(maps[number]) if number >= 0 else None
    if region is None or first >= region.end:
        return None
    return region, region.offset + first - region.first, region.offset + end - region.first


def _maps() -> list[str]:
    """Return the kernel's list of this process's memory, by address: thousands of unparsed lines, of which few are needed.

    Only Linux has one; elsewhere it is empty, and no file is watched.
    """
    return Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else []


def _region(line: str) -> _Region | None:
    """Return the region that a line describes; None if no file backs it."""
    span, access, offset, device, inode, *path = line.split(maxsplit=5)
    if inode == "0":
        return None
    first, end = (int(address, 16) for address in span.split("-"))
    return _Region(
        first=first,
        end=end,
        shared="s" in access,
        writable="w" in access,
        offset=int(offset, 16),
        identity=(device, inode),
        path=path[0],
    )


def _times_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_ctime_ns


def _clock(seconds: float) -> str:
    return time.strftime("%T", time.localtime(seconds))
