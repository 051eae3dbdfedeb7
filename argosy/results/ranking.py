"""Which result is the best: one rule for reports, tables and views."""

import math

from argosy.stopping import Mode

__all__ = ["FAILED", "NOTHING", "NOT_A_NUMBER", "NUMBER", "rank"]

NUMBER, NOT_A_NUMBER, FAILED, NOTHING = range(4)
"""Kinds of results, better ones first: what failed members had reached is never the best."""


def rank(value: float | None, mode: Mode, *, failed: bool = False) -> tuple[int, float]:
    """Sort key of a value of the objective, None before there is one: its kind, and what it costs; equals keep their order.

    >>> sorted([0.2, None, math.nan, 0.1], key=lambda value: rank(value, "min"))
    [0.1, 0.2, nan, None]
    """
    if value is None:
        return NOTHING, 0.0
    cost = math.inf if math.isnan(value) else value if mode == "min" else -value
    return FAILED if failed else NOT_A_NUMBER if math.isnan(value) else NUMBER, cost
