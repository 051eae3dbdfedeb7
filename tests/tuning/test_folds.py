"""Tests that the members of a trial that is a mean continue, rest and end together, and that each trains as it would alone."""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState
from searches import DATA, build, outcome, stored, tune
from torch import nn
from torch.optim import SGD

import argosy
from argosy.errors import MemberFailed, RunError
from argosy.running.directory.audit import audit
from argosy.tuning.hyperband import brackets

MOST, ETA = 4, 2


def folded(parameters: dict[str, Any]) -> list[argosy.Member]:
    """Return a one-layer member for each of two folds."""
    return argosy.kfold(build(parameters), 2, samples=40)


def search(directory: Path, **rest: Any) -> Any:
    eta = {} if rest.get("scheduler") == "grid" else {"eta": ETA}
    return tune(directory, **{"build": folded, "max_epochs": MOST, **eta, **rest})


def means(run: Path, names: Sequence[str]) -> list[float]:
    """Return the mean validation loss of these members after each section that all of them have ended."""
    histories = [living.state_of(run).members[name].history for name in names]
    return [sum(row["val_loss"] for row in rows) / len(names) for rows in zip(*histories, strict=True)]


def by_definition(run: Path, *, anew: bool) -> dict[str, tuple[float, float]]:
    """Return (epochs, value) of each row of one round of Hyperband, computed from the means of its folds."""
    found, start = {}, 0
    for size, budgets in brackets(MOST, ETA):
        racing = list(range(start, start + size))
        start += size
        for number, budget in enumerate(budgets):
            name = {t: f"net-{t}-s{budget}" if anew and number else f"net-{t}" for t in racing}
            worth = {t: min(means(run, [f"{name[t]}-fold={fold}" for fold in range(2)])[:budget]) for t in racing}
            found.update({name[t]: (budget, worth[t]) for t in racing})
            racing = sorted(racing, key=lambda t: (worth[t], t))[: len(racing) // ETA]
    return found


@pytest.mark.parametrize("warm", [True, False])
def test_the_best_means_go_on_and_a_killed_search_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        living.keep_all_files(patched)
        report = search(run, warm=warm, numerics="exact")
    rows = {row.name: (row.epochs, row.metrics["val_loss"]) for row in report.rows}
    assert rows == by_definition(run, anew=not warm)
    assert len({*report.trials.values()}) == 4 + 3 + 3
    assert len(report.table()) == len(report.rows) == len(report.run.rows) / 2
    assert report.epochs == sum(row.epochs for row in report.run.rows)
    assert {row.status for row in report.rows} == {"done", "pruned"}
    lines = evidence.event_lines(run, "Proposed")
    members = [
        replace(one, name=name) for line in lines for name, one in zip(line["members"], folds(line), strict=True)
    ]
    assert {member.name for member in members} == {row.name for row in report.run.rows}
    living.equal_alone(argosy.Study(data=DATA, members=members), run)
    best = report.best_trial
    assert best is report.rows[0]
    assert report.best_parameters == report.parameters[best.name]
    assert 0 < report.first_comparison_seconds < report.best_seconds <= report.seconds
    if warm:
        assert stored(run).best_value == best.metrics["val_loss"]
    with pytest.raises(RunError, match=f"the best trial, '{best.name}', is the mean of 2 members"):
        report.best()
    report.run.ensemble(members=best.members)
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for cut in (len(whole) // 4, len(whole) // 2):
        again = shutil.copytree(run, tmp_path / f"killed-{cut}")
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]) + whole[cut][:20])
        assert outcome(search(again, warm=warm, numerics="exact", study_name="run")) == outcome(report), cut
        assert audit(again) == []


def folds(line: dict[str, Any]) -> list[argosy.Member]:
    """Return the members that a trial was built from."""
    return folded(line["parameters"])


GRID = {"kind": CategoricalDistribution(["good", "bad", "wild", "short"])}


def mixed(parameters: dict[str, Any]) -> list[argosy.Member]:
    """Return two folds, the second of which fails ("bad"), diverges ("wild") or ends by its own rule ("short"), as the parameter says."""
    first, second = folded({})
    changes: dict[str, dict[str, Any]] = {
        "good": {},
        "bad": {"model": partial(nn.Linear, 6, 2)},
        "wild": {"optimizer": partial(SGD, lr=math.inf)},
        "short": {"stop": argosy.MaxEpochs(2)},
    }
    return [first, replace(second, **changes[parameters["kind"]])]


def test_all_end_when_one_fails_or_ends_by_its_own_rule(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.warns(MemberFailed, match="2 of 8 members of the search failed or diverged: 'net-"):
        report = search(run, build=mixed, space=GRID, scheduler="grid")
    rows = {row.name: row for row in report.rows}
    assert [rows[f"net-{number}"].status for number in range(4)] == ["done", "failed", "diverged", "done"]
    assert [row.name for row in report.rows[2:]] == ["net-1", "net-2"]
    assert rows["net-1"].reason.startswith("net-1-fold=1: ")
    assert (rows["net-0"].epochs, rows["net-3"].epochs) == (MOST, 2)
    for number, why in (
        (1, "net-1-fold=1 failed"),
        (2, "net-2-fold=1 diverged"),
        (3, "net-3-fold=1 ended after section 2"),
    ):
        other = report.run.member(f"net-{number}-fold=0")
        assert (other.status, other.reason) == ("done", why)
        assert other.epochs < MOST
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.state for trial in stored(run).trials] == states
    assert rows["net-3"].metrics["val_loss"] == min(means(run, [f"net-3-fold={fold}" for fold in range(2)]))
    with pytest.warns(MemberFailed):
        again = search(run, build=mixed, space=GRID, scheduler="grid")
    assert outcome(again) == outcome(report)
    assert again.run.status == "done"


def test_one_trial_whose_folds_all_fail_does_not_stop_the_search(tmp_path: Path) -> None:
    def unlike(parameters: dict[str, Any]) -> list[argosy.Member]:
        return argosy.kfold(build({**parameters, "lr": 0.1}), 4, samples=40)

    space = {"width": CategoricalDistribution([2, 10])}
    with pytest.warns(MemberFailed):
        report = search(tmp_path, build=unlike, space=space, scheduler="grid", devices="cpu:1")
    assert [(row.name, row.status) for row in report.rows] == [("net-1", "done"), ("net-0", "failed")]


def test_a_trial_of_one_repetition_is_that_member(tmp_path: Path) -> None:
    report = search(tmp_path, build=lambda parameters: folded(parameters)[:1], scheduler="asha", n_trials=3)
    assert {row.members for row in report.rows} == {(f"net-{number}-fold=0",) for number in range(3)}
    assert report.best().name == report.best_trial.name == f"net-{report.study.best_trial.number}-fold=0"
    assert report.best_trial.metrics["val_loss"] == report.study.best_value
    assert {row["trial"]: row["lr"] for row in report.table()} == {
        f"net-{trial.number}-fold=0": trial.params["lr"] for trial in report.study.trials
    }


@pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")
def test_members_of_a_stopped_trial_end_although_the_driver_was_killed_in_their_first_section(tmp_path: Path) -> None:
    terms = {"build": folded, "scheduler": "random", "n_trials": 3, "max_epochs": 2}
    tune(tmp_path, **terms)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    begun = next(at for at, line in enumerate(lines) if '"SectionEnded"' in line)
    stopped = {"event": "MemberEnded", "member": "net-1-fold=1", "status": "stopped", "reason": "by command", "at": 0.0}
    kept = [line for line in lines[:begun] if '"Saved"' not in line]
    (tmp_path / "journal.jsonl").write_text("".join([*kept, json.dumps(stopped) + "\n"]))
    shutil.rmtree(tmp_path / "members")
    rows = {row["member"]: row for row in tune(tmp_path, **terms).run.table()}
    assert rows["net-1-fold=0"]["reason"] == "net-1-fold=1 stopped"
    assert {row["status"] for row in rows.values()} == {"done", "stopped"}
