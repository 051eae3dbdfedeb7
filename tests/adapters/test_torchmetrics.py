"""Tests that torchmetrics objects used as metrics give the value over the whole validation, however it is cut into blocks."""

from functools import partial
from pathlib import Path

import pytest
import studies
import torch

import argosy

torchmetrics = pytest.importorskip("torchmetrics")


def test_objects_and_functions_of_torchmetrics_are_metrics(tmp_path: Path) -> None:
    of_classes = {"task": "multiclass", "num_classes": 10}
    metrics = {
        "f1": torchmetrics.F1Score(**of_classes, average="macro"),
        "top2": partial(torchmetrics.Accuracy, **of_classes, top_k=2, average="micro"),
        "kappa": partial(torchmetrics.functional.cohen_kappa, **of_classes),
        "pair": torchmetrics.Accuracy(**of_classes, average="macro"),
    }
    held_out = studies.Vectors(41, noise=0.0)
    data = argosy.Data(train=studies.Vectors(90), val=held_out)
    fleet = [studies.member("a", metrics=metrics, eval_batch_size=7), studies.member("b", metrics=metrics)]
    report = argosy.train(studies.study(data=data, fleet=fleet), directory=tmp_path, launcher="inline")
    for row in report.rows:
        assert row.status == "done", row.reason
        x, y = map(
            torch.stack, zip(*((x, torch.tensor(y)) for x, y in map(held_out.__getitem__, range(41))), strict=True)
        )
        with torch.no_grad():
            scores = row.load()(x)
        for name, metric in metrics.items():
            whole = metric() if name == "top2" else metric
            whole = whole.clone() if isinstance(whole, torchmetrics.Metric) else whole
            assert row.metrics[f"val_{name}"] == pytest.approx(float(whole(scores, y)), abs=1e-6)
