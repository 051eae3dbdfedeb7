"""Runs a few cases of the campaigns that ``benchmarks/planner_random.py`` runs by the thousand."""

import pytest
from hypothesis import given, settings

from planning.campaign import against_solo, check_first_plan, optimality_gap
from planning.cases import Case, large_cases, small_case


@settings(max_examples=25)
@given(large_cases(efficiency=0.95))
def test_never_behind_solo_where_epochs_are_known(case: Case) -> None:
    check_first_plan(case)
    assert against_solo(case, epochs_known=True) <= 1.0 + 1e-9


@settings(max_examples=25)
@given(large_cases())
def test_never_twice_as_slow_as_solo_where_epochs_are_unknown(case: Case) -> None:
    check_first_plan(case)
    assert against_solo(case, epochs_known=False) <= 2.0


def test_close_to_the_optimum_on_small_cases() -> None:
    pytest.importorskip("highspy", reason="needs the extra 'exact'")
    gaps = [gap for seed in range(40) if (gap := optimality_gap(small_case(seed))) is not None]
    assert min(gaps) >= 1.0 - 1e-6, "nothing is better than the optimum"
    assert sum(gaps) / len(gaps) <= 1.1
    assert max(gaps) <= 1.25
