"""Tests that another process can load, export and continue a search from its directory and its `argosy.Search`."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence
import forked
import living
import pytest
import torch
from optuna.samplers import RandomSampler
from searches import DATA, ROWS, SPACE, build, outcome
from test_folds import folded

import argosy
from argosy.errors import RunError
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox, journal
from argosy.running.directory.studyfile import load_study

SEARCH = argosy.Search(build=build, space=SPACE, data=DATA, max_epochs=3, n_trials=4)
HERE = {"launcher": "inline", "devices": "cpu:1", "quiet": True}
X = torch.stack([row[0] for row in ROWS])


def pasted(report: Any, search: argosy.Search) -> Any:
    """Evaluate the report's line ``Load it: …`` with nothing but the search at hand."""
    (line,) = re.findall(r"(?m)^Load it: (.*)$", f"{report}")
    return eval(line, {"argosy": argosy, "search": search})  # the line was printed by this process


@pytest.mark.parametrize("space", [SPACE, lambda trial: {"lr": 10 ** trial.suggest_float("digits", -3, 0)}])
@pytest.mark.parametrize("warm", [True, False])
def test_the_line_that_loads_the_best_trial_can_be_pasted(tmp_path: Path, space: Any, warm: bool) -> None:
    search = replace(SEARCH, space=space, warm=warm)
    report = argosy.tune(search, directory=tmp_path, **HERE)
    network, wanted = pasted(report, search), report.best().load()
    assert all(torch.equal(network.state_dict()[name], value) for name, value in wanted.state_dict().items())
    pasted(report.run, search)
    found = argosy.load(tmp_path, study=search)
    assert outcome(found) == outcome(report)
    assert found.to_json() == report.to_json()
    assert torch.equal(found.predict(X), wanted(X))
    assert [trial.state for trial in found.study.trials] == [trial.state for trial in report.study.trials]


@pytest.mark.tampers
def test_a_journal_is_read_once_to_load_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read twice, so a trial that began between the two was in one part of the report only."""
    report = argosy.tune(SEARCH, directory=tmp_path, **HERE)
    seen: list[Path] = []
    read = journal.read_lines

    def counted(path: Path) -> Iterator[bytes]:
        seen.append(path)
        return read(path)

    monkeypatch.setattr(journal, "read_lines", counted)
    assert outcome(argosy.load(tmp_path, study=SEARCH)) == outcome(report)
    assert seen == [tmp_path / "journal.jsonl"]


def test_a_search_that_was_killed_before_its_data_was_open_says_so(tmp_path: Path) -> None:
    argosy.tune(SEARCH, directory=tmp_path, **HERE)
    (tmp_path / "study.json").unlink()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(lines[: 1 + 4]))  # the search began, and its trials were proposed
    with pytest.raises(RunError, match="the data was not open when the run ended"):
        argosy.load(tmp_path, study=SEARCH)


def test_trials_that_the_median_ended_stay_so_in_a_larger_search(tmp_path: Path) -> None:
    """The same command again trained some of them further, which were no longer worse than the median of all trials."""
    small = replace(SEARCH, scheduler="median", n_trials=10, sampler=RandomSampler)
    first = argosy.tune(small, directory=tmp_path, **HERE)
    ended = {name: one for name, one in outcome(first).items() if one[1] == "pruned"}
    search = replace(small, n_trials=20)
    whole = argosy.tune(search, directory=tmp_path, **HERE)
    assert ended and ended.items() <= outcome(whole).items()
    assert outcome(argosy.tune(search, directory=tmp_path, **HERE)) == outcome(whole)
    found = argosy.load(tmp_path, study=search)
    assert [trial.state for trial in found.study.trials] == [trial.state for trial in whole.study.trials]
    assert all(trial.state.is_finished() for trial in found.study.trials)


@pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")
def test_no_trial_of_a_finished_search_is_loaded_as_running(tmp_path: Path) -> None:
    """That the first trials are out follows from the failure of the last."""

    def space(trial: Any) -> dict[str, Any]:
        return {"width": 5 if trial.suggest_int("number", trial.number, trial.number) == 3 else 10}

    search = replace(SEARCH, space=space, scheduler="asha", eta=2, max_epochs=2, warm=False)
    report = argosy.tune(search, directory=tmp_path, **HERE)
    states = [trial.state.name for trial in argosy.load(tmp_path, study=search).study.trials]
    assert states == [trial.state.name for trial in report.study.trials]
    assert "RUNNING" not in states


def test_the_line_loads_a_best_trial_of_several_members_as_one_network(tmp_path: Path) -> None:
    search = replace(SEARCH, build=folded, n_trials=2, scheduler="random", max_epochs=1)
    report = argosy.tune(search, directory=tmp_path, **HERE)
    assert {*pasted(report, search).names} == {*report.best_trial.members}


def test_members_that_joined_a_search_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like those of a run, they are in the report of the search itself; later ones need the study of the added file."""
    living.trusting(monkeypatch)
    run, file = tmp_path / "run", tmp_path / "more.py"
    file.write_text(
        "import argosy, searches\nfrom dataclasses import replace\n"
        "study = argosy.Study(data=searches.DATA, members=[replace(searches.build({}), name='late')])\n"
    )
    asked: list[str] = []

    def act(_: Driver) -> None:
        if not asked:
            asked.append(inbox.write_command(run, {"command": "add", "study": str(file)}))

    living.at_every_round(monkeypatch, act)
    report = argosy.tune(SEARCH, directory=run, **HERE)
    late = report.run.member("late").load().state_dict()
    assert "study=[search, added]).run.member('late')" in str(report.run)
    found = argosy.load(run, study=[SEARCH, load_study(file)])
    assert outcome(found) == outcome(report)
    assert all(map(torch.equal, found.run.member("late").load().state_dict().values(), late.values()))
    assert len(found.run.ensemble().scores) == len(report.run.ensemble().scores) == len(report.run.rows) + 1


def test_keywords_beside_a_search_replace_its_own(tmp_path: Path) -> None:
    terms = {"max_epochs": 1, "scheduler": "random", "n_trials": 2}
    first = argosy.tune(SEARCH, directory=tmp_path, **terms, **HERE)
    assert [row.epochs for row in first.rows] == [1, 1]
    further = argosy.tune(SEARCH, directory=tmp_path, **{**terms, "n_trials": 3}, **HERE)
    assert len(further.rows) == 3
    assert len(evidence.event_lines(tmp_path, "Proposed")) == 3


def test_loading_with_another_search_is_refused(tmp_path: Path) -> None:
    argosy.tune(SEARCH, directory=tmp_path, n_trials=1, scheduler="random", max_epochs=1, **HERE)
    with pytest.raises(RunError, match="the directory holds a different search"):
        argosy.load(tmp_path, study=replace(SEARCH, seed=5))


def test_trials_are_exported_by_name_and_the_best_without_one(tmp_path: Path) -> None:
    report = argosy.tune(SEARCH, directory=tmp_path / "run", **HERE)
    for number, name in enumerate([None, report.rows[-1].name]):
        folder = report.export(tmp_path / f"{number}", name, format="torch-export")
        said = torch.export.load(folder / "model.pt2").module()(X)
        torch.testing.assert_close(said, report.run.member(name or report.best_trial.name).load()(X))


def test_the_command_exports_a_trial(tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text(
        "import argosy, searches\n"
        "search = argosy.Search(build=lambda found: argosy.replicate(searches.build(found), 2), space=searches.SPACE, data=searches.DATA,"
        " max_epochs=1, n_trials=2, scheduler='random')\n"
    )
    run = forked.command(tmp_path, ["tune", "asked.py", "--dir", "x", "--devices", "cpu:1", "--launcher", "inline"])
    assert run.returncode == 0, run.stderr
    both = {"net-1-seed=0", "net-1-seed=1"}
    for words, members in (
        (["net-1-seed=1"], {"net-1-seed=1"}),
        (["--top", "4"], both | {"net-0-seed=0", "net-0-seed=1"}),
        (["net-1", "--ensemble"], both),
    ):
        words = ["export", "x", *words, "--study", "asked.py", "--format", "torch-export", "--to", "out"]
        found = forked.command(tmp_path, words)
        assert found.returncode == 0, found.stderr
        written = json.loads((tmp_path / "out" / "config.json").read_text())
        assert set((written["ensemble"] or {"members": [written["name"]]})["members"]) == members
