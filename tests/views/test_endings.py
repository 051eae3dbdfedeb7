"""How commands end, and what a notebook shows of a report."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import voyages
from rich.console import Console

import argosy
from argosy.report import Report
from argosy.running.journal import timeline
from argosy.views.endings import what_next
from argosy.views.tables import report_table


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Of a run that never was, of which one member has failed."""
    study = voyages.asked(5, epochs=2)
    voyages.leave(tmp_path / "run", study, voyages.voyage(study, epochs=2))
    return argosy.load(tmp_path / "run")


@pytest.mark.tampers
def test_a_command_ends_with_where_everything_is_and_what_to_type(report: Report) -> None:
    command = "argosy run study.py --dir run"
    done = what_next(report, command)
    assert str(report.directory) in done
    assert f"argosy report {report.directory} --open" in done
    assert f"{command} --retry-failed" in done
    failed = next(row for row in report.rows if row.status == "failed")
    assert str(failed.folder / "log.txt") in done
    assert "Go on:" not in done
    assert f"Go on:           {command}" in what_next(replace(report, status="paused"), command)
    running = what_next(replace(report, status="running"), command)
    assert f"argosy report {report.directory} --open --live" in running
    assert "Go on:" not in running


@pytest.mark.tampers
def test_who_has_one_stretch_of_data_reads_no_table_of_them(report: Report) -> None:
    assert len(report.legs) == 1
    assert "Training took 20.0 s of this, 16.0 s were predicted." in printed(report)
    assert "leg" not in printed(report).split()
    assert "leg" in printed(replace(report, legs=(report.legs[0], report.legs[0]))).split()


def printed(report: Report) -> str:
    """As `argosy report` prints it."""
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


@pytest.mark.tampers
def test_the_time_between_two_drivers_is_nobodys(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=2)
    killed = list(voyages.voyage(study, epochs=1, end=False))
    later = [(5000.0 + seconds, event) for seconds, event in voyages.voyage(study, epochs=2)]
    voyages.leave(tmp_path / "run", study, iter([*killed, *later]))
    *_, (seconds, _) = timeline(tmp_path / "run")
    assert seconds == pytest.approx(killed[-1][0] + 22.0)
