"""The mean of a few values, and where the true mean lies: Student's interval."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Interval", "t_quantile"]

LEVEL = 0.95
"""Probability that the interval contains the true mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimated mean and its 95 % confidence interval."""

    mean: float
    """NaN if there are no values."""
    half: float | None
    """Half of the interval's width; None if the spread is unknown: fewer than two values, or some not finite."""
    count: int
    """Number of values."""

    @classmethod
    def of(cls, values: Sequence[float], *, overlap: float = 0.0, draws: Sequence[object] = ()) -> "Interval":
        """Return Student's interval for independent values of one, roughly normal, distribution.

        Values of networks with overlapping training sets are not independent; with n_val / n_train as `overlap`, their
        spread is increased by the correction of Nadeau and Bengio 2003. `draws` has for each value the draw of samples that it is from, for
        example its fold: the mean of all values of one draw counts as one value.
        """
        count = len(values)
        apart: dict[object, list[float]] = {}
        for draw, value in zip(draws or range(count), values, strict=True):  # without draws, each value is its own
            apart.setdefault(draw, []).append(value)
        means = [sum(of_draw) / len(of_draw) for of_draw in apart.values()]
        if len(means) < 2 or not all(map(math.isfinite, values)):
            return cls(mean=sum(means) / len(means) if means else math.nan, half=None, count=count)
        half = t_quantile(len(means) - 1) * statistics.stdev(means) * math.sqrt(1 / len(means) + overlap)
        return cls(mean=statistics.fmean(means), half=half, count=count)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both ends of the interval."""
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)

    @property
    def holds_zero(self) -> bool:
        """Whether the true mean may be zero, given these values."""
        return self.half is None or not abs(self.mean) > self.half

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:.4g}"
        # Show the mean to the last digit of the half-width: 0.9877 ± 3e-05 would not contain a mean of 0.98765.
        of_mean, of_half = (math.floor(math.log10(abs(value))) if value else 0 for value in (self.mean, self.half))
        digits = min(max(of_mean - of_half + 2, 4), 12)  # a half of 1e-17 is rounding
        return f"{self.mean:.{digits}g} ± {self.half:.2g}"


@functools.cache
def t_quantile(degrees: int) -> float:
    """Return the t with P(-t ≤ T ≤ t) = `LEVEL` in Student's distribution with a whole number of degrees of freedom.

    For these the probability is a finite sum in the angle atan(t / √degrees) (Abramowitz and Stegun 1964, 26.7.3 and
    26.7.4), which is inverted by bisection to the last bit.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _probability(middle, degrees) < LEVEL else (low, middle)
    return math.sqrt(degrees) * math.tan(high)


def _probability(angle: float, degrees: int) -> float:
    """Return P(-t ≤ T ≤ t) for t = √degrees · tan(angle)."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(degrees // 2):
        total += term
        term *= cosine**2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
