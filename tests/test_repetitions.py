"""Networks that several members repeat: intervals that hold what they promise, and comparisons in pairs."""

import doctest
import io
import json
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import evidence
import pytest
import studies
from rich.console import Console
from scipy import stats

import argosy
from argosy import intervals, members
from argosy.intervals import Interval, t_quantile
from argosy.repetitions import Repetitions
from argosy.study import Repetition
from argosy.views.tables import report_table

TRUTH = {"small": 0.30, "large": 0.28, "twin": 0.28}
"""What the mean over all seeds would be."""
SPREAD, OF_THE_SEED = 0.02, 0.03
"""Of a member, and of what the members with one seed share."""


def repetitions(outcomes: dict[str, dict[int, dict[str, float]]], **rest: str) -> Repetitions:
    """Of metrics by configuration and seed."""
    told = {"objective": "val_loss", "mode": "min", **rest}
    found = [
        (Repetition(of=name, under=f"seed={seed}"), metrics)
        for name, seeds in outcomes.items()
        for seed, metrics in seeds.items()
    ]
    return Repetitions.of(found, **told)


def simulated(draw: random.Random, *, seeds: int = 8) -> Repetitions:
    """A study of networks under the same seeds, a good one of which is good for all of them."""
    outcomes: dict[str, dict[int, dict[str, float]]] = {name: {} for name in TRUTH}
    for seed in range(seeds):
        shared = draw.gauss(0, OF_THE_SEED)
        for name, truth in TRUTH.items():
            outcomes[name][seed] = {"val_loss": truth + shared + draw.gauss(0, SPREAD)}
    return repetitions(outcomes)


def held(*, seeds: int) -> tuple[float, float, float]:
    """Of 1,000 studies: in how many the interval of a mean holds the true one, that of a difference the true one, and equals
    are told apart."""
    draw, means, differences, mistakes = random.Random(0), 0, 0, 0
    for _ in range(1000):
        study = simulated(draw, seeds=seeds)
        mean = next(found for found in study.configurations if found.name == "small").metrics["val_loss"]
        means += within(mean, TRUTH["small"])
        differences += within(study.compare("small", "large").difference, TRUTH["large"] - TRUTH["small"])
        mistakes += study.compare("large", "twin").distinguishable
    return means / 1000, differences / 1000, mistakes / 1000


def within(found: Interval, truth: float) -> bool:
    """Whether the interval holds the truth."""
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


def test_pairs_show_what_seeds_hide() -> None:
    one = {seed: {"val_loss": 10.0 * seed} for seed in range(4)}
    other = {seed: {"val_loss": 10.0 * seed + 1.0 + seed / 100} for seed in reversed(range(4))}
    found = repetitions({"b": other, "a": one})
    assert [configuration.name for configuration in found.configurations] == ["a", "b"]
    assert found.configurations[0].metrics["val_loss"].holds_zero, "seeds differ by more than networks"
    (comparison,) = found.comparisons
    assert comparison.distinguishable
    assert str(comparison) == "1.015 ± 0.021"
    assert found.compare("b", "a").difference.mean == -comparison.difference.mean


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
    assert [str(comparison) for comparison in found.comparisons] == [
        "1 pair, too few to tell",
        "0 pairs, too few to tell",
    ]
    assert not found.compare("a", "b").distinguishable
    json.dumps([each.to_json() for each in (*found.configurations, *found.comparisons)], allow_nan=False)


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
    assert weights["good-seed=1"] == weights["same-seed=1"] == weights["once"], "the seed is all that a replicate has"
    assert weights["good-seed=1"] != weights["good-seed=2"]

    report = argosy.load(tmp_path)
    losses = [report.member(f"slow-seed={seed}").metrics["val_loss"] for seed in range(3)]
    mean = next(found for found in report.repetitions.configurations if found.name == "slow").metrics["val_loss"]
    assert mean.mean == pytest.approx(statistics.mean(losses))
    assert mean.bounds == pytest.approx(stats.t.interval(0.95, 2, mean.mean, stats.sem(losses)))
    assert report.compare("good", "slow").distinguishable
    assert str(report.compare("good", "same", "val_accuracy")) == "not distinguishable (0 ± 0)"
    assert [row["counted"] for row in report.to_json()["configurations"]] == [3, 3, 3]

    console = Console(file=io.StringIO(), width=200)
    console.print(report_table(report))
    shown = console.file.getvalue()
    assert "3 of 3" in shown
    assert "val_loss less that of good" in shown
    assert "not distinguishable (0 ± 0)" in shown


def test_seeds_that_are_asked_for_later_join_the_others(tmp_path: Path) -> None:
    counted = []
    for seeds in (2, 3):
        study = studies.study(fleet=argosy.replicate(studies.member("mlp"), seeds), epochs=1)
        report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
        counted += [(found.counted, found.metrics["val_loss"].count) for found in report.repetitions.configurations]
    assert counted == [(2, 2), (3, 3)]
    with pytest.raises(argosy.ArgosyError, match="seed: 2 there, 7 here"):
        other = [*study.members[:2], replace(study.members[2], seed=7)]
        argosy.train(replace(study, members=other), directory=tmp_path, launcher="inline", devices="cpu:1")


def test_a_run_without_replicates_says_nothing_of_them(tmp_path: Path) -> None:
    argosy.train(
        studies.study(fleet=[studies.member("one")], epochs=1), directory=tmp_path, launcher="inline", devices="cpu:1"
    )
    found = json.loads((tmp_path / "study.json").read_text())
    del found["members"]["one"]["repetition"]  # as an earlier version wrote it
    (tmp_path / "study.json").write_text(json.dumps(found))
    console = Console(file=io.StringIO(), width=200)
    console.print(report_table(argosy.load(tmp_path)))
    assert "configuration" not in console.file.getvalue()
