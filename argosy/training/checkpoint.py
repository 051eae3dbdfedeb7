"""Checkpoints: dicts of plain tensors and scalars, written so that a crash leaves the old file or the new one.

Nothing in a run directory is ever unpickled: files are read with ``weights_only=True``, after their sum was compared
(torch alone accepts a flipped bit).
"""

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from argosy.errors import CheckpointError, DiskError

__all__ = ["keep_newest", "link", "load", "save", "sum_of"]

SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def save(state: Mapping[str, Any], path: Path) -> str:
    """Write the state and return the file's SHA-256.

    Raises CheckpointError naming a value that is not plain, DiskError where the disk refuses.

    Written to a temporary name, flushed to the disk, renamed; the folder is flushed as well.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    copied = plain(state)
    try:
        with temporary.open("wb+") as file:
            torch.save(copied, file)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        temporary.rename(path)
        _flush_folder(path.parent)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskError(
            f"cannot write {path}: {error}. The checkpoint before it is untouched; free disk space and run the same "
            "command again."
        ) from error
    return digest


def load(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Read a state; raises CheckpointError where the file is missing, differs from its sum, or is more than data."""
    if not path.exists():
        raise CheckpointError(f"checkpoint {path} does not exist.")
    if sha256 is not None and sum_of(path) != sha256:
        raise CheckpointError(f"checkpoint {path} is damaged: its SHA-256 is not the journaled one.")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its reader trips over
        # Torch's own words advise to load it all the same, with whatever code it brings; they stay the cause.
        raise CheckpointError(
            f"checkpoint {path} cannot be opened as plain data and is refused. It was damaged or changed after it was written."
        ) from error
    return state


def sum_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any, where: str = "state") -> Any:
    """The value with NumPy's types converted and views cloned; raises CheckpointError for what could not be reloaded."""
    if isinstance(value, torch.Tensor):
        # A view would be saved with its whole storage.
        whole = value.untyped_storage().nbytes() == value.numel() * value.itemsize
        return value.detach() if whole else value.detach().clone()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Mapping):
        copied = {key: plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        return OrderedDict(copied) if isinstance(value, OrderedDict) else copied
    if isinstance(value, list | tuple | set):
        return type(value)(plain(item, f"{where}[{number}]") for number, item in enumerate(value))
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, numbers, strings "
        "and containers of them. Keep such objects out of state_dict()."
    )


def link(target: Path, name: str) -> None:
    """Let ``name`` beside the file point to it, in one step."""
    temporary = target.with_name(f".{name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.name)
    temporary.rename(target.with_name(name))


def keep_newest(folder: Path, keep: set[str]) -> None:
    """Delete every checkpoint of a member but those named, and what interrupted writes left."""
    for path in folder.iterdir():
        stale = path.suffix == ".pt" and not path.is_symlink() and path.name not in keep
        if stale or path.name.startswith("."):
            path.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
