"""Compute curves of one metric over the epochs: one member's values, or the mean and spread of several members."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from argosy.results.intervals import Interval

__all__ = ["BANDS", "Band", "Curve", "Spread"]

Curve = Mapping[float, float]
"""Values of one metric by finished epochs."""
Spread = Literal["ci", "std", "range"]
BANDS = ("ci", "std", "range")
"""Kinds of bands: the 95 % interval of the mean, the standard deviation, from the least to the largest value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The mean and spread of several curves at the epochs that all of them have."""

    name: str
    count: int
    """Number of curves."""
    epochs: Sequence[float]
    means: Sequence[float]
    bounds: Sequence[tuple[float, float]]
    """Lower and upper edge at each epoch: NaN if there are fewer than two curves or a value is not finite; empty without a band."""

    @classmethod
    def of(
        cls,
        name: str,
        curves: Sequence[Curve],
        spread: Spread | None,
        *,
        overlap: float = 0.0,
        draws: Sequence[object] = (),
    ) -> "Band":
        """Return the band of these curves; for `overlap` and `draws` see `Interval.of`.

        Epochs that only some curves have are left out, because the mean would jump where a curve ends.
        """
        epochs = sorted(set.intersection(*map(set, curves))) if curves else []
        values = [[curve[epoch] for curve in curves] for epoch in epochs]
        bounds = [] if spread is None else [_band_bounds(samples, spread, overlap, draws) for samples in values]
        means = [Interval.of(samples, draws=draws).mean for samples in values]
        return cls(name=name, count=len(curves), epochs=epochs, means=means, bounds=bounds)


def _band_bounds(
    values: Sequence[float], spread: Spread, overlap: float, draws: Sequence[object]
) -> tuple[float, float]:
    interval = Interval.of(values, overlap=overlap, draws=draws if spread == "ci" else ())
    if interval.bounds is None:
        return math.nan, math.nan
    if spread == "range":
        return min(values), max(values)
    if spread == "std":
        mean, deviation = Interval.of(values, draws=draws).mean, statistics.stdev(values)
        return mean - deviation, mean + deviation
    return interval.bounds
