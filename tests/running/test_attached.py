"""Tests that Python code can attach to a live run and send it requests, with the same answers and refusals as the commands."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import evidence
import living
import numpy as np
import pytest
import studies

import argosy
from argosy.cli import steer
from argosy.errors import RefusedError, RunError, StudyError
from argosy.running.directory.attached import AttachedRun
from argosy.running.directory.audit import audit

pytestmark = pytest.mark.filterwarnings("ignore:the run in .* is paused. by command")


def study(there: Path | None = None) -> argosy.Study:
    """Return a study of two members that train slowly until a file exists."""
    augment = None if there is None else partial(studies.dawdle_until, str(there))
    fleet = [studies.member(name, hidden=hidden, augment=augment) for name, hidden in (("one", 16), ("two", 8))]
    return studies.study(90, fleet=fleet, epochs=40)


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[AttachedRun, Path]]:
    """Yield a run that trains in a thread, after its first section, and the file that makes it fast."""
    reports: list[argosy.Report] = []
    hurry = folder / "hurry"
    call = partial(argosy.train, study(hurry), directory=folder / "run", launcher="inline", devices="cpu:1", quiet=True)
    thread = threading.Thread(target=lambda: reports.append(call()), daemon=True)
    thread.start()
    try:
        while not (folder / "run" / "study.json").exists():
            thread.join(0.02)
        run = argosy.attach(folder / "run")
        run.wait(section=True)
        yield run, hurry
    finally:
        hurry.touch()
        thread.join()
    assert reports, "the call did not return"


def test_a_run_that_is_stopped_as_a_whole_goes_on_where_it_was(tmp_path: Path) -> None:
    with at_work(tmp_path) as (run, _):
        assert run.stop() == ["every member is saved, and the run ends; the same command resumes the run"]
        stopped = run.status()
    assert (stopped.status, stopped.reason) == ("paused", "by command; the same command resumes the run")
    assert [row.status for row in stopped.rows] == ["paused", "paused"]
    assert all(0 < row.epochs < 40 for row in stopped.rows)
    with pytest.raises(RunError, match=r"has ended \(paused\)\. Start it again"):
        run.stop()
    argosy.train(study(tmp_path / "hurry"), directory=tmp_path / "run", launcher="inline", devices="cpu:1", quiet=True)
    argosy.train(
        study(tmp_path / "hurry"), directory=tmp_path / "whole", launcher="inline", devices="cpu:1", quiet=True
    )
    assert evidence.results(tmp_path / "run") == evidence.results(tmp_path / "whole")


def test_members_are_stopped_cloned_and_added_with_the_answers_of_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living.trusting(monkeypatch)
    (tmp_path / "more.py").write_text(
        "import studies\nstudy = studies.study(90, fleet=[studies.member('three')], epochs=2)\n"
    )
    with at_work(tmp_path) as (run, hurry):
        assert run.status().status == "running"
        rate = np.float32(0.25)
        assert run.clone("one", "copy", {"optimizer.lr": rate}) == "added copy"
        assert run.add(tmp_path / "more.py") == "added three"
        assert run.stop("two") == ["two has been saved and stopped"]
        with pytest.raises(
            RefusedError, match=r"^no member 'too' is training; members that can be stopped: copy, one, three\.$"
        ) as refusal:
            run.stop(["one", "too"])
        done, refused = refusal.value.answers
        assert (done, refused.startswith("refused: ")) == ("one has been saved and stopped", True)
        with pytest.raises(RefusedError, match=r"^'two' has already ended: stopped\. There is nothing to stop\.$"):
            run.stop("two")
        with pytest.raises(RefusedError, match=r"no hyper-parameter 'optimizer.rate'"):
            run.clone("copy", "other", {"optimizer.rate": 0.1})
        with pytest.raises(StudyError, match=r"clone 'other': optimizer.lr is None; it must be a finite number"):
            run.clone("copy", "other", {"optimizer.lr": None})
        hurry.touch()
        report = run.wait()
    assert report.status == "done"
    found = {row.name: row.status for row in report.rows}
    assert found == {"one": "stopped", "two": "stopped", "three": "done", "copy": "done"}
    assert report.member("copy").hyperparameters["optimizer.lr"] == 0.25
    assert audit(run.directory) == []


def test_the_command_prints_what_the_function_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with at_work(tmp_path) as (run, _):
        for members, code, says in (
            (["too"], 2, "refused: no member 'too'"),
            (["one"], 0, "one has been saved and stopped"),
            (None, 0, "every member is saved, and the run ends; the same command resumes the run"),
        ):
            with pytest.raises(steer.typer.Exit) as end:
                steer.stop(run.directory, members)
            assert end.value.exit_code == code
            assert capsys.readouterr().out.startswith(says)
        assert run.status().status == "paused"


def test_where_no_run_is_there_is_none_to_attach_to(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        argosy.attach(tmp_path)
