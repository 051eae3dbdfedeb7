"""Runs on devices that are none: what a GPU does to a study must not show in its results. See `late`."""

from pathlib import Path
from typing import Any

import evidence
import late
import pytest
import studies

import argosy

pytestmark = pytest.mark.usefixtures("devices")
devices = late.devices


def in_place(batch: Any) -> Any:
    inputs, target = batch
    return inputs.mul_(2.0), target


def test_results_are_those_of_a_cpu(tmp_path: Path) -> None:
    study = studies.study(data=argosy.Data(train=studies.Vectors(170), val=studies.Vectors(41), on_device=in_place))
    for place in ("cpu:2", "late:0,1"):
        report = argosy.train(study, directory=tmp_path / place, devices=place, block_size=32)
        assert [row.status for row in report.rows] == ["done"] * 4
    assert evidence.results(tmp_path / "cpu:2") == evidence.results(tmp_path / "late:0,1")
    devices = {row.device for row in report.rows}
    assert devices == {"late:0", "late:1"}
