"""Tests rates, Equation 5, costs of shards, FLEET's measuring protocol, preparation rates and files."""

from pathlib import Path

import pytest

from argosy.disk.cached import Cached
from argosy.errors import PlanError
from argosy.profiles import (
    PreparationRates,
    Profile,
    ShardCost,
    fit_shard_cost,
    largest_measured_group,
    load_profiles,
    pack_memory_bytes,
    save_profiles,
)
from planning.cases import GB, profile

EIGHT = (26.3, 42.5, 63.7, 83.0, 101.9, 119.6, 135.8, 150.1)


def test_measured_rates_are_given_as_measured() -> None:
    assert [profile("a", *EIGHT).rate(m) for m in range(1, 9)] == list(EIGHT)


def test_equation_5_extrapolates_from_two_nodes() -> None:
    # r(10) = 10 * r(8)/8 * (r(8)/r(7) * 7/8)^2
    assert profile("a", *EIGHT).rate(10) == pytest.approx(10 * 150.1 / 8 * (150.1 / 135.8 * 7 / 8) ** 2)


def test_equation_5_anchors_at_twice_the_devices_of_a_node_even_if_more_was_measured() -> None:
    two = profile("a", *EIGHT, node_devices=2)
    assert two.rate(9) == pytest.approx(9 * 83.0 / 4 * (83.0 / 63.7 * 3 / 4) ** 5)


def test_a_superlinear_anchor_does_not_promise_endless_rates() -> None:
    assert profile("a", 10.0, 19.0, 31.0).rate(30) == pytest.approx(30 * 31 / 3)


def test_one_rate_says_nothing_about_groups() -> None:
    alone = profile("a", 50.0, splittable=True)
    assert alone.rate(4) == 50.0
    assert alone.largest_group(8) == 1


def test_the_largest_group_ends_at_the_peak() -> None:
    steep = profile("a", 10.0, 15.0, 17.0, 16.0, splittable=True)
    assert steep.largest_group(64) == 3
    assert steep.largest_group(2) == 2
    falling = profile("a", *EIGHT, splittable=True)
    peak = falling.largest_group(160)
    assert falling.rate(peak) == max(falling.rate(m) for m in range(1, 161))


def test_even_shards_cost_exactly_the_measured_rate() -> None:
    measured = profile("a", *EIGHT, splittable=True)
    for m in (2, 5, 8, 12):
        assert measured.shard_seconds(m, 1 / m) == pytest.approx(1 / measured.rate(m))


def test_a_larger_share_costs_in_proportion() -> None:
    measured = profile("a", *EIGHT, splittable=True)
    step = measured.shard_seconds(2, 0.7) - measured.shard_seconds(2, 0.3)
    assert step == pytest.approx(0.4 * measured.shard.proportional_seconds)


def test_the_fit_recovers_a_cost_that_is_of_its_form() -> None:
    fixed, proportional = 0.001, 0.04
    rates = tuple(1 / (fixed + proportional / m) for m in range(1, 9))
    cost = fit_shard_cost(rates)
    assert cost.proportional_seconds == pytest.approx(proportional)
    assert cost.fixed_seconds == pytest.approx(fixed)


def test_a_cost_that_was_measured_is_used() -> None:
    cost = ShardCost(fixed_seconds=0.002, proportional_seconds=0.02)
    assert profile("a", *EIGHT, shard_cost=cost).shard == cost


def test_observation_moves_all_rates_alike() -> None:
    seen = profile("a", 100.0, 180.0).observed(90.0, devices=2, weight=0.5)
    assert seen.samples_per_second == pytest.approx((75.0, 135.0))


def test_a_pack_holds_all_states_and_the_largest_step() -> None:
    pack = [
        profile("a", memory_bytes=5 * GB, activation_bytes=4 * GB),
        profile("b", memory_bytes=4 * GB, activation_bytes=2 * GB),
    ]
    assert pack_memory_bytes(pack) == 7 * GB


@pytest.mark.parametrize("change", [{"activation_bytes": 2 * GB}, {"state_bytes": -1}, {"node_devices": 0}])
def test_impossible_sizes_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="impossible sizes"):
        profile("a", 1.0, **change)


@pytest.mark.parametrize("rates", [(0.0,), (1.0, -2.0), (float("nan"),), (float("inf"),)])
def test_impossible_rates_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(PlanError, match="rates must be positive"):
        profile("a", *rates)


def test_groups_are_measured_up_to_the_ratio_of_the_rates_or_two_nodes() -> None:
    assert largest_measured_group([21.0, 176.0], node_devices=4) == 9  # M_a = ceil(176 / 21), M_b = 8
    assert largest_measured_group([10.0, 11.0], node_devices=3) == 6


def test_preparation_is_linear_between_measurements_and_flat_beyond() -> None:
    preparation = PreparationRates(samples_per_second=((1, 100.0), (4, 340.0)))
    assert preparation.rate(1) == 100.0
    assert preparation.rate(2) == pytest.approx(180.0)
    assert preparation.rate(64) == 340.0


def test_preparation_refuses_disorder() -> None:
    with pytest.raises(PlanError, match="increasing order"):
        PreparationRates(samples_per_second=((4, 100.0), (1, 50.0)))


def test_profiles_survive_a_file(tmp_path: Path) -> None:
    cost = ShardCost(fixed_seconds=0.0, proportional_seconds=0.01)
    written = (profile("a", *EIGHT, splittable=True), profile("b", 5.0, shard_cost=cost))
    save_profiles(tmp_path / "p.json", written)
    assert load_profiles(tmp_path / "p.json") == written


def test_a_file_without_profiles_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(PlanError, match="argosy profile --out"):
        load_profiles(tmp_path / "p.json")


def test_the_cache_knows_member_kind_and_versions(tmp_path: Path) -> None:
    cache = Cached(folder=tmp_path / "cache", kind=Profile)
    key = cache.key("resnet/0.1", "H200", "2.13")
    assert cache.load(key) is None
    cache.save(key, profile("a", *EIGHT))
    assert cache.load(key) == profile("a", *EIGHT)
    for other in (("resnet/0.2", "H200", "2.13"), ("resnet/0.1", "cpu", "2.13"), ("resnet/0.1", "H200", "2.14")):
        assert cache.load(cache.key(*other)) is None


@pytest.mark.parametrize("damage", ["", "{", '{"member": "a"}', '{"unknown": 1}', "[]"])
def test_a_damaged_entry_is_measured_again(tmp_path: Path, damage: str) -> None:
    cache = Cached(folder=tmp_path, kind=Profile)
    (tmp_path / "k.json").write_text(damage)
    assert cache.load("k") is None


def test_profiles_written_before_a_field_existed_still_load() -> None:
    old = {"member": "a", "device_kind": "cpu", "samples_per_second": [1.0], "memory_bytes": 2, "state_bytes": 1}
    assert Profile.from_json(old) == Profile(
        member="a", device_kind="cpu", samples_per_second=(1.0,), memory_bytes=2, state_bytes=1
    )
