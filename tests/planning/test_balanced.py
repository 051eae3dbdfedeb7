"""Tests the ``balanced`` policy: packs, split members, memory, homes and re-balancing."""

from dataclasses import replace

import pytest

from argosy.errors import PlanError
from argosy.planning import POLICIES, WITH_KNOWN_EPOCHS, best_with_known_epochs, make_plan
from argosy.planning.balanced import Balanced
from argosy.planning.homes import minimize_moves, moving_seconds
from argosy.planning.outcomes import Charges
from argosy.planning.policy import Moving, Situation
from argosy.plans import Flotilla, Placement
from planning.cases import GB, devices, profile
from planning.checker import check_plan

RATES = tuple(10.0 * m * 0.95 if m > 1 else 10.0 for m in range(1, 9))


def situation_of(profiles, cluster, **changes) -> Situation:
    return replace(Situation(waiting=tuple(profiles), free=cluster, devices=cluster), **changes)


def test_whole_members_are_packed_by_load() -> None:
    # Work 4, 3, 3, 2 on two devices: 4 + 2 and 3 + 3.
    members = [profile(name, 1 / work) for name, work in zip("abcd", (4.0, 3.0, 3.0, 2.0), strict=True)]
    plan = make_plan(members, devices(2))
    (pace,) = check_plan(plan.to_json(), members, devices(2))
    assert pace == pytest.approx(1 / 6.0, rel=1e-3)


def test_nothing_is_split_without_permission() -> None:
    members = [profile(f"m{number}", *RATES) for number in range(3)]
    plan = make_plan(members, devices(4))
    assert not any(placement.is_split for flotilla in plan.flotillas for placement in flotilla.placements)


def test_planning_takes_no_longer_for_members_of_very_many_epochs() -> None:
    members = [profile("short", 20.0), profile("long", 10.0), profile("longest", 10.0)]
    left = {"short": 3, "long": 10**8, "longest": 10**9}
    known = situation_of(members, devices(2), epochs_left=left, samples_per_epoch=1000)
    assert best_with_known_epochs(known, Charges(preparation_samples_per_second=100.0)) in WITH_KNOWN_EPOCHS


def test_what_does_not_fit_is_split_in_uneven_shares() -> None:
    # Three equal members on two devices: each holds a whole one, and the third is split over what is left of both.
    members = [profile(f"m{number}", *RATES, splittable=True) for number in range(3)]
    plan = make_plan(members, devices(2))
    (pace,) = check_plan(plan.to_json(), members, devices(2))
    ideal = 10.0 / 1.5
    assert 0.95 * ideal < pace < ideal


@pytest.mark.parametrize(("rates", "split"), [((10.0, 10.8), False), ((10.0, 13.0), True)])
def test_no_member_is_split_on_cpus_for_a_small_gain(rates: tuple[float, ...], split: bool) -> None:
    members, gpus = [profile("a", *rates, splittable=True)], devices(2)
    for kind, expected in (("cpu", split), ("gpu", True)):
        (flotilla,) = make_plan(members, [replace(device, kind=kind) for device in gpus]).flotillas
        assert flotilla.of("a").is_split is expected


def test_groups_stay_inside_a_node_where_one_has_the_room() -> None:
    # A group of three would be slower than one of two.
    members = [profile("big", 5.0, 9.0, 8.0, splittable=True), profile("a", 20.0), profile("b", 20.0)]
    (flotilla,) = make_plan(members, devices(4, node_devices=2)).flotillas
    (group,) = (placement.devices for placement in flotilla.placements if placement.is_split)
    assert len(group) == 2
    assert len({name.split("/")[0] for name in group}) == 1


def test_flotillas_rotate_when_memory_does_not_hold_all() -> None:
    members = [profile(f"m{number}", 10.0, memory_bytes=10 * GB) for number in range(6)]
    cluster = devices(2)
    first = Balanced().launch(situation_of(members, cluster))
    assert len(first[0].members) == 2
    running = tuple(p for p in members if p.member in first[0].members)
    others = tuple(p for p in members if p.member not in first[0].members)
    epoch_later = situation_of(others, cluster, epochs_done=dict.fromkeys(first[0].members, 1), free=())
    assert not Balanced().keeps(epoch_later, first[0], running)
    again = Balanced().launch(replace(epoch_later, waiting=tuple(members), free=cluster))
    assert not set(again[0].members) & set(first[0].members), (
        "the members that are an epoch behind go first, since a stream has one epoch at a time"
    )


def test_a_member_that_no_device_holds_is_refused_with_what_to_do() -> None:
    with pytest.raises(PlanError, match="batch_size"):
        make_plan([profile("huge", 1.0, memory_bytes=17 * GB)], devices(2))


def test_a_member_larger_than_the_free_devices_waits_for_a_larger_one() -> None:
    small, large = devices(2)
    large = replace(large, memory_bytes=32 * GB)
    huge = profile("huge", 1.0, memory_bytes=20 * GB)
    assert Balanced().launch(Situation(waiting=(huge,), free=(small,), devices=(small, large))) == ()


def test_members_share_one_stream_while_the_preparation_rate_is_unknown() -> None:
    unlike = [profile("slow", 1.0), profile("fast", 100.0)]
    assert len(make_plan(unlike, devices(2)).flotillas) == 1
    assert len(make_plan(unlike, devices(2), preparation_samples_per_second=200.0).flotillas) == 2
    assert len(make_plan(unlike, devices(2), preparation_samples_per_second=50.0).flotillas) == 1


def test_members_stay_at_home_when_equal_devices_can_be_exchanged() -> None:
    cluster = devices(8)
    members = [profile(f"m{number}", 10.0) for number in range(8)]
    homes = {f"m{number}": (cluster[7 - number].name,) for number in range(8)}
    (flotilla,) = Balanced().launch(situation_of(members, cluster, homes=homes))
    assert {placement.member: placement.devices for placement in flotilla.placements} == homes


def test_devices_are_exchanged_only_among_those_that_are_alike() -> None:
    small, large = devices(2, node_devices=1)
    cluster = (small, replace(large, memory_bytes=32 * GB))
    flotilla = Flotilla(placements=(Placement.whole(profile("a", 1.0), small.name),))
    assert minimize_moves(flotilla, cluster, {"a": (large.name,)}, [profile("a", 1.0)]) == flotilla


def test_moves_cost_the_busiest_device() -> None:
    one, two, three = (device.name for device in devices(3))
    members = [profile(name, 10.0, state_bytes=2 * GB) for name in "ab"]
    homes = {"a": (one,), "b": (one,)}
    spread = Flotilla(placements=(Placement.whole(members[0], two), Placement.whole(members[1], three)))
    per_device = Moving(bytes_per_second=1e9)
    assert moving_seconds([spread], homes, members, per_device) == pytest.approx(4.0), "one device sends both"
    together = Flotilla(placements=(Placement.whole(members[0], one), Placement.whole(members[1], two)))
    assert moving_seconds([together], homes, members, per_device) == pytest.approx(2.0)
    assert moving_seconds([spread], {}, members, per_device) == 0.0, "members that never trained have nothing to move"


def test_one_link_adds_all_receivers_up() -> None:
    names = [device.name for device in devices(3)]
    member = profile("a", *RATES, splittable=True, state_bytes=2 * GB)
    group = Flotilla(placements=(Placement.even(member, names),))
    homes = {"a": (names[0],)}
    assert moving_seconds([group], homes, [member], Moving(bytes_per_second=1e9)) == pytest.approx(2.0)
    assert moving_seconds([group], homes, [member], Moving(bytes_per_second=1e9, one_link=True)) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("samples", "certain", "keeps"), [(10, {}, True), (100_000, {}, False), (10, {"a": 9, "b": 30}, False)]
)
def test_a_flotilla_is_re_balanced_when_the_gain_pays_for_the_move(
    samples: int, certain: dict[str, int], keeps: bool
) -> None:
    cluster = devices(2)
    one, two = (device.name for device in cluster)
    left = (profile("a", 10.0), profile("b", 10.0))
    converged = profile("c")
    started = Flotilla(placements=(*(Placement.whole(p, one) for p in left), Placement.whole(converged, two)))
    # a and b share one device; the other has become free.
    situation = Situation(
        waiting=(),
        free=cluster[1:],
        devices=cluster,
        samples_per_epoch=samples,
        epochs_certain=certain,
        homes={"a": (one,), "b": (one,)},
        moving=Moving(rebalance_seconds=2.0, bytes_per_second=1e9),
    )
    assert Balanced().keeps(situation, started, left) is keeps


def test_known_epochs_choose_the_best_of_the_alternatives() -> None:
    # They cannot be split and are unlike: on one stream the fast one would wait for the slow one in every epoch.
    members = [profile("slow", 1.0), profile("fast", 100.0)]
    known = situation_of(
        members,
        devices(2),
        epochs_left={"slow": 1, "fast": 100},
        samples_per_epoch=1000,
        preparation_samples_per_second=1000.0,
    )
    best = best_with_known_epochs(known, Charges(preparation_samples_per_second=1000.0))
    assert len(POLICIES[best].launch(known)) == 2


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match=", ".join(POLICIES)):
        make_plan([profile("a", 1.0)], devices(1), policy="best")
