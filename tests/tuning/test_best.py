"""Which trial is best: one rule, for the report, its table, and Optuna's study of the search."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import living
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState
from searches import DATA, SPACE, build, stored, tune
from torch.optim.lr_scheduler import LambdaLR

import argosy
from argosy.errors import RunError
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.tuning.scheduler import is_out

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # what it says is asserted of reports


def wild(parameters: dict[str, Any]) -> argosy.Member:
    """It learns fast for an epoch, and diverges in the next where that is its kind."""
    rates = {"good": [0.01] * 9, "wild": [2.0, math.inf], "bad": [math.inf]}[parameters["kind"]]
    schedule = partial(LambdaLR, lr_lambda=lambda epoch: rates[min(epoch, len(rates) - 1)])
    return replace(build({"lr": 1.0}), schedule=schedule)


def agreed(report: Any) -> None:
    """What the report calls best is what Optuna does, where that has a trial that is complete."""
    complete = [trial for trial in report.study.trials if trial.state == TrialState.COMPLETE]
    if complete:
        assert report.trials[report.best_trial.name] == report.study.best_trial.number
        assert report.best_trial.metrics[report.run.objective] == report.study.best_value


KINDS = {"kind": CategoricalDistribution(["good", "wild", "good", "wild"])}


@pytest.mark.parametrize("scheduler", ["random", "asha"])
@pytest.mark.parametrize("objective", ["val_loss", "val_accuracy"])
def test_a_trial_that_failed_is_never_best_whatever_it_had_reached(
    tmp_path: Path, scheduler: str, objective: str
) -> None:
    report = tune(
        tmp_path / "run", space=KINDS, build=wild, scheduler=scheduler, n_trials=8, max_epochs=3, objective=objective
    )
    sign = 1 if objective == "val_loss" else -1
    diverged = [row for row in report.rows if row.status == "diverged"]
    assert (
        min(sign * row.metrics[objective] for row in diverged if row.metrics) < sign * report.best().metrics[objective]
        or scheduler == "asha"
    )
    assert report.best().status == "done"
    assert report.run.best().status == "done"
    assert report.to_json()["best"] == report.table()[0]["trial"] == report.best_trial.name
    agreed(report)
    assert stored(tmp_path / "run").best_trial.number == report.study.best_trial.number


def test_where_all_have_failed_no_trial_is_best(tmp_path: Path) -> None:
    space = {"kind": CategoricalDistribution(["wild"])}
    report = tune(tmp_path, space=space, build=wild, scheduler="random", n_trials=2, max_epochs=3)
    assert all(row.metrics for row in report.rows)
    assert report.to_json()["best"] is None
    for asked in (report.best, lambda: report.best_parameters, report.run.best):
        with pytest.raises(RunError, match="val_loss that counts: each has finished no epoch, has failed"):
            asked()


@pytest.mark.parametrize(
    "terms",
    [{}, {"scheduler": "asha"}, {"scheduler": "asha", "warm": False}, {"scheduler": "median"}, {"scheduler": "random"}],
    ids=str,
)
@pytest.mark.parametrize("objective", ["val_loss", "val_accuracy"])
def test_the_best_trained_to_its_end(tmp_path: Path, terms: dict[str, Any], objective: str) -> None:
    # Of accuracies on 40 samples many are equal: a pruned trial may have what the complete one has.
    report = tune(tmp_path, n_trials=9, max_epochs=4, eta=2, objective=objective, **terms)
    agreed(report)
    assert report.best_trial.epochs == 4
    states = {trial.number: trial.state for trial in report.study.trials}
    for row in report.rows:
        assert is_out(row.reason) <= (states[report.trials[row.name]] == TrialState.PRUNED)


def test_a_trial_that_ends_by_its_own_rule_is_complete(tmp_path: Path) -> None:
    def short(parameters: dict[str, Any]) -> argosy.Member:
        return replace(build(parameters), stop=argosy.MaxEpochs(2))

    report = tune(tmp_path, build=short, n_trials=6, max_epochs=9)
    assert {trial.state for trial in report.study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    agreed(report)


def test_a_trial_that_a_person_stopped_is_not_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    living.trusting(monkeypatch)

    def act(driver: Driver) -> None:
        if not left and driver.state.member("net-1").sections:
            left.append(inbox.leave(tmp_path, {"command": "stop", "member": "net-1"}))

    living.at_every_round(monkeypatch, act)

    def scored(parameters: dict[str, Any]) -> argosy.Member:
        score = 1.0 if parameters["number"] == 1 else 0.5
        return replace(build({}), metrics={"score": lambda outputs, targets: outputs.new_tensor(score)})

    terms: dict[str, Any] = {"space": {"number": CategoricalDistribution([0, 1, 2])}, "scheduler": "grid"}
    report = tune(tmp_path, build=scored, max_epochs=5, objective="val_score", mode="max", **terms)
    rows = {row.name: row for row in report.rows}
    assert (rows["net-1"].status, rows["net-1"].metrics["val_score"]) == ("stopped", 1.0)
    assert report.best_trial.name == "net-0"
    agreed(report)


@pytest.mark.parametrize("sampler", [None, partial(TPESampler, n_startup_trials=2)])
@pytest.mark.parametrize("scheduler", ["random", "hyperband", "asha", "median", "grid"])
def test_no_trial_is_running_in_the_storage_when_totals_have_grown(
    tmp_path: Path, scheduler: str, sampler: Callable[..., Any] | None
) -> None:
    run, terms = (
        tmp_path / "run",
        {"scheduler": scheduler, "eta": 2, "sampler": sampler if scheduler != "grid" else None},
    )
    spaces = [SPACE, SPACE]
    if scheduler == "grid":
        spaces = [{"lr": CategoricalDistribution(rates)} for rates in ([0.1, 0.2], [0.1, 0.2, 0.3])]
    tune(run, space=spaces[0], n_trials=3, max_epochs=2, **terms)
    more = tune(run, space=spaces[1], n_trials=6, max_epochs=2, **terms)
    assert [trial.number for trial in stored(run).trials if not trial.state.is_finished()] == []
    agreed(more)
    longer = tune(run, space=spaces[1], n_trials=6, max_epochs=4, **terms)
    assert [trial.number for trial in stored(run).trials if not trial.state.is_finished()] == []
    agreed(longer)
    assert longer.best_trial.epochs == 4


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_of_a_run_is_no_member_that_failed_and_no_nan(tmp_path: Path, mode: Any) -> None:
    def strange(outputs: Any, targets: Any) -> Any:
        return outputs.new_tensor(float("nan"))

    def tied(outputs: Any, targets: Any) -> Any:
        return outputs.new_tensor(0.5)

    members = [
        replace(wild({"kind": kind}), name=name, metrics={"score": metric})
        for name, kind, metric in (
            ("wild", "wild", lambda outputs, targets: outputs.new_tensor(0.0 if mode == "min" else 1.0)),
            ("nan", "good", strange),
            ("first", "good", tied),
            ("second", "good", tied),
        )
    ]
    study = argosy.Study(data=DATA, members=members, stop=argosy.MaxEpochs(3), objective="val_score", mode=mode, seed=0)
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    assert [row.name for row in report.rows] == ["first", "second", "nan", "wild"]
    assert report.rows[-1].metrics
    assert report.best().name == "first"
