"""Tests what `argosy status` and `argosy report` print about the directory of a search, and how its progress is shown."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import voyages
from searches import DATA, SPACE, build, stored, tune
from test_best import KINDS, wild

import argosy
from argosy.cli import report as reporting_cli
from argosy.cli.report import report, status
from argosy.protocol.events import SectionEnded
from argosy.results.fold import RunState
from argosy.running.directory.journal import timeline
from argosy.running.directory.loading import load_timed, search_report_of
from argosy.running.launch.launcher import Job
from argosy.running.search.tuner import Tuner
from argosy.running.watch.phase import Phase
from argosy.settings import Settings
from argosy.views.html.report import page_values
from argosy.views.watch import Watching

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # reports are checked for its text


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command on a directory and returns what it prints: the text, or the value written as JSON."""

    def say(command: Any, directory: Path, *, as_json: bool = False) -> Any:
        names = {status: ("wait",), report: ("html", "open_", "live")}[command]
        values: list[Any] = []
        capsys.readouterr()
        with monkeypatch.context() as patched:
            if as_json:
                patched.setattr(reporting_cli, "print_output", lambda value, **_: values.append(value))
            command(directory, as_json=as_json, **dict.fromkeys(names, False))
        return values[0] if as_json else " ".join(capsys.readouterr().out.split())

    return say


@pytest.mark.parametrize("command", [status, report])
def test_a_search_is_told_as_its_trials_with_what_to_type_for_a_search(
    tmp_path: Path, command: Any, commands: Any
) -> None:
    run = tmp_path / "run"
    found = tune(run, n_trials=6, max_epochs=3)
    said = commands(command, run)
    assert said.startswith(f"Best: {found.best_trial.name}, val_loss ")
    assert "trial val_loss lr batch_size epochs status" in said
    assert "6 trials" in said and "members:" not in said
    assert " With: lr = " in said
    assert f"Weights: {found.best().folder}/best.pt" in said
    assert "the command that began it" not in said
    assert f"Search further: with a larger n_trials or max_epochs, argosy tune FILE --dir {run}" in said
    assert "Resume:" not in said
    assert commands(command, run, as_json=True)["trials"] == found.table()
    told = [row.status for row in found.rows]
    assert f"{told.count('pruned')} pruned" in said and told.count("pruned") == 2
    assert [*found.to_pandas().status] == [row["status"] for row in found.table()] == told


@pytest.mark.parametrize("command", [status, report])
def test_a_search_that_was_killed_goes_on_by_what_is_said(tmp_path: Path, command: Any, commands: Any) -> None:
    run, again = tmp_path / "run", tmp_path / "killed"
    tune(run, n_trials=6, max_epochs=3)
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    shutil.copytree(run, again)
    (again / "journal.jsonl").write_bytes(b"".join(whole[: len(whole) // 2]))
    said = commands(command, again)
    assert f"Resume: argosy tune FILE --dir {again}" in said
    assert "Search further" not in said


def test_what_is_best_is_the_same_from_the_directory_alone(tmp_path: Path) -> None:
    for number, terms in enumerate([{}, {"scheduler": "asha", "warm": False}, {"space": KINDS, "build": wild}]):
        run = tmp_path / str(number)
        found = tune(run, **{"n_trials": 8, "max_epochs": 4, "eta": 2, "objective": "val_accuracy", **terms})
        alone = search_report_of(*load_timed(run))
        assert alone is not None
        assert alone.table() == found.table()
        assert alone.to_json() == found.to_json()
        assert alone.trials[alone.best_trial.name] == stored(run).best_trial.number


@pytest.mark.tampers
def test_a_run_is_no_search(tmp_path: Path, commands: Any) -> None:
    study = voyages.asked(2, epochs=2)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=2))
    assert search_report_of(*load_timed(tmp_path / "run")) is None
    assert "argosy tune" not in commands(status, tmp_path / "run")
    assert "trials" not in commands(status, tmp_path / "run", as_json=True)


def test_progress_never_goes_back_when_epochs_without_a_file_are_trained_again(tmp_path: Path) -> None:
    study = voyages.asked(4, epochs=10)
    state = RunState.of(event for _, event in voyages.scheduler(study, epochs=5, end=False))
    view, job = Watching(), Job(study=study, settings=Settings(), directory=tmp_path, lock=0)
    view.watch(job, state)
    view.expect(lambda: 40 - sum(member.epochs for member in state.members.values()))
    before = view.screen(Phase.OPENING).share
    for member in state.members.values():
        member.forget_from(2, 0)
    assert view.screen(Phase.TRAINING).share == before > 0.4
    assert sum(member.epochs for member in state.members.values()) < 0.4 * 40


def test_programs_are_told_the_best_trial_and_not_a_member_that_breaks_a_constraint(
    tmp_path: Path, commands: Any
) -> None:
    terms: dict[str, Any] = {"scheduler": "random", "n_trials": 6, "max_epochs": 2}
    free = tune(tmp_path / "free", **terms)
    limit = sorted(row.metrics["val_loss"] for row in free.rows)[2]
    run, facts = tmp_path / "run", tmp_path / "facts.json"
    hook = f'cat "$ARGOSY_FACTS" > {facts}'
    found = tune(run, constraints=lambda reached: [limit - reached["val_loss"]], on_end=hook, **terms)
    assert found.best_trial.name == free.rows[2].name != found.run.leader.name
    best = commands(status, run, as_json=True)["best"]
    assert (best["name"], best["value"]) == (found.best_trial.name, limit)
    assert json.loads(facts.read_text())["best"] == best


def test_the_best_epoch_of_a_trial_is_a_part_of_one_where_an_epoch_has_several_validations(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = tune(run, scheduler="random", n_trials=3, max_epochs=1.5, validations_per_epoch=2)
    best = min(found.best().sections, key=lambda ended: ended.metrics["val_loss"])
    assert best.epochs == 1.5
    assert found.ending().best[0].endswith(" at epoch 1.5 of 1.5")
    values = page_values(found.run, timeline(run))
    at = [column["name"] for column in values["columns"]].index("best epoch")
    assert values["rows"][0]["cells"][at] == 1.5


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_epochs_that_clones_took_over_are_counted_once(tmp_path: Path) -> None:
    run, terms = tmp_path / "run", {"scheduler": "pbt", "n_trials": 4, "max_epochs": 3}
    search = argosy.Search(build=build, space={"lr": SPACE["lr"]}, data=DATA, **terms)
    found = argosy.tune(search, directory=run, launcher="inline", devices="cpu:2")
    events = [event for _, event in timeline(run)]
    for count in [at for at, event in enumerate(events) if isinstance(event, SectionEnded)]:
        tuner, state = Tuner.of(search, events[:count]), RunState.of(events[:count])
        tuner.replay(events[:count], state)
        assert sum(member.own_epochs for member in state.members.values()) + tuner.epochs_to_come(state) == 12
    state = RunState.of(events)
    assert sum(member.epochs for member in state.members.values()) > 12
    assert found.epochs == found.run.epochs == 12
    view, study = Watching(), found.run.networks().known_study()
    view.watch(Job(study=study, settings=Settings(), directory=run, lock=0), state)
    assert view.done_before == view.screen(Phase.OVER).epochs == 12
    assert page_values(found.run, timeline(run))["cards"][1]["name"] == "12 epochs in total"
