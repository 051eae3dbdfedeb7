"""Runs on devices that are none: what a GPU does to a study must not show in its results. See `late`."""

from pathlib import Path
from typing import Any

import evidence
import late
import pytest
import studies

import argosy
from argosy import api
from argosy.settings import Settings

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


def test_memory_is_measured_where_the_device_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd's own count knows nothing of what a step takes for a moment."""
    study = studies.study(fleet=[studies.member(hidden=256, batch_size=64)])
    settings = Settings(devices="late:0", loader_workers=0)
    (kept,) = api.profile(study, settings=settings).profiles
    monkeypatch.setenv("LATE_BYTES", str(10**8))
    (counted,) = api.profile(study, settings=settings).profiles
    assert kept.memory_bytes < counted.memory_bytes < 3 * kept.memory_bytes


def test_a_member_that_runs_out_of_memory_gets_smaller_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = [studies.member("wide", hidden=2000, batch_size=128), studies.member("small")]
    study = studies.study(256, fleet=fleet, epochs=1)
    monkeypatch.setenv("LATE_BYTES", str(4_500_000))
    report = argosy.train(study, directory=tmp_path, devices="late:0")
    assert {row.name: row.status for row in report.rows} == {"wide": "done", "small": "done"}
    assert (tmp_path / "workers" / "late-0.log").read_text().count("late out of memory") == 1, (
        "a failed step kept memory"
    )
