"""Cache of values that runs have measured on this machine, for later runs: one small file per value, which can always be recreated."""

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from argosy.disk.files import check_directory, make_folder, read_own_text, replacing
from argosy.disk.json_values import convert, parse_json
from argosy.errors import ArgosyError, RunError

__all__ = ["NOWHERE", "Cached", "cache_folder", "choices_folder"]

Value = TypeVar("Value")
NOWHERE = Path("/proc/argosy")
"""In which nothing can be made, nor be left by another user."""


def cache_folder() -> Path:
    """Return the cache folder, below XDG_CACHE_HOME or the home directory.

    If neither is writable, it is a folder of this user in the directory for temporary files; if another user has that, `NOWHERE`.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "argosy")
    for place in (home, Path(tempfile.gettempdir(), f"argosy-{os.geteuid()}")):
        with contextlib.suppress(OSError, RuntimeError, RunError):
            folder = place.expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_directory(folder)
            if os.access(folder, os.W_OK):
                return folder
    return NOWHERE


def choices_folder() -> Path:
    """Return the folder of the choices that runs made by measured times on this machine, for later runs."""
    return cache_folder() / "choices"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cached(Generic[Value]):
    """Cached values of one dataclass, `kind`, in a folder."""

    folder: Path
    kind: type[Value]

    @staticmethod
    def key(*words: Any) -> str:
        """Return the cache key of a value, its file name: a digest of everything that determines the value."""
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]

    def load(self, key: str) -> Value | None:
        """Return the value under this key; None if there is none, or it cannot be read."""
        try:
            value: Value = convert(parse_json(read_own_text(self.folder / f"{key}.json")), self.kind, "it")
        except (OSError, ValueError, ArgosyError):
            return None  # A damaged entry costs a measurement, never a run.
        return value

    def save(self, key: str, value: Value) -> None:
        """Write the value atomically; if it cannot be written, the next run measures again."""
        with contextlib.suppress(OSError):
            make_folder(self.folder)
            with replacing(self.folder / f"{key}.json") as file:
                file.write(json.dumps(asdict(value)).encode())  # type: ignore[call-overload]
