"""Tests Pareto levels and the order within them against brute force, Optuna's ranks, and the order by one objective."""

import math
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study._multi_objective import _fast_non_domination_rank

from argosy.errors import StudyError
from argosy.tuning.hyperband import Hyperband
from argosy.tuning.objectives import Cost, Objectives, pareto_levels, rank_costs

VALUES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, math.inf])
COSTS = st.integers(1, 4).flatmap(
    lambda count: st.lists(
        st.builds(Cost, st.tuples(*[VALUES] * count), st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0])), max_size=24
    )
)


def dominates(one: Cost, other: Cost) -> bool:
    """Return whether one cost dominates another by the definition: less excess first, then nowhere worse and somewhere better."""
    if one.excess or other.excess:
        return one.excess < other.excess
    return all(a <= b for a, b in zip(one.values, other.values, strict=True)) and one.values != other.values


def peeled(costs: list[Cost]) -> list[int]:
    """Compute levels by repeatedly removing the costs that no remaining cost dominates."""
    found, left, level = [0] * len(costs), set(range(len(costs))), 0
    while left:
        front = {n for n in left if not any(dominates(costs[other], costs[n]) for other in left)}
        for number in front:
            found[number] = level
        left, level = left - front, level + 1
    return found


@given(COSTS)
def test_levels_are_those_of_brute_force_and_of_optuna(costs: list[Cost]) -> None:
    found = pareto_levels(costs)
    assert found == peeled(costs)
    if costs:
        values, excess = np.array([cost.values for cost in costs]), np.array([cost.excess for cost in costs])
        assert found == _fast_non_domination_rank(values, penalty=excess).tolist()


@given(COSTS)
def test_what_is_not_a_number_is_behind_all_others(costs: list[Cost]) -> None:
    odd = [Cost((math.nan, *cost.values[1:]), cost.excess) for cost in costs]
    found = pareto_levels([*costs, *odd])
    assert found[: len(costs)] == pareto_levels(costs)
    assert all(level == max(pareto_levels(costs)) + 1 for level in found[len(costs) :])


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, math.inf, math.nan]), max_size=20))
def test_of_one_objective_trials_are_ranked_by_it_and_equals_by_number(costs: list[float]) -> None:
    plain = sorted(
        range(len(costs)), key=lambda n: (math.isnan(costs[n]), math.inf if math.isnan(costs[n]) else costs[n], n)
    )
    assert rank_costs((Cost((cost,)), number) for number, cost in enumerate(costs)) == plain


@given(COSTS, st.randoms(use_true_random=False))
def test_the_order_is_by_level_and_depends_on_no_other(costs: list[Cost], draw: Random) -> None:
    numbered = [(cost, number) for number, cost in enumerate(costs)]
    order, found = rank_costs(numbered), pareto_levels(costs)
    assert sorted(order) == [*range(len(costs))]
    assert all(found[a] <= found[b] for a, b in pairwise(order))
    assert rank_costs(draw.sample(numbered, len(numbered))) == order


def test_within_a_level_the_ends_and_the_lonely_are_first() -> None:
    line = [Cost((x, 1.0 - x)) for x in (0.0, 0.1, 0.2, 0.7, 1.0)]
    assert rank_costs((cost, number) for number, cost in enumerate(line)) == [0, 4, 3, 2, 1]


def test_a_rung_lets_the_best_level_go_on_before_those_that_break_a_constraint() -> None:
    machine = Hyperband(most=9, eta=3, trials=9)
    for trial in range(9):
        # Trials 0 to 2 are the best but break a constraint; trials 6 to 8 dominate trials 3 to 5.
        machine.tell(trial, 1, float(trial < 6), 9.0 - trial, excess=float(trial < 3))
    assert [trial for trial in range(9) if machine.budget(trial) > 1] == [6, 7, 8]


def test_a_cost_has_the_sign_of_its_mode_and_the_sum_of_what_is_broken() -> None:
    objectives = Objectives(
        modes={"val_accuracy": "max", "seconds": "min"}, constraints=lambda reached: [reached["seconds"] - 60, -1, 2]
    )
    reached = {"val_accuracy": 0.75, "seconds": 61.5}
    assert objectives.constrained(reached) == (1.5, -1.0, 2.0)
    assert objectives.cost(reached, (1.5, -1.0, 2.0)) == Cost((-0.75, 61.5), 3.5)
    assert not objectives.cost({"seconds": 1.0}, ()).counts


@pytest.mark.parametrize("found", [1.0, None, ["1"], [0.5, math.nan], [math.inf], [-math.inf], {"seconds": 1.0}])
def test_constraints_that_are_no_numbers_are_refused(found: object) -> None:
    shown = "a list with 0.5, nan" if found == [0.5, math.nan] else ""
    with pytest.raises(StudyError, match=f"{shown}.*; it must return a list of numbers"):
        Objectives(modes={"val_loss": "min"}, constraints=lambda reached: found).constrained({})  # type: ignore[arg-type, return-value]
