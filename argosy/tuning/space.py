"""The space of a search as distributions by name: the points of a grid, and the neighbours of a value."""

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

from argosy.errors import StudyError
from argosy.tuning.optuna_package import optuna

__all__ = [
    "GridKey",
    "as_drawn",
    "check_distributions",
    "check_plain",
    "count_values",
    "grid_key",
    "grid_points",
    "list_values",
    "neighbor",
]

GridKey = frozenset[tuple[str, Any]]
PLAIN = (bool, int, float, str, type(None))
"""Types of parameters, as a journal holds them."""
MOST_POINTS = 1_000_000
"""Largest number of points of a grid, all of which are listed; these take 0.6 GB."""
FACTORS = (0.8, 1.2)
"""Factors by which a clone's numeric parameters change."""


def check_distributions(space: Mapping[str, Any]) -> None:
    for name, distribution in space.items():
        check_plain({name: None})
        if not isinstance(distribution, optuna.distributions.BaseDistribution):
            raise StudyError(
                f"space: {name!r} is {distribution!r}; it must be a distribution of Optuna, for example "
                "FloatDistribution(1e-4, 1e-1, log=True) or CategoricalDistribution(['sgd', 'adam']). If parameters depend on others, "
                "pass a function of an Optuna trial as the space."
            )
        choices = getattr(distribution, "choices", ())
        for choice in choices:
            check_plain({name: choice})
        # Choices may be repeated, which makes them more frequent.
        if alike := [one for one in choices if one != one or repr(choices[choices.index(one)]) != repr(one)]:
            equals = (
                f"equals its choice {choices[choices.index(alike[0])]!r}" if alike[0] == alike[0] else "equals no value"
            )
            raise StudyError(
                f"space: {name!r} has the choice {alike[0]!r}, which {equals} in Python, so trials would be counted as others. Use "
                "strings, and let build map them to the values."
            )


def check_plain(parameters: Mapping[str, Any]) -> None:
    """Raise StudyError if there are no parameters, or some that a journal cannot hold."""
    if named := [name for name in parameters if not isinstance(name, str)]:
        raise StudyError(
            f"space has a parameter named {named[0]!r}, of type {type(named[0]).__name__}; names must be strings. Write {str(named[0])!r}."
        )
    strange = {name: value for name, value in parameters.items() if not isinstance(value, PLAIN)}
    if strange or not parameters:
        raise StudyError(
            "space: a trial's parameters must be numbers, strings, bools or None; found "
            f"{strange or 'none at all'}. Suggest a name or a number, and let build map it to the value."
        )


def as_drawn(distribution: Any, value: Any) -> Any:
    """Return a given value as the distribution would draw it, for example 64 for 64.0 or "64" among integers, or for a number of NumPy.

    A value that the distribution never draws stays as it is; Optuna refuses it.
    """
    choice = isinstance(distribution, optuna.distributions.CategoricalDistribution)
    try:
        given = float(value) if isinstance(value, str) and not choice else value
        drawn = distribution.to_external_repr(distribution.to_internal_repr(given))
    except (ValueError, OverflowError):
        return value
    return drawn if drawn == given else value


def grid_points(space: Any) -> dict[GridKey, dict[str, Any]]:
    """Return all points of a finite space, the last parameter changing fastest."""
    if callable(space):
        raise StudyError(
            "scheduler 'grid' needs a space of named distributions, but space is a function. Pass a dictionary."
        )
    check_distributions(space)
    counts = [count_values(one) for one in space.values()]
    if math.inf not in counts and (count := math.prod(counts)) > MOST_POINTS:
        raise StudyError(
            f"scheduler 'grid': the space has {count:,} points; at most {MOST_POINTS:,} can be listed. Increase steps or use choices of "
            "few values, or use scheduler='random' with n_trials."
        )
    axes = {name: list_values(name, distribution) for name, distribution in space.items()}
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return {grid_key(point): point for point in points}


def grid_key(point: Mapping[str, Any]) -> GridKey:
    """Return a key for a point of a grid; floats are rounded, so that 0.30000000000000004 equals 0.3."""
    rounded = {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in point.items()}
    return frozenset(rounded.items())


def list_values(name: str, distribution: Any) -> list[Any]:
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return list(distribution.choices)
    if distribution.single():
        return [distribution.low]
    if distribution.step is None:
        raise StudyError(
            f"scheduler 'grid': {name!r} has infinitely many values. Set step=, or use a choice of values."
        )
    low, high, step = distribution.low, distribution.high, distribution.step
    return [min(low + number * step, high) for number in range(int(count_values(distribution)))]


def neighbor(distribution: Any, value: Any, draw: random.Random) -> Any:
    """Return a neighbouring value of the distribution, or `value` itself if there is none."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        place = distribution.choices.index(value)
        beside = [*distribution.choices[max(place - 1, 0) : place], *distribution.choices[place + 1 : place + 2]]
        return draw.choice(beside) if beside else value
    for factor in draw.sample(FACTORS, 2):  # both, because at the end of a range the first may change nothing
        change, step = value * (factor - 1.0), distribution.step
        if step is not None:
            # At least one step.
            change = (round(change / step) or math.copysign(1, factor - 1.0)) * step
        neighbor = type(value)(min(max(value + change, distribution.low), distribution.high))
        if neighbor != value:
            return neighbor
    return value


def count_values(distribution: Any) -> float:
    """Return the number of values of a distribution; infinite if it is a range without a step."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return len(distribution.choices)
    if distribution.single():
        return 1
    if distribution.step is None:
        return math.inf
    steps: float = (distribution.high - distribution.low) / distribution.step
    return round(steps) + 1
