"""Tests that damaged, foreign, newer and missing run directories give one sentence, and that no file in them changes."""

import errno
import hashlib
import json
import shlex
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import studies

import argosy
from argosy.cli.app import main
from argosy.cli.runs import runs
from argosy.ensembling.ensemble import Ensemble
from argosy.errors import ArgosyError, CheckpointError, DiskError, RunError
from argosy.errors.system import explain_refusals
from argosy.protocol.events import Checkpoint, Event
from argosy.results.fold import MemberState
from argosy.running.control.resume import resume_points
from argosy.running.directory import loading
from argosy.running.directory.audit import audit
from argosy.running.directory.inbox import send_commands
from argosy.running.directory.journal import timeline
from argosy.running.directory.lock import Lock
from argosy.training.member import checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run of two members."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    fleet = [studies.member("one"), studies.member("two", hidden=8)]
    argosy.train(studies.study(90, fleet=fleet, epochs=1), directory=directory, launcher="inline", devices="cpu:1")
    return directory


def changed_line(number: int, text: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        lines = (directory / "journal.jsonl").read_text().splitlines()
        lines[number] = text
        (directory / "journal.jsonl").write_text("\n".join(lines) + "\n")

    return change


def without_journal(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("not a directory")


def a_folder_for_a_journal(directory: Path) -> None:
    (directory / "journal.jsonl").unlink()
    (directory / "journal.jsonl").mkdir()


def a_folder_for_newcomers(directory: Path) -> None:
    (directory / "newcomers.jsonl").mkdir()


def without_a_key(directory: Path) -> None:
    found = json.loads((directory / "study.json").read_text())
    del found["members"]
    (directory / "study.json").write_text(json.dumps(found))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (
        shutil.rmtree,
        "holds no run (it has no journal.jsonl); pass the directory of `argosy run --dir`; a run creates the journal in its first seconds.",
    ),
    "empty directory": (without_journal, "holds no run"),
    "a file": (a_file, "holds no run"),
    "a folder for a journal": (
        a_folder_for_a_journal,
        "Is a directory. Pass the directory of a run that you are allowed to read.",
    ),
    "a folder for newcomers": (
        a_folder_for_newcomers,
        "newcomers.jsonl: Is a directory. Pass the directory of a run that you are allowed to read.",
    ),
    "torn in the middle": (changed_line(1, '{"event": "Sav'), "line 2 is not an event: Unterminated string"),
    "zeros": (changed_line(1, "\0" * 40), "line 2 is not an event: Expecting value"),
    "no object": (changed_line(1, "3"), "line 2 is not an event"),
    "no kind": (changed_line(1, "{}"), "line 2 is not an event"),
    "no fields": (changed_line(1, '{"event": "Saved"}'), "line 2 is not an event"),
    "study.json torn": (
        lambda directory: (directory / "study.json").write_text('{"seed": 0'),
        "study.json is damaged: Expecting ',' delimiter",
    ),
    "study.json of another kind": (
        lambda directory: (directory / "study.json").write_text("[]"),
        "study.json is damaged: it is [], but must be an object.",
    ),
    "study.json without a key": (without_a_key, "study.json is damaged: it lacks members. Restore a copy of it"),
    "no study.json": (lambda directory: (directory / "study.json").unlink(), "has no study.json"),
}


@pytest.mark.tampers
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_directory_is_one_sentence(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damage, sentence = DAMAGES[name]
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    damage(run)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for read in (argosy.load, audit):
        with pytest.raises(RunError) as refused:
            read(run)
        assert sentence in str(refused.value)
    for command in ("status", "report", "audit"):
        monkeypatch.setattr("sys.argv", ["argosy", command, str(run)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = " ".join(capsys.readouterr().err.split())
        assert ended.value.code == 2
        assert sentence in said
        assert "Traceback" not in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_damaged_study_json_stops_no_resume_unsaid(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    (run / "study.json").write_text("")
    study = studies.study(90, fleet=[studies.member("one"), studies.member("two", hidden=8)], epochs=2)
    with pytest.raises(RunError, match=r"study\.json is damaged"):
        argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
    for epochs in (1, 2):
        (run / "study.json").unlink()
        study = replace(study, stop=argosy.MaxEpochs(epochs))
        with pytest.warns(UserWarning, match=r"has no study\.json, so it was not checked"):
            report = argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
        assert {row.epochs for row in report.rows} == {epochs}
        assert not audit(run)
    (run / "study.json").unlink()
    with pytest.warns(UserWarning, match=r"has no study\.json"):
        argosy.train(replace(study, members=study.members[:1]), directory=run, launcher="inline", devices="cpu:1")
    report = argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
    assert {row.name for row in report.rows} == {"one", "two"}


def a_folder(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).mkdir()

    return change


def without_sound_checkpoints(*members: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        for file in [file for name in members for file in (directory / "members" / name).glob("e*.pt")]:
            file.write_bytes(b"")

    return change


NO_RESUMES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no sound checkpoint": (
        without_sound_checkpoints("one"),
        r"no checkpoint of one in .* is sound: .* or start over with fresh=\['one'\] \(--fresh one\), which",
    ),
    "no sound checkpoint of two members": (
        without_sound_checkpoints("one", "two"),
        r"no checkpoint of one, two in .* is sound: .* with fresh=\['one', 'two'\] \(--fresh one --fresh two\), which",
    ),
    "a folder for a checkpoint": (a_folder("members/one/e0001-s0000000.pt"), "in the journal but does not exist"),
    "an empty journal": (
        lambda directory: (directory / "journal.jsonl").write_bytes(b""),
        "has no events, but there are checkpoints",
    ),
    "no journal": (
        lambda directory: (directory / "journal.jsonl").unlink(),
        "has no events, but there are checkpoints",
    ),
    "a folder for a lock": (a_folder("run.lock"), "Is a directory: .* Move this folder away; the same command resumes"),
}


@pytest.mark.tampers
@pytest.mark.parametrize("name", NO_RESUMES)
def test_a_resume_that_would_lose_what_is_there_is_refused(whole: Path, tmp_path: Path, name: str) -> None:
    damage, sentence = NO_RESUMES[name]
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    damage(run)
    before = {path: path.read_bytes() for path in (run / "members").rglob("*.pt") if path.is_file()}
    study = studies.study(90, fleet=[studies.member("one"), studies.member("two", hidden=8)], epochs=2)
    with pytest.raises(ArgosyError, match=sentence):
        argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
    assert {path: path.read_bytes() for path in (run / "members").rglob("*.pt") if path.is_file()} == before


def test_a_clone_or_trial_without_a_sound_checkpoint_is_not_advised_to_start_over_alone(tmp_path: Path) -> None:
    saved = Checkpoint(file="e0001-s0000000.pt", sha256="", epoch=1, section=0, position=0, carried=0, best=None)
    folder = tmp_path / "members" / "clone"
    folder.mkdir(parents=True)
    (folder / saved.file).touch()
    for clone, search in (
        (MemberState("clone", saved=[saved], inherited=saved), False),
        (MemberState("clone", saved=[saved]), True),
    ):
        with pytest.raises(CheckpointError, match=r"start over with fresh=True \(--fresh\), which keeps"):
            resume_points([clone], tmp_path, search=search)


def test_missing_best_weights_are_told_when_a_run_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "members" / "one"
    folder.mkdir(parents=True)
    saved = Checkpoint(
        file="e0002-s0000000.pt",
        sha256=hashlib.sha256(b"").hexdigest(),
        epoch=2,
        section=0,
        position=0,
        carried=0,
        best="best-e0001.0.pt",
    )
    (folder / saved.file).touch()
    state = MemberState("one", saved=[saved])
    (note,) = resume_points([state], tmp_path)["one"].notes
    assert note.startswith("its best weights, best-e0001.0.pt, do not exist")
    (folder / "best-e0001.0.pt").touch()
    assert resume_points([state], tmp_path)["one"].notes == ()


def refuse(_: Path) -> str:
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.tampers
def test_weights_that_cannot_be_read_are_one_sentence(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    report = argosy.load(run, study=studies.study(90, fleet=[studies.member("one"), studies.member("two", hidden=8)]))
    file = run / "members" / "one" / "e0001-s0000000.pt"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sha256_of", refuse)
        with pytest.raises(DiskError, match=r"cannot be read: .* Permission denied\. Grant yourself access there"):
            report.member("one").load()
    file.unlink()
    file.symlink_to(file.name)
    with pytest.raises(CheckpointError, match="does not exist"):
        report.member("one").load()
    with pytest.raises(CheckpointError, match="does not exist"):
        Ensemble.load(file, [studies.member("one")])
    file.unlink()
    file.mkdir()
    with pytest.raises(CheckpointError, match="does not exist"):
        report.member("one").load()


def test_a_folder_that_is_removed_during_a_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"It was removed: restore it"), explain_refusals(tmp_path):
        (tmp_path / "members" / "one" / "metrics.csv").write_text("")
    with pytest.raises(DiskError, match=r"ask for a larger quota"), explain_refusals(tmp_path):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "e0001.pt", None, str(tmp_path / "members" / "last.pt"))
    with pytest.raises(FileNotFoundError), explain_refusals(tmp_path):
        (tmp_path / "data.csv").read_text()


def test_what_a_later_version_wrote_is_left_out_and_said_once(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        if line["event"] == "Saved":
            line["checkpoint"]["tier"] = "cold"
        if line["event"] == "SectionEnded":
            line["weather"] = {"rain": True}
    lines.insert(1, {"event": "TideTurned", "at": 0.0, "height": 3})
    (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for _ in range(2):
        assert {row.name: row.metrics for row in argosy.load(run).rows} == {
            row.name: row.metrics for row in argosy.load(whole).rows
        }
    said = capsys.readouterr().err
    assert said.count("was written by a later version of argosy") == 1
    assert "does not know: Checkpoint.tier, SectionEnded.weather, TideTurned." in said


@pytest.mark.tampers
def test_a_run_with_a_driver_is_running_and_one_without_its_end_was_interrupted(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run, symlinks=True)
    lines = (run / "journal.jsonl").read_text().splitlines()
    (run / "journal.jsonl").write_text("\n".join(line for line in lines if '"RunEnded"' not in line) + "\n")
    assert argosy.load(run).status == "interrupted"
    with pytest.raises(
        RunError, match=r"was interrupted and has no driver\. Start it again before you send it a request"
    ):
        send_commands(run, {"command": "stop", "member": "one"})
    assert not (run / "commands").exists()
    with Lock(run / "run.lock"):
        assert argosy.load(run).status == "running"
        (run / "study.json").unlink()
        with pytest.raises(RunError, match="the data is not open yet"):
            argosy.load(run)
    # As after a driver was killed, whose workers still hold the lock.
    with Lock(run / "run.lock") as lock:
        (run / "run.lock").write_text(f"{2**22 + 1} {socket.gethostname()} 0.0")
        shutil.copy(whole / "study.json", run)
        assert argosy.load(run).status == "interrupted"
        assert lock.descriptor >= 0


def test_a_run_that_ends_while_it_is_read_was_not_interrupted(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, looks = [*timeline(whole)], list[Path]()

    def has_driver(directory: Path) -> bool:
        looks.append(directory)
        return len(looks) == 1

    def read(directory: Path) -> list[tuple[float, Event]]:
        looks.append(directory)
        return events[:-1] if len(looks) == 1 else events

    monkeypatch.setattr(loading, "has_driver", has_driver)
    monkeypatch.setattr(loading, "timeline", read)
    assert argosy.load(whole).status == "running"
    assert argosy.load(whole).status == "done"


def test_a_study_that_is_not_the_runs_own_cannot_load_its_networks(whole: Path) -> None:
    other = studies.study(90, fleet=[studies.member("two", hidden=9)])
    report = argosy.load(whole, study=other)
    with pytest.raises(RunError, match=r"the study has no member 'one', only two\. Pass the run's own study"):
        report.member("one").load()
    with pytest.raises(RunError, match="the network that the study builds for member 'two' is not the one"):
        report.member("two").load()


class Careful(studies.Mlp):
    """A network that raises when it loads weights, as without free memory."""

    def _load_from_state_dict(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no room for them")


def test_a_network_that_takes_no_weights_says_why(whole: Path) -> None:
    study = studies.study(90, fleet=[studies.member("two", model=Careful)])
    with pytest.raises(RunError, match=r"is not the one that was trained: no room for them\. Pass"):
        argosy.load(whole, study=study).member("two").load()


def test_a_command_that_is_shown_can_be_typed_whatever_the_folder_is_called(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "$(touch owned); x" / "run"
    shutil.copytree(whole, run, symlinks=True)
    runs(run.parent)
    typed = capsys.readouterr().out.splitlines()[-1].partition("argosy report ")[2]
    assert shlex.split(typed) == [str(run)]
