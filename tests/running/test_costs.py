"""Tests of the costs that plans use: measured, taken over between members that do the same work, or observed in earlier runs."""

from dataclasses import replace
from typing import Any

import pytest
import studies
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from argosy.protocol.events import Cloned, SectionEnded
from argosy.protocol.packs import Packed
from argosy.protocol.trainer import Measured
from argosy.results.fold import RunState
from argosy.running.control.cost_table import CostTable
from argosy.running.control.costs import ASSUMED_LINK, Link, ObservedRates, even_out, profile_of
from argosy.training.programs.shard.parallel import LONG_BYTES

MEASURED = Measured(
    member="mlp",
    samples_per_second=100.0,
    shard_seconds=(),
    memory_bytes=10,
    activation_bytes=1,
    state_bytes=5,
    gradient_bytes=4,
    parameter_shapes="shapes",
    batch_norm=False,
    whole="",
    notes=(),
)
ENDED = SectionEnded(
    member="mlp",
    device="cpu:0",
    epoch=0,
    section=0,
    stream_epoch=0,
    position=100,
    metrics={},
    epochs=1.0,
    seconds=2.0,
    samples=100,
    digest=(0, 0, 0),
    val_digest=None,
    best=True,
)


def profile(measured: Measured = MEASURED):
    return profile_of(measured, batch_size=20, device_kind="cpu", node_devices=4, link=ASSUMED_LINK)


def test_a_rate_that_was_seen_moves_the_next_plan_half_way(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    member = studies.member()
    ObservedRates().remember(profile(), member, MEASURED, ENDED)  # 50 samples/s observed, 100 measured
    assert ObservedRates().refresh(profile(), member, MEASURED).samples_per_second == pytest.approx((75.0,))
    ObservedRates().remember(ObservedRates().refresh(profile(), member, MEASURED), member, MEASURED, ENDED)
    assert ObservedRates().refresh(profile(), member, MEASURED).samples_per_second == pytest.approx((62.5,))


def test_exact_steps_have_rates_of_their_own(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ObservedRates(exact=True).remember(profile(), studies.member(), MEASURED, ENDED)
    assert ObservedRates(exact=True).refresh(profile(), studies.member(), MEASURED) != profile()
    assert ObservedRates().refresh(profile(), studies.member(), MEASURED) == profile()


def test_another_network_or_hyperparameter_is_another_member(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ObservedRates().remember(profile(), studies.member(), MEASURED, ENDED)
    assert ObservedRates().refresh(profile(), studies.member(lr=0.5), MEASURED) == profile()
    other = replace(MEASURED, parameter_shapes="others")
    assert ObservedRates().refresh(profile(other), studies.member(), other) == profile(other)


def test_groups_pay_for_their_all_reduce() -> None:
    groups = profile(replace(MEASURED, shard_seconds=(0.1, 0.08), gradient_bytes=10**9))
    assert groups.samples_per_second == pytest.approx((100.0, 20 / (0.1 + 0.1), 20 / (0.08 + 2 * 2 / 3 * 0.1)))
    assert groups.splittable
    assert not profile(replace(MEASURED, shard_seconds=(0.1,), whole="it draws random numbers")).splittable
    alone = profile_of(
        replace(MEASURED, shard_seconds=(0.1,)), batch_size=20, device_kind="cpu", node_devices=4, link=None
    )
    assert not alone.splittable and len(alone.samples_per_second) == 1


def test_a_link_is_what_two_sums_over_a_ring_say() -> None:
    true = Link(hop_seconds=1e-4, bytes_per_second=2e8)
    found = Link.measured(3, true.seconds(3, 0), true.seconds(3, LONG_BYTES))
    assert found.seconds(2, 10**6) == pytest.approx(true.seconds(2, 10**6))
    assert found.seconds(4, 10**7) == pytest.approx(true.seconds(4, 10**7))


def test_members_that_do_the_same_work_get_the_best_profile_among_them() -> None:
    members = [studies.member("a", lr=0.1), studies.member("b", lr=0.2), studies.member("c", hidden=32)]
    rates = {"a": 100.0, "b": 160.0, "c": 40.0}
    measured = {
        name: replace(MEASURED, member=name, samples_per_second=rate, parameter_shapes=name if name == "c" else "same")
        for name, rate in rates.items()
    }
    evened = even_out([profile(measured[name]) for name in rates], members, measured)
    assert [(p.member, p.rate(1)) for p in evened] == [("a", 160.0), ("b", 160.0), ("c", 40.0)]


def test_a_member_that_must_stay_whole_is_not_split_though_others_do_the_same_work() -> None:
    members = [studies.member(name, schedule=ReduceLROnPlateau if name == "b" else None) for name in "abc"]
    measured = {
        name: replace(MEASURED, member=name, samples_per_second=rate, shard_seconds=(0.1,), whole=whole)
        for name, rate, whole in (("a", 160.0, ""), ("b", 100.0, "its schedule watches a metric"), ("c", 100.0, ""))
    }
    evened = even_out([profile(its) for its in measured.values()], members, measured)
    assert [(p.splittable, p.rate(1)) for p in evened] == [(True, 160.0), (False, 100.0), (True, 160.0)]


@pytest.mark.parametrize("crowded", ["a", "b"])
def test_a_member_that_ran_out_of_memory_beside_others_needs_it_alone_though_others_do_the_same_work(
    crowded: str,
) -> None:
    study = studies.study(fleet=[studies.member("a", lr=0.1), studies.member("b", lr=0.2)])
    measuring = CostTable(device_kind="cpu")
    measuring.request_costs(study.members)
    measuring.handle(replace(MEASURED, member="a"))
    assert {profile.memory_bytes for profile in measuring.profiles("ab", study)} == {10}
    measuring.crowded(crowded, 1000)
    found = {profile.member: profile.memory_bytes for profile in measuring.profiles("ab", study)}
    assert found == {"a": 10, "b": 10} | {crowded: 1000}


class Own(nn.MSELoss):
    """A user's loss, which may keep state, so two instances might not do the same work."""


OWN = Own()


def class_of(width: int) -> type[nn.Module]:
    """Return one of several classes of one name."""

    class Net(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, width)

    return Net


small, large = class_of(10), class_of(10_000)


@pytest.mark.parametrize(
    ("fields", "measured"),
    [
        ([{"loss": nn.MSELoss()}, {"loss": nn.MSELoss()}], ["a"]),
        ([{"loss": nn.HuberLoss(delta=1.0)}, {"loss": nn.HuberLoss(delta=2.0)}], ["a", "b"]),
        ([{"loss": nn.CrossEntropyLoss()}, {"loss": nn.CrossEntropyLoss(weight=torch.ones(10))}], ["a", "b"]),
        ([{"loss": Own()}, {"loss": Own()}], ["a", "b"]),
        ([{"model": small}, {"model": small}], ["a"]),
        ([{"model": small}, {"model": large}], ["a", "b"]),
        ([{"model": model} for model in [lambda: small() for _ in "ab"]], ["a"]),
        ([{"model": lambda: small()}, {"model": lambda: large()}], ["a", "b"]),
        ([{"loss": OWN.forward}, {"loss": OWN.forward}], ["a"]),
        ([{"loss": Own().forward}, {"loss": Own().forward}], ["a", "b"]),
        ([{"eval_batch_size": 64}, {"eval_batch_size": 16}], ["a", "b"]),
        ([{"subset": range(100)}, {"subset": range(1000)}], ["a"]),
        ([{"subset": range(10)}, {"subset": range(1000)}], ["a", "b"]),
        ([{"val_subset": range(301)}, {"val_subset": range(300, 603)}], ["a"]),
        ([{"val_subset": range(50)}, {"val_subset": range(300)}], ["a", "b"]),
    ],
)
def test_one_is_measured_for_all_that_surely_do_the_same_work(
    fields: list[dict[str, Any]], measured: list[str]
) -> None:
    measuring = CostTable(device_kind="cpu")
    members = [
        replace(studies.member(name, lr=lr), **field)
        for (name, lr), field in zip((("a", 0.1), ("b", 0.2)), fields, strict=True)
    ]
    measuring.request_costs(members)
    assert measuring.representatives(beside=False) == measured


@pytest.mark.parametrize(("changed", "measured"), [("optimizer.lr", []), ("augment.p", ["clone"])])
def test_a_clone_is_measured_if_it_may_draw_random_numbers_where_its_source_does_not(
    changed: str, measured: list[str]
) -> None:
    measuring = CostTable(device_kind="cpu")
    measuring.handle(replace(MEASURED, member="a"))
    measuring.copy_costs(Cloned(member="clone", source="a", changes={changed: (0.0, 0.2)}, checkpoint=None))
    measuring.request_costs([studies.member("clone")])
    assert measuring.representatives(beside=False) == measured


def test_a_trial_that_joins_thousands_has_a_profile_of_its_own_made_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = [studies.member(name, lr=0.1 * number) for number, name in enumerate("abcd", start=1)]
    study, measuring = studies.study(fleet=fleet), CostTable(device_kind="cpu")
    measuring.request_costs(fleet[:3])
    measuring.handle(replace(MEASURED, member="a"))
    assert len(measuring.profiles("abc", study)) == 3
    made, stepped, asked, stands = [], measuring._for_plans, [], measuring._copy_to_equal_work
    monkeypatch.setattr(measuring, "_for_plans", lambda name, member: made.append(name) or stepped(name, member))
    monkeypatch.setattr(measuring, "_copy_to_equal_work", lambda name: asked.append(name) or stands(name))
    measuring.request_costs(fleet[3:])
    assert asked == ["a"]
    assert [profile.member for profile in measuring.profiles("d", study)] == made == ["d"]


def test_in_one_program_a_member_costs_its_part_of_it_and_that_is_not_remembered() -> None:
    """The device's load is then what was measured for the program, not the sum of what its members cost alone."""
    fleet = [studies.member(name, lr=0.1 * number) for number, name in enumerate("abcd", start=1)]
    study, measuring = studies.study(fleet=fleet), CostTable(device_kind="cpu")
    measuring.request_costs(fleet)
    measuring.handle(replace(MEASURED, member="a"))
    alone = measuring.profiles("abcd", study)
    assert {profile.seconds_per_sample for profile in alone} == {0.01}
    assert len({profile.alike for profile in alone}) == 1
    packed = Packed(
        device="cpu:0", programs=(("a", "b", "c"), ("d",)), settled=True, seconds_per_sample=((1, 0.01), (3, 0.002))
    )
    measuring.note_program_costs(packed)
    assert [profile.seconds_per_sample for profile in measuring.profiles("abcd", study)] == [0.002] * 3 + [0.01]
    state = RunState.of([packed, replace(ENDED, member="a")])
    measuring.remember(state, study)
    other = CostTable(device_kind="cpu")
    other.request_costs(fleet)
    other.handle(replace(MEASURED, member="a"))
    assert {profile.seconds_per_sample for profile in other.profiles("abcd", study)} == {0.01}
    measuring.note_program_costs(replace(packed, programs=tuple((name,) for name in "abcd")))
    assert {profile.seconds_per_sample for profile in measuring.profiles("abcd", study)} == {0.01}


def test_plans_know_members_by_the_samples_of_the_stream_of_which_a_fold_makes_a_part() -> None:
    """A fold of three quarters of the samples ends an epoch in three quarters of the time."""
    fleet = [
        studies.member("all", lr=0.1),
        studies.member("fold", lr=0.2, subset=range(30, 120)),
        studies.member("twice", lr=0.3, subset=[*range(120), *range(120)]),
    ]
    study, measuring = studies.study(120, fleet=fleet), CostTable(device_kind="cpu", link=ASSUMED_LINK)
    measuring.samples_per_epoch = 120
    measuring.request_costs(fleet)
    measuring.handle(replace(MEASURED, member="all", shard_seconds=(0.1,)))
    one, fold, twice = measuring.profiles(["all", "fold", "twice"], study)
    assert fold.samples_per_second == pytest.approx(tuple(rate / 0.75 for rate in one.samples_per_second))
    assert (one.rate(1), fold.rate(1), twice.rate(1)) == pytest.approx((100.0, 100.0 / 0.75, 50.0))
    # Its own 90 samples took 1.8 s, in which 120 samples of the stream passed.
    ended = replace(ENDED, member="fold", samples=90, seconds=1.8)
    measuring.update_rate(ended, RunState.of([ended]).member("fold"))
    assert [p.rate(1) for p in measuring.profiles(["all", "fold"], study)] == pytest.approx([50.0, 120 / 1.8])
