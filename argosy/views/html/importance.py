"""How much each hyper-parameter alone says about what was reached."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["chance", "importance"]

GROUPS = 4
"""Groups of like size that numbers are divided into."""
FEWEST = 8
"""Fewest results that anything can be said of."""


def importance(results: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return, for (parameters, value) of each result, the share of the variance of the values' ranks that a parameter explains.

    Counted are the results that have the parameter: whether it is there at all follows from another one, as the width of a second
    layer from their number. It is ε² of an analysis of variance over groups of equal or, for numbers, neighbouring values (Kelley 1935), 0 where
    that is negative: unlike η² it does not grow with the number of groups, but few results show a share by `chance`. Parameters that act only together show
    less than they matter. Ranks make it the same for a metric and its logarithm. None is of fewer than eight results.
    """
    pairs: dict[str, list[tuple[Any, float]]] = {}
    for parameters, value in results:
        for name in parameters if value == value else ():
            pairs.setdefault(name, []).append((parameters[name], value))
    columns = {name: [*zip(*of_name, strict=True)] for name, of_name in pairs.items() if len(of_name) >= FEWEST}
    shares = {
        name: _explained_share(_groups(configured), _ranks(values)) for name, (configured, values) in columns.items()
    }
    return {name: share for name, share in shares.items() if share is not None}


def chance(results: int) -> float:
    """Return the share that one in ten numbers without influence exceeds: 1.4 standard deviations of ε², for `GROUPS` groups of normal values."""
    return min(1.4 * math.sqrt(2 * (GROUPS - 1) / ((results - GROUPS) * (results + 1))), 1.0)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equals have the mean of theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _groups(values: Sequence[Any]) -> list[int]:
    """Return the number of each value's group."""
    distinct = [*dict.fromkeys(map(repr, values))]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers or len(distinct) <= GROUPS:
        return [distinct.index(repr(value)) for value in values]
    return [int(rank * GROUPS / len(values)) for rank in _ranks([float(value) for value in values])]


def _explained_share(groups: Sequence[int], ranks: Sequence[float]) -> float | None:
    """Return ε²; None where nothing differs, or each result is a group of its own."""
    count, kinds = len(ranks), {*groups}
    mean = sum(ranks) / count
    total = sum((rank - mean) ** 2 for rank in ranks)
    if len(kinds) < 2 or len(kinds) >= count or not total:
        return None
    within = 0.0
    for kind in kinds:
        own = [rank for rank, group in zip(ranks, groups, strict=True) if group == kind]
        within += sum((rank - sum(own) / len(own)) ** 2 for rank in own)
    return max(1 - within / (count - len(kinds)) / (total / (count - 1)), 0.0)
