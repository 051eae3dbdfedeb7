"""What `argosy status` and `argosy report` say of the directory of a search, and how its progress is shown."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import voyages
from searches import stored, tune
from test_best import KINDS, wild

from argosy.cli import report as reporting_cli
from argosy.cli.report import report, status
from argosy.results.fold import RunState
from argosy.running.directory.loading import load, search_of
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.settings import Settings
from argosy.views.watch import Watch

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # what it says is asserted of reports


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command prints of a directory: as text, or the value that it writes as JSON."""

    def say(command: Any, directory: Path, *, as_json: bool = False) -> Any:
        names = {status: ("wait",), report: ("html", "open_", "live")}[command]
        values: list[Any] = []
        capsys.readouterr()
        with monkeypatch.context() as patched:
            if as_json:
                patched.setattr(reporting_cli, "write", lambda value, **_: values.append(value))
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
    assert f"Search further: with more n_trials or max_epochs than before, argosy tune FILE --dir {run}" in said
    assert "Go on:" not in said
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
    assert f"Go on: argosy tune FILE --dir {again}" in said
    assert "Search further" not in said


def test_what_is_best_is_the_same_from_the_directory_alone(tmp_path: Path) -> None:
    for number, terms in enumerate([{}, {"scheduler": "asha", "warm": False}, {"space": KINDS, "build": wild}]):
        run = tmp_path / str(number)
        found = tune(run, **{"n_trials": 8, "max_epochs": 4, "eta": 2, "objective": "val_accuracy", **terms})
        alone = search_of(load(run))
        assert alone is not None
        assert alone.table() == found.table()
        assert alone.to_json() == found.to_json()
        assert alone.trials[alone.best_trial.name] == stored(run).best_trial.number


@pytest.mark.tampers
def test_a_run_is_no_search(tmp_path: Path, commands: Any) -> None:
    study = voyages.asked(2, epochs=2)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=2))
    assert search_of(load(tmp_path / "run")) is None
    assert "argosy tune" not in commands(status, tmp_path / "run")
    assert "trials" not in commands(status, tmp_path / "run", as_json=True)


def test_progress_never_goes_back_when_epochs_without_a_file_are_trained_again(tmp_path: Path) -> None:
    study = voyages.asked(4, epochs=10)
    state = RunState.of(event for _, event in voyages.scheduler(study, epochs=5, end=False))
    watch, job = Watch(), Job(study=study, settings=Settings(), directory=tmp_path, lock=0)
    watch.begin(job, state)
    watch.expect(lambda: 40 - sum(member.epochs for member in state.members.values()))
    before = watch.screen(Phase.OPENING).share
    for member in state.members.values():
        member.forget_from(2, 0)
    assert watch.screen(Phase.TRAINING).share == before > 0.4
    assert sum(member.epochs for member in state.members.values()) < 0.4 * 40
