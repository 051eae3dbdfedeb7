"""Tests that heartbeats alone distinguish devices that wait for one another in vain from devices that wait for a slow one."""

from collections.abc import Callable, Sequence

import pytest

from argosy.plans import Flotilla, Placement
from argosy.running.control.hangs import OBSERVATIONS
from argosy.running.control.legs import Change, LiveLeg
from argosy.running.control.standstills import Standstills
from argosy.stream.heartbeat import Heartbeat, Sign

SECONDS = 8.0
TOGETHER = {("a", "b"): ("feeder", "a", "b", "c")}
"""Two devices that share members; the feeder and a third device of their leg are watched with them."""

PLANNED = Flotilla(placements=(Placement(member="m", devices=("d0",), seconds_per_sample=1.0),))


def waits(step: int = 5) -> Sign:
    return Sign(busy=False, beat=step, doing=f"waiting for 'wide' in step {step}", opaque=False, waits=True)


def idle(beat: int = 0) -> Sign:
    return Sign(busy=False, beat=beat, doing="", opaque=False, waits=False)


def busy(beat: int = 0) -> Sign:
    return Sign(busy=True, beat=beat, doing="training member 'whole'", opaque=False, waits=False)


def found(
    a: Callable[[int], Sign],
    b: Callable[[int], Sign],
    c: Callable[[int], Sign] = lambda now: idle(),
    feeder: Callable[[int], Sequence[Sign]] = lambda now: [idle()],
    seconds: int = 40,
) -> list[tuple[int, str]]:
    """Return when devices are found to stand still, and the messages, if they are observed once a second."""
    standstills, said = Standstills(SECONDS), []
    for now in range(seconds):
        shown = {"a": [a(now)], "b": [b(now)], "c": [c(now)], "feeder": feeder(now)}
        for devices, words in standstills.observe(float(now), TOGETHER, shown):
            assert devices == ("a", "b")
            said.append((now, words))
    return said


def test_a_sum_that_all_its_devices_wait_for_hangs_even_if_others_continue() -> None:
    said = found(lambda now: waits(), lambda now: waits(), c=busy, feeder=lambda now: [idle(), busy(now)], seconds=12)
    words = "a waiting for 'wide' in step 5; b waiting for 'wide' in step 5"
    assert said == [(8, f"no progress for 8 s: {words}")]


def test_a_sum_that_one_never_begins_hangs() -> None:
    said = found(lambda now: waits(), lambda now: idle(), seconds=12)
    assert said == [(8, "no progress for 8 s: a waiting for 'wide' in step 5; b with nothing to do")]


@pytest.mark.parametrize(
    "others",
    [
        {"b": busy},  # b steps members of its own.
        {"b": lambda now: busy(now) if now % 5 == 0 else idle(now // 5)},  # b was seen between two steps.
        {"b": idle},  # b is quick.
        {"b": lambda now: waits(now // 4)},  # b repeatedly waits for a new step.
        {"b": lambda now: idle(), "c": busy},  # A slower device still holds the blocks.
        {"b": lambda now: idle(), "feeder": lambda now: [idle(), busy(now)]},  # b's next block is being prepared.
    ],
)
def test_waiting_for_a_slow_device_is_no_standstill(others: dict[str, Callable[[int], Sign]]) -> None:
    assert found(lambda now: waits(), **others) == []


def test_steps_that_were_made_between_two_looks_are_progress() -> None:
    assert found(waits, waits) == []


def test_a_device_that_waits_for_no_sum_does_not_stand_still() -> None:
    assert found(lambda now: idle(), lambda now: idle()) == []


def test_what_a_device_does_while_it_waits_for_the_same_is_no_progress() -> None:
    """A device that saves its members every few seconds while it waits for the same sum still counts as standing still."""
    (first, _), *_ = found(lambda now: busy(now) if now % 4 == 0 else waits(), lambda now: waits())
    assert first < 2 * SECONDS


def test_time_in_which_the_driver_did_not_observe_does_not_count() -> None:
    standstills, shown = Standstills(SECONDS), {"a": [waits()], "b": [waits()]}
    found = [standstills.observe(1000.0 * now, {("a", "b"): ("a", "b")}, shown) for now in range(OBSERVATIONS + 1)]
    assert [bool(late) for late in found] == [False] * OBSERVATIONS + [True]


def test_a_heartbeat_shows_that_it_waits_and_is_not_busy() -> None:
    heartbeat = Heartbeat.private()
    with heartbeat.waiting("waiting for 'wide' in step 5"):
        (shown,) = heartbeat.read()
        assert shown.waits and not shown.busy and shown.doing == "waiting for 'wide' in step 5"
    (shown,) = heartbeat.read()
    assert not shown.waits and not shown.busy


def test_devices_are_together_that_wait_for_the_same_others() -> None:
    leg = LiveLeg(number=0, flotilla=PLANNED, feeders=(), until=0)
    assignments = {"a": ("x", "whole"), "b": ("x", "y"), "c": ("y",), "d": ("z", "other"), "e": ("z",), "f": ("alone",)}
    for device, members in assignments.items():
        leg.change(device, 1, Change(start=members))
    assert sorted(leg.linked_devices) == [("a", "b", "c"), ("d", "e")]
