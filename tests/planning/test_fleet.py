"""Tests FLEET's algorithms on cases small enough to work by hand."""

from itertools import permutations

import pytest

from argosy.errors import PlanError
from argosy.planning.fleet import Fleet, create_flotilla, find_next, similar_rates
from argosy.planning.placement import assign_devices, node_spread, place_contiguously
from argosy.planning.policy import Situation
from planning.cases import GB, devices, profile


def linear(member: str, rate: float, *, most: int = 16):
    """Return a member that scales perfectly up to ``most`` devices."""
    return profile(member, *(rate * m for m in range(1, most + 1)), splittable=True)


def test_algorithm_2_brings_slow_members_to_the_rate_of_the_fastest() -> None:
    # r_fast = 100: b reaches 100 on 2 devices, c 100 on 4; 7 of 7 devices are used.
    counts = create_flotilla([linear("c", 25.0), linear("a", 100.0), linear("b", 50.0)], 7, 20.0)
    assert counts == {"a": 1, "b": 2, "c": 4}


def test_algorithm_2_takes_the_nearest_rate_that_the_left_devices_allow() -> None:
    # c alone would need 4 devices. With the 3 that are left its rate of 75 is outside delta, so it waits, and 5 - 3 = 2
    # remain.
    counts = create_flotilla([linear("c", 25.0), linear("a", 100.0), linear("b", 50.0)], 5, 20.0)
    assert set(counts) == {"a", "b"}
    assert sum(counts.values()) == 5


def test_left_over_devices_go_to_the_slowest_one_at_a_time() -> None:
    # a: 100, b: 90 -> b 180 -> a 200 -> b 270.
    counts = create_flotilla([linear("a", 100.0), linear("b", 90.0)], 5, 20.0)
    assert counts == {"a": 2, "b": 3}


def test_left_over_devices_stop_at_the_peak_of_the_rate() -> None:
    peaked = profile("a", 100.0, 150.0, 140.0, splittable=True)
    assert create_flotilla([peaked], 8, 20.0) == {"a": 2}


def test_delta_is_absolute() -> None:
    candidates = [linear("a", 100.0), profile("b", 79.0), profile("c", 81.0)]
    assert set(create_flotilla(candidates, 3, 20.0)) == {"a", "c"}


def test_delta_may_be_a_part_of_the_fastest_rate() -> None:
    fast, cluster = (profile("a", 10_000.0), profile("b", 9_500.0), profile("c", 8_000.0)), devices(3)
    situation = Situation(waiting=fast, free=cluster, devices=cluster)
    assert [set(f.members) for f in Fleet().launch(situation)] == [{"a"}]
    assert [set(f.members) for f in Fleet(delta=0.1, relative=True).launch(situation)] == [{"a", "b"}]


def test_equation_3_is_the_least_distance_over_members_and_counts() -> None:
    rates = {"a": [100.0], "b": [55.0, 104.0], "c": [40.0, 70.0, 97.0]}
    similar = similar_rates(rates, 100.0, 20.0)
    assert find_next(similar, {"a": 1}, 4) == ("c", 3)
    assert find_next(similar, {"a": 1}, 2) == ("b", 2)
    assert find_next(similar, {"a": 1}, 1) is None


def test_algorithm_3_fills_whole_nodes_then_pairs_then_the_rest() -> None:
    positions = place_contiguously({"a": 3, "b": 4, "c": 1, "d": 2, "e": 8}, 4)
    assert (positions["b"], positions["e"]) == (range(4), range(4, 12))  # whole nodes
    assert {positions["a"], positions["c"]} == {range(12, 15), range(15, 16)}  # 3 + 1 fill a node
    assert positions["d"] == range(16, 18)
    assert node_spread(positions, 4) == pytest.approx(1 / 3 + 1 / 4 + 1 + 1 / 2 + 2 / 8)


def test_algorithm_3_finds_partners_whose_remainder_is_not_half_a_node() -> None:
    # As printed, the algorithm deletes another entry than the one found, and a third member of remainder 3 would pair
    # with a again.
    positions = place_contiguously({"a": 1, "b": 3, "c": 3}, 4)
    assert {positions["a"], positions["b"]} == {range(1), range(1, 4)}
    assert positions["c"] == range(4, 7)


def test_the_rest_takes_the_order_that_touches_the_fewest_nodes() -> None:
    # On nodes of 4 no two of these fill nodes together, so all of them are the rest.
    counts = {"a": 3, "b": 3, "c": 3, "d": 7}
    spreads = [node_spread(assign_devices(order, counts, 0), 4) for order in permutations(counts)]
    assert min(spreads) < spreads[0]  # the order in which they are given is not the best
    assert node_spread(place_contiguously(counts, 4), 4) == pytest.approx(min(spreads))


def test_many_members_of_one_remainder_are_placed_without_trying_every_order() -> None:
    counts = {f"m{number}": 3 for number in range(40)}
    positions = place_contiguously(counts, 4)
    assert sorted(p for group in positions.values() for p in group) == list(range(120))


def test_equation_4_counts_nodes_per_device() -> None:
    assert node_spread({"a": range(2, 6), "b": range(2)}, 4) == pytest.approx(2 / 4 + 1 / 2)


def test_a_flotilla_stops_when_fewer_than_alpha_of_its_devices_train() -> None:
    members = tuple(profile(f"m{number}", 100.0) for number in range(5))
    cluster = devices(5)
    (flotilla,) = Fleet().launch(Situation(waiting=members, free=cluster, devices=cluster))
    situation = Situation(waiting=(), free=cluster[4:], devices=cluster)
    assert Fleet().keeps(situation, flotilla, members[:4])  # 4 of 5 is alpha exactly, and only fewer end the flotilla
    assert not Fleet().keeps(situation, flotilla, members[:3])


def test_the_global_variant_waits_for_every_device_and_the_local_one_does_not() -> None:
    cluster = devices(4)
    situation = Situation(waiting=(profile("a", 10.0),), free=cluster[:2], devices=cluster)
    assert Fleet().launch(situation) == ()
    (flotilla,) = Fleet(local=True).launch(situation)
    assert flotilla.members == ("a",)
    assert Fleet(local=True).keeps(situation, flotilla, situation.waiting)


def test_members_are_placed_contiguously_on_the_free_devices() -> None:
    cluster = devices(5)
    situation = Situation(waiting=(linear("a", 100.0), linear("b", 25.0)), free=cluster, devices=cluster)
    (flotilla,) = Fleet().launch(situation)
    by_member = {placement.member: placement.devices for placement in flotilla.placements}
    assert by_member["b"] == tuple(device.name for device in cluster[:4])
    assert flotilla.samples_per_second == pytest.approx(100.0)


def test_unequal_devices_are_refused() -> None:
    cluster = (*devices(2), *devices(4, memory_bytes=32 * GB)[2:])
    with pytest.raises(PlanError, match="equal devices"):
        Fleet().launch(Situation(waiting=(profile("a", 1.0),), free=cluster, devices=cluster))
