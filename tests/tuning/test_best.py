"""Tests that the report, its table and Optuna's study of a search choose the best trial by one rule."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import living
import pytest
import torch
from optuna.distributions import CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState
from searches import DATA, SPACE, build, stored, tune
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import argosy
from argosy.errors import RunError
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.tuning.scheduler import is_out

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # reports are checked for its text


def wild(parameters: dict[str, Any]) -> argosy.Member:
    """Return a member that learns well; kind "wild" diverges in its second epoch, and "bad" in its first."""
    rates = {"good": [0.01] * 9, "wild": [2.0, math.inf], "bad": [math.inf]}[parameters["kind"]]
    schedule = partial(LambdaLR, lr_lambda=lambda epoch: rates[min(epoch, len(rates) - 1)])
    return replace(build({"lr": 1.0}), schedule=schedule)


def agreed(report: Any) -> None:
    """Assert that the report's best trial is Optuna's best, if Optuna has a complete trial."""
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
    assert min(sign * row.metrics[objective] for row in diverged) < sign * report.best().metrics[objective]
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
        with pytest.raises(RunError, match="val_loss that counts: each has finished no epoch"):
            asked()


class Foretold(nn.Module):
    """A network whose outputs are one score whatever it is trained on, and NaN after a given number of steps, so that it diverges."""

    def __init__(self, score: float, steps: float) -> None:
        super().__init__()
        self.score, self.steps = score, steps
        self.weights = nn.Parameter(torch.zeros(10))
        self.register_buffer("made", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.made += 1
        return x[:, :1] * 0 + self.weights + torch.where(self.made > self.steps, math.nan, self.score)


def foretold(parameters: dict[str, Any], doomed: int, steps: int) -> argosy.Member:
    """Return a member that scores better the lower its number is; those below `doomed` diverge after `steps` steps (an epoch has two)."""
    number = parameters["number"]
    model = partial(Foretold, 0.9 - number / 100, steps if number < doomed else math.inf)
    metrics: dict[str, Callable[..., Any]] = {
        "score": lambda outputs, targets: outputs.mean(),
        "rank": lambda outputs, targets: 1 - outputs.mean(),
    }
    return replace(build({"lr": 0.0, "batch_size": 20}), model=model, metrics=metrics)


def numbered(trial: Any) -> None:
    """A space whose only parameter is the trial's number."""
    trial.suggest_int("number", trial.number, trial.number)


def rows_of(report: Any) -> dict[int, list[Any]]:
    """Return the rows of each trial by its number: a trial that begins anew at each rung has several."""
    return {n: [row for row in report.rows if report.trials[row.name] == n] for n in report.trials.values()}


@pytest.mark.parametrize(
    ("terms", "best"),
    [
        ({"eta": 2}, 4),
        ({"eta": 2, "warm": False}, 4),
        ({"scheduler": "asha", "eta": 2}, 1),
        ({"scheduler": "asha", "eta": 2, "warm": False}, 1),
        ({"scheduler": "median"}, 1),
        ({"scheduler": "random"}, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize(("objective", "mode"), [("val_score", "max"), ("val_rank", "min")])
def test_the_best_trained_to_its_end(
    tmp_path: Path, terms: dict[str, Any], best: int, objective: str, mode: str
) -> None:
    """The best trial never is one that diverged, even if it beat all trials it was compared with and these are out."""
    report = tune(
        tmp_path,
        space=numbered,
        build=partial(foretold, doomed=1, steps=5),
        numerics="exact",
        **{"n_trials": 9, "max_epochs": 4, "objective": objective, "mode": mode, **terms},
    )
    states = {trial.number: trial.state for trial in report.study.trials}
    for number, rows in rows_of(report).items():
        ended = TrialState.COMPLETE if max(row.epochs for row in rows) == 4 else TrialState.PRUNED
        assert states[number] == (TrialState.FAIL if number == 0 else ended)
        statuses = [row.status for row in sorted(rows, key=lambda row: row.epochs)]
        over = {TrialState.FAIL: "diverged", TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned"}
        assert statuses == [*["done"] * (len(rows) - 1), over[states[number]]]  # only the last of several rungs
    assert report.trials[report.best_trial.name] == best
    assert report.best_trial.epochs == 4
    if best == 4:  # it is from another bracket, although pruned trials had reached better values
        assert {states[number] for number in (1, 2, 3)} == {TrialState.PRUNED}
    agreed(report)


def test_a_trial_that_ends_by_its_own_rule_is_complete(tmp_path: Path) -> None:
    """All three trials that the first bracket promotes diverge; one trial of the second bracket ends by its member's rule."""

    def short(parameters: dict[str, Any]) -> argosy.Member:
        return replace(foretold(parameters, doomed=3, steps=2), stop=argosy.MaxEpochs(2))

    terms = {"n_trials": 10, "max_epochs": 9, "objective": "val_score", "mode": "max", "numerics": "exact"}
    report = tune(tmp_path, space=numbered, build=short, **terms)
    states = {trial.number: trial.state for trial in report.study.trials}
    ends = {TrialState.FAIL: range(3), TrialState.PRUNED: range(3, 9), TrialState.COMPLETE: range(9, 10)}
    assert states == {number: state for state, numbers in ends.items() for number in numbers}
    assert (report.best_trial.name, report.best_trial.reason, report.best_trial.epochs) == ("net-9", "2 epochs", 2)
    assert all(
        is_out(row.reason) == (states[number] == TrialState.PRUNED) for number, (row,) in rows_of(report).items()
    )
    agreed(report)


def test_of_equal_trials_the_one_with_the_lowest_number_is_best_also_if_another_ended_first(tmp_path: Path) -> None:
    def alike(parameters: dict[str, Any]) -> argosy.Member:
        member = foretold({"number": 0}, doomed=0, steps=0)
        return replace(member, stop=argosy.MaxEpochs(3 - parameters["number"]))

    terms = {"scheduler": "random", "n_trials": 3, "max_epochs": 3, "objective": "val_score", "mode": "max"}
    report = tune(tmp_path, space=numbered, build=alike, **terms)
    assert report.best_trial.name == "net-0"
    agreed(report)


def test_a_trial_that_its_own_rule_ended_where_the_search_did_keeps_its_place_in_a_longer_one(tmp_path: Path) -> None:
    def short(parameters: dict[str, Any]) -> argosy.Member:
        rule = None if parameters["number"] % 2 else argosy.MaxEpochs(3)
        return replace(foretold(parameters, doomed=0, steps=0), stop=rule)

    terms = {"space": numbered, "build": short, "scheduler": "random", "n_trials": 4, "objective": "val_score"}
    terms |= {"mode": "max", "numerics": "exact"}
    once = tune(tmp_path / "once", max_epochs=6, **terms)
    tune(tmp_path / "run", max_epochs=3, **terms)
    report = tune(tmp_path / "run", max_epochs=6, **terms)
    found, wanted = ([(row.name, row.status, row.epochs) for row in one.rows] for one in (report, once))
    assert found == wanted
    assert found[:2] == [("net-0", "done", 3), ("net-1", "done", 6)]
    agreed(report)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("scheduler", ["hyperband", "asha", "random"])
def test_a_search_whose_rule_was_changed_in_the_middle_comes_to_its_end(
    tmp_path: Path, scheduler: str, warm: bool
) -> None:
    def ruled(epochs: int) -> Callable[..., argosy.Member]:
        return lambda parameters: replace(build(parameters), stop=argosy.MaxEpochs(epochs))

    terms = {"n_trials": 9, "scheduler": scheduler, "warm": warm or scheduler == "random", "numerics": "exact"}
    tune(tmp_path, build=ruled(2), **terms)
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    ended = [number for number, line in enumerate(lines) if b'"MemberEnded"' in line and b'"2 epochs"' in line]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[: ended[len(ended) // 2] + 1]))
    report = tune(tmp_path, build=ruled(5), **terms)
    assert report.run.status == "done"
    trials = stored(tmp_path).trials
    assert all(trial.state.is_finished() for trial in trials)
    complete = {trial.number for trial in trials if trial.state == TrialState.COMPLETE}
    last = {number: max(rows, key=lambda row: row.epochs) for number, rows in rows_of(report).items()}
    assert complete == {number for number, row in last.items() if row.status == "done"}
    agreed(report)


def test_a_trial_that_a_person_stopped_is_not_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    living.trusting(monkeypatch)

    def act(driver: Driver) -> None:
        if not left and driver.state.member("net-1").sections:
            left.append(inbox.write_command(tmp_path, {"command": "stop", "member": "net-1"}))

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
    run = tmp_path / "run"
    terms: dict[str, Any] = {"scheduler": scheduler, "sampler": sampler if scheduler != "grid" else None}
    if scheduler in ("hyperband", "asha"):
        terms["eta"] = 2
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
