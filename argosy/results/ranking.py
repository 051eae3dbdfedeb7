"""One rule for which result is the best, for reports, tables and views."""

import math

from argosy.stopping import Mode

__all__ = ["FAILED", "NOTHING", "NOT_A_NUMBER", "NUMBER", "rank"]

NUMBER, NOT_A_NUMBER, FAILED, NOTHING = range(4)
"""Kinds of results, better ones first; a failed member's result is never the best."""


def rank(value: float | None, mode: Mode, *, failed: bool = False) -> tuple[int, float]:
    """Return the sort key of an objective's value (None before there is one): kind, then cost. Equals keep their order.

    >>> sorted([0.2, None, math.nan, 0.1], key=lambda value: rank(value, "min"))
    [0.1, 0.2, nan, None]
    """
    if value is None:
        return NOTHING, 0.0
    cost = math.inf if math.isnan(value) else value if mode == "min" else -value
    return FAILED if failed else NOT_A_NUMBER if math.isnan(value) else NUMBER, cost
