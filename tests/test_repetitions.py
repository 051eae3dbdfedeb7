"""Tests of repeated networks: their intervals contain the truth as often as promised, and comparisons are made in pairs."""

import doctest
import json
import math
import random
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path

import evidence
import pytest
import studies
import torch
from scipy import stats

import argosy
from argosy.designs import grid as members
from argosy.results import intervals, ranking
from argosy.results.end_table import EndTable
from argosy.results.intervals import Interval, t_quantile
from argosy.results.ranking import rank
from argosy.results.repetitions import Repetitions
from argosy.study import Repetition

TRUTH = {"small": 0.30, "large": 0.28, "like": 0.28}
"""The mean of each network over all possible seeds."""
SPREAD, OF_THE_SEED = 0.02, 0.03
"""Standard deviations of a member, and of the part that members with one seed share."""


def repetitions(outcomes: dict[str, dict[int, dict[str, float]]], **rest: str) -> Repetitions:
    """Return repetitions from metrics by configuration and seed."""
    told = {"objective": "val_loss", "mode": "min", **rest}
    found = [
        (Repetition(of=name, under=f"seed={seed}"), metrics)
        for name, seeds in outcomes.items()
        for seed, metrics in seeds.items()
    ]
    return Repetitions.of(found, **told)


def simulated(draw: random.Random, *, seeds: int = 8) -> Repetitions:
    """Return a random study of networks under the same seeds; a seed that is good for one network is good for all."""
    outcomes: dict[str, dict[int, dict[str, float]]] = {name: {} for name in TRUTH}
    for seed in range(seeds):
        shared = draw.gauss(0, OF_THE_SEED)
        for name, truth in TRUTH.items():
            outcomes[name][seed] = {"val_loss": truth + shared + draw.gauss(0, SPREAD)}
    return repetitions(outcomes)


def held(*, seeds: int) -> tuple[float, float, float]:
    """Return three fractions of 1,000 simulated studies.

    In these, the interval of a mean contains the true mean, the interval of a difference contains the true difference, and two equal
    networks are reported as distinguishable.
    """
    draw, means, differences, mistakes = random.Random(0), 0, 0, 0
    for _ in range(1000):
        study = simulated(draw, seeds=seeds)
        mean = next(found for found in study.configurations if found.name == "small").metrics["val_loss"]
        means += within(mean, TRUTH["small"])
        differences += within(study.compare("large", "small").first_minus_second, TRUTH["large"] - TRUTH["small"])
        mistakes += study.compare("large", "like").distinguishable
    return means / 1000, differences / 1000, mistakes / 1000


def within(found: Interval, truth: float) -> bool:
    """Return whether the interval contains the truth."""
    low, high = found.bounds
    return low <= truth <= high


@pytest.mark.parametrize("seeds", [3, 8])
def test_intervals_hold_the_truth_in_95_of_100_studies(seeds: int) -> None:
    means, differences, mistakes = held(seeds=seeds)
    assert 0.93 <= means <= 0.97
    assert 0.93 <= differences <= 0.97
    assert 0.03 <= mistakes <= 0.07


def test_intervals_of_another_quantile_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "t_quantile", lambda degrees: 1.96)
    means, differences, mistakes = held(seeds=8)
    assert means < 0.93
    assert differences < 0.93
    assert mistakes > 0.07


def test_quantiles_are_those_of_students_distribution() -> None:
    for degrees in [*range(1, 100), 999, 1000]:
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-12)


def test_an_interval_is_shown_where_its_values_are() -> None:
    shown = {
        "0.98765 ± 3e-05": (0.98765, 3e-5),
        "-1234.57 ± 0.12": (-1234.567, 0.1234),
        "0.9733 ± 0.0012": (0.97331, 0.00123),
        "0.2 ± 0": (0.2, 0.0),
        "0.2 ± 2.8e-17": (0.2, 2.8e-17),
        "0 ± 0": (0.0, 0.0),
        "2.123e-05 ± 0.1": (2.1234e-5, 0.1),
    }
    assert [str(Interval(mean=mean, half=half, count=3)) for mean, half in shown.values()] == [*shown]


def test_pairs_show_what_seeds_hide() -> None:
    one = {seed: {"val_loss": 10.0 * seed} for seed in range(4)}
    other = {seed: {"val_loss": 10.0 * seed + 1.0 + seed / 100} for seed in reversed(range(4))}
    found = repetitions({"b": other, "a": one})
    assert [configuration.name for configuration in found.configurations] == ["a", "b"]
    assert found.configurations[0].metrics["val_loss"].holds_zero, "the seeds must differ by more than the networks do"
    (comparison,) = found.comparisons
    assert comparison.distinguishable
    assert str(comparison) == "val_loss is higher by 1.015 with b than with a (b minus a, 4 pairs: 1.015 ± 0.021)."
    assert str(found.compare("a", "b")).startswith(
        "val_loss is lower by 1.015 with a than with b (a minus b, 4 pairs: -1.015"
    )
    assert found.compare("a", "b").first_minus_second.mean == -comparison.first_minus_second.mean


def test_a_comparison_is_the_first_minus_the_second() -> None:
    found = repetitions(
        {"relu": {0: {"val_loss": 0.3}, 1: {"val_loss": 0.4}}, "gelu": {0: {"val_loss": 0.1}, 1: {"val_loss": 0.3}}}
    )
    compared = found.compare("gelu", "relu")
    assert compared.first_minus_second.mean == pytest.approx(-0.15)
    assert compared.to_json()["first_minus_second"] == compared.first_minus_second.mean
    assert str(compared) == "val_loss: gelu and relu are not distinguishable (gelu minus relu, 2 pairs: -0.15 ± 0.64)."
    assert (
        str(found)
        == f"{found!r}"
        == (
            "gelu: val_loss 0.2 ± 1.3, 2 of 2 done\nrelu: val_loss 0.35 ± 0.64, 2 of 2 done\n"
            "val_loss: relu and gelu are not distinguishable (relu minus gelu, 2 pairs: 0.15 ± 0.64)."
        )
    )
    nan = repetitions(
        {name: {seed: {"val_auc": seed * math.nan} for seed in range(3)} for name in ("relu", "gelu")}
    ).compare("gelu", "relu", "val_auc")
    assert nan.told == "3 pairs, some not finite"
    assert (
        str(nan)
        == "val_auc: gelu and relu cannot be compared, because some values are not finite (gelu minus relu, 3 pairs)."
    )
    few = repetitions({"relu": {0: {"val_loss": 0.3}}, "gelu": {0: {"val_loss": 0.1}}}).compare("gelu", "relu")
    assert (
        str(few)
        == "val_loss: too few repetitions under the same seed or fold are done in both to tell gelu from relu (gelu minus relu, 1 pair)."
    )
    (worse,) = found.comparisons
    assert (worse.first, worse.second) == ("relu", "gelu"), "each of the others minus the best"


def test_the_best_of_repetitions_is_a_configuration_and_not_its_luckiest_member() -> None:
    lucky = {0: {"val_loss": 0.1}, 1: {"val_loss": 0.9}, 2: {}}
    found = repetitions({"lucky": lucky, "good": {key: {"val_loss": 0.2} for key in range(3)}})
    best = found.leader({})
    assert str(best) == "good, val_loss 0.2 ± 0, mean of 3"
    assert best is not None and best.to_json() == {
        "name": "good",
        "metric": "val_loss",
        "value": pytest.approx(0.2),
        "interval": pytest.approx((0.2, 0.2)),
        "repetitions": 3,
        "counted": 3,
    }
    assert str(found.leader({"once": 0.15})) == "once, val_loss 0.15"
    assert str(found.leader({"once": 0.25, "nan": math.nan})) == "good, val_loss 0.2 ± 0, mean of 3"
    assert str(repetitions({"lucky": lucky}).leader({})).endswith(", mean of 2 of 3")
    for nothing in (repetitions({}).leader({}), repetitions({"a": {0: {}}}).leader({"nan": math.nan})):
        assert nothing is None


def test_ranks_put_numbers_first_and_what_failed_behind_all_that_ended_a_section() -> None:
    values = [(None, False), (0.1, True), (math.nan, True), (math.nan, False), (0.3, False), (0.2, False)]
    for mode, first in (("min", [0.2, 0.3]), ("max", [0.3, 0.2])):
        found = sorted(values, key=lambda one: rank(one[0], mode, failed=one[1]))
        assert [value for value, _ in found[:2]] == first
        assert [(f"{value}", failed) for value, failed in found[2:]] == [
            ("nan", False),
            ("0.1", True),
            ("nan", True),
            ("None", False),
        ]
    assert not doctest.testmod(ranking).failed


def test_what_is_not_done_does_not_count() -> None:
    a = {0: {"val_accuracy": 0.9}, 1: {}, 2: {"val_accuracy": 0.8}}
    b = {0: {"val_accuracy": 0.7}, 1: {"val_accuracy": 0.1}, 2: {}}
    found = repetitions({"c": {0: {}}, "b": b, "a": a}, objective="val_accuracy", mode="max")
    assert [(each.name, each.counted, each.repetitions) for each in found.configurations] == [
        ("a", 2, 3),
        ("b", 2, 3),
        ("c", 0, 1),
    ]
    assert found.configurations[0].metrics["val_accuracy"].mean == pytest.approx(0.85)
    assert [comparison.told for comparison in found.comparisons] == [
        "1 pair, too few to tell",
        "0 pairs, too few to tell",
    ]
    assert not found.compare("a", "b").distinguishable
    json.dumps([each.to_json() for each in (*found.configurations, *found.comparisons)], allow_nan=False)


def test_repetitions_that_are_one_network_are_told() -> None:
    outcomes = {"same": {seed: {"val_loss": 0.1, "val_accuracy": 1.0} for seed in range(3)}}
    outcomes["other"] = {seed: {"val_loss": 0.2 + seed / 10, "val_accuracy": 1.0} for seed in range(3)}
    means = EndTable.of_means(repetitions(outcomes))
    assert means is not None
    assert (
        "Repetitions of same are equal in every figure, for example because a factory sets its own seed." in means.note
    )
    del outcomes["same"]
    means = EndTable.of_means(repetitions(outcomes))
    assert means is not None
    assert "equal" not in means.note


def test_values_that_are_no_numbers_tell_nothing_apart() -> None:
    bad = {0: {"val_loss": math.nan}, 1: {"val_loss": math.inf}, 2: {"val_loss": -math.inf}}
    found = repetitions({"a": bad, "b": {seed: {"val_loss": 1.0} for seed in bad}})
    assert not found.compare("a", "b").distinguishable


def test_replicates_are_members_with_seeds_of_their_own() -> None:
    made = argosy.replicate(studies.member("mlp"), seeds=[7, 5])
    assert [(member.name, member.seed) for member in made] == [("mlp-seed=7", 7), ("mlp-seed=5", 5)]
    assert [member.seed for member in argosy.replicate(studies.member("mlp"))] == list(range(8))
    found = doctest.testmod(members)
    assert found.attempted >= 4
    assert not found.failed


def test_repetitions_at_the_points_of_a_grid_are_of_different_networks() -> None:
    made = argosy.grid(lambda hidden: argosy.replicate(studies.member("mlp", hidden=hidden), 2)[1], hidden=[4, 8])
    assert [(one.name, one.seed, one.repetition) for one in made] == [
        (f"mlp-seed=1-hidden={hidden}", 1, argosy.study.Repetition(of=f"mlp-hidden={hidden}", under="seed=1"))
        for hidden in (4, 8)
    ]


def test_a_run_of_replicates_reports_means_and_differences(tmp_path: Path) -> None:
    fleet = [
        *argosy.replicate(studies.member("good"), seeds=3),
        *argosy.replicate(studies.member("same"), seeds=3),
        *argosy.replicate(studies.member("slow", lr=1e-5), seeds=3),
        studies.member("once", seed=1),
    ]
    study = studies.study(fleet=fleet)
    argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    weights = evidence.results(tmp_path)
    assert weights["good-seed=1"] == weights["same-seed=1"] == weights["once"], (
        "members with one seed and network must be equal"
    )
    assert weights["good-seed=1"] != weights["good-seed=2"]

    report = argosy.load(tmp_path)
    losses = [report.member(f"slow-seed={seed}").metrics["val_loss"] for seed in range(3)]
    mean = next(found for found in report.repetitions.configurations if found.name == "slow").metrics["val_loss"]
    assert mean.mean == pytest.approx(statistics.mean(losses))
    assert mean.bounds == pytest.approx(stats.t.interval(0.95, 2, mean.mean, stats.sem(losses)))
    assert report.compare("good", "slow").distinguishable
    assert report.compare("good", "same", "val_accuracy").told == "not distinguishable (0 ± 0)"
    assert [row["counted"] for row in report.to_json()["configurations"]] == [3, 3, 3]

    shown = f"{report}"
    assert "3 of 3" in shown
    best = min(report.repetitions.configurations, key=lambda one: one.metrics["val_loss"].mean)
    assert "Best: once, val_loss " in shown, "it has the luckiest seed, and no others are known"
    assert report.leader is not None and report.to_json()["best"]["name"] == report.leader.name == "once"
    repeated = replace(report, rows=tuple(row for row in report.rows if row.repetition is not None))
    assert str(repeated.leader) == f"{best.name}, val_loss {best.metrics['val_loss']}, mean of 3"
    assert repeated.best().metrics["val_loss"] < best.metrics["val_loss"].mean
    assert f"Load it: argosy.load('{tmp_path}', study=study).ensemble(members=['{best.name}'])" in f"{repeated}"
    whole = argosy.load(tmp_path, study=study)
    assert {*whole.ensemble(members=["good", "once"]).names} == {"once", *(f"good-seed={seed}" for seed in range(3))}
    with pytest.raises(argosy.ArgosyError, match="no member 'bad'"):
        whole.ensemble(members=["bad"])
    assert "val_loss minus that of good" in shown
    assert "not distinguishable (0 ± 0)" in shown


def test_single_members_are_among_the_configurations_by_what_they_reached(tmp_path: Path) -> None:
    untrained = studies.member("untrained", optimizer=partial(torch.optim.SGD, lr=1e-9))
    fleet = [*argosy.replicate(untrained, seeds=2), studies.member("one"), studies.member("two")]
    report = argosy.train(studies.study(90, fleet=fleet, epochs=1), directory=tmp_path, launcher="inline")
    assert report.leader is not None
    first, *_, last = [row[0] for row in report.ending().rows]
    assert (first, last) == (report.leader.name, "untrained")


def test_seeds_that_are_asked_for_later_join_the_others(tmp_path: Path) -> None:
    counted = []
    for seeds in (2, 3):
        study = studies.study(fleet=argosy.replicate(studies.member("mlp"), seeds), epochs=1)
        report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
        counted += [(found.counted, found.metrics["val_loss"].count) for found in report.repetitions.configurations]
    assert counted == [(2, 2), (3, 3)]
    with pytest.raises(argosy.ArgosyError, match="seed: was 2, is now 7"):
        other = [*study.members[:2], replace(study.members[2], seed=7)]
        argosy.train(replace(study, members=other), directory=tmp_path, launcher="inline", devices="cpu:1")


def test_a_run_without_replicates_says_nothing_of_them(tmp_path: Path) -> None:
    argosy.train(
        studies.study(fleet=[studies.member("one")], epochs=1), directory=tmp_path, launcher="inline", devices="cpu:1"
    )
    assert "configuration" not in f"{argosy.load(tmp_path)}"


def test_folds_of_different_splits_are_no_pairs(tmp_path: Path) -> None:
    one, other = studies.member("one"), studies.member("other")
    folds = [*argosy.kfold(one, 3, samples=60), *argosy.kfold(other, 3, samples=60)]
    elsewhere = argosy.kfold(studies.member("elsewhere"), 3, samples=60, seed=3)
    samples = studies.Vectors(60, noise=0)
    study = argosy.Study(
        data=argosy.Data(train=samples, val=samples), members=[*folds, *elsewhere], stop=argosy.MaxEpochs(1)
    )
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    assert report.compare("one", "other").first_minus_second.count == 3
    assert str(report.compare("one", "elsewhere")).startswith(
        "val_loss: too few repetitions under the same seed or fold are done in both to tell one from elsewhere"
    )


def test_of_equally_good_networks_some_look_worse_than_the_best_as_the_table_says() -> None:
    draw = random.Random(0)
    worse = []
    for _ in range(50):
        found = repetitions(
            {f"c{n}": {seed: {"val_loss": draw.gauss(1.0, 0.1)} for seed in range(5)} for n in range(20)}
        )
        worse.append(sum(one.distinguishable for one in found.comparisons))
    assert 2 <= statistics.fmean(worse) <= 4, "the tutorial says two to four"
    table = EndTable.of_means(found)
    assert table is not None and "not corrected for 19 comparisons with the best" in table.note
    two = EndTable.of_means(repetitions({name: {seed: {"val_loss": 0.1 * seed} for seed in range(2)} for name in "ab"}))
    assert two is not None and "corrected" not in two.note
    assert "each in its own best section" in two.note, "a trial's mean is of one section of all its members"
