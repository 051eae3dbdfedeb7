"""Equality up to rounding of tensors computed in two ways; reports which tensor differs first.

The tolerance is a share of a tensor's largest absolute value, or of a given larger number. In float64 the share is fixed. In narrower
types networks differ too much in their rounding for that. There the share is three times the change in gradients and buffers when the
weights are moved by one ulp (`nudge`, `rounding_share`). Fused and compiled programs, shares of a batch, and blocks prepared on a device are
used only if they pass this test.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "DOUBLE",
    "PIECE_NUMBERS",
    "UNMOVED",
    "ComparedPair",
    "difference",
    "gradient_pairs",
    "have_diverged",
    "nudge",
    "rounding_share",
    "largest_value",
]

DOUBLE = 1e-10
"""Share by which float64 results may differ."""
UNMOVED = 1e-3
"""Share by which narrower types may differ if there are no weights to move by an ulp."""
ROUNDING_FACTOR, MAX_ROUNDING = 3.0, 0.1
"""Factor on the difference that weights an ulp apart make, and the largest share that still counts as rounding."""
TF32 = 2.0**-10
"""Ulp of float32 on an accelerator, which may multiply in TF32."""
MIN_SIZE = 1e-3
"""Smallest size that differences are measured by: values that should be zero consist of rounding only."""
PIECE_NUMBERS = 2**18
"""Numbers compared at once, because there may be no memory for all of them in float64."""


class ComparedPair(NamedTuple):
    """Two results that should be equal."""

    what: str
    """Description, used in the reason."""
    one: Tensor
    other: Tensor
    size: Callable[[], float]
    """Returns the size that differences are measured by; not called for equal results."""

    @classmethod
    def of(cls, what: str, one: Tensor, other: Tensor) -> "ComparedPair":
        """Pair two results; differences are measured by the largest value of the first."""
        return cls(what, one, other, functools.partial(largest_value, one))


def gradient_pairs(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Iterator[ComparedPair]:
    """Yield two sets of gradients with the same names as pairs; differences are measured by the largest gradient of all."""
    size = functools.cache(functools.partial(largest_value, *one.values()))
    return (ComparedPair(f"the gradient of {name!r}", gradient, other[name], size) for name, gradient in one.items())


def largest_value(*tensors: Tensor) -> float:
    """Return the largest absolute value of all, and at least `MIN_SIZE`."""
    return max([MIN_SIZE, *(float(_wide(tensor).abs().max()) for tensor in tensors if tensor.numel())])


def difference(pairs: Iterable[ComparedPair], share: float) -> str | None:
    """Return the description of the first pair that differs by more than this share of its size; None if all agree.

    NaN equals only NaN. A pair whose size has overflowed is not compared, unless `share` is 0.
    """
    for what, one, other, size in pairs:
        # Most are equal, which one pass over both shows; the comparison below makes a dozen.
        if one.dtype == other.dtype and torch.equal(one, other):
            continue
        within = share and share * size()
        if math.isfinite(within) and not torch.allclose(_wide(one), _wide(other), rtol=0, atol=within, equal_nan=True):
            return what
    return None


@torch.no_grad()
def nudge(weights: Iterable[Tensor], computed: torch.dtype) -> None:
    """Move each weight by one ulp, in place, up or down at random; the ulp is the coarser one of its dtype and the computing dtype."""
    signs = torch.Generator().manual_seed(0)
    for weight in weights:
        if not (weight.is_floating_point() or weight.is_complex()):
            continue
        least = 0.0 if weight.device.type == "cpu" else TF32
        ulp = max(least, torch.finfo(weight.dtype).eps, torch.finfo(computed).eps)
        up = torch.rand(weight.shape, generator=signs) < 0.5
        weight.mul_(torch.where(up, 1 + ulp, 1 - ulp).to(weight))


def rounding_share(moved: Iterable[ComparedPair], samples: Sequence[Tensor]) -> float:
    """Return the share by which results for these samples may differ; `moved` pairs results before and after `nudge`.

    The share is at least the rounding of sums over a batch and its positions, about the square root of their length in ulps.
    """
    shares = [
        float((_wide(one) - _wide(other)).abs().nan_to_num(0.0, 0.0, 0.0).max()) / largest
        for _, one, other, size in moved
        if one.numel() and math.isfinite(largest := size())
    ]
    sums = torch.finfo(torch.float32).eps * math.sqrt(max(leaf.numel() for leaf in samples))
    return min(max(sums, *(ROUNDING_FACTOR * share for share in shares)), MAX_ROUNDING)


def have_diverged(one: Tensor, other: Tensor, start: Tensor, share: float) -> bool:
    """Return whether two results of a step from `start`, all ``[members, …]``, differ for some member by more than this share of the step."""
    return bool((_distance(one, other) > share * _distance(one, start)).any())


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the distance between the two for each member, computed in pieces."""
    columns = max(PIECE_NUMBERS // len(one), 1)
    pieces = (torch.split(tensor.reshape(len(one), one[0].numel()), columns, 1) for tensor in (one, other))
    lengths = [torch.linalg.vector_norm(a.double() - b.double(), dim=1) for a, b in zip(*pieces, strict=True)]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(lengths), dim=0)
    return whole


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
