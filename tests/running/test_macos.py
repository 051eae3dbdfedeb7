"""Tests what runs on macOS, which a stand-in plays, what is refused there, and that Windows is refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import studies

import argosy
from argosy.running.directory import lock

TESTS = Path(__file__).parent.parent
PLAY = "import macos; macos.play()\n"
TRAINING = """
import argosy, studies
from argosy.running.directory.lock import Lock, has_driver
data = argosy.Data(train=studies.Vectors(60), val=studies.Vectors(20))
members = [studies.member("mlp"), studies.member("wide", hidden=20)]
for epochs in (1, 2):
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(epochs))
    report = argosy.train(study, directory="run", launcher="inline", devices="cpu:1", quiet=True)
with Lock(report.directory / "run.lock"):
    assert has_driver(report.directory)
assert not has_driver(report.directory)
argosy.load("run", study=study).ensemble()
print([(row["member"], row["val_loss"]) for row in report.table()])
"""
REFUSED = """
import argosy, studies
study = studies.study()
"""


def python(program: str, *words: str, folder: Path) -> tuple[str, str]:
    """Run a program; return what it wrote to standard output and standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent)))}
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    return ended.stdout, ended.stderr


def command(*words: str, folder: Path) -> tuple[str, str]:
    return python(f"{PLAY}from argosy.cli.app import main; main()", *words, folder=folder)


def test_inline_runs_train_as_on_linux_and_are_resumed_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    numbers, errors = python(PLAY + TRAINING, folder=there)
    monkeypatch.chdir(tmp_path)
    exec(TRAINING, {})
    assert numbers == capsys.readouterr().out, errors


@pytest.mark.parametrize("words", [("run", "study.py"), ("doctor",)])
def test_commands_that_start_processes_are_refused_before_anything_is_written(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "study.py").write_text(REFUSED)
    _, errors = command(*words, folder=tmp_path)
    assert errors.startswith("PlanError: processes that train together need Linux; this system is darwin."), errors
    assert [path.name for path in tmp_path.iterdir()] == ["study.py"]


def test_a_call_that_starts_processes_is_refused_before_a_run_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal.jsonl").touch()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(argosy.errors.PlanError, match="Use launcher inline"):
        argosy.train(studies.study(), directory=tmp_path, fresh=True)
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]


def test_a_run_of_another_user_is_read_although_no_locks_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(lock, "open_plain", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not lock.has_driver(tmp_path)


def test_windows_is_refused_in_a_sentence(tmp_path: Path) -> None:
    _, errors = python("import sys; sys.platform = 'win32'; import argosy", folder=tmp_path)
    assert errors.splitlines()[-1].startswith("ImportError: Argosy runs on Linux, and this system is Windows.")
