"""Full disks."""

import contextlib
from pathlib import Path

__all__ = ["fill_up"]


def fill_up(disk: Path) -> Path:
    """Fill a file system completely; returns the file to delete."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filling
