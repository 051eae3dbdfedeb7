"""Tests a run against what its users do: views that break, their own files in its directory, and studies that fail and are fixed."""

import io
import json
import os
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies
from rich.console import Console
from torch.nn.functional import cross_entropy

import argosy
from argosy.errors import MemberError, MemberFailed
from argosy.protocol.events import SectionEnded
from argosy.running.control import driver
from argosy.running.control.cost_table import CostTable
from argosy.running.directory.audit import audit
from argosy.running.directory.records import Metrics
from argosy.running.directory.study_json import write_json
from argosy.running.launch.inline import InlineWorkers
from argosy.running.watch.view import Silent
from argosy.views.tables import report_table
from argosy.views.terminal import Terminal

PAIR = [studies.member("one"), studies.member("two", hidden=8)]


def train(directory: Path, *, epochs: int = 1, fleet: Any = PAIR, **rest: Any) -> argosy.Report:
    """Train a small study in this process."""
    study = studies.study(90, fleet=fleet, epochs=epochs)
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", **rest)


def test_a_pause_that_comes_just_before_the_data_are_open_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, rounds = InlineWorkers.receive, iter(range(1000))

    def late(workers: InlineWorkers, timeout: float) -> Any:
        return receive(workers, timeout) if next(rounds) else []

    monkeypatch.setattr(InlineWorkers, "receive", late)
    report = train(tmp_path, time_limit=0.0)
    assert (report.status, [row.epochs for row in report.rows]) == ("paused", [0, 0])


class Broken(Silent):
    """A view that raises at a section's end and when it is ended."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    def handle(self, worker: str, message: Any) -> None:
        if isinstance(message, SectionEnded):
            self.asked += 1
            raise self.error

    def end(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no colours"), BrokenPipeError(), SystemExit(1)])
def test_a_view_that_breaks_costs_the_run_nothing(tmp_path: Path, error: BaseException) -> None:
    view = Broken(error)
    report = train(tmp_path, epochs=3, view=view)
    assert (report.status, {row.status for row in report.rows}, view.asked) == ("done", {"done"}, 1)
    log = tmp_path / "workers" / "view.log"
    assert repr(error).removesuffix("()").partition("(")[0] in log.read_text()
    log.unlink()


def test_a_terminal_that_fails_costs_the_run_nothing(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    report = train(tmp_path, view=Terminal(Console(file=Full(), force_terminal=True)))
    assert report.status == "done"
    (tmp_path / "workers" / "view.log").unlink()


def test_files_of_people_in_a_members_folder_stay(tmp_path: Path) -> None:
    train(tmp_path)
    folder = tmp_path / "members" / "one"
    mine = ["mine.pt", "best.of.all.pt", ".hidden", ".ipynb_checkpoints/mine-checkpoint.py", "sub/e0001-s0000000.pt"]
    for name in mine:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".e0009-s0000000.pt.17").touch()
    report = train(tmp_path, epochs=4)
    assert {row.epochs for row in report.rows} == {4}
    assert [(folder / name).read_text() for name in mine] == mine
    assert not (folder / ".e0009-s0000000.pt.17").exists()
    assert len(list(folder.glob("e*.pt"))) == 2
    assert audit(tmp_path) == []


def elsewhere() -> studies.Mlp:
    """Return a network after changing the working directory."""
    os.chdir("/")
    return studies.Mlp()


def test_a_study_may_change_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(Path("runs/x"), fleet=[studies.member(model=elsewhere)]).status == "done"
    assert (tmp_path / "runs" / "x" / "members" / "mlp" / "last.pt").exists()


def test_the_end_of_a_run_is_journaled_whatever_the_tidying_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise NotADirectoryError("no cache here")

    monkeypatch.setattr(CostTable, "remember", refuse)
    monkeypatch.setattr(driver, "settle_files", refuse)
    assert train(tmp_path).status == "done"
    ends, written = list[str](), Metrics.write

    def fail_last(metrics: Metrics) -> None:
        written(metrics)
        if ends:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(driver, "settle_files", lambda state, directory: ends.append("here"))
    monkeypatch.setattr(Metrics, "write", fail_last)
    with pytest.raises(argosy.ArgosyError, match="Input/output error"):
        train(tmp_path, epochs=2)
    assert [line["status"] for line in evidence.event_lines(tmp_path, "RunEnded")] == ["done", "done"]


def test_members_that_failed_alike_are_tried_again_when_they_are_mended(tmp_path: Path) -> None:
    def fleet(**wrong: int) -> list[argosy.Member]:
        model = studies.partial(studies.Mlp, **wrong)
        return [studies.member(f"m{number}", model=model, lr=0.1 * number) for number in range(1, 5)]

    with pytest.raises(MemberError) as failed:
        train(tmp_path, fleet=fleet(width=8), packing="auto")
    assert "the first 3 members failed in the same way, so the study stops" in str(failed.value)
    assert "unexpected keyword argument 'width'" in str(failed.value)
    assert "Fix the study. Then `argosy run --retry-failed` or argosy.train(retry_failed=True)" in str(failed.value)
    assert evidence.event_lines(tmp_path, "RunEnded")[-1]["status"] == "failed"
    with pytest.warns(MemberFailed, match="train with retry_failed=True") as told:
        assert {row.status for row in train(tmp_path, fleet=fleet(hidden=8)).rows} == {"failed", "done"}
    assert len(told) == 3
    report = train(tmp_path, fleet=fleet(hidden=8), retry_failed=True)
    assert {(row.status, row.epochs, row.hyperparameters["model.hidden"]) for row in report.rows} == {("done", 1, 8)}
    assert [line["members"] for line in evidence.event_lines(tmp_path, "Retried")] == [["m1", "m2", "m3"]]
    assert audit(tmp_path) == []


class Rare:
    """An augmentation that raises once, in the given call, or never if `calls` is negative."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, batch: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise ArithmeticError("rare")
        return batch


def test_a_member_that_failed_late_continues_from_its_last_file(tmp_path: Path) -> None:
    def fleet(calls: int) -> list[argosy.Member]:
        return [studies.member("one"), studies.member("rare", hidden=8, augment=Rare(calls))]

    with pytest.warns(MemberFailed, match="'rare' failed: ArithmeticError: rare"):
        report = train(tmp_path, fleet=fleet(60), epochs=20, numerics="exact")
    assert report.member("rare").status == "failed"
    before = report.member("rare").epochs
    assert before > 1
    with pytest.warns(UserWarning, match="'left' of the augment, .* is reset when the run resumes"):
        train(tmp_path, fleet=fleet(-1), epochs=20, retry_failed=True, numerics="exact")
    study = studies.study(90, fleet=[studies.member("one"), studies.member("rare", hidden=8)], epochs=20)
    living.equal_alone(study, tmp_path)
    starts = [line["epoch"] for line in evidence.event_lines(tmp_path, "MemberStarted") if line["member"] == "rare"]
    assert 0 < starts[-1] <= before


class WarmingUp(studies.Mlp):
    """A network that counts its steps in an attribute, which no checkpoint contains."""

    steps = 0


def warming_up(model: WarmingUp, batch: Any) -> Any:
    model.steps += model.training
    return cross_entropy(model(batch[0]), batch[1]) * (min(1.0, model.steps / 20) if model.training else 1.0)


def test_a_member_whose_steps_change_what_no_checkpoint_contains_is_warned_of_when_it_continues(tmp_path: Path) -> None:
    fleet = [studies.member("counts", model=WarmingUp, step=warming_up, metrics={})]
    train(tmp_path, fleet=fleet)  # warnings are errors: nothing is reset yet
    with pytest.warns(
        UserWarning, match="member 'counts': steps change 'steps' of the network, which .* is reset when"
    ):
        train(tmp_path, fleet=fleet, epochs=2)


def test_one_script_per_member_is_counted_by_the_epochs_that_they_took(tmp_path: Path) -> None:
    fleet = [studies.member("one", stop=argosy.MaxEpochs(4)), studies.member("two", hidden=8, stop=argosy.MaxEpochs(1))]
    report = train(tmp_path, fleet=fleet)
    assert (report.preparations, report.preparations_alone) == (1.0, 1.25)
    console = Console(file=io.StringIO(), width=200)
    console.print(report_table(report))
    assert "(one script per member: 1.2)" in console.file.getvalue()


def test_small_files_are_on_the_disk_before_they_replace_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, flush, rename = [], os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        flush(descriptor)

    def renamed(path: Path, target: Path) -> None:
        done.append(f"{path.name} to {target.name}")
        rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed)
    write_json(tmp_path / "study.json", {"seed": 0})
    unfinished = done[0]
    assert unfinished.startswith(".study.json.")
    assert done == [unfinished, f"{unfinished} to study.json", tmp_path.name]
    assert json.loads((tmp_path / "study.json").read_text()) == {"seed": 0}
