"""A node that is not there when a run begins is used as soon as its data is open, and no result tells; one of no use disturbs nobody."""

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
    """A launcher of two nodes, the second of which comes when a member has ended a section; and a view that looks for that."""

    def __init__(self, hurry: Path) -> None:
        self.processes = Processes()
        self.hurry = hurry
        """A file that is there when the second node is used, or given up."""
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
    """Take some time until there is no need to: there is enough to do for a slow machine to open the data of a node."""
    if not hurry.exists():
        time.sleep(0.05)
    return batch


def train(tmp_path: Path, data: argosy.Data | None = None) -> Path:
    """A run that a node comes to; its directory. What comes out of it is what one process alone makes of the study."""
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
    """More samples on the node that comes."""
    return studies.Vectors(61 if came.exists() else 60)


def broken(came: Path) -> Dataset[Any]:
    """Not there on the node that comes."""
    if came.exists():
        raise FileNotFoundError("/data/vectors")
    return studies.Vectors(60)


@pytest.mark.parametrize(
    ("opened", "why"),
    [(unlike, "has different data than the other nodes"), (broken, "FileNotFoundError: /data/vectors")],
)
def test_a_node_without_the_studys_data_is_given_up_and_nobody_else_stops(
    tmp_path: Path, opened: Callable[[Path], Any], why: str
) -> None:
    data = argosy.Data(train=partial(opened, tmp_path / "came"), val=studies.Vectors(41))
    run = train(tmp_path, data)
    (gone,) = evidence.event_lines(run, "WorkerLost")
    assert gone["worker"] == "node1"
    assert why in gone["detail"]
    assert len(evidence.event_lines(run, "MemberStarted")) == 2, "nobody was started again"
