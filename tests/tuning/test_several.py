"""Tests searches by several objectives and under constraints: their report, Optuna's study of them, and searches that were killed."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import living
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import GPSampler, NSGAIIISampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState
from searches import build, stored, tune
from torch import nn

import argosy
from argosy.running.directory.loading import load_timed, search_report_of
from argosy.tuning.thompson import ThompsonSampler

SPACE = {"lr": FloatDistribution(1e-2, 1.0, log=True), "hidden": IntDistribution(1, 32)}
TWO = {"val_loss": "min", "parameters": "min"}
TPE = partial(TPESampler, n_startup_trials=3)
SETTINGS: list[dict[str, Any]] = [
    {"scheduler": "random", "n_trials": 12},
    {"scheduler": "hyperband"},
    {"scheduler": "hyperband", "warm": False},
    {"scheduler": "asha", "n_trials": 12},
]


def network(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def wide(parameters: dict[str, Any]) -> argosy.Member:
    """Return a member that learns more the wider it is; it has 17 parameters for each hidden unit and 10 more."""
    return replace(build({"lr": parameters["lr"]}), model=partial(network, parameters["hidden"]))


def small(reached: dict[str, float]) -> list[float]:
    """Constrain a trial to at most 18 hidden units."""
    return [reached["parameters"] - 316]


def search(directory: Path, **rest: Any) -> Any:
    settings = {"build": wide, "space": SPACE, "max_epochs": 3, "objective": TWO, "numerics": "exact", **rest}
    return tune(directory, **settings)


def front(report: Any) -> set[str]:
    """Return the Pareto set by brute force over the trials that trained to their end and break no constraint."""
    ended = [
        row
        for row in report.rows
        if row.epochs == 3 and row.status == "done" and not any(value > 0 for value in row.constraints)
    ]
    signs = {name: 1 if mode == "min" else -1 for name, mode in report.objectives.items()}
    costs = {row.name: [sign * row.reached[name] for name, sign in signs.items()] for row in ended}
    return {
        name
        for name, cost in costs.items()
        if not any(other != cost and all(a <= b for a, b in zip(other, cost, strict=True)) for other in costs.values())
    }


@pytest.mark.parametrize("constraints", [None, small])
@pytest.mark.parametrize("terms", SETTINGS, ids=str)
def test_the_pareto_set_is_that_of_brute_force_and_of_optuna(
    tmp_path: Path, terms: dict[str, Any], constraints: Callable[..., Any] | None
) -> None:
    report = search(tmp_path / "run", constraints=constraints, **terms)
    found = {row.name for row in report.pareto}
    assert found == front(report)
    assert found
    assert [row["trial"] for row in report.table() if row["pareto"]] == [row.name for row in report.pareto]
    assert report.pareto == report.rows[: len(found)]
    assert report.best_trial.metrics["val_loss"] == min(row.metrics["val_loss"] for row in report.pareto)
    for study in (report.study, stored(tmp_path / "run")):
        assert {trial.number for trial in study.best_trials} == {report.trials[name] for name in found}
        values = {report.trials[row.name]: [row.reached[name] for name in TWO] for row in report.pareto}
        assert {trial.number: trial.values for trial in study.best_trials} == values
        told = {trial.number: [*trial.constraints.values()] for trial in study.trials}
        assert constraints is None or all(told[report.trials[row.name]] == [*row.constraints] for row in report.pareto)
    read = search_report_of(*load_timed(tmp_path / "run"))
    assert read is not None
    assert read.to_json() == report.to_json()
    assert read.to_json()["pareto"] == [row.name for row in report.pareto]
    assert all(row.totals["parameters"] == 10 + 17 * report.parameters[row.name]["hidden"] for row in report.rows)


def test_totals_are_those_up_to_the_best_section(tmp_path: Path) -> None:
    report = search(
        tmp_path, objective={"val_accuracy": "max", "seconds": "min", "samples": "min"}, scheduler="random", n_trials=8
    )
    members = living.state_of(tmp_path).members
    early = 0
    for row in report.rows:
        sections = members[row.name].sections
        best = max(range(3), key=lambda number: (sections[number].metrics["val_accuracy"], -number)) + 1
        early += best < 3
        assert row.totals["seconds"] == pytest.approx(sum(ended.seconds for ended in sections[:best]))
        assert row.totals["samples"] == 40 * best
    assert early
    assert {row.name for row in report.pareto} == front(report)


def test_a_trial_that_breaks_a_constraint_is_behind_all_that_do_not(tmp_path: Path) -> None:
    report = search(tmp_path / "run", objective="val_loss", constraints=small, scheduler="random", n_trials=12)
    kept = [max(row.constraints) <= 0 for row in report.rows]
    assert kept == sorted(kept, reverse=True)
    assert True in kept
    assert False in kept
    least = min(report.rows, key=lambda row: row.metrics["val_loss"])
    assert max(least.constraints) > 0, "the trial with the least loss must break the constraint, or this tests nothing"
    assert report.best_trial == report.rows[0]
    assert report.trials[report.best_trial.name] == stored(tmp_path / "run").best_trial.number
    assert " met" in f"{report}"
    assert "violated" in f"{report}"


def test_folds_are_compared_by_their_means(tmp_path: Path) -> None:
    report = search(
        tmp_path, build=lambda p: argosy.replicate(wide(p), 2), scheduler="random", n_trials=5, constraints=small
    )
    members = living.state_of(tmp_path).members
    assert {row.name for row in report.pareto} == front(report)
    for row in report.rows:
        parts = [members[name] for name in row.members]
        best = min(range(3), key=lambda number: sum(one.sections[number].metrics["val_loss"] for one in parts))
        assert row.totals["seconds"] == pytest.approx(
            sum(ended.seconds for one in parts for ended in one.sections[: best + 1]) / 2
        )
        assert row.totals["parameters"] == parts[0].parameters
        assert row.constraints == (row.totals["parameters"] - 316,)


@pytest.mark.parametrize(
    ("sampler", "constraints"),
    [
        (TPE, None),
        (TPE, small),
        (partial(NSGAIISampler, population_size=4), small),
        (partial(NSGAIIISampler, population_size=4), None),
        (GPSampler, small),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_one_trial_after_another_is_what_optuna_does_alone(
    tmp_path: Path, sampler: Any, constraints: Callable[..., Any] | None
) -> None:
    if sampler is GPSampler:
        sampler = partial(GPSampler, n_startup_trials=4)
    report = search(tmp_path, sampler=sampler, scheduler="random", n_trials=10, at_once=1, constraints=constraints)
    alone = optuna.create_study(directions=["minimize", "minimize"])
    reached = {report.trials[row.name]: row.reached for row in report.rows}
    for number in range(10):
        alone.sampler = sampler(seed=random.Random(f"0/{number}").getrandbits(32))
        trial = alone.ask(SPACE)
        assert trial.params == report.study.trials[number].params, number
        if constraints is not None:
            trial.set_constraint("0", constraints(reached[number])[0])
        alone.tell(trial, [reached[number][name] for name in TWO])
    assert [trial.number for trial in alone.best_trials] == [trial.number for trial in report.study.best_trials]


@pytest.mark.parametrize("at_once", [1, 5])
def test_by_default_trials_of_several_objectives_have_a_sampler_of_their_own(tmp_path: Path, at_once: int) -> None:
    given: dict[str, Any] = {"scheduler": "asha", "n_trials": 25, "at_once": at_once}
    found = search(tmp_path / "default", **given).parameters
    assert found == search(tmp_path / "given", sampler=ThompsonSampler, **given).parameters
    others = search(tmp_path / "other", sampler=TPESampler, **given).parameters
    alike = sum(others[name] == parameters for name, parameters in found.items())
    assert 10 <= alike < 25, "trials must be random until ten have ended, and learnt afterwards"
    # TPESampler was the default of earlier versions: a search that began with it keeps it.
    assert search(tmp_path / "other", **given).parameters == others


@pytest.mark.parametrize(
    "terms",
    [
        {"scheduler": "random", "n_trials": 9, "sampler": TPE, "at_once": 3},
        {"scheduler": "asha", "n_trials": 9, "sampler": TPE, "at_once": 3},
        {"scheduler": "hyperband", "brackets": "together"},
        {"scheduler": "random", "n_trials": 8, "sampler": partial(NSGAIISampler, population_size=4), "at_once": 2},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*has no study.json")
def test_a_killed_search_ends_with_the_same_trials_and_goes_on_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    run, terms = tmp_path / "run", {"constraints": small, **terms}
    with monkeypatch.context() as patched:
        living.keep_all_files(patched)
        report = search(run, **terms)
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    places = [number for number, line in enumerate(whole) if json.loads(line)["event"] in ("Constrained", "Proposed")]
    for number, cut in enumerate([places[len(places) // 2], places[len(places) // 2] + 1, places[-1], len(whole) - 2]):
        again = shutil.copytree(run, tmp_path / f"killed-{number}")
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]) + whole[cut][:20])
        (again / "study.json").unlink()  # this file is never ahead of the journal
        found = search(again, study_name="run", **terms)
        assert found.parameters == report.parameters, cut
        assert found.table() == report.table(), cut
        assert found.to_json()["pareto"] == report.to_json()["pareto"], cut
        assert [trial.values for trial in stored(again, "run").trials] == [
            trial.values for trial in report.study.trials
        ]
    if "n_trials" in terms:
        more = search(run, **{**terms, "n_trials": terms["n_trials"] + 3})
        assert more.parameters.items() >= report.parameters.items()
        assert len(more.trials) == len(report.trials) + 3
        assert {row.name for row in more.pareto} == front(more)


@pytest.mark.parametrize(
    "change", [{"objective": "val_loss"}, {"objective": {**TWO, "parameters": "max"}}, {"constraints": small}]
)
def test_other_objectives_or_constraints_are_another_search(tmp_path: Path, change: dict[str, Any]) -> None:
    terms: dict[str, Any] = {"scheduler": "random", "n_trials": 2, "max_epochs": 1}
    search(tmp_path, **terms)
    with pytest.raises(
        argosy.errors.RunError, match=r"the directory holds a different search:\n  (others|constraints): "
    ):
        search(tmp_path, **{**terms, **change})


def test_a_trial_without_a_number_for_an_objective_has_failed(tmp_path: Path) -> None:
    def sometimes(outputs: Any, targets: Any) -> Any:
        value = outputs.new_full((len(outputs),), 1.0)
        return value * float("nan") if len(outputs) and float(outputs.abs().max()) > 1.0 else value

    def built(parameters: dict[str, Any]) -> argosy.Member:
        return replace(wide(parameters), metrics={"sometimes": sometimes})

    space = {**SPACE, "lr": FloatDistribution(1e-2, 10.0, log=True)}
    report = search(
        tmp_path,
        build=built,
        space=space,
        objective={"val_loss": "min", "val_sometimes": "max"},
        scheduler="random",
        n_trials=12,
    )
    odd = {
        report.trials[row.name] for row in report.rows if row.reached["val_sometimes"] != row.reached["val_sometimes"]
    }
    assert odd
    assert len(odd) < 12
    assert {trial.number for trial in report.study.trials if trial.state == TrialState.FAIL} == odd
    assert not odd & {report.trials[row.name] for row in report.pareto}
