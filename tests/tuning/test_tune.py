"""Searches on a living fleet: who goes on is what the scheduler's definition says, and a killed search ends as any other."""

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import numpy as np
import optuna
import pytest
import studies
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from torch import nn
from torch.optim import SGD

import argosy
from argosy.errors import MemberError, RunError, StudyError
from argosy.events import SectionEnded
from argosy.running.view import Silent
from argosy.tuning.hyperband import brackets

rows = np.random.RandomState(0)
X, Y = rows.randn(40, 6).astype(np.float32), np.arange(40) % 10
DATA = argosy.Data(arrays=(X, Y), val_arrays=(X, Y))
SPACE = {"lr": FloatDistribution(1e-3, 1.0, log=True), "batch_size": CategoricalDistribution([8, 20])}


def build(parameters: dict[str, Any]) -> argosy.Member:
    """One layer; so bad a learning rate diverges, so bad a width fails."""
    width = parameters.get("width", 10)
    return argosy.Member(
        "net",
        model=partial(nn.Linear, 6, width),
        optimizer=partial(SGD, lr=parameters.get("lr", 0.1)),
        batch_size=parameters.get("batch_size", 20),
        metrics={"accuracy": argosy.accuracy},
    )


def tune(directory: Path, *, space: Any = SPACE, **rest: Any) -> Any:
    """A search in this process."""
    settings = {"max_epochs": 9, "data": DATA, "devices": "cpu:2", **rest}
    return argosy.tune(settings.pop("build", build), space, directory=directory, launcher="inline", **settings)


def outcome(report: Any) -> dict[str, Any]:
    """What must not depend on when a search was killed."""
    return {
        row["trial"]: (row["epochs"], row["status"], row["reason"], row["lr"], row["val_loss"])
        for row in report.table()
    }


def stored(directory: Path, name: str | None = None) -> optuna.Study:
    """The search as Optuna's own tools find it."""
    backend = optuna.storages.journal.JournalFileBackend(str(directory / "optuna.log"))
    storage = optuna.storages.JournalStorage(backend)
    return optuna.load_study(study_name=name or directory.name, storage=storage)


def by_definition(directory: Path, *, most: int, eta: int) -> dict[str, float]:
    """How far each trial of one round of Hyperband trains, by what the trials reached."""
    members, reached, start = living.state_of(directory).members, {}, 0
    for size, budgets in brackets(most, eta):
        racing = list(range(start, start + size))
        start += size
        for budget in budgets:
            worth = {t: min(row["val_loss"] for row in members[f"net-{t}"].history[:budget]) for t in racing}
            reached.update(dict.fromkeys(racing, budget))
            racing = sorted(racing, key=lambda t: (worth[t], t))[: len(racing) // eta]  # noqa: B023
    return {f"net-{trial}": epochs for trial, epochs in reached.items()}


class Looks(Silent):
    """Opens the search's storage in the middle of the run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: list[optuna.trial.FrozenTrial] = []

    def hear(self, worker: str, message: Any) -> None:
        if isinstance(message, SectionEnded) and message.epoch == 4 and not self.seen:
            self.seen = stored(self.directory).trials


def test_hyperband_is_the_table_and_a_killed_search_ends_like_any_other(tmp_path: Path) -> None:
    run, looks = tmp_path / "run", Looks(tmp_path / "run")
    report = tune(run, view=looks)
    assert {row.name: row.epochs for row in report.run.rows} == by_definition(run, most=9, eta=3)
    assert len(report.run.rows) == 9 + 5 + 3
    assert report.epochs == sum(row.epochs for row in report.run.rows) == 69
    # Who goes on goes on where it is, and nobody sees more than the one stream.
    started = evidence.event_lines(run, "MemberStarted")
    assert sorted(line["member"] for line in started) == sorted(row.name for row in report.run.rows)
    assert report.run.preparations == 1.0
    assert report.best() is report.run.rows[0]
    assert report.best_parameters == report.parameters[report.best().name]
    assert report.best().load()(report.best().load().weight.new_zeros(1, 6)).shape == (1, 10)
    assert 0 < report.first_comparison_seconds < report.best_seconds <= report.seconds
    assert report.trials_per_hour == pytest.approx(17 / report.seconds * 3600)
    json.dumps(report.to_json())
    assert {trial.state for trial in looks.seen} == {TrialState.RUNNING, TrialState.PRUNED}
    trials = stored(run).trials
    assert [trial.params for trial in trials] == [report.parameters[f"net-{trial.number}"] for trial in trials]
    assert [trial.state == TrialState.COMPLETE for trial in trials] == [
        report.run.member(f"net-{trial.number}").epochs == 9 for trial in trials
    ]
    assert stored(run).best_trial.number == int(report.best().name.removeprefix("net-"))

    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for number, cut in enumerate([1, 12, 40, 75, len(whole) - 2]):
        again = shutil.copytree(run, tmp_path / f"killed-{number}")
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]) + whole[cut][:20])
        found = tune(again, study_name="run")
        assert outcome(found) == outcome(report), cut
        assert [(t.params, t.state, t.values) for t in stored(again, "run").trials] == [
            (t.params, t.state, t.values) for t in trials
        ]
