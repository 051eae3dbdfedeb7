"""Checkpoints: dicts of plain tensors and scalars, written atomically, so that a crash leaves either the old file or the new one.

Nothing in a run directory is ever unpickled: files are read with ``weights_only=True``, after their checksum was compared
(torch alone does not notice a flipped bit).
"""

import contextlib
import hashlib
import os
import re
import threading
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from argosy.disk.files import create_new, open_plain, sha256_of, unfinished_name
from argosy.disk.settled import delete_if_refused, rename_flushed
from argosy.errors import ArgosyError, CheckpointError
from argosy.errors.system import disk_refused, resources_refused
from argosy.errors.wording import format_bytes

__all__ = [
    "check_file",
    "check_plain",
    "form_of",
    "keep_newest",
    "link",
    "load",
    "move_tensors",
    "to_plain",
    "save",
    "save_all",
    "tensors_at",
    "unmerge_weights",
]

SCALARS: set[type] = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
COMMON_SCALARS: set[type] = {bool, int, float, str, type(None)}
"""Types of which every value can be read back, but for integers of `LONG_BITS`."""
LONG_BITS = 2040
"""Torch's reader of plain data refuses integers from about this length on."""

OURS = re.compile(r"(best-)?e\d{4,}(\.\d+)?(-s\d{7,}(\+\d+)?)?\.pt|\.[^/]+\.pt\.[0-9a-f]+")
"""Names of checkpoints, as `argosy.training.member.files` makes them, and of temporary files of checkpoints and links."""

MOST_NAMED = 5
"""Most keys that a message names."""
ADVICE = "Restore the original file, or train in another directory."
READING = threading.Lock()
"""Held while warnings are ignored: two threads that read networks could leave them ignored for the whole process."""


def save(state: Mapping[str, Any], path: Path) -> str:
    """Write one plain state and return the file's SHA-256; see `save_all`."""
    return save_all([(state, path)])[0]


def save_all(items: Sequence[tuple[Mapping[str, Any], Path]]) -> list[str]:
    """Write plain states, each to its path, and return the SHA-256 of each file.

    Raises DiskError if the disk refuses, and WorkerError if this process cannot open more files. In both cases no partial
    file remains, and existing files are untouched.

    All files are written under temporary names, flushed to the disk, and renamed; the folders are flushed as well. Each flush of a
    single file makes the file system commit its log. If there are many small files, the whole file system is therefore flushed
    first. Each file is flushed too, because only this reliably reports its errors, but little is left to write then
    (100 files of 6 kB on ext4: 27 ms, 14 of them on the CPU, instead of 57 and 28).
    """
    pairs = [(unfinished_name(path), path) for _, path in items]
    sums = []
    for (temporary, path), (state, _) in zip(pairs, items, strict=True):
        with delete_if_refused(pairs, path):
            sums.append(_write(state, temporary))
    rename_flushed(pairs)
    return sums


class _HashingFile:
    """A file that hashes the data written to it, so that the data need not be read back or held in memory."""

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
    with create_new(path) as file:
        summed = _HashingFile(file)
        torch.save(state, cast(BinaryIO, summed))
    return summed.sum.hexdigest()


def load(path: Path, sha256: str | None = None, *, key: str = "") -> dict[str, Any]:
    """Read a state; raises CheckpointError if the file is missing, does not match its checksum, is not plain data, or lacks this key.

    Raises WorkerError or DiskError if the system refuses to read the file; the file itself may be good.
    """
    try:
        path = _resolve_link(path)
        check_file(path, sha256)
        _check_size(path)
        with READING, warnings.catch_warnings(action="ignore"):  # of sparse tensors, since torch 2.14
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (ArgosyError, MemoryError):
        raise
    except OSError as error:
        what = f"checkpoint {path} cannot be read"
        raise resources_refused(error, what) or disk_refused(error, what) from error
    except Exception as error:  # torch's reader raises errors of any type
        # Torch's own message recommends loading the file with the code in it, so it is only kept as the cause.
        raise CheckpointError(
            f"checkpoint {path} cannot be opened as plain data and is refused because it was damaged or changed "
            "after it was written. " + ADVICE
        ) from error
    if key and not (isinstance(state, dict) and key in state):
        described = ", ".join(map(repr, list(state)[:MOST_NAMED])) if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(
            f"{path} has no entry {key!r}; it has {described}. It was saved for another purpose, or changed later. Pass the "
            "right file, or restore the original one."
        )
    return state


def _resolve_link(path: Path) -> Path:
    """Resolve ``best.pt`` or ``last.pt``; a link that leaves its folder is returned unresolved."""
    target = Path(os.path.realpath(path))  # unlike resolve(), never raises for links in a circle
    return target if target.parent == path.parent.resolve() else path


def _check_size(path: Path) -> None:
    """Raise CheckpointError if the state would unpack to more bytes than the file has: checkpoints are never compressed."""
    with open_plain(path) as file, zipfile.ZipFile(file) as archive:
        size, unpacked = os.fstat(file.fileno()).st_size, sum(entry.file_size for entry in archive.infolist())
    if unpacked > size:
        raise CheckpointError(
            f"checkpoint {path} has {format_bytes(size)} and would unpack to {format_bytes(unpacked)}. Argosy writes no such "
            f"checkpoints, so it was changed later and is refused. {ADVICE}"
        )


def check_file(path: Path, sha256: str | None = None) -> None:
    """Raise CheckpointError if a file is missing or does not match its checksum."""
    if not path.is_file():
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # raises in a folder that may not be entered; from Python 3.14 on is_file() does not
        raise CheckpointError(
            f"checkpoint {path} does not exist: it was moved or deleted. argosy.fit without directory= deletes its "
            f"files. {ADVICE}"
        )
    if sha256 is not None and sha256_of(path) != sha256:
        raise CheckpointError(f"checkpoint {path} is damaged: its SHA-256 does not match the journal. {ADVICE}")


def to_plain(value: Any, *, host: bool = False) -> Any:
    """Return the value with NumPy types converted; raises CheckpointError for objects that could not be reloaded.

    Host tensors keep their memory, except that views are cloned, because a view would be saved with its whole storage. Tensors on
    other devices are copied to the host (with `host`, all tensors are): a file that names a device could only be opened on a machine
    with this device, and cloning the views there would need scarce device memory. Tensors that share memory, such as tied weights and
    equal views, stay shared and are saved once.
    """
    return _PlainConverter(host).plain(value, (None, "state"))


def check_plain(value: Any) -> None:
    """Raise CheckpointError for a state that `to_plain` would refuse; copies no tensors."""
    _PlainConverter(None).plain(value, (None, "state"))


def form_of(state: Any) -> Hashable:
    """Return what decides whether the file of a plain state can be read: its containers, and the types of what they hold.

    Values of rare types, such as sparse tensors, and very long integers are equal to no other, because what they hold decides it too.
    """
    if isinstance(state, Mapping):
        return (type(state), tuple((form_of(key), form_of(item)) for key, item in state.items()))
    if isinstance(state, list | tuple | set):
        return (type(state), tuple(map(form_of, state)))
    if type(state) is torch.Tensor and state.layout is torch.strided:
        return state.dtype
    if type(state) is int and state.bit_length() >= LONG_BITS:
        return object()
    return type(state) if type(state) in COMMON_SCALARS else object()


def tensors_at(state: Any, device: torch.device) -> list[int]:
    """Return which leaves of a state are tensors on a device. The numbers are those of `to_plain(state)`, which moves them to the host."""
    leaves = tree_leaves(_PlainConverter(None).plain(state, (None, "state")))
    return [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and _is_at(leaf, device)]


def _is_at(tensor: torch.Tensor, device: torch.device) -> bool:
    # Generators take their states, which are bytes, from the host only.
    return tensor.device == device and (device.type != "cpu" or tensor.dtype != torch.uint8)


def move_tensors(state: Any, numbers: Sequence[int], device: torch.device) -> Any:
    """Return the state with the leaves of these numbers on a device."""
    leaves, structure = tree_flatten(state)
    for number in numbers:
        leaves[number] = leaves[number].to(device)
    return tree_unflatten(leaves, structure)


@contextlib.contextmanager
def unmerge_weights(network: nn.Module) -> Iterator[None]:
    """Put a network into train() inside: layers that merge weights in eval(), such as LoRA's, would otherwise merge loaded weights again."""
    modes = [(part, part.training) for part in network.modules()]
    network.train()
    try:
        yield
    finally:
        for part, mode in modes:  # children come after their parents, whose train() sets them too
            part.train(mode)


class _PlainConverter:
    """One pass of `to_plain` over a state."""

    def __init__(self, host: bool | None) -> None:
        self.host = host
        """None leaves tensors and arrays as they are."""
        self.storages: dict[int, torch.UntypedStorage] = {}
        """Copies of storages in host memory, by the address of the original; `views` likewise for views."""
        self.views: dict[tuple[Any, ...], torch.Tensor] = {}

    def plain(self, value: Any, where: tuple[Any, Any]) -> Any:
        """Convert a value; `where` is its container's `where` and its key there, which are formatted only for an error."""
        if type(value) in SCALARS:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(value.copy())
            return value if self.host is None else tensor
        if isinstance(value, list | tuple | set):  # before mappings, whose check takes longest
            kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
            return kind(self.plain(item, (where, number)) for number, item in enumerate(value))
        if isinstance(value, Mapping):
            if any(isinstance(key, torch.Tensor) for key in value):
                raise CheckpointError(
                    f"{_format_where(where)} has tensors as keys, of which a checkpoint holds only copies, so that nothing is found by them after "
                    "a resume. Use names or numbers as keys in state_dict()."
                )
            copied = {
                key: item if type(item) in SCALARS else self.plain(item, (where, key)) for key, item in value.items()
            }
            if isinstance(value, Counter):  # for example a schedule's milestones
                return Counter(copied)
            return OrderedDict(copied) if isinstance(value, OrderedDict) else copied
        raise CheckpointError(
            f"{_format_where(where)} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint may contain "
            "only tensors, numbers, strings and containers of these. Keep other objects out of state_dict()."
        )

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if self.host is None:
            return value
        value, copies = value.detach(), self.host or value.device.type != "cpu"
        if value.layout is not torch.strided:  # a sparse tensor has no storage
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
            ours = torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            self.storages[address] = ours.copy_(storage, False)
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(self.storages[address], value.storage_offset(), value.shape, value.stride())


def _format_where(where: tuple[Any, Any]) -> str:
    container, key = where
    return str(key) if container is None else f"{_format_where(container)}[{key!r}]"


def link(place: Path, file: str) -> None:
    """Atomically create or replace a link to a file beside it."""
    unfinished = unfinished_name(place)
    # A link cannot be replaced in place; a rename is atomic.
    unfinished.symlink_to(file)
    os.rename(unfinished, place)  # noqa: PTH104  # Path's own makes another path of the name


def keep_newest(folder: Path, keep: set[str]) -> None:
    """Delete a member's checkpoints except those in `keep`, and remains of interrupted writes; other files belong to the user."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in keep and OURS.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                Path(entry).unlink(missing_ok=True)
