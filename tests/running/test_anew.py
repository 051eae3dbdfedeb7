"""Tests of a changed study in the same directory: members that start over, are left out or put back, and metrics that are added."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies
import torch

import argosy
from argosy.errors import RunError
from argosy.errors.checks import LONGEST_NAME
from argosy.protocol.events import Checkpoint
from argosy.results.fold import RunState
from argosy.running.control import driver
from argosy.running.directory import anew, inbox
from argosy.running.directory.audit import audit
from argosy.running.directory.identity import Identity
from argosy.running.directory.journal import timeline
from argosy.running.directory.lock import Lock
from argosy.running.directory.records import Metrics
from argosy.views.html.report import write_report

EPOCHS = 3


def asked(*fleet: argosy.Member, epochs: int = EPOCHS, **rest: Any) -> argosy.Study:
    members = fleet or (member("one"), member("two", hidden=8, batch_size=33))
    return studies.study(90, fleet=members, epochs=epochs, val=11, **rest)


member = studies.member
CHANGED = (member("one"), member("two", hidden=24, batch_size=30))


def train(study: argosy.Study, directory: Path, **rest: Any) -> argosy.Report:
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", numerics="exact", **rest)


def table(directory: Path) -> dict[str, Any]:
    """Return the results of each member of the study in a run directory."""
    names = json.loads((directory / "study.json").read_text())["members"]
    return {name: evidence.results_of(directory, name) for name in names}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the changed study, trained in a new directory."""
    directory = tmp_path_factory.mktemp("wanted")
    train(asked(*CHANGED), directory)
    return table(directory)


def test_a_member_of_the_longest_name_begins_anew(tmp_path: Path) -> None:
    name = "n" * LONGEST_NAME
    for hidden in (8, 12, 16):
        assert train(asked(member(name, hidden=hidden), epochs=1), tmp_path, fresh=[name]).status == "done"
    assert len([*(tmp_path / "members.old").iterdir()]) == 2


def test_a_refusal_names_what_changed_and_what_can_be_done(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(asked(epochs=1), run)
    with pytest.raises(RunError) as told:
        train(asked(*CHANGED), run)
    assert str(told.value).splitlines() == [
        f"{run} holds the run of a different study:",
        "  member 'two', batch_size: was 33, is now 30",
        "  member 'two', model.hidden: was 8, is now 24",
        "Undo the change, or choose another directory. Or keep the rest:",
        "  fresh=['two'] (--fresh two) trains it again and keeps the old files in members.old",
        "  under another name, it is a new member beside the existing ones",
        "  fresh=True (--fresh) trains everything again and keeps the old files in run.old-1, or with the next number.",
    ]
    # If the change is not confined to some members, starting those over is not offered.
    for other in (asked(*CHANGED, seed=3), asked(member("three"))):
        with pytest.raises(RunError) as told:
            train(other, run)
        assert "members.old" not in str(told.value)
        assert "Or start over: fresh=True (--fresh)" in str(told.value)
    # As suggested, the changed member joins the existing ones under another name.
    new = member("two-wide", hidden=24, batch_size=30)
    report = train(asked(*asked().members, new, epochs=1), run)
    assert {row.name for row in report.rows} == {"one", "two", "two-wide"}


def test_the_advice_of_a_refusal_repeats_the_members_that_are_to_start_over(tmp_path: Path) -> None:
    train(asked(epochs=1), tmp_path)
    changed = asked(member("one", batch_size=30), member("two", hidden=24, batch_size=30), epochs=1)
    with pytest.raises(RunError, match=re.escape("fresh=['one', 'two'] (--fresh one --fresh two) trains them")):
        train(changed, tmp_path, fresh=["one"])
    assert train(changed, tmp_path, fresh=["one", "two"]).status == "done"


def test_all_repetitions_of_a_configuration_start_over_by_its_name(tmp_path: Path) -> None:
    def repeated(hidden: int) -> argosy.Study:
        return asked(*argosy.replicate(member("one"), 2), *argosy.replicate(member("two", hidden=hidden), 2), epochs=1)

    train(repeated(8), tmp_path)
    with pytest.raises(RunError, match=re.escape("fresh=['two'] (--fresh two) trains")):
        train(repeated(24), tmp_path)
    assert train(repeated(24), tmp_path, fresh="two").status == "done"
    assert {path.name for path in (tmp_path / "members.old").iterdir()} == {"two-seed=0-1", "two-seed=1-1"}


@pytest.mark.parametrize("begun", [1, EPOCHS])
@pytest.mark.parametrize("names", ["two", ["two"], ("two", "two")])
def test_a_member_begins_anew_and_the_others_go_on(
    tmp_path: Path, wanted: dict[str, Any], begun: int, names: Sequence[str]
) -> None:
    train(asked(epochs=begun), tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    kept = {path.name for path in (tmp_path / "members" / "two").iterdir()}
    report = train(asked(*CHANGED), tmp_path, fresh=names)
    assert (tmp_path / "journal.jsonl").read_bytes().startswith(before)
    assert table(tmp_path) == wanted
    assert audit(tmp_path) == []
    assert {row.name: (row.status, row.epochs) for row in report.rows} == dict.fromkeys(
        ("one", "two"), ("done", EPOCHS)
    )
    assert {path.name for path in (tmp_path / "members.old" / "two-1").iterdir()} == kept
    sections = [line["epoch"] for line in evidence.event_lines(tmp_path, "SectionEnded") if line["member"] == "one"]
    assert sections == list(range(EPOCHS))
    with (tmp_path / "members" / "two" / "metrics.csv").open() as file:
        assert len(list(csv.DictReader(file))) == EPOCHS
    # The same command trains the member once more; without `fresh`, nothing is left to do.
    train(asked(*CHANGED), tmp_path, fresh=names)
    assert table(tmp_path) == wanted
    assert (tmp_path / "members.old" / "two-2").is_dir()
    lines = len(evidence.event_lines(tmp_path, "SectionEnded"))
    assert train(asked(*CHANGED), tmp_path).status == "done"
    assert len(evidence.event_lines(tmp_path, "SectionEnded")) == lines


class Killed(BaseException):
    """An exception that stands for a kill: no code catches it."""


def kill(*_: Any, **__: Any) -> None:
    raise Killed


def killing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool] = lambda *_: True
) -> None:
    """Make calls of `owner.name` die before they do anything, if `when` holds for their arguments."""
    before = getattr(owner, name)

    def dying(*values: Any, **rest: Any) -> Any:
        return kill() if when(*values) else before(*values, **rest)

    monkeypatch.setattr(owner, name, dying)
    # A killed driver does not write the end of its run.
    monkeypatch.setattr(driver.Driver, "end", lambda *_: None)


@pytest.mark.parametrize("again", [["two"], ()], ids=["same command", "without fresh"])
@pytest.mark.parametrize("place", ["identity", "rename", "study.json", "sections"])
def test_a_driver_that_is_killed_while_a_member_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any], place: str, again: Sequence[str]
) -> None:
    train(asked(epochs=2), tmp_path)
    with monkeypatch.context() as patch:
        if place == "identity":
            killing(patch, driver, "set_members_aside")
        elif place == "rename":
            moved = anew.set_members_aside
            patch.setattr(driver, "set_members_aside", lambda *values: (moved(*values), kill()))
            patch.setattr(driver.Driver, "end", lambda *_: None)
        elif place == "study.json":
            killing(patch, Identity, "write")
        else:
            killing(patch, Metrics, "note", lambda _, state: state.name == "two" and len(state.sections) == 2)
        with pytest.raises(Killed):
            train(asked(*CHANGED), tmp_path, fresh=["two"])
    train(asked(*CHANGED), tmp_path, fresh=again)
    assert table(tmp_path) == wanted
    assert audit(tmp_path) == []
    assert any((tmp_path / "members.old").glob("two-1/*.pt"))


def test_a_journal_that_ends_at_any_line_of_a_new_beginning_leads_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    living.keep_all_files(monkeypatch)
    run = tmp_path / "run"
    train(asked(epochs=2), run)
    before = len((run / "journal.jsonl").read_bytes().splitlines())
    earlier = shutil.copytree(run, tmp_path / "earlier", symlinks=True)
    train(asked(*CHANGED), run, fresh=["two"])
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (begun,) = (number for number, line in enumerate(whole) if b'"BeganAnew"' in line)
    for cut in range(before, len(whole), 2):
        place = tmp_path / f"killed-{cut}"
        shutil.copytree(run if cut > begun else earlier, place, symlinks=True)
        (place / "journal.jsonl").write_bytes(b"".join(whole[:cut]))
        train(asked(*CHANGED), place, fresh=() if cut > begun else ["two"])
        assert table(place) == wanted, cut
        assert audit(place) == []


def test_names_that_cannot_begin_anew_are_refused(tmp_path: Path) -> None:
    train(asked(epochs=1), tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(
        RunError, match=r"the run has no member 'tow' \(did you mean 'two'\?\) to start over; choose one of one, two\."
    ):
        train(asked(*CHANGED), tmp_path, fresh=["tow"])
    # Any other change is still refused.
    with pytest.raises(RunError, match="seed: was 0, is now 1"):
        train(asked(*CHANGED, seed=1), tmp_path, fresh=["two"])
    with pytest.raises(RunError, match="member 'one', batch_size: was 20, is now 10"):
        train(asked(member("one", batch_size=10), CHANGED[1]), tmp_path, fresh=["two"])
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    assert not (tmp_path / "members.old").exists()


def test_a_whole_run_begins_anew_and_nothing_is_lost(tmp_path: Path, wanted: dict[str, Any]) -> None:
    run = tmp_path / "runs" / "mine"
    train(asked(), run, fresh=True)
    first = table(run)
    assert not (tmp_path / "runs" / "mine.old-1").exists()
    for number in (1, 2):
        train(asked(*CHANGED), run, fresh=True)
        assert table(run) == wanted
        assert len(evidence.event_lines(run, "RunStarted")) == 1
        assert (tmp_path / "runs" / f"mine.old-{number}").is_dir()
    assert table(tmp_path / "runs" / "mine.old-1") == first
    argosy.load(tmp_path / "runs" / "mine.old-1", study=asked()).best().load()
    # After a kill that left the old run moved away, the same command has nothing to move.
    (run).rename(tmp_path / "elsewhere")
    assert train(asked(*CHANGED), run, fresh=True).status == "done"
    assert not (tmp_path / "runs" / "mine.old-3").exists()


def test_a_run_in_the_working_directory_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.py").touch()
    train(asked(epochs=1), Path())
    with pytest.raises(RunError, match="is the working directory"):
        train(asked(), Path(), fresh=True)
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(RunError, match=r"contains study\.py: starting over would move"):
        train(asked(), tmp_path, fresh=True)
    assert (tmp_path / "study.py").exists()


def test_a_run_at_work_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    train(asked(epochs=1), run)
    monkeypatch.setattr("argosy.running.directory.lock.PATIENCE_SECONDS", 0.1)
    with Lock(run / "run.lock"), pytest.raises(RunError, match="is in use by process"):
        train(asked(), run, fresh=True)
    assert (run / "journal.jsonl").exists()
    assert not (tmp_path / "run.old-1").exists()


@pytest.mark.parametrize("begun", [1, EPOCHS])
def test_a_member_that_is_left_out_stays_in_the_report_and_goes_on_when_it_is_put_back(
    tmp_path: Path, begun: int
) -> None:
    train(asked(epochs=begun), tmp_path / "run")
    train(asked(epochs=EPOCHS), tmp_path / "whole")
    run = tmp_path / "run"
    for _ in range(2):
        report = train(asked(member("one")), run)
        assert {row.name: (row.status, row.epochs) for row in report.rows} == {
            "one": ("done", EPOCHS),
            "two": ("left out", begun),
        }
        assert report.rows[-1].name == "two"
        assert report.status == "done"
        assert audit(run) == []
    assert report.best().name == "one"
    assert report.ensemble().names == ("one",)
    write_report(argosy.load(run), timeline(run))
    # A different member under the same name would mix its results with those of the one that was left out.
    with pytest.raises(RunError, match=r"member 'two', model\.hidden: was 8, is now 24"):
        train(asked(*CHANGED), run)
    report = train(asked(), run)
    assert {row.status for row in report.rows} == {"done"}
    assert table(run) == table(tmp_path / "whole")


def test_a_newcomer_cannot_have_the_name_of_a_member_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living.trusting(monkeypatch)
    run, left = tmp_path / "run", list[str]()
    train(asked(epochs=1), run)
    (tmp_path / "more.py").write_text(
        "import studies\nstudy = studies.study(90, fleet=[studies.member('two')], epochs=3)\n"
    )
    clone = {"command": "clone", "member": "one", "name": "two", "set": {"optimizer.lr": 0.3}, "warm": False}

    def act(scheduler: Any) -> None:
        if not left:
            for command in ({"command": "add", "study": str(tmp_path / "more.py")}, clone):
                left.append(inbox.write_command(run, command))

    living.at_every_round(monkeypatch, act)
    train(asked(member("one")), run)
    for line in evidence.event_lines(run, "Answered"):
        assert line["answer"].startswith(
            "refused: a member 'two' has already trained in this run, but the run's study no longer"
        )
    assert len(evidence.event_lines(run, "Answered")) == 2


def share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(dim=1) == target).float()


def other_share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 1 - share(output, target)


MORE = {"accuracy": argosy.accuracy, "share": share}


def test_a_metric_can_be_added_later_and_nothing_is_trained_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(asked(member("one"), member("two", stop=argosy.MaxEpochs(1)), epochs=1), run)
    fleet = [member("one", metrics=MORE), member("two", metrics=MORE, stop=argosy.MaxEpochs(1))]
    report = train(asked(*fleet), run)
    train(asked(*fleet), tmp_path / "whole")
    assert {row.name: row.epochs for row in report.rows} == {"one": EPOCHS, "two": 1}
    for name in ("one", "two"):
        here, there = (evidence.results_of(place, name) for place in (run, tmp_path / "whole"))
        assert here["weights"] == there["weights"]
    first, *rest = living.state_of(run).members["one"].history
    assert "val_share" not in first
    assert all(row["val_share"] == row["val_accuracy"] for row in rest)
    with (run / "members" / "one" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["val_share"] for row in rows] == ["", *(str(row["val_share"]) for row in rest)]
    assert all(row["seconds"] and row["samples"] == "90" for row in rows)
    assert audit(run) == []
    write_report(argosy.load(run), timeline(run))
    # The code of a metric may not change, even after it was left out: one name would hold the values of two metrics.
    other = [member("one", metrics={**MORE, "share": other_share}), fleet[1]]
    with pytest.raises(RunError, match=r"member 'one', metrics\.share: was .*share, is now .*other_share"):
        train(asked(*other), run)
    assert train(asked(member("one"), fleet[1]), run).status == "done"
    train(asked(member("one"), fleet[1], epochs=EPOCHS + 1), run)
    with pytest.raises(RunError, match=r"member 'one', metrics\.share: was .*share, is now .*other_share"):
        train(asked(*other), run)


def test_a_rule_may_watch_a_metric_that_was_added(tmp_path: Path) -> None:
    train(asked(member("one"), epochs=2), tmp_path)
    rule = argosy.Plateau("val_share", 2, mode="max") | argosy.MaxEpochs(9)
    report = train(asked(member("one", metrics={**MORE, "share": lambda o, t: o.sum(dim=1) * 0}, stop=rule)), tmp_path)
    assert (report.rows[0].status, report.rows[0].epochs) == ("done", 5)


def test_a_member_with_a_metric_more_begins_where_a_pause_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing(patch, Metrics, "note", lambda _, state: state.name == "one" and len(state.sections) == 3)
        with pytest.raises(Killed):
            train(asked(member("one"), validations_per_epoch=2), tmp_path / "run")
    train(asked(member("one", metrics=MORE), validations_per_epoch=2), tmp_path / "run")
    train(asked(member("one", metrics=MORE), validations_per_epoch=2), tmp_path / "whole")
    here, there = (evidence.results_of(tmp_path / place, "one") for place in ("run", "whole"))
    assert here["weights"] == there["weights"]


def test_the_default_directory_has_the_name_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    how = {"launcher": "inline", "devices": "cpu:1"}
    for file, name in (("digits.py", "digits"), ("/a/package/__main__.py", "package"), (None, "argosy")):
        monkeypatch.setattr("__main__.__file__", file, raising=False)
        report = argosy.train(asked(member(name), epochs=1), **how)
        assert report.directory == tmp_path / "runs" / name


def test_the_interpreter_of_python_3_13_is_no_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("__main__.__file__", "/usr/lib/python3.13/_pyrepl/__main__.py", raising=False)
    monkeypatch.chdir(tmp_path)
    report = argosy.train(asked(member("one"), epochs=1), launcher="inline", devices="cpu:1")
    assert report.directory == tmp_path / "runs" / "argosy"
    assert capsys.readouterr().out == ""


def test_clones_that_went_on_from_weights_cannot_begin_anew() -> None:
    state = RunState()
    state.member("warm").inherited = Checkpoint(file="e0001.pt", sha256="", epoch=1, section=0, position=0)
    state.member("warm").source = "one"
    with pytest.raises(
        RunError, match="'warm' is a clone that continued from the weights of 'one', so it cannot start over"
    ):
        anew.make_began_anew(["warm"], asked(), state, Path())
