"""Tests that the metrics files that a run writes for its users agree with the journal."""

import json
from dataclasses import replace
from pathlib import Path

from test_costs import ENDED

from argosy.results.fold import MemberState
from argosy.running.directory.records import Metrics


def test_sections_that_a_fault_takes_back_before_they_are_written_are_written_when_they_come_again(
    tmp_path: Path,
) -> None:
    state, metrics = MemberState("mlp"), Metrics(tmp_path)
    (tmp_path / "members" / "mlp").mkdir(parents=True)
    state.end_section(ENDED)
    metrics.note(state)
    state.forget_from(0, 0)
    metrics.write()
    state.end_section(ENDED)
    metrics.note(state)
    metrics.write()
    folder = tmp_path / "members" / "mlp"
    assert (folder / "metrics.csv").read_text() == "epoch,seconds,steps,samples\n1,2.0,0,100\n"
    assert json.loads((folder / "metrics.jsonl").read_text()) == {
        "epoch": 1,
        "seconds": 2.0,
        "steps": 0,
        "samples": 100,
    }


def test_a_metric_that_is_named_after_a_file_whose_name_is_no_text_is_written(tmp_path: Path) -> None:
    state, metrics = MemberState("mlp"), Metrics(tmp_path)
    (tmp_path / "members" / "mlp").mkdir(parents=True)
    state.end_section(replace(ENDED, metrics={"val_recall_caf\udce9": 0.5}))
    metrics.note(state)
    metrics.write()
    header, row = (tmp_path / "members" / "mlp" / "metrics.csv").read_text().splitlines()
    assert (header.split(",")[1], row.split(",")[1]) == (r"val_recall_caf\udce9", "0.5")
