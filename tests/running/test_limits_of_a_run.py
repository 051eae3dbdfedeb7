"""Tests the limit on a run's cores, and the CPU time and bottleneck that it reports."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import studies

import argosy
from argosy.errors import PlanError
from argosy.running.launch import limits


class Spending(studies.Vectors):
    """Samples that take 4 ms of CPU time each; every load appends the cores that its process may use to a file."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __getitem__(self, index: int) -> Any:
        until = time.process_time() + 0.004
        while time.process_time() < until:
            pass
        with self.path.open("a") as file:
            file.write(f"{sorted(os.sched_getaffinity(0))}\n")
        return super().__getitem__(index)


class Uneven(studies.Vectors):
    """Samples that take 3 ms each, but 15 ms on the second node."""

    def __getitem__(self, index: int) -> Any:
        log = Path("/proc/self/fd/1").readlink().name
        time.sleep(0.015 if log.startswith("node1-") else 0.003)
        return super().__getitem__(index)


def run(folder: Path, **settings: Any) -> argosy.Report:
    data = argosy.Data(train=Spending(300, folder / "cores"))
    return argosy.train(
        studies.study(data=data, epochs=2, objective="train_loss"), directory=folder / "run", **settings
    )


def test_cores_bind_the_whole_run_and_end_with_it(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    report = run(tmp_path, cores=1)
    assert set((tmp_path / "cores").read_text().splitlines()) == {str(sorted(before)[:1])}
    assert os.sched_getaffinity(0) == before
    assert report.gauges["feeder-0"]["loaders"] == 1


def test_cpu_seconds_are_those_of_all_processes(tmp_path: Path) -> None:
    started = sum(os.times()[:4])
    report = run(tmp_path, nodes=2, sharing="all-shared", devices="cpu:1")
    # CPU times are multiples of 0.01 s. Rounding removes the floating-point error of their sums.
    reported, spent = round(report.cpu_seconds, 2), round(sum(os.times()[:4]) - started, 2)
    # Preparation alone takes 2 x 300 x 4 ms.
    assert 2.4 < reported <= spent
    assert reported > 0.9 * spent
    assert sum(gauge["preparation_cpu_seconds"] for gauge in report.gauges.values() if "prepared" in gauge) > 2.4


def test_the_report_names_the_bottleneck(tmp_path: Path) -> None:
    report = run(tmp_path, devices="cpu:1", block_size=32)
    assert report.diagnosis is not None
    assert report.diagnosis.stage == "preparation"
    # At most 250 samples/s, because a sample takes 4 ms and some overhead.
    assert 50 < float(report.diagnosis.verdict.split()[1].replace(",", "")) < 250
    assert report.to_json()["diagnosis"]["stage"] == "preparation"
    assert len(report.gauges["feeder-0"]["to_prepare"]["history"]) >= 1


def test_preparation_that_is_faster_than_training_is_not_accused(tmp_path: Path) -> None:
    # An epoch is one block, so no queue ever fills; a step takes 20 ms.
    fleet = [studies.member(augment=studies.dawdle, batch_size=10)]
    report = argosy.train(studies.study(200, fleet=fleet, epochs=4, val=0), directory=tmp_path, devices="cpu:1")
    assert report.diagnosis is not None
    assert report.diagnosis.stage == "training"


def test_a_slow_node_is_named(tmp_path: Path) -> None:
    fleet = [studies.member("a", batch_size=16), studies.member("b", batch_size=16)]
    study = studies.study(data=argosy.Data(train=Uneven(320)), fleet=fleet, objective="train_loss")
    report = argosy.train(study, directory=tmp_path, nodes=2, sharing="all-shared", devices="cpu:1", block_size=16)
    assert report.diagnosis is not None
    assert (report.diagnosis.stage, report.diagnosis.node) == ("preparation", "node1")
    assert "node1 is slow" in report.diagnosis.verdict


def test_a_run_inline_without_proc_says_to_mount_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROC", tmp_path / "self")
    with pytest.raises(PlanError, match="Mount it, as in a chroot"):
        argosy.train(studies.study(), directory=tmp_path / "run", launcher="inline")
