"""The static order of steps: what it costs, and that another order would cost more."""

import pytest
from hypothesis import given, settings

from argosy.planning import make_plan
from argosy.planning.waiting import cycle_seconds, cycle_seconds_of
from argosy.plans import Half, Step
from planning.cases import Case, large_cases


def begin(member: str) -> Step:
    return Step(member=member, half=Half.BEGIN)


def finish(member: str) -> Step:
    return Step(member=member, half=Half.FINISH)


def own(member: str) -> Step:
    return Step(member=member, half=Half.STEP)


def test_a_finish_right_after_its_begin_makes_devices_wait_in_every_cycle() -> None:
    # first: x begins 1, y finishes 1; second: x finishes 1, y begins 1. Each works 2, each waits for the other's halves.
    naive = {
        "first": [(begin("x"), 1.0), (finish("x"), 0.0), (begin("y"), 0.0), (finish("y"), 1.0)],
        "second": [(begin("x"), 0.0), (finish("x"), 1.0), (begin("y"), 1.0), (finish("y"), 0.0)],
    }
    assert cycle_seconds_of(naive) == pytest.approx(4.0)


def test_begins_before_finishes_hide_the_same_waiting() -> None:
    ours = {
        "first": [(begin("x"), 1.0), (begin("y"), 0.0), (finish("x"), 0.0), (finish("y"), 1.0)],
        "second": [(begin("x"), 0.0), (begin("y"), 1.0), (finish("x"), 1.0), (finish("y"), 0.0)],
    }
    assert cycle_seconds_of(ours) == pytest.approx(2.0)


def test_a_device_without_work_of_its_own_waits_but_does_not_slow_the_others() -> None:
    orders = {
        "full": [(begin("x"), 1.0), (own("a"), 3.0), (finish("x"), 0.5)],
        "idle": [(begin("x"), 1.0), (finish("x"), 0.5)],
    }
    assert cycle_seconds_of(orders) == pytest.approx(4.5)


def test_orders_that_wait_in_a_circle_are_our_bug() -> None:
    circle = {
        "first": [(begin("x"), 1.0), (finish("x"), 0.0), (begin("y"), 1.0), (finish("y"), 0.0)],
        "second": [(begin("y"), 1.0), (finish("y"), 0.0), (begin("x"), 1.0), (finish("x"), 0.0)],
    }
    with pytest.raises(AssertionError, match="circle"):
        cycle_seconds_of(circle)


@settings(max_examples=20)
@given(large_cases(efficiency=0.95))
def test_the_order_of_a_plan_costs_no_more_than_its_busiest_device(case: Case) -> None:
    profiles = {profile.member: profile for profile in case.profiles}
    for flotilla in make_plan(case.profiles, case.devices).flotillas:
        assert cycle_seconds(flotilla, profiles) == pytest.approx(max(flotilla.loads.values()), rel=1e-6)
