"""Checkpoints: dicts of plain tensors and scalars, written so that a crash leaves the old file or the new one.

Nothing in a run directory is ever unpickled: files are read with ``weights_only=True``, after their checksum was compared
(torch alone accepts a flipped bit).
"""

import contextlib
import hashlib
import os
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import nn

from argosy.disk.files import beside, created, opened, sum_of
from argosy.disk.settled import deleted_if_refused, settle
from argosy.errors import ArgosyError, CheckpointError
from argosy.errors.system import disk_refused, means_refused
from argosy.errors.wording import sized

__all__ = ["check", "keep_newest", "link", "load", "plain", "save", "save_all", "unmerged"]

SCALARS: set[type] = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}

OURS = re.compile(r"(best-)?e\d{4,}(\.\d+)?(-s\d{7,}(\+\d+)?)?\.pt|\.[^/]+\.pt\.[0-9a-f]+")
"""Names of checkpoints, as `argosy.training.member.files` gives them, and of temporary files renamed to one or to a link."""

ADVICE = "Put it back as it was written, or train in another directory."


def save(state: Mapping[str, Any], path: Path) -> str:
    """Write one plain state and return the file's SHA-256; see `save_all`."""
    return save_all([(state, path)])[0]


def save_all(items: Sequence[tuple[Mapping[str, Any], Path]]) -> list[str]:
    """Write plain states, each to its path, and return the SHA-256 of each file.

    Raises DiskError where the disk refuses, WorkerError where this process may open no more files: then nothing
    half-written stays, and files that were there before are untouched.

    All are written to temporary names, flushed to the disk, renamed; the folders are flushed as well. Every flush of a
    single file makes the file system commit its log. So where many small files are written, the whole file system is
    flushed first; the flush of each file, which alone reports that file's errors reliably, then finds hardly anything left
    to do (100 files of 6 kB on ext4: 27 ms, 14 of them on the CPU, instead of 57 and 28).
    """
    pairs = [(beside(path), path) for _, path in items]
    sums = []
    for (temporary, path), (state, _) in zip(pairs, items, strict=True):
        with deleted_if_refused(pairs, path):
            sums.append(_write(state, temporary))
    settle(pairs)
    return sums


class _Summed:
    """A file that hashes what is written to it, so that nothing has to be read back or held in memory as a whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Hash the data and write it."""
        self.sum.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def _write(state: Mapping[str, Any], path: Path) -> str:
    with created(path) as file:
        summed = _Summed(file)
        torch.save(state, cast(BinaryIO, summed))
    return summed.sum.hexdigest()


def load(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Read a state; raises CheckpointError where the file is missing, does not match its checksum, or is not plain data.

    Raises WorkerError or DiskError where the system refuses to read it, which does not mean that the file is bad.
    """
    path = _followed(path)
    check(path, sha256)
    try:
        _check_size(path)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (ArgosyError, MemoryError):
        raise
    except OSError as error:
        what = f"checkpoint {path} cannot be read"
        raise means_refused(error, what) or disk_refused(error, what) from error
    except Exception as error:  # torch's reader raises errors of any type
        # Torch's own message advises to load it with whatever code it contains; it is kept as the cause.
        raise CheckpointError(
            f"checkpoint {path} cannot be opened as plain data and is refused: it was damaged or changed after it was written. "
            + ADVICE
        ) from error
    return state


def _followed(path: Path) -> Path:
    """Resolve ``best.pt`` or ``last.pt``; a link out of its folder is returned as it is, and is not opened."""
    target = path.resolve()
    return target if target.parent == path.parent.resolve() else path


def _check_size(path: Path) -> None:
    """Raise CheckpointError where the state would take more memory than the file has bytes: checkpoints are never compressed."""
    with opened(path) as file, zipfile.ZipFile(file) as archive:
        there, unpacked = os.fstat(file.fileno()).st_size, sum(entry.file_size for entry in archive.infolist())
    if unpacked > there:
        raise CheckpointError(
            f"checkpoint {path} has {sized(there)} and would unpack to {sized(unpacked)}, which no checkpoint of argosy does, and is "
            f"refused: it was changed after it was written. {ADVICE}"
        )


def check(path: Path, sha256: str | None = None) -> None:
    """Raise CheckpointError where a file is missing, or does not match its checksum."""
    if not path.exists():
        raise CheckpointError(
            f"checkpoint {path} does not exist: it was moved or deleted, as all is that argosy.fit writes without directory=. {ADVICE}"
        )
    if sha256 is not None and sum_of(path) != sha256:
        raise CheckpointError(f"checkpoint {path} is damaged: its SHA-256 is not the journaled one. {ADVICE}")


def plain(value: Any, where: str = "state", *, host: bool = False) -> Any:
    """Return the value with NumPy's types converted; raises CheckpointError for objects that could not be reloaded.

    Tensors of the host keep their memory, but a view is cloned, because it would be saved with its whole storage. Tensors of
    other devices are copied to the host, and all are with `host`: a file that names a device opens only where there is one,
    and views of a whole assignment would be cloned where memory is scarce. Shared tensors stay shared and are saved once: tied
    weights, and equal views.
    """
    return _Walk(host).plain(value, (None, where))


@contextlib.contextmanager
def unmerged(network: nn.Module) -> Iterator[None]:
    """Put a network into train() inside: layers that merge weights in eval(), as LoRA's, would merge those of a file once more."""
    modes = [(part, part.training) for part in network.modules()]
    network.train()
    try:
        yield
    finally:
        for part, mode in modes:  # those inside of others come after them
            part.train(mode)


class _Walk:
    """One pass of `plain` over a state."""

    def __init__(self, host: bool) -> None:
        self.host = host
        self.storages: dict[int, torch.UntypedStorage] = {}
        """Copies of storages in host memory, by the address of the original; `views` likewise."""
        self.views: dict[tuple[Any, ...], torch.Tensor] = {}

    def plain(self, value: Any, where: tuple[Any, Any]) -> Any:
        """Convert a value; `where` is its container's own `where` and its key there, put into words only for an error."""
        if type(value) in SCALARS:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        if isinstance(value, Mapping):
            copied = {
                key: item if type(item) in SCALARS else self.plain(item, (where, key)) for key, item in value.items()
            }
            if isinstance(value, Counter):  # a schedule's milestones, for one
                return Counter(copied)
            return OrderedDict(copied) if isinstance(value, OrderedDict) else copied
        if isinstance(value, list | tuple | set):
            kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
            return kind(self.plain(item, (where, number)) for number, item in enumerate(value))
        raise CheckpointError(
            f"{_words(where)} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, "
            "numbers, strings and containers of them. Keep such objects out of state_dict()."
        )

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        value, copies = value.detach(), self.host or value.device.type != "cpu"
        if value.layout is not torch.strided:  # a sparse one has no storage
            return value.to("cpu", copy=copies)
        storage = value.untyped_storage()
        if storage.nbytes() == value.numel() * value.itemsize:
            return self._on_host(value, storage) if copies else value
        key = (storage.data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        if key not in self.views:
            self.views[key] = value.to("cpu", copy=True) if copies else value.clone()
        return self.views[key]

    def _on_host(self, value: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
        address = storage.data_ptr()
        if address not in self.storages:
            self.storages[address] = (
                torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage().copy_(storage, False)
            )
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(self.storages[address], value.storage_offset(), value.shape, value.stride())


def _words(where: tuple[Any, Any] | None) -> str:
    if where is None or where[0] is None:
        return "" if where is None else str(where[1])
    return f"{_words(where[0])}[{where[1]!r}]"


def link(target: Path, name: str) -> None:
    """Point the link ``name`` beside the file to it, atomically."""
    place = target.with_name(name)
    unfinished = beside(place)
    unfinished.symlink_to(target.name)
    unfinished.rename(place)


def keep_newest(folder: Path, keep: set[str]) -> None:
    """Delete a member's checkpoints but those in `keep`, and remains of interrupted writes; other files belong to the user."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if OURS.fullmatch(entry.name) and entry.name not in keep and not entry.is_dir(follow_symlinks=False):
                Path(entry).unlink(missing_ok=True)
