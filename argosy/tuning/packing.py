"""Policies for which trials of a rung share a device, from Pack (Liu et al., DEEM 2021), behind one interface.

A policy is asked repeatedly, until no trial is left, which of the waiting trials train together next. Its answers depend only on
its arguments. Trials keep their names wherever they are packed, so their results are never mixed up.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from argosy.errors import StudyError

__all__ = ["Candidate", "Packing", "check_packs", "make_packing"]

SIZED_PACKING = re.compile(r"(random|knn)\(([1-9]\d*)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A trial that waits for a device."""

    name: str
    batch_size: int
    parameters: Mapping[str, Any]


Packing = Callable[[Sequence[Candidate]], list[Candidate]]
"""A policy: returns the next pack of the waiting trials, in the order in which they get memory; never empty."""
Choices = Mapping[str, Sequence[Any]]
"""Ordered values of the parameters that have finitely many."""


def _equal_batches(waiting: Sequence[Candidate]) -> list[Candidate]:
    """Return all trials with the batch size of the first."""
    return [one for one in waiting if one.batch_size == waiting[0].batch_size]


def _first(size: int, waiting: Sequence[Candidate]) -> list[Candidate]:
    """Return the first `size` trials: a random set, because parameters are drawn at random. Size 1 means no packing."""
    return list(waiting[:size])


def _nearest(size: int, seed: int, choices: Choices, waiting: Sequence[Candidate]) -> list[Candidate]:
    """Return a random trial and the nearest ones, `size` in total; among equally near ones, those proposed first."""
    # The draw depends on the waiting trials, so the same question has the same answer.
    centre = Random(f"{seed}/{'/'.join(one.name for one in waiting)}").choice(waiting)
    places = _places(choices, waiting)
    others = [one for one in waiting if one is not centre]
    others.sort(key=lambda one: _distance(places, centre.parameters, one.parameters))
    return [centre, *others[: size - 1]]


def _places(choices: Choices, waiting: Sequence[Candidate]) -> dict[str, list[Any]]:
    """Return the sorted values of each numeric parameter: all possible ones if known, otherwise those of the waiting trials."""
    places: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for one in waiting for name in one.parameters):
        values = choices.get(name, [one.parameters[name] for one in waiting if name in one.parameters])
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            places[name] = sorted({*values})
    return places


def _distance(places: Mapping[str, Sequence[Any]], first: Mapping[str, Any], second: Mapping[str, Any]) -> int:
    """Return the L1 distance between positions in `places`; a parameter without order, or that one side lacks, counts 1 if it differs."""
    total = 0
    for name in {**first, **second}:
        if name in places and name in first and name in second:
            total += abs(bisect_left(places[name], first[name]) - bisect_left(places[name], second[name]))
        else:
            total += (name in first, first.get(name)) != (name in second, second.get(name))
    return total


def make_packing(packs: str, *, seed: int, choices: Choices) -> Packing | None:
    """Return the packing that a search's `packs` names; None if the planner packs."""
    sized = SIZED_PACKING.fullmatch(packs)
    if sized is not None and sized[1] == "knn":
        return partial(_nearest, int(sized[2]), seed, choices)
    if sized is not None:
        return partial(_first, int(sized[2]))
    named: dict[str, Packing | None] = {"planned": None, "none": partial(_first, 1), "batch-size": _equal_batches}
    return named[packs]


def check_packs(packs: str) -> None:
    """Raise StudyError if `packs` names no packing."""
    if not isinstance(packs, str) or (
        packs not in ("planned", "none", "batch-size") and not SIZED_PACKING.fullmatch(packs)
    ):
        raise StudyError(
            f"packs is {packs!r}; choose planned, none, batch-size, or random(k) or knn(k) for packs of k trials, "
            "for example 'knn(9)'."
        )
