"""Copies of the study files that users hand in; imports no torch, so handing in a file is quick."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.disk.files import replacing, sha256_of
from argosy.errors import RunError, StudyError

__all__ = ["StudyCopy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCopy:
    """A study file as it was handed in: the original, which may change or be deleted, is never read again."""

    path: Path
    """Path of the copy."""
    folder: Path
    """Folder of the original, from which modules beside it are imported."""
    sha256: str

    @classmethod
    def take(cls, file: Path, path: Path) -> "StudyCopy":
        """Copy a file; raises StudyError if there is none."""
        if not file.is_file():
            raise StudyError(f"{file} is not a file. Pass a Python file with a variable `study`.")
        with replacing(path, durable=True) as copy:  # once its members are journaled, no run can resume without it
            copy.write(file.read_bytes())
        return cls(path=path, folder=file.resolve().parent, sha256=sha256_of(path))

    @classmethod
    def of(cls, command: Mapping[str, Any], folder: Path) -> "StudyCopy":
        """Return the copy named by an ``add`` command in the folder of commands; raises RunError if it names none."""
        match command:
            case {"study": str(file), "copy": str(copy), "sha256": str(sha256)} if (
                copy not in ("", "..") and Path(copy).name == copy
            ):
                return cls(path=folder / copy, folder=Path(file).parent, sha256=sha256)
        raise RunError(
            f"the command to add {command.get('study', 'members')} does not name a copy of a study file. Use "
            "argosy add."
        )

    def to_command(self, file: Path) -> dict[str, Any]:
        """Return the command that adds the members of a file."""
        return {"command": "add", "study": str(file.resolve()), "copy": self.path.name, "sha256": self.sha256}

    def check(self) -> None:
        """Raise RunError if the copy is missing or has changed."""
        try:
            sha256 = sha256_of(self.path)
        except (OSError, ValueError) as error:  # a name that no file can have counts as missing
            raise RunError(f"{self.path}, from which members were added, is missing. Restore it.") from error
        if sha256 != self.sha256:
            raise RunError(f"{self.path}, from which members were added, has changed since. Restore the original file.")
