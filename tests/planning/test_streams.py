"""Tests the choice between one stream and several: which members get a stream of their own, share one, wait, or make room."""

from dataclasses import replace

import pytest

from argosy.planning import make_plan
from argosy.planning.balanced import Balanced
from argosy.planning.policy import Situation
from argosy.plans import Flotilla, Placement
from planning.cases import GB, devices, profile
from planning.stops import Draw, compare, over_bound

FREE = float("inf")
ONE_SLOW = (profile("slow", 1.0), *(profile(f"m{number}", 10.0) for number in range(20)))
"""Seconds of work per sample: 1, and twenty times 0.1."""


def situation_of(profiles, cluster, **changes) -> Situation:
    limits = {profile.member: 100 for profile in profiles}
    known = Situation(waiting=tuple(profiles), free=cluster, devices=cluster, epochs_left=limits, samples_per_epoch=10)
    return replace(known, preparation_samples_per_second=FREE, **changes)


def streams_of(situation: Situation) -> list[set[str]]:
    return [set(flotilla.members) for flotilla in Balanced().launch(situation)]


def test_a_member_that_may_train_longest_gets_its_own_stream() -> None:
    # On four devices all members are expected to end after 0.375 of the time that "slow" may need, so it shares with none.
    first, second = streams_of(situation_of(ONE_SLOW, devices(4)))
    assert first == {"slow"} and len(second) == 20


def test_one_stream_is_enough_if_devices_are_busy_and_no_member_is_long() -> None:
    # On one device, all members together take three times as long as "slow" needs.
    assert len(streams_of(situation_of(ONE_SLOW, devices(1)))) == 1


def test_members_that_delay_no_other_share_a_stream() -> None:
    alike = [profile(f"m{number}", 10.0 + 0.01 * number) for number in range(8)]
    assert len(streams_of(situation_of(alike, devices(8)))) == 1


@pytest.mark.parametrize(("preparation", "streams"), [(1.0, 1), (3.0, 2), (4.0, 3), (100.0, 4)])
def test_there_are_as_many_streams_as_preparation_can_feed(preparation: float, streams: int) -> None:
    # Alone on a device the members ask for 1, 1.11, 1.25 and 1.43 samples/s; the longest one comes first.
    unlike = [profile(f"m{number}", 1 / (1.0 - number / 10)) for number in range(4)]
    situation = replace(situation_of(unlike, devices(4)), preparation_samples_per_second=preparation)
    assert len(streams_of(situation)) == streams


def test_what_runs_beside_is_prepared_too() -> None:
    unlike = [profile(f"m{number}", 1 / (1.0 - number / 10)) for number in range(3)]
    cluster = devices(4)
    beside = Flotilla(placements=(Placement.whole(profile("beside", 97.0), cluster[3].name),))
    situation = replace(situation_of(unlike, cluster, running=(beside,)), free=cluster[:3])
    assert len(streams_of(replace(situation, preparation_samples_per_second=98.5))) == 1
    assert len(streams_of(replace(situation, preparation_samples_per_second=101.0))) == 3


def test_where_all_are_long_every_device_gets_a_stream_and_the_others_wait() -> None:
    unlike = [profile(f"m{number}", 1.0 + 0.1 * number) for number in range(6)]
    assert streams_of(situation_of(unlike, devices(4))) == [{"m0"}, {"m1"}, {"m2"}, {"m3"}]
    # Members that have done the fewest of their epochs last longest.
    left = {f"m{number}": 100 if number > 1 else 10 for number in range(6)}
    done = {f"m{number}": 100 - left[f"m{number}"] for number in range(6)}
    situation = situation_of(unlike, devices(4), epochs_done=done)
    assert streams_of(replace(situation, epochs_left=left)) == [{"m2"}, {"m3"}, {"m4"}, {"m5"}]


def test_members_share_a_device_until_its_stream_is_slow_enough_to_feed() -> None:
    # The three other streams leave 4 of 7 samples/s. Two members of rate 12 would read 6 a second, three read 4.
    cluster = devices(4)
    beside = tuple(Flotilla(placements=(Placement.whole(profile(f"b{n}", 1.0), cluster[n].name),)) for n in range(3))
    fast = [profile(f"m{number}", 12.0) for number in range(40)]
    situation = replace(
        situation_of(fast, cluster, running=beside), free=cluster[3:], preparation_samples_per_second=7.0
    )
    (pack,) = streams_of(situation)
    assert len(pack) == 3


@pytest.mark.parametrize(("left", "keeps"), [(90, True), (10, False)])
def test_a_member_that_has_most_behind_it_makes_room_for_one_that_may_last_longer(left: int, keeps: bool) -> None:
    here, waits, beside = profile("here", 1.0), profile("waits", 2.0), profile("beside", 1.0)
    first, second = devices(2)
    started = Flotilla(placements=(Placement.whole(here, first.name),))
    running = (Flotilla(placements=(Placement.whole(beside, second.name),)),)
    situation = situation_of([waits], (first, second), running=running, epochs_done={"here": 1})
    situation = replace(situation, free=(), epochs_left={"here": left, "waits": 100, "beside": 100})
    assert Balanced().keeps(situation, started, (here,)) is keeps


def test_newcomers_are_planned_with_those_that_they_can_share_a_stream_with() -> None:
    here = tuple(profile(f"m{number}", 10.0) for number in range(3))
    cluster = devices(1)
    started = Flotilla(placements=tuple(Placement.whole(p, cluster[0].name) for p in here))
    situation = replace(situation_of([profile("new", 10.0)], cluster), free=())
    assert not Balanced().keeps(situation, started, here)


def test_a_member_that_no_other_device_makes_faster_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.planning.balanced.best_flotilla", None)
    cluster = devices(8)
    started = Flotilla(placements=(Placement.whole(ONE_SLOW[0], cluster[0].name),))
    situation = replace(situation_of([], cluster), free=cluster[1:])
    assert Balanced().keeps(situation, started, ONE_SLOW[:1])


def test_a_stream_parts_at_an_epoch_that_leaves_devices_free() -> None:
    slow, middle, fast = (profile(name, rate) for name, rate in (("slow", 1.0), ("middle", 1.3), ("fast", 1.6)))
    cluster = devices(3)
    situation = replace(situation_of([], cluster), preparation_samples_per_second=3.0)
    started = Flotilla(
        placements=tuple(Placement.whole(p, d.name) for p, d in zip((slow, middle, fast), cluster, strict=True))
    )
    together = streams_of(replace(situation_of((slow, middle, fast), cluster), preparation_samples_per_second=2.0))
    assert together == [{"slow", "middle", "fast"}]
    # "slow" has stopped. The 3 samples/s now suffice for a stream for each of the two others.
    left = replace(situation, free=cluster[:1], epochs_left={"middle": 50, "fast": 50}, samples_per_epoch=1000)
    assert not Balanced().keeps(left, started, (middle, fast))
    assert Balanced().keeps(replace(left, preparation_samples_per_second=1.5), started, (middle, fast))


def test_memory_that_does_not_hold_all_lets_some_wait_where_streams_are_free_and_take_turns_where_not() -> None:
    members = [profile(f"m{number}", 10.0, memory_bytes=10 * GB) for number in range(6)]
    assert len(make_plan(members, devices(2), preparation_samples_per_second=1000.0).flotillas) == 2
    assert len(make_plan(members, devices(2), preparation_samples_per_second=5.0).flotillas) == 1


@pytest.mark.parametrize("spread", [10, 10_000])
@pytest.mark.parametrize("preparation", ["free", "dear"])
def test_never_behind_a_list_by_rate_nor_behind_solo(spread: int, preparation: str) -> None:
    outcome = compare(Draw(family="even", jobs=100, spread=spread, seed=0), devices(32), preparation)
    assert max(outcome.over(outcome.rate_first), outcome.over(outcome.solo)) <= 1.01


@pytest.mark.parametrize("curves", ["fleet", "linear"])
def test_where_jobs_may_be_split_and_stop_early_splits_cost_nothing(curves: str) -> None:
    outcome = compare(Draw(family="even", jobs=100, spread=10_000, seed=2, curves=curves), devices(8), "free")
    assert max(outcome.over(outcome.rate_first), outcome.over(outcome.solo)) <= 1.01


def test_a_member_that_would_outlast_all_others_is_split_and_one_that_would_not_is_not() -> None:
    curve = (1.0, 1.8, 2.5, 3.1)
    slow = profile("slow", *curve, splittable=True)
    fast = [profile(f"m{number:02}", *(10 * rate for rate in curve), splittable=True) for number in range(40)]
    for others, split in (
        (fast, False),
        (fast[:20], True),
    ):  # unsplit on four devices, all the work takes 1.25 and 0.75 s a sample, and "slow" 1
        flotillas = Balanced().launch(situation_of((slow, *others), devices(4)))
        assert any(placement.is_split for flotilla in flotillas for placement in flotilla.placements) is split
    fed = situation_of((slow, *fast), devices(4))
    assert len(Balanced().launch(fed)) > len(Balanced().launch(replace(fed, preparation_samples_per_second=5.0))) == 1


def test_close_to_the_bound_where_all_train_all_their_epochs() -> None:
    ratio = over_bound(Draw(family="even", jobs=100, spread=10, seed=0), devices(32))
    assert ratio is not None and ratio <= 1.02
