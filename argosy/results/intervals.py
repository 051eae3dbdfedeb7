"""The mean of a few values, and where the true mean lies: Student's interval."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Interval", "t_quantile"]

LEVEL = 0.95
"""Of the cases, those in which the interval holds the true mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean, and how far the true one may be from it."""

    mean: float
    """NaN of no values."""
    half: float | None
    """Half of the interval's width; None where values tell nothing of their spread: fewer than two, or some that are no numbers."""
    count: int
    """Values that it was made from."""

    @classmethod
    def of(cls, values: Sequence[float], *, overlap: float = 0.0) -> "Interval":
        """Student's, for values that were drawn alike and independently, from something like a bell.

        Values of networks whose training sets overlap are not independent; with n_val / n_train as `overlap` their spread counts
        for as much more as Nadeau and Bengio 2003 found that it has to.
        """
        count = len(values)
        if count < 2 or not all(map(math.isfinite, values)):
            return cls(mean=sum(values) / count if count else math.nan, half=None, count=count)
        half = t_quantile(count - 1) * statistics.stdev(values) * math.sqrt(1 / count + overlap)
        return cls(mean=statistics.fmean(values), half=half, count=count)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Its ends."""
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)

    @property
    def holds_zero(self) -> bool:
        """Whether the true mean may be zero, for all that these values tell."""
        return self.half is None or not abs(self.mean) > self.half

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.half is None else f"{self.mean:.4g} ± {self.half:.2g}"


@functools.cache
def t_quantile(degrees: int) -> float:
    """The t with P(-t ≤ T ≤ t) = `LEVEL` of Student's distribution with so many degrees of freedom, a whole number.

    For these the probability is a finite sum in the angle atan(t / √degrees) (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4),
    which is inverted by bisection down to the last bit.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _probability(middle, degrees) < LEVEL else (low, middle)
    return math.sqrt(degrees) * math.tan(high)


def _probability(angle: float, degrees: int) -> float:
    """P(-t ≤ T ≤ t) for t = √degrees · tan(angle)."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(degrees // 2):
        total += term
        term *= cosine**2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
