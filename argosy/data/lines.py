"""A file with one JSON value in each line, as a Dataset with samples by index."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.disk.files import user_path
from argosy.errors import StudyError

__all__ = ["JsonLines", "json_lines"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines:
    """Samples ``make(record)``, one for each line."""

    path: str
    starts: npt.NDArray[np.int64]
    """Byte at which each line begins."""
    make: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Any:
        with Path(self.path).open("rb") as file:
            file.seek(int(self.starts[index]))
            return self.make(json.loads(file.readline()))


def json_lines(path: str | Path, *, make: Callable[[Any], Any]) -> JsonLines:
    """Return a Dataset of the lines of a JSON Lines file; `make` turns the value of a line into a sample of tensors, for example with a tokenizer.

    Empty lines are left out. The file stays on disk: a line is read when its sample is prepared, which happens once.

    Raises:
        StudyError: if the file does not exist or has no lines.
    """
    path = user_path(path).absolute()
    try:
        with path.open("rb") as file:
            starts, place = [], 0
            for line in file:
                if line.strip():
                    starts.append(place)
                place += len(line)
    except OSError as error:
        raise StudyError(
            f"json_lines: {path} cannot be read: {error.strerror}. Pass a file with one JSON value per line."
        ) from error
    if not starts:
        raise StudyError(f"json_lines: {path} is empty. Pass a file with one JSON value per line.")
    return JsonLines(path=str(path), starts=np.array(starts, dtype=np.int64), make=make)
