"""Tests the discrete-event simulation, and what it charges, on cases worked by hand."""

from dataclasses import dataclass, replace

import pytest

from argosy.errors import PlanError
from argosy.planning import POLICIES
from argosy.planning.balanced import Balanced
from argosy.planning.choice import simulate_best
from argosy.planning.outcomes import Charges, Workload
from argosy.planning.policy import Moving, Situation
from argosy.planning.simulate import lower_bound_seconds, simulate
from argosy.planning.solo import SoloPolicy
from argosy.plans import Flotilla
from argosy.profiles import Profile
from planning.cases import GB, devices, profile


def workload(*members, samples: int = 100, **epochs: int) -> Workload:
    return Workload(profiles=members, epochs=epochs, samples_per_epoch=samples)


A, B, C = profile("a", 10.0), profile("b", 20.0), profile("c", 50.0)


def test_solo_takes_the_next_member_when_a_device_is_free() -> None:
    # a: 10 s on the first device; b: 5 s, then c: 3 epochs of 2 s on the second.
    run = simulate(POLICIES["solo"], workload(A, B, C, a=1, b=1, c=3), devices(2))
    assert run.finished_seconds == pytest.approx({"b": 5.0, "a": 10.0, "c": 11.0})
    assert run.makespan_seconds == pytest.approx(11.0)
    assert run.wait_seconds == pytest.approx(
        {device.name: wait for device, wait in zip(devices(2), (1.0, 0.0), strict=True)}
    )
    assert run.idle_share == pytest.approx(1 / 22)
    assert run.flotillas == 3 and run.moves == 0


def test_a_flotilla_moves_at_the_pace_of_its_slowest_unless_buffers_are_endless() -> None:
    both = workload(A, B, a=1, b=2)
    together = simulate(POLICIES["rounds"], both, devices(2))
    assert together.finished_seconds == pytest.approx({"a": 10.0, "b": 15.0})
    apart = simulate(POLICIES["rounds"], both, devices(2), charges=Charges(one_pace=False))
    assert apart.finished_seconds == pytest.approx({"a": 10.0, "b": 10.0})


def test_a_pack_shares_its_device() -> None:
    run = simulate(Balanced(), workload(A, B, a=1, b=1), devices(1))
    assert run.makespan_seconds == pytest.approx(15.0)
    assert run.idle_share == pytest.approx(0.0)


def test_preparation_caps_the_pace_of_the_stream_and_solo_prepares_for_each() -> None:
    both = workload(profile("a", 10.0), profile("b", 10.0), a=1, b=1)
    charges = Charges(preparation_samples_per_second=10.0)
    assert simulate(POLICIES["rounds"], both, devices(2), charges=charges).makespan_seconds == pytest.approx(10.0)
    assert simulate(POLICIES["solo"], both, devices(2), charges=charges).makespan_seconds == pytest.approx(20.0)


def test_a_further_stream_waits_until_its_feeder_has_opened_the_data_once() -> None:
    # b and then c run on the second device, whose feeder opens the data only for b.
    run = simulate(POLICIES["solo"], workload(A, B, C, a=1, b=1, c=1), devices(2), charges=Charges(opening_seconds=3.0))
    assert run.finished_seconds == pytest.approx({"a": 10.0, "b": 8.0, "c": 10.0})


def test_on_cpus_preparing_a_stream_takes_cores_from_training() -> None:
    # Training on both cores takes all of them; each stream of 10 samples/s takes a quarter of the 40 that they could
    # prepare instead.
    both = workload(profile("a", 10.0), profile("b", 10.0), a=1, b=1)
    charges = Charges(preparation_samples_per_second=40.0, preparation_known=False, training_share=0.5)
    assert simulate(POLICIES["solo"], both, devices(2), charges=charges).makespan_seconds == pytest.approx(15.0)
    assert simulate(POLICIES["rounds"], both, devices(2), charges=charges).makespan_seconds == pytest.approx(12.5)


def test_streams_are_slowed_down_only_as_long_as_they_ask_for_too_much() -> None:
    # Both ask for 40 samples/s of 20, so b takes 100 / 15 s. By then a has done a third of its epoch; the rest runs at
    # full speed.
    both = workload(A, profile("b", 30.0), a=1, b=1)
    run = simulate(POLICIES["solo"], both, devices(2), charges=Charges(preparation_samples_per_second=20.0))
    assert run.finished_seconds == pytest.approx({"b": 100 / 15, "a": 100 / 15 + (200 / 3) / 10})
    assert sum(run.wait_seconds.values()) == pytest.approx(2 * run.makespan_seconds - 10 - 100 / 30)


def test_epochs_too_short_for_the_time_of_day_to_tell_apart_still_end() -> None:
    late = workload(profile("slow", 1e-9), profile("fast", 1e9), slow=1, fast=3)
    run = simulate(POLICIES["solo"], replace(late, profiles=late.profiles[::-1]), devices(1))
    assert set(run.finished_seconds) == {"slow", "fast"}
    again = simulate(POLICIES["solo"], late, devices(1))
    assert again.makespan_seconds == pytest.approx(1e11)


def test_slowdown_checkpoints_and_flotillas_are_charged() -> None:
    charges = Charges(slowdown=1.5, checkpoint_seconds=2.0, flotilla_seconds=30.0)
    run = simulate(POLICIES["solo"], workload(A, a=2), devices(1), charges=charges)
    assert run.makespan_seconds == pytest.approx(30.0 + 15.0 + 2.0 + 15.0)


def test_moves_are_charged_when_a_flotilla_is_re_balanced() -> None:
    big = [profile(name, 10.0, state_bytes=4 * GB, memory_bytes=6 * GB) for name in "abc"]
    moving = Moving(rebalance_seconds=2.0, bytes_per_second=1e9)
    run = simulate(
        Balanced(), workload(*big, samples=10_000, a=1, b=2, c=2), devices(2), charges=Charges(moving=moving)
    )
    # In the first epoch two members share a device (2000 s); then one of the two that are left may move to the free
    # device.
    assert run.makespan_seconds == pytest.approx(2000.0 + 6.0 * run.moves + 1000.0)


def test_members_that_rotate_through_memory_come_back_from_the_host() -> None:
    large = [profile(name, 10.0, state_bytes=4 * GB, memory_bytes=12 * GB) for name in "ab"]
    moving = Moving(bytes_per_second=1e9)
    run = simulate(Balanced(), workload(*large, a=2, b=2), devices(1), charges=Charges(moving=moving))
    assert run.flotillas == 4 and run.moves == 2
    assert run.makespan_seconds == pytest.approx(4 * 10.0 + 2 * 4.0)


def test_the_timeline_says_what_every_device_did() -> None:
    run = simulate(Balanced(), workload(A, B, a=1, b=2), devices(1))
    assert [(s.start_seconds, s.end_seconds, s.members) for s in run.timeline] == [
        (0.0, pytest.approx(15.0), ("a", "b")),
        (pytest.approx(15.0), pytest.approx(20.0), ("b",)),
    ]


def test_nothing_to_train_takes_no_time() -> None:
    run = simulate(Balanced(), workload(A, a=0), devices(2))
    assert (run.makespan_seconds, run.bound_seconds, run.idle_share, run.flotillas) == (0.0, 0.0, 0.0, 0)


def test_a_policy_sees_limits_where_it_does_not_see_when_members_stop() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Watching(SoloPolicy):
        def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
            seen.append(situation.epochs_left["a"])
            return True

    simulate(Watching(), replace(workload(A, a=3), epochs_known=False, limits={"a": 9}), devices(1))
    assert seen == [8, 7]


def test_a_workload_knows_the_epochs_of_every_member() -> None:
    with pytest.raises(PlanError, match="'b'"):
        workload(A, B, a=1)


def test_only_the_planner_is_timed() -> None:
    ticks = iter(range(1000))
    run = simulate(POLICIES["solo"], workload(A, a=1), devices(1), clock=lambda: next(ticks))
    assert run.planner_seconds == 1


def test_the_bound_is_the_work_or_the_longest_member() -> None:
    member = profile("a", 10.0, 15.0, splittable=True)
    assert lower_bound_seconds(workload(member, B, a=3, b=2), 1) == pytest.approx(40.0)
    assert lower_bound_seconds(workload(member, a=3), 8) == pytest.approx(30.0 / (member.rate(3) / 10.0), rel=0.2)
    assert lower_bound_seconds(workload(A, B, a=3, b=2), 8) == pytest.approx(30.0)


def test_the_best_of_several_is_named() -> None:
    slow_and_fast = workload(profile("slow", 1.0), profile("fast", 100.0), a=0, slow=1, fast=100)
    alternatives = {name: POLICIES[name] for name in ("rounds", "solo")}
    assert simulate_best(alternatives, slow_and_fast, devices(2), charges=Charges()).policy == "solo"


def test_the_first_alternative_is_left_for_a_clear_gain_only() -> None:
    # rounds: an epoch at the pace of a, then b alone, 10 + 10 s; solo: 12 s.
    slow_and_fast = workload(A, C, a=1, c=6)
    alternatives = {name: POLICIES[name] for name in ("rounds", "solo")}
    for margin, policy in ((0.05, "solo"), (0.5, "rounds")):
        found = simulate_best(alternatives, slow_and_fast, devices(2), charges=Charges(), margin=margin)
        assert found.policy == policy
