"""Tests that the examples for other libraries train."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import argosy

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "library", "metric"),
    [
        ("gan", "sklearn", "val_loss"),
        ("lightning_module", "lightning", "val_f1"),
        ("tiny_bert", "transformers", "val_accuracy"),
    ],
)
def test_an_example_trains(tmp_path: Path, name: str, library: str, metric: str) -> None:
    pytest.importorskip(library)
    study = runpy.run_path(str(EXAMPLES / f"{name}.py"))["study"]
    short = replace(study, stop=argosy.MaxEpochs(1))
    report = argosy.train(short, directory=tmp_path, launcher="inline", devices="cpu:1")
    assert {row.status for row in report.rows} == {"done"}, [row.reason for row in report.rows]
    assert all(metric in row.metrics for row in report.rows)
