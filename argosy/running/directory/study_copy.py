"""Copies of the study files that people hand in; whoever only hands one in waits for no import of torch."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.disk.files import opened, replacing
from argosy.errors import RunError, StudyError

__all__ = ["StudyCopy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCopy:
    """A study file as a person handed it in: the file itself, which may change and go, is never read again."""

    path: Path
    """Of the copy."""
    folder: Path
    """Where the file was: what is beside it is imported from there."""
    sha256: str

    @classmethod
    def take(cls, file: Path, path: Path) -> "StudyCopy":
        """Copy a file; raises StudyError where there is none."""
        if not file.is_file():
            raise StudyError(f"{file} is not a file; give a Python file with a variable `study`.")
        with replacing(path) as copy:
            copy.write(file.read_bytes())
        return cls(path=path, folder=file.resolve().parent, sha256=_sum_of(path))

    @classmethod
    def of(cls, command: Mapping[str, Any], folder: Path) -> "StudyCopy":
        """What a command to add names, in the folder of commands; raises RunError for one that names nothing."""
        match command:
            case {"study": str(file), "copy": str(copy), "sha256": str(sha256)} if (
                copy not in ("", "..") and Path(copy).name == copy
            ):
                return cls(path=folder / copy, folder=Path(file).parent, sha256=sha256)
        raise RunError(
            f"the command to add {command.get('study', 'members')} names no copy of a study file: use argosy add."
        )

    def to_command(self, file: Path) -> dict[str, Any]:
        """The command to add the members of a file."""
        return {"command": "add", "study": str(file.resolve()), "copy": self.path.name, "sha256": self.sha256}

    def check(self) -> None:
        """Raise RunError where it is not what was handed in."""
        try:
            found = _sum_of(self.path)
        except (OSError, ValueError) as error:  # a name that no file can have is missing as well
            raise RunError(f"{self.path}, from which members were added, is missing; put it back.") from error
        if found != self.sha256:
            raise RunError(f"{self.path}, from which members were added, was changed since; put it back as it was.")


def _sum_of(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
