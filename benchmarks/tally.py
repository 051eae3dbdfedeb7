"""Counts kept by many processes, each in a mapped file of its own, so that any process may read them at any moment."""

import mmap
import os
from pathlib import Path

__all__ = ["add", "own", "total"]

BYTES = 8
_cells: dict[tuple[Path, int], memoryview] = {}
"""By folder and process: a forked child also has its parent's cells, and makes its own."""


def add(folder: Path, number: int) -> None:
    """Add to this process's count."""
    cell = _cells.get((folder, os.getpid()))
    if cell is None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / str(os.getpid())).open("w+b") as file:
            file.truncate(BYTES)
            cell = memoryview(mmap.mmap(file.fileno(), BYTES)).cast("q")
        _cells[folder, os.getpid()] = cell
    cell[0] += number


def own(folder: Path) -> int:
    """Return the count of this process."""
    cell = _cells.get((folder, os.getpid()))
    return 0 if cell is None else int(cell[0])


def total(folder: Path) -> int:
    """Return the sum over all processes, including those that have ended."""
    return sum(int.from_bytes(file.read_bytes(), "little") for file in folder.glob("*"))
