"""A disk whose power may be lost: what was flushed stays, and chance decides about the rest.

Files are real files, in memory. Each call of ``fsync`` records that the content of a file or folder is on the disk. When
the power is lost, chance decides separately for each name that was created, moved or removed since its folder was flushed: it is
what it was then, or what it is now. Of what was appended to a file since its flush, any part may remain. An overwritten file has
its old or its new content.
"""

import os
import random
import stat
from pathlib import Path

__all__ = ["Disk"]


class Disk:
    """The disk of one run directory."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self._content: dict[int, bytes] = {}
        """The flushed content of files, by inode."""
        self._names: dict[str, dict[str, int | str]] = {}
        """The flushed names of each folder, with their inodes, or targets of links."""

    def flushed(self, descriptor: int) -> None:
        """Note that a file or folder is on the disk."""
        status, there = os.fstat(descriptor), f"/proc/self/fd/{descriptor}"
        if stat.S_ISDIR(status.st_mode):
            self._names[os.readlink(there)] = _names(there)  # noqa: PTH115  # paths would take most of the time
        else:
            with open(there, "rb", buffering=0) as file:  # noqa: PTH123
                self._content[status.st_ino] = file.readall()

    def all_flushed(self) -> None:
        """Note that everything is on the disk."""
        self._content.clear()
        self._names.clear()
        for path in (self.root, *self.root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                self._names[str(path)] = _names(path)
            elif not path.is_symlink():
                self._content[path.stat().st_ino] = path.read_bytes()

    def lose_power(self) -> None:
        """Change the directory to what a loss of power leaves of it, all of which is on the disk."""
        folders = [path for path in self.root.rglob("*") if path.is_dir() and not path.is_symlink()]
        for folder in (self.root, *sorted(folders)):
            before, now = self._names.get(str(folder), {}), _names(folder)
            for name in sorted({*before, *now}):
                if before.get(name) != now.get(name) and not (folder / name).is_dir() and self.chance.random() < 0.5:
                    self._take_back(folder / name, before.get(name))
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self._tear(path)
        self.all_flushed()

    def _take_back(self, path: Path, before: int | str | None) -> None:
        """Restore what a name was when its folder was flushed."""
        path.unlink(missing_ok=True)
        if isinstance(before, str):
            path.symlink_to(before)
        elif before in self._content:
            path.write_bytes(self._content[before])
            self._content[path.stat().st_ino] = self._content[before]

    def _tear(self, path: Path) -> None:
        now, flushed = path.read_bytes(), self._content.get(path.stat().st_ino, b"")
        if now != flushed and now.startswith(flushed):
            path.write_bytes(now[: self.chance.randint(len(flushed), len(now))])
        elif now != flushed:
            path.write_bytes(self.chance.choice([now, flushed]))


def _names(folder: Path | str) -> dict[str, int | str]:
    with os.scandir(folder) as entries:
        return {e.name: os.readlink(e) if e.is_symlink() else e.inode() for e in entries}  # noqa: PTH115
