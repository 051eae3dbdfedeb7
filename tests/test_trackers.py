"""Tests of what trackers are sent, and that no tracker can change or delay a run."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence
import pytest
import searches
import studies
from optuna.distributions import CategoricalDistribution
from torch import Tensor

import argosy
from argosy.errors import RunError
from argosy.tracking import make_trackers
from argosy.tracking.tensorboard import TensorBoard
from argosy.views import trackers
from argosy.views.trackers import TrackerFeed

FLEET = [studies.member("one", batch_size=20), studies.member("two", hidden=8)]


class Broken(studies.Mlp):
    """A network that raises on its first batch."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no such layer")


def train(directory: Path, epochs: int, *given: Any, fleet: Sequence[argosy.Member] = FLEET) -> argosy.Report:
    study = studies.study(60, fleet=fleet, epochs=epochs, val=20)
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", trackers=given)


class Recorder:
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def open(self, directory: Path, group: str) -> None:
        self.calls.append(("open", group))

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        self.calls.append(("begin", member, hyperparameters["batch_size"]))

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        self.calls.append(("log", member, step, figures["epochs"], figures["val_accuracy"]))

    def end(self, member: str, status: str) -> None:
        self.calls.append(("end", member, status))

    def kill(self, member: str, status: str) -> None:
        raise SystemExit

    def of(self, member: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[1] == member]


class Failing(Recorder):
    """A tracker that raises when it logs the second section."""

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        super().log(member, step, figures)
        if len([call for call in self.calls if call[0] == "log"]) == 2:
            raise OSError("no server")


class Emptying(Recorder):
    """A tracker that empties what it is given."""

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        super().begin(member, hyperparameters)
        hyperparameters.clear()  # type: ignore[attr-defined]

    def log(self, member: str, step: int, figures: Mapping[str, float]) -> None:
        super().log(member, step, figures)
        figures.clear()  # type: ignore[attr-defined]


class Blocking(Recorder):
    """A tracker whose first call does not return until `release` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def open(self, directory: Path, group: str) -> None:
        self.release.wait()


class Slow(Recorder):
    """A tracker that takes 0.2 s to open and 0.05 s to begin a member."""

    def open(self, directory: Path, group: str) -> None:
        time.sleep(0.2)

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        time.sleep(0.05)
        super().begin(member, hyperparameters)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs that train give trackers too little time for `Slow` at their end."""
    monkeypatch.setattr(trackers, "LEAST_PATIENCE", 0.1)
    monkeypatch.setattr(trackers, "LEAST_CALL_PATIENCE", 0.02)


def thread_of(tracker: str) -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == f"tracker {tracker}")


def test_a_tracker_is_told_what_the_journal_says_and_a_later_one_all_of_it(tmp_path: Path) -> None:
    first, second, late = Recorder(), Recorder(), Recorder()
    train(tmp_path / "x", 1, first)
    train(tmp_path / "x", 3, second)
    (tmp_path / "x" / "workers" / "tracker-recorder.told").unlink()
    train(tmp_path / "x", 3, late)
    rows = [
        ("log", "one", steps, epoch + 1.0, metrics["val_accuracy"])
        for epoch, (_, _, metrics, _, _, steps, _) in enumerate(evidence.results(tmp_path / "x")["one"]["epochs"])
    ]
    assert first.calls[0] == ("open", "x")
    assert first.of("one") == [("begin", "one", 20), rows[0], ("end", "one", "done")]
    assert second.of("one") == [("begin", "one", 20), *rows[1:], ("end", "one", "done")]
    assert late.of("one") == [("begin", "one", 20), *rows, ("end", "one", "done")]


class Parametrized(Recorder):
    """A tracker that records all hyper-parameters."""

    def begin(self, member: str, hyperparameters: Mapping[str, Any]) -> None:
        self.calls.append((member, dict(hyperparameters)))


class Later(Parametrized):
    """A tracker by another name."""


def test_a_section_that_is_trained_again_after_a_kill_is_logged_once(tmp_path: Path) -> None:
    recorder, journal = Recorder(), tmp_path / "x" / "journal.jsonl"
    train(tmp_path / "x", 1, recorder)
    train(tmp_path / "x", 2, recorder)
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b"SectionEnded" in line)
    journal.write_bytes(b"".join(lines[: last + 1]))  # as if the driver had been killed before the members were saved
    train(tmp_path / "x", 3, recorder)
    assert [call[3] for call in recorder.of("one") if call[0] == "log"] == [1.0, 2.0, 3.0]


def test_a_tracker_of_a_search_is_told_the_parameters_of_its_trials_now_and_later(tmp_path: Path) -> None:
    asked = {"space": {"momentum": CategoricalDistribution([0.5, None])}, "n_trials": 2, "scheduler": "grid"}
    given = [Parametrized(), Later()]
    for tracker in given:
        report = searches.tune(tmp_path, max_epochs=1, trackers=[tracker], **asked)
    wanted = {row["trial"]: {"momentum": row["momentum"] or "None", "batch_size": 20} for row in report.table()}
    assert len(wanted) == 2
    for tracker in given:
        told = dict(call for call in tracker.calls if call[0] in wanted and isinstance(call[1], dict))
        assert {name: {key: found[key] for key in wanted[name]} for name, found in told.items()} == wanted


def test_what_begins_anew_is_another_run_for_trackers(tmp_path: Path) -> None:
    study = studies.study(60, fleet=FLEET, epochs=2, val=20)

    def told(fresh: Any) -> dict[str, int]:
        recorder = Recorder()
        place = {"directory": tmp_path / "x", "launcher": "inline", "devices": "cpu:1"}
        argosy.train(study, trackers=[recorder], fresh=fresh, **place)
        return {call[1]: len(recorder.of(call[1])) for call in recorder.calls if call[0] == "begin"}

    assert told(False) == {"one": 4, "two": 4}
    assert told(["one"]) == {"one~1": 4}
    assert told(["one"]) == {"one~2": 4}
    anew = told(True)
    # Which of the two begins first depends on their measured times.
    assert {name.partition("~")[0]: count for name, count in anew.items()} == {"one": 4, "two": 4}
    assert not anew.keys() & {"one", "one~1", "one~2", "two"}
    (folder,) = tmp_path.glob("x.old-1")
    shutil.rmtree(folder)
    assert told(False) == {}
    (name,) = told(["two"])
    assert name == next(known for known in anew if known.startswith("two")) + "~1"


def test_trackers_that_fail_or_block_change_nothing_and_are_told_the_rest_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "alone", 2)
    failing, blocking = Failing(), Blocking()
    report = train(tmp_path / "x", 2, failing, blocking)
    said = capsys.readouterr().err.splitlines()
    assert report.status == "done"
    assert evidence.results(tmp_path / "x") == evidence.results(tmp_path / "alone")
    assert len([call for call in failing.calls if call[0] == "log"]) == 2
    assert said[0].startswith("tracker failing failed: OSError: no server (see ")
    assert said[1] == "tracker blocking is too slow; run the same command again to send it what it has missed."
    assert "no server" in (tmp_path / "x" / "workers" / "tracker-failing.log").read_text()
    left = thread_of("blocking")
    blocking.release.set()
    left.join()
    assert blocking.calls == [], "an abandoned thread must not report what another driver may report too"
    train(tmp_path / "x", 2, failing)
    told = [call[1:4] for call in failing.calls if call[0] == "log"]
    assert sorted(told[:1] + told[2:]) == [(name, steps, steps / 3) for name in ("one", "two") for steps in (3, 6)]


def test_what_a_tracker_may_not_have_written_before_a_kill_is_sent_again(tmp_path: Path) -> None:
    killed, recorder = Recorder(), Recorder()
    killed.delay_seconds = recorder.delay_seconds = 60.0  # type: ignore[attr-defined]
    killed.end = killed.kill  # type: ignore[attr-defined, method-assign]
    train(tmp_path / "x", 2, killed)
    train(tmp_path / "x", 2, recorder)
    assert [call[3] for call in recorder.of("one") if call[0] == "log"] == [1.0, 2.0]
    again = Recorder()
    train(tmp_path / "x", 2, again)
    assert again.calls == [("open", "x")]  # what has ended is written


def test_a_tracker_may_change_the_figures_that_it_is_given(tmp_path: Path) -> None:
    emptying, recorder = Emptying(), Recorder()
    train(tmp_path / "x", 2, emptying, recorder)
    assert emptying.of("one") == recorder.of("one")
    assert [call[3] for call in recorder.of("one") if call[0] == "log"] == [1.0, 2.0]


def test_a_member_that_failed_before_its_first_section_is_sent_once(tmp_path: Path) -> None:
    fleet = [*FLEET, studies.member("broken", model=Broken)]
    late, later = Recorder(), Recorder()
    for given in ([], [late], [later]):
        with pytest.warns(argosy.errors.MemberFailed):
            train(tmp_path / "x", 1, *given, fleet=fleet)
    assert late.of("broken") == [("begin", "broken", 20), ("end", "broken", "failed")]
    assert later.calls == [("open", "x")]


def test_a_member_that_was_paused_before_its_first_section_is_reported_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    first, second = (TrackerFeed("recorder", Recorder(), tmp_path / "workers") for _ in range(2))
    first._note("one", 1.0)
    first._thread.start()
    for status in ("paused", "failed"):
        first.tell("end", status, status)
    assert first.end(time.monotonic() + 60, 60) == ""
    assert second._logged_before() == {"one": 1.0, "failed": 0.0}


def test_a_run_with_nothing_to_train_waits_for_a_tracker_as_long_as_its_calls_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    impatient(monkeypatch)
    train(tmp_path / "x", 2)
    slow, blocking = Slow(), Blocking()
    train(tmp_path / "x", 2, slow)
    assert [call[0] for call in slow.calls] == ["begin", "log", "log", "end"] * 2
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(trackers, "IDLE_CALL_PATIENCE", 0.1)
    train(tmp_path / "x", 2, blocking)
    assert capsys.readouterr().err.startswith("tracker blocking is too slow;")
    blocking.release.set()


def test_libraries_are_imported_before_the_run_begins() -> None:
    pytest.importorskip("wandb")
    program = "import sys; from argosy.tracking import make_trackers; make_trackers(['wandb']); sys.exit('wandb' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_tracker_with_too_much_before_it_is_told_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 2)
    feed = TrackerFeed("slow", Blocking(), tmp_path)
    for number in range(4):
        feed.tell("end", f"m{number}", "done")
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 100)
    feed.tell("end", "late", "done")
    assert feed._calls.qsize() == 2


@pytest.mark.parametrize("given", ["comet", Recorder, 3])
def test_what_is_no_tracker_is_refused_before_the_run(tmp_path: Path, given: Any) -> None:
    with pytest.raises(RunError, match="tensorboard"):
        train(tmp_path / "x", 1, given)
    assert not (tmp_path / "x").exists()


def train_then_track(directory: Path, epochs: int, tracker: str, fleet: Sequence[argosy.Member] = FLEET) -> None:
    """Train without the tracker, then again with it: a run with nothing to train waits for slow libraries."""
    train(directory, epochs, fleet=fleet)
    train(directory, epochs, tracker, fleet=fleet)


def test_tensorboard_has_a_run_for_each_member_over_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_then_track(tmp_path, 1, "tensorboard")
    train_then_track(tmp_path, 2, "tensorboard")
    for name, row in evidence.results(tmp_path).items():
        found = EventAccumulator(str(tmp_path / "tensorboard" / name))
        found.Reload()
        losses = [(event.step, event.value) for event in found.Scalars("val_loss")]
        assert losses == [
            (steps, pytest.approx(metrics["val_loss"])) for _, _, metrics, _, _, steps, _ in row["epochs"]
        ]
        assert "_hparams_/session_start_info" in found.summary_metadata


def test_tensorboard_needs_no_thread_and_no_open_file_for_each_member(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    given = TensorBoard()
    given.open(tmp_path, "x")

    def used() -> tuple[int, int]:
        return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    def began(number: int) -> tuple[int, int]:
        given.begin(f"{number}", {"lr": 0.1})
        given.log(f"{number}", 4, {"val_loss": 0.5})
        return used()

    assert len({began(number) for number in range(20)}) == 1


ODD = 'it\'s a run [x]%20 #1 ?a&b "q" `é`'


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_a_directory_may_be_called_anything(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    train_then_track(tmp_path / ODD, 1, name)
    assert [path.name for path in tmp_path.iterdir()] == [ODD]
    assert not list((tmp_path / ODD / "workers").glob("tracker-*.log"))
    if name == "mlflow":
        train_then_track(tmp_path / ODD, 2, name)
        assert len(list((tmp_path / ODD / "mlruns").glob("*/*/meta.yaml"))) == len(FLEET)
    assert argosy.load(tmp_path / ODD).status == "done"


def test_mlflow_has_a_run_for_each_member_over_a_resume(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    fleet = [replace(one, metrics={"top@1 (%)": argosy.accuracy}) for one in FLEET]  # MLflow refuses such metric names
    train_then_track(tmp_path / "x", 1, "mlflow", fleet)
    train_then_track(tmp_path / "x", 2, "mlflow", fleet)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "x" / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("x").experiment_id])
    results = evidence.results(tmp_path / "x")
    assert {run.info.run_name: run.info.status for run in runs} == {"one": "FINISHED", "two": "FINISHED"}
    for run in runs:
        assert run.data.params["batch_size"] == "20"
        history = client.get_metric_history(run.info.run_id, "val_loss")
        wanted = [
            (steps, metrics["val_loss"]) for _, _, metrics, _, _, steps, _ in results[run.info.run_name]["epochs"]
        ]
        assert [(metric.step, metric.value) for metric in history] == wanted
        assert run.data.metrics["val_top_1 ___"] == results[run.info.run_name]["epochs"][-1][2]["val_top@1 (%)"]


def test_mlflow_is_searched_once_however_many_members_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    search, searches = mlflow.MlflowClient.search_runs, []
    monkeypatch.setattr(
        mlflow.MlflowClient, "search_runs", lambda *given, **named: searches.append(given) or search(*given, **named)
    )
    train_then_track(tmp_path / "x", 1, "mlflow")
    assert len(searches) == 1


def test_a_run_that_mlflow_cannot_read_is_named(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "mlruns/1/2").mkdir(parents=True)
    (tmp_path / "mlruns/1/2/meta.yaml").touch()
    (tracker,) = make_trackers(["mlflow"]).values()
    with pytest.raises(RunError, match=f"Remove its folder: rm -r {tmp_path}/mlruns/1/2"):
        tracker.open(tmp_path, "x")


def test_wandb_has_a_run_for_each_member_over_a_resume(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    train_then_track(tmp_path, 1, "wandb")
    train_then_track(tmp_path, 2, "wandb")
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 4
    assert len({file.name for file in files}) == 2
    wandb.teardown()


def test_trackio_has_a_run_for_each_member_over_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when trackio is imported
    trackio = pytest.importorskip("trackio")
    train_then_track(tmp_path / "x", 1, "trackio")
    train_then_track(tmp_path / "x", 2, "trackio")
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "argosy.db")) as database:
        configs = database.execute("SELECT run_name, config FROM configs").fetchall()
        lines = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    assert len(configs) == 2
    for run, config in configs:
        assert json.loads(config)["batch_size"] == 20
        assert json.loads(config)["_Group"] == "x"
        (row,) = [row for name, row in evidence.results(tmp_path / "x").items() if run.startswith(name)]
        wanted = [(steps, metrics["val_loss"]) for _, _, metrics, _, _, steps, _ in row["epochs"]]
        assert [(step, json.loads(text)["val_loss"]) for name, step, text in lines if name == run] == wanted
    tracker, finished = make_trackers(["trackio"])["trackio"], []
    from argosy.tracking.trackio import quiet

    finish = trackio.Run.finish
    monkeypatch.setattr(trackio.Run, "finish", lambda run: finished.append(run.name) or finish(run))
    for member in ("one", "two"):
        tracker.begin(member, {})
    assert not finished, "members train at the same time, so trackio must not finish runs in between"
    for member in ("one", "two"):
        tracker.end(member, "done")
    assert len(finished) == 2
    with contextlib.ExitStack() as runs:  # in one process, each with a tracker in a thread of its own
        runs.enter_context(quiet())
        runs.enter_context(quiet())
    assert "* Trackio" not in (printed := capsys.readouterr().out) and "* Run" not in printed


def test_figures_are_there_as_lines_whatever_tracks_them(tmp_path: Path) -> None:
    train(tmp_path, 2)
    for name, row in evidence.results(tmp_path).items():
        lines = (tmp_path / "members" / name / "metrics.jsonl").read_text().splitlines()
        wanted = [(metrics["val_loss"], steps) for _, _, metrics, _, _, steps, _ in row["epochs"]]
        assert [(found["val_loss"], found["steps"]) for found in map(json.loads, lines)] == wanted
