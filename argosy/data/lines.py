"""A file with one JSON value in each line, as Datasets have their samples: by index."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.errors import StudyError

__all__ = ["JsonLines", "json_lines"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines:
    """Samples ``make(record)``, one of each line."""

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
    """Return a Dataset of a file of JSON lines; `make` turns what a line holds into a sample of tensors, as by a tokenizer.

    Empty lines are left out. The file stays on disk: each sample is read when it is prepared, which is once.

    Raises:
        StudyError: where there is no such file, or no line in it.
    """
    path = Path(path).absolute()
    try:
        with path.open("rb") as file:
            starts, place = [], 0
            for line in file:
                if line.strip():
                    starts.append(place)
                place += len(line)
    except OSError as error:
        raise StudyError(
            f"json_lines: {path} cannot be read: {error.strerror}. Give a file with one JSON value in each line."
        ) from error
    if not starts:
        raise StudyError(f"json_lines: {path} is empty. Give a file with one JSON value in each line.")
    return JsonLines(path=str(path), starts=np.array(starts, dtype=np.int64), make=make)
