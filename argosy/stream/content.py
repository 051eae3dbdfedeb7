"""Read data without preparing samples: values of arrays, numbers that a Dataset holds for its samples, and samples common to both splits."""

import hashlib
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from argosy.stream.blocks import host_bytes

__all__ = ["digest_of_arrays", "digest_of_labels", "why_doubtful"]

MAX_WHOLE_BYTES = 64 * 2**20
"""Arrays up to so many bytes are read completely, in a few hundredths of a second."""
SAMPLED_ROWS = 4096
"""From a larger array so many rows are read, evenly spread, or as many as fit in `MAX_WHOLE_BYTES`."""
MAX_DEPTH = 4
"""Depth of nested Datasets that are searched, such as a `torch.utils.data.Subset` of another."""


def digest_of_arrays(arrays: Iterable[Any]) -> str:
    """Return the SHA-256 over the values of arrays or tensors, or over some rows of large ones."""
    digest = hashlib.sha256()
    for array in arrays:
        rows = array if isinstance(array, torch.Tensor) else np.asarray(array)
        if array.nbytes > MAX_WHOLE_BYTES:
            row_bytes = array.nbytes // len(array)
            count = min(len(array), SAMPLED_ROWS, max(MAX_WHOLE_BYTES // row_bytes, 2))
            rows = array[np.linspace(0, len(array) - 1, count, dtype=np.int64)]
        digest.update(host_bytes(rows) if isinstance(rows, torch.Tensor) else np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()


def digest_of_labels(dataset: Any, length: int) -> str:
    """Return the SHA-256 over the attributes of a Dataset that hold one number for each sample, such as labels, or columns of a DataFrame.

    Attributes of a Dataset nested in it count too. Empty if there are none.
    """
    digest, any_labels = hashlib.sha256(), False
    for name, numbers in _labels(dataset, length, MAX_DEPTH):
        digest.update(f"{name} {numbers.dtype}".encode() + np.ascontiguousarray(numbers).tobytes())
        any_labels = True
    return digest.hexdigest() if any_labels else ""


def _labels(dataset: Any, length: int, deep: int) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        kind = type(value)  # settings with `__getattr__ = dict.get` have all attributes
        if deep and hasattr(kind, "to_numpy") and hasattr(kind, "columns"):  # a DataFrame, but none within one
            yield from _labels(SimpleNamespace(**{f"{name}.{one}": value[one] for one in value.columns}), length, 0)
            continue
        numbers = _numbers(value, length)
        if numbers is not None:
            yield name, numbers
        elif deep and name == "dataset" and hasattr(value, "__len__"):
            yield from _labels(value, len(value), deep - 1)


def _numbers(value: Any, length: int) -> np.ndarray[Any, Any] | None:
    """Return a value as an array of so many numbers; None if it is anything else."""
    if isinstance(value, torch.Tensor):
        if (
            value.shape != (length,)
            or value.device.type != "cpu"
            or value.layout != torch.strided
            or value.is_complex()
        ):
            return None
        value = value.detach().resolve_neg()
        # NumPy lacks these dtypes.
        if value.is_floating_point() and value.itemsize < 4 and value.dtype != torch.float16:
            value = value.view((torch.int8, torch.int16)[value.itemsize - 1])
        value = value.numpy()
    if isinstance(value, list | tuple) and len(value) == length and isinstance(value[0], int | float | np.number):
        try:
            value = np.asarray(value)
        except ValueError:  # elements of different shapes
            return None
    value = np.asarray(value) if hasattr(type(value), "to_numpy") else value
    fits = isinstance(value, np.ndarray) and value.shape == (length,) and value.dtype.kind in "biuf"
    return value if fits else None


def why_doubtful(train: Any, val: Any, *, drawn: bool) -> str:
    """Return why results on these validation samples may be misleading; empty if nothing suggests so.

    `drawn` says whether random numbers are drawn for validation samples.
    """
    if val is train:
        return _AUGMENTED if drawn else ""
    if not (isinstance(train, Subset) and isinstance(val, Subset) and _alike(train.dataset, val.dataset)):
        return ""
    both = len(np.intersect1d(np.asarray(train.indices), np.asarray(val.indices)))
    return _SHARED.format(both, len(val)) if both else ""


_AUGMENTED = (
    "Data.val is the training Dataset, which draws random numbers, so members are validated on augmented samples "
    "that differ in each epoch. Augment with Data(then=...), which applies to training samples only."
)
_SHARED = (
    "Data.val: {:,} of its {:,} samples are also training samples. If random_split creates train and val in two "
    "calls, pass each the same generator: random_split(dataset, lengths, "
    "generator=torch.Generator().manual_seed(0))."
)


def _alike(one: Any, other: Any) -> bool:
    """Return whether two Datasets are the same object, or have the same length and labels."""
    if one is other or type(one) is not type(other):
        return one is other
    lengths = [len(dataset) for dataset in (one, other)]
    labels = [digest_of_labels(dataset, length) for dataset, length in zip((one, other), lengths, strict=True)]
    return lengths[0] == lengths[1] and labels[0] == labels[1]
