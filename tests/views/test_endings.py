"""Tests what commands print at their end, and how a notebook shows a report."""

import io
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import studies
import voyages
from rich.console import Console
from typer.testing import CliRunner

import argosy
from argosy.cli.app import app
from argosy.cli.runs import runs
from argosy.errors.wording import format_duration
from argosy.results.ending import output_size
from argosy.results.member import best_epochs
from argosy.results.report import Report
from argosy.running.directory.journal import timeline
from argosy.tuning.report import SearchReport
from argosy.tuning.trials import TrialResult
from argosy.views.html.report import page_values
from argosy.views.output import print_table
from argosy.views.tables import report_table, search_table


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """The report of a made-up run, one of whose members has failed."""
    study = voyages.asked(5, epochs=2)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=2))
    return argosy.load(tmp_path / "run")


@pytest.mark.tampers
def test_a_command_ends_with_where_everything_is_and_what_to_type(report: Report) -> None:
    command = "argosy run study.py --dir run"
    done = ended(report, command)
    assert f"Everything is in {report.directory}\n" in done
    assert f"Curves, devices: argosy report {report.directory} --open" in done
    assert f"After a fix:     {command} --retry-failed" in done
    failed = next(row for row in report.rows if row.status == "failed")
    assert f"Logs: {failed.folder / 'log.txt'}" in done
    assert "Resume:" not in done
    assert f"Resume:          {command}" in ended(replace(report, status="paused"), command)
    running = ended(replace(report, status="running"), command)
    assert f"Watch it:        argosy report {report.directory} --open --live" in running
    assert "Resume:" not in running
    assert "\nrunning: " in running, (
        "it must show no duration: the time of earlier drivers is not how long this one has run"
    )


@pytest.mark.tampers
@pytest.mark.usefixtures("report")
def test_files_are_not_called_deleted_because_the_working_directory_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = argosy.load("run")
    monkeypatch.chdir(tmp_path / "run")
    assert "Everything is in run\n" in f"{found}"


def ended(report: Report, command: str) -> str:
    """Return what a command prints at the end of a run."""
    return report.ending(again=command, fixed=f"{command} --retry-failed").text(400, 50)


def test_the_best_of_parts_of_epochs_is_told_in_parts(tmp_path: Path) -> None:
    study = studies.study(
        60, fleet=[studies.member("one")], val=20, stop=argosy.MaxEpochs(1.5), validations_per_epoch=4
    )
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    best = next(ended.epochs for ended in reversed(report.best().sections) if ended.best)
    assert f" at epoch {best:g} of 1.5" in str(report)
    assert best <= 1.5


@pytest.mark.tampers
def test_a_search_ends_with_where_a_failed_trial_says_what_happened(report: Report) -> None:
    failed = next(row for row in report.rows if row.status == "failed")
    assert f"Logs: {failed.folder / 'log.txt'}" in f"{searched(report)}"
    rows = tuple(row for row in report.rows if row is not failed)
    assert "Logs" not in f"{searched(replace(report, rows=rows))}"


@pytest.mark.tampers
def test_a_report_prints_as_its_answer_and_a_call_in_a_script_prints_it(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    assert str(report) == repr(report) == report.ending().text(*output_size())
    study = studies.study(60, fleet=[studies.member("one")], epochs=1)
    for quiet in (False, True):
        again = argosy.train(study, directory=tmp_path / "one", launcher="inline", devices="cpu:1", quiet=quiet)
        assert capsys.readouterr().out == ("" if quiet else f"{again}\n")


def searched(report: Report) -> SearchReport:
    """Return the report of a search whose run this is."""
    same = ("name", "status", "reason", "epochs", "metrics")
    rows = tuple(
        TrialResult(
            members=(row.name,), totals={}, best_epochs=best_epochs(row), **{name: getattr(row, name) for name in same}
        )
        for row in report.rows
    )
    return SearchReport(
        run=report,
        rows=rows,
        parameters={row.name: {"lr[0]": number} for number, row in enumerate(report.rows)},
        trials={row.name: number for number, row in enumerate(report.rows)},
        sources={},
        seconds=20.0,
        epochs=10.0,
        packed_seconds=0.0,
        first_comparison_seconds=None,
        best_seconds=None,
        scheduler="hyperband",
        objectives={report.objective: "max"},
        pareto=rows[:1],
        study=None,
    )


@pytest.mark.tampers
def test_names_and_messages_are_shown_as_they_are(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(replace(row, metrics={**row.metrics, "iou[cat]": 0.5}, reason="no [/x] in :x:") for row in report.rows)
    strange = replace(report, rows=rows, objective="iou[cat]")
    print_table(report_table(strange))
    print_table(search_table(searched(strange)))
    told = capsys.readouterr().out
    assert told.count("iou[cat]") == 2
    assert told.count("no [/x] in :x:") == len(rows)
    assert f"'{rows[-1].name}' failed: no [/x] in :x:" in f"{strange}"
    assert "lr[0]" in told


@pytest.mark.tampers
def test_columns_without_room_are_told_and_shown_in_full(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"val_metric_{n}": n + 0.125 for n in range(60)}
    wide = replace(report, rows=tuple(replace(row, metrics={**row.metrics, **many}) for row in report.rows))
    told, *_ = (line for line in f"{wide}".splitlines() if line.endswith("--verbose"))
    assert told.startswith("and ") and " more columns: argosy report " in told
    assert "more columns" not in f"{report}"
    print_table(report_table(wide), whole=True)
    shown = capsys.readouterr().out
    assert "val_metric_59" in shown and "59.12" in shown and "…" not in shown


@pytest.mark.tampers
def test_the_time_of_killed_drivers_is_reported_as_unknown(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=2)
    killed = list(voyages.scheduler(study, epochs=1, end=False))
    later = [(5000.0 + seconds, event) for seconds, event in voyages.scheduler(study, epochs=2)]
    voyages.leave(tmp_path / "killed", study, iter(killed))
    voyages.leave(tmp_path / "later", study, iter([*killed, *later]))
    voyages.leave(tmp_path / "twice", study, iter([*killed, *killed, *later]))
    told = [printed(argosy.load(tmp_path / name)) for name in ("killed", "later", "twice")]
    assert "\ninterrupted. Each" in told[0]
    assert "\ndone after 22.0 s and the time of 1 driver that was killed. Each" in told[1]
    assert "\ndone after 22.0 s and the time of 2 drivers that were killed. Each" in told[2]


@pytest.mark.tampers
def test_the_time_of_a_run_that_goes_on_counts_its_driver(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=2)
    first = list(voyages.scheduler(study, epochs=1))
    later = [(5000.0 + seconds, event) for seconds, event in voyages.scheduler(study, epochs=2, end=False)]
    voyages.leave(tmp_path / "run", study, iter([*first, *later]))
    report = replace(argosy.load(tmp_path / "run"), status="running", killed_drivers=0)
    *_, (seconds, _) = timeline(tmp_path / "run")
    assert seconds > report.seconds + 10 > 10
    assert page_values(report, timeline(tmp_path / "run"))["cards"][2]["value"] == format_duration(seconds)


@pytest.mark.tampers
def test_workers_of_several_drivers_are_told_apart(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=2)
    first = list(voyages.scheduler(study, epochs=1))
    later = [(5000.0 + seconds, event) for seconds, event in voyages.scheduler(study, epochs=2)]
    voyages.leave(tmp_path / "run", study, iter([*first, *later]))
    report = argosy.load(tmp_path / "run")
    assert [leg.leg for leg in report.legs] == ["1.1", "2.1"]
    assert [worker for worker in report.gauges if "feeder" in worker] == ["1.feeder-0", "2.feeder-0"]
    assert len(report.gauges) == 2 * (1 + len(voyages.DEVICES))
    assert sum(gauge["cpu_seconds"] for gauge in report.gauges.values()) == 2 * (5.0 + 90.0 * len(voyages.DEVICES))


@pytest.mark.tampers
def test_a_report_of_one_leg_has_no_table_of_legs(report: Report) -> None:
    assert len(report.legs) == 1
    assert "Training took 20.0 s of this (16.0 s predicted)." in printed(report)
    assert "leg" not in printed(report).split()
    assert "leg" in printed(replace(report, legs=(report.legs[0], report.legs[0]))).split()


def printed(report: Report) -> str:
    """Return what `argosy report` prints."""
    console = Console(file=io.StringIO(), width=200)
    console.print(report_table(report))
    return console.file.getvalue()


@pytest.mark.tampers
def test_a_notebook_shows_the_table_without_what_all_have_in_common(report: Report) -> None:
    html = report._repr_html_()
    assert f"<td>{report.rows[0].name}</td>" in html
    assert "<th>model.hidden</th>" in html
    assert "<th>batch_size</th>" not in html
    assert "ValueError: too wide" in html
    many = replace(report, rows=report.rows * 5)._repr_html_()
    assert "<details><summary>and 15 more: " in many
    assert many.count("<table>") == 2


@pytest.mark.tampers
def test_the_time_between_two_drivers_does_not_count(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=2)
    killed = list(voyages.scheduler(study, epochs=1, end=False))
    later = [(5000.0 + seconds, event) for seconds, event in voyages.scheduler(study, epochs=2)]
    voyages.leave(tmp_path / "run", study, iter([*killed, *later]))
    *_, (seconds, _) = timeline(tmp_path / "run")
    assert seconds == pytest.approx(killed[-1][0] + 22.0)


@pytest.mark.tampers
def test_the_runs_of_a_folder_are_listed_with_their_states_and_their_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs()
    assert capsys.readouterr().out == "No run found in runs. Start one:  argosy run study.py\n"
    study = voyages.asked(2, epochs=2)
    for number, (name, end) in enumerate({"whole": True, "killed": False}.items()):
        voyages.leave(Path("runs", name), study, voyages.scheduler(study, epochs=2, end=end))
        os.utime(Path("runs", name, "journal.jsonl"), (1e9 + number, 1e9 + number))
    Path("runs/torn").mkdir()
    Path("runs/torn/journal.jsonl").write_text("no event\n")
    runs()
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said[:4]] == [
        ["run", "status"],
        ["torn", "unreadable"],
        ["killed", "interrupted"],
        ["whole", "done"],
    ]
    assert "line 1 is not an event" in said[1]
    assert said[3].endswith("  residual-network-depth=2-hidden=9-lr=0.0500, val_loss 0.3333 at epoch 2 of 2")
    runs(Path("runs/whole"))
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[:2] == ["whole", "done"] and said[-1] == "Look at one:     argosy report runs/whole"


@pytest.mark.tampers
def test_members_of_a_killed_run_do_not_train(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=3)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=2, end=False))
    report = argosy.load(tmp_path / "run")
    assert (report.status, [row.status for row in report.rows]) == ("interrupted", ["paused", "paused"])
    assert "interrupted: 2 paused. " in str(report)


def test_help_begins_with_what_people_use_and_the_version_is_said() -> None:
    said = CliRunner().invoke(app, ["--help"]).output
    first = [line.split()[1] for line in said.splitlines() if re.match(r"│ [a-z]+ ", line)]
    assert first[:4] == ["run", "tune", "runs", "status"]
    assert first[-1] == "schema"
    assert CliRunner().invoke(app, ["--version"]).output == f"argosy {argosy.__version__}\n"
