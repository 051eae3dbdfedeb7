"""The test of equality: tensors that were computed in two ways are the same up to rounding, or a sentence says which differs first.

Differences are allowed as a share of a tensor's largest number, or of a larger one that it is to be measured by. In float64 the share
is fixed. In narrower types networks differ too much for that: there it is three times what becomes of gradients and buffers when the
weights are moved by an ulp (`nudge`, `rounding`). Only what passes is ever used: fused and compiled programs, shares of a batch,
blocks that a device has prepared.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["DOUBLE", "PIECE", "UNMOVED", "Compared", "difference", "leads_elsewhere", "nudge", "rounding", "size_of"]

DOUBLE = 1e-10
"""Share in which float64 may differ."""
UNMOVED = 1e-3
"""Share in which narrower types may differ where nothing is known that could be moved by an ulp."""
TIMES, MOST = 3.0, 0.1
"""Times by which results may differ more than those of weights an ulp apart, and the share that is no rounding whatever they do."""
TF32 = 2.0**-10
"""Ulp of float32 on an accelerator, which may multiply with no more bits."""
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


@torch.no_grad()
def nudge(weights: Iterable[Tensor], computed: torch.dtype) -> None:
    """Move each weight by an ulp, in place, up or down at random: by the coarser one of its type and of that it is computed in."""
    signs = torch.Generator().manual_seed(0)
    for weight in weights:
        if not (weight.is_floating_point() or weight.is_complex()):
            continue
        least = 0.0 if weight.device.type == "cpu" else TF32
        ulp = max(least, torch.finfo(weight.dtype).eps, torch.finfo(computed).eps)
        up = torch.rand(weight.shape, generator=signs) < 0.5
        weight.mul_(torch.where(up, 1 + ulp, 1 - ulp).to(weight))


def rounding(moved: Iterable[Compared], samples: Sequence[Tensor]) -> float:
    """Return the share in which results of these samples may differ; `moved` has those of the same weights, and of ones after `nudge`.

    Sums over a batch and its positions round by themselves, by about the root of their length.
    """
    shares = [
        float((_wide(one) - _wide(other)).abs().nan_to_num(0.0, 0.0, 0.0).max()) / size
        for _, one, other, size in moved
        if one.numel() and math.isfinite(size)
    ]
    sums = torch.finfo(torch.float32).eps * math.sqrt(max(leaf.numel() for leaf in samples))
    return min(max(sums, *(TIMES * share for share in shares)), MOST)


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
