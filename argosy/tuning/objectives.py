"""Comparison of trials by one or several objectives, under constraints.

A trial is judged by a single section, the one with the best first objective, because its weights come from one section. Several
objectives weigh equally: trials are compared by level, and within a level by the distance to their neighbours (Deb et
al., A fast and elitist multiobjective genetic algorithm: NSGA-II, 2002). With one objective, a level is a set of equal values.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, le
from typing import Any

from argosy.errors import StudyError
from argosy.errors.checks import describe_value
from argosy.errors.traces import user_errors_in
from argosy.protocol.events import SectionEnded
from argosy.stopping import Mode

__all__ = ["TOTALS", "Cost", "Objectives", "insert_ranked", "pareto_levels", "rank_costs", "reached_metrics"]

TOTALS = ("seconds", "samples", "parameters")
"""Results of a trial besides the metrics of its members: the seconds of its own training and validation and the samples that it trained
on, both up to the end of a section, and the number of parameters of its network."""
Costs = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """A trial's results for comparison: lower is better, and NaN is worse than any number."""

    values: Costs
    """One for each objective."""
    excess: float = 0.0
    """Sum of the violated constraints; a trial with violations ranks behind all trials without, whatever its values."""

    @property
    def counts(self) -> bool:
        """Whether all values are numbers."""
        return not any(map(math.isnan, self.values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Objectives:
    """The objectives and constraints of one search."""

    modes: Mapping[str, Mode]
    """Modes by objective. The first objective is a metric; a trial is judged by the section with its best value."""
    constraints: Callable[[Mapping[str, float]], Sequence[float]] | None = None
    """Function from a trial's results to numbers; each one above 0 is a violation."""

    @classmethod
    def of(cls, terms: Mapping[str, Any]) -> "Objectives":
        """Return the objectives of a search, from its terms in the journal."""
        return cls(modes={terms["objective"]: terms["mode"], **terms.get("others", {})})

    @property
    def first(self) -> str:
        """Name of the first objective."""
        return next(iter(self.modes))

    @property
    def mode(self) -> Mode:
        """Mode of the first objective."""
        return self.modes[self.first]

    def values(self, reached: Mapping[str, float]) -> Costs:
        """Return a trial's value of each objective; NaN if it has none."""
        return tuple(reached.get(name, math.nan) for name in self.modes)

    def cost(self, reached: Mapping[str, float], constrained: Iterable[float]) -> Cost:
        """Return the cost of a trial, given its results and its constraint values."""
        signs = (1 if mode == "min" else -1 for mode in self.modes.values())
        values = tuple(sign * value for sign, value in zip(signs, self.values(reached), strict=True))
        return Cost(values, math.fsum(value for value in constrained if value > 0))

    def constrained(self, reached: Mapping[str, float]) -> tuple[float, ...]:
        """Return the constraint values of a trial; raises StudyError if the function raises or does not return numbers."""
        if self.constraints is None:
            return ()
        what = f"constraints, called with a trial's results ({', '.join(sorted(reached))}),"
        with user_errors_in(what, "Fix the function, and run the same command again."):
            values = self.constraints(reached)
        if not isinstance(values, Sequence) or not all(
            isinstance(value, int | float) and math.isfinite(value) for value in values
        ):
            listed = isinstance(values, list | tuple)
            found = f"a list with {', '.join(map(describe_value, values))}" if listed else describe_value(values)
            raise StudyError(
                f"constraints returned {found}; it must return a list of numbers, for example "
                "[reached['seconds'] - 60]. A constraint is met if its number is at most 0. For a violation without a finite number, return 1e9."
            )
        return tuple(map(float, values))


def reached_metrics(members: Iterable[tuple[Sequence[SectionEnded], int]]) -> dict[str, float]:
    """Return the metrics of a section and the `TOTALS` up to it, as means over members.

    Each member is given by its sections up to that one, and the number of its parameters.
    """
    rows = [
        {
            **sections[-1].metrics,
            "seconds": math.fsum(ended.seconds for ended in sections),
            "samples": sum(ended.samples for ended in sections),
            "parameters": parameters,
        }
        for sections, parameters in members
    ]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if all(name in row for row in rows)}


def pareto_levels(costs: Sequence[Cost]) -> list[int]:
    """Return the level of each cost; lower is better.

    Level 0 holds the costs that no other dominates (is nowhere worse and somewhere better); level 1 holds those that none dominates
    once level 0 is removed, and so on. Costs that violate constraints follow, ordered by their excess; costs with NaN are last.
    """
    return _levels(costs, _pareto_fronts(costs))


def rank_costs(costs: Iterable[tuple[Cost, int]]) -> list[int]:
    """Return the trials, best first: by level, then those farthest from their neighbours first, then by trial number."""
    listed = [*costs]
    fronts = _pareto_fronts([cost for cost, _ in listed])
    room = {values: space for front in fronts for values, space in _crowding_distances(front).items()}
    known = _levels([cost for cost, _ in listed], fronts)
    keys = ((level, -room.get(cost.values, 0.0), trial) for level, (cost, trial) in zip(known, listed, strict=True))
    return [trial for _, _, trial in sorted(keys)]


def insert_ranked(trial: int, order: Sequence[int], cost_of: Callable[[int], Cost]) -> list[int]:
    """Return an order from `rank_costs` with one more trial; with one objective, the others keep their order, so none are ranked again."""
    if len(cost_of(trial).values) > 1:
        return rank_costs((cost_of(one), one) for one in (*order, trial))
    ranked = [*order]
    insort(ranked, trial, key=lambda one: (*_scalar_level(cost_of(one)), one))
    return ranked


def _scalar_level(cost: Cost) -> tuple[int, float]:
    """Return a sort key for a cost of one objective: its kind (valid, violating, NaN), and its rank within the kind."""
    return (2, 0.0) if not cost.counts else (1, cost.excess) if cost.excess else (0, cost.values[0])


def _levels(costs: Sequence[Cost], fronts: Sequence[Sequence[Costs]]) -> list[int]:
    level = {values: place for place, front in enumerate(fronts) for values in front}
    broken = sorted({cost.excess for cost in costs if cost.counts and cost.excess})
    last = len(fronts) + len(broken)
    return [
        (len(fronts) + bisect_left(broken, cost.excess) if cost.excess else level[cost.values]) if cost.counts else last
        for cost in costs
    ]


def _pareto_fronts(costs: Iterable[Cost]) -> list[list[Costs]]:
    """Return the distinct values of costs without violations, by level (Zhang et al., An efficient approach to nondominated sorting, 2015)."""
    fronts: list[list[Costs]] = []
    ends: list[float] = []
    for one in sorted({cost.values for cost in costs if cost.counts and not cost.excess}):
        # Whatever dominates a value precedes it in this order. If a level contains a dominating value, so does every level before it.
        # Of two objectives, the last value of a level is its best in the second, so that no other has to be compared.
        two = len(one) == 2
        place = bisect_right(ends, one[1]) if two else bisect_left(fronts, True, key=partial(_is_nondominated, one))
        if place == len(fronts):
            fronts.append([])
        fronts[place].append(one)
        ends[place : place + 1] = [one[-1]]
    return fronts


def _is_nondominated(one: Costs, front: Sequence[Costs]) -> bool:
    """Return whether no value of a front dominates this one, which is not in it."""
    return not any(all(map(le, other, one)) for other in reversed(front))


def _crowding_distances(front: Sequence[Costs]) -> dict[Costs, float]:
    """Return the distance between the neighbours of each value, summed over the objectives; infinite at the ends."""
    distances = dict.fromkeys(front, 0.0)
    for place in range(len(front[0])):
        order = sorted(front, key=itemgetter(place))
        width = order[-1][place] - order[0][place]
        if not 0 < width < math.inf:
            continue
        distances[order[0]] = distances[order[-1]] = math.inf
        for before, one, after in zip(order, order[1:], order[2:], strict=False):
            distances[one] += (after[place] - before[place]) / width
    return distances
