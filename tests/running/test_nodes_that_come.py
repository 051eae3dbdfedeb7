"""Tests nodes that join a running run: each is used once its data is open without changing results, and an unusable one disturbs no member."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
import studies
from torch.utils.data import Dataset

import argosy
from argosy.cluster import Cluster
from argosy.protocol.events import SectionEnded, WorkerLost
from argosy.protocol.trainer import Came
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal
from argosy.running.launch.launcher import Job, Workers
from argosy.running.launch.processes import Processes
from argosy.running.watch.view import Silent
from argosy.settings import Settings


class Growing(Silent):
    """A launcher whose second node joins when a member ends its first section, and at the same time the view that notices this."""

    def __init__(self, hurry: Path) -> None:
        self.processes = Processes()
        self.hurry = hurry
        """A file that exists once the second node is used or given up."""
        self.late: list[tuple[str, Any]] = []

    def discover(self, settings: Settings) -> Cluster:
        """See `Launcher.discover`."""
        first, self.second = self.processes.discover(replace(settings, nodes=2)).nodes
        return Cluster(nodes=(first,))

    def open(self, job: Job) -> Workers:
        """See `Launcher.open`."""
        workers = self.processes.open(replace(job, settings=replace(job.settings, nodes=2)))
        receive = workers.receive

        def with_the_second(timeout: float) -> list[tuple[str, Any]]:
            late, self.late = self.late, []
            return receive(timeout) + late

        workers.receive = with_the_second  # type: ignore[method-assign]
        return workers

    def close(self) -> None:
        """See `Launcher.close`."""
        self.processes.close()

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, SectionEnded):
            if self.second is not None:
                self.hurry.with_name("came").touch()
                self.late, self.second = [("node1", Came(node=self.second))], None
            if message.device.startswith("node1"):
                self.hurry.touch()
        elif isinstance(message, WorkerLost):
            self.hurry.touch()


def dawdle(hurry: Path, batch: Any) -> Any:
    """An augmentation that is slow until `hurry` exists, so that training lasts until even a slow machine has opened the node's data."""
    if not hurry.exists():
        time.sleep(0.05)
    return batch


def train(tmp_path: Path, data: argosy.Data | None = None) -> Path:
    """Train a run that a node joins, check that its results equal those of a single process, and return its directory."""
    hurry, run = tmp_path / "hurry", tmp_path / "run"
    fleet = [studies.member(f"m{number}", hidden=8 + number, augment=partial(dawdle, hurry)) for number in range(2)]
    launcher = Growing(hurry)
    study = studies.study(60, fleet=fleet, epochs=80, data=data)
    report = living.run(study, run, launcher=launcher, devices="cpu:1", loader_workers=0, view=launcher)
    assert report.status == "done"
    (came,) = evidence.event_lines(run, "NodeCame")
    assert came["node"] == "node1"
    plain = studies.study(60, fleet=fleet, epochs=80)
    argosy.train(plain, directory=tmp_path / "alone", launcher="inline", devices="cpu:1", numerics="exact")
    assert evidence.results(run) == evidence.results(tmp_path / "alone")
    return run


def test_a_node_that_comes_takes_members_over_and_no_result_tells(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert evidence.event_lines(run, "WorkerLost") == []
    assert {line["device"] for line in evidence.event_lines(run, "SectionEnded")} == {"node0/cpu:0", "node1/cpu:0"}
    started = RunState.of(read_journal(run)).started
    assert started is not None
    assert [device["name"] for device in started.devices] == ["node0/cpu:0", "node1/cpu:0"]


def unlike(came: Path) -> Dataset[Any]:
    """Return a dataset that has one more sample on the joining node."""
    return studies.Vectors(61 if came.exists() else 60)


def broken(came: Path) -> Dataset[Any]:
    """Return a dataset that cannot be opened on the joining node."""
    if came.exists():
        raise FileNotFoundError("/data/vectors")
    return studies.Vectors(60)


@pytest.mark.parametrize(
    ("opened", "why"),
    [(unlike, "has different data than the other nodes"), (broken, "FileNotFoundError: /data/vectors")],
)
def test_a_node_without_the_data_of_the_study_is_given_up_and_the_others_continue(
    tmp_path: Path, opened: Callable[[Path], Any], why: str
) -> None:
    data = argosy.Data(train=partial(opened, tmp_path / "came"), val=studies.Vectors(41))
    run = train(tmp_path, data)
    (gone,) = evidence.event_lines(run, "WorkerLost")
    assert gone["worker"] == "node1"
    assert why in gone["detail"]
    assert len(evidence.event_lines(run, "MemberStarted")) == 2, "no worker was started again"
