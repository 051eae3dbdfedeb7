"""The test of equality: tensors that were computed in two ways are the same up to rounding, or a sentence says which differs first.

Differences are allowed as a share of a tensor's largest number, or of a larger one that it is to be measured by. Only what passes is
ever used: fused and compiled programs, shares of a batch, blocks that a device has prepared.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["DOUBLE", "HALF", "PIECE", "SINGLE", "Compared", "difference", "leads_elsewhere", "size_of"]

DOUBLE, SINGLE, HALF = 1e-10, 1e-3, 1e-2
"""Shares in which float64 may differ, other dtypes (a GPU may compute float32 with TF32's ten bits), and where part is computed in 16 bits."""
LEAST = 1e-3
"""Numbers below it are measured by it: what should be zero is rounding itself."""
PIECE = 2**18
"""Numbers that are compared at once where there may be no memory for all of them in float64."""


class Compared(NamedTuple):
    """Two results that are to be the same."""

    what: str
    """Description, in the words of a reason."""
    one: Tensor
    other: Tensor
    size: float
    """Number that differences are measured by."""


def size_of(*tensors: Tensor) -> float:
    """Return the largest absolute value of all, and at least `LEAST`."""
    return max([LEAST, *(float(_wide(tensor).abs().max()) for tensor in tensors if tensor.numel())])


def difference(pairs: Iterable[Compared], share: float) -> str | None:
    """Return what differs first by more than this share of its size; None where all agree. NaN equals NaN alone.

    What has overflowed has no size, and is not compared unless `share` is 0.
    """
    for what, one, other, size in pairs:
        if share and not math.isfinite(size):
            continue
        if not torch.allclose(_wide(one), _wide(other), rtol=0.0, atol=share and share * size, equal_nan=True):
            return what
    return None


def leads_elsewhere(one: Tensor, other: Tensor, start: Tensor, share: float) -> bool:
    """Whether two ends of a step from one start ``[members, …]`` are further apart than this share of its length, for some member."""
    return bool((_distance(one, other) > share * _distance(one, start)).any())


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Return each member's distance between the two, in pieces."""
    columns = max(PIECE // len(one), 1)
    pieces = (torch.split(tensor.reshape(len(one), one[0].numel()), columns, 1) for tensor in (one, other))
    lengths = [torch.linalg.vector_norm(a.double() - b.double(), dim=1) for a, b in zip(*pieces, strict=True)]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(lengths), dim=0)
    return whole


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
