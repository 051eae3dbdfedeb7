"""Tests of runs on Ray: they survive lost processes, use new nodes and leave lost ones, and results do not change."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import evidence
import psutil
import pytest
import ray_runs
import raylets
import studies

import argosy
from argosy.settings import Settings

pytest.importorskip("ray")

PATIENCE_SECONDS = 280.0
ORPHANS_SECONDS = 10.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[raylets.Raylets]:
    """A Ray cluster of the head and another node, each with one CPU."""
    found = raylets.Raylets(1, head_cpus=1)
    yield found
    found.close()


class Driven(ray_runs.RayRun):
    """A run on Ray whose driver process the test starts, kills and waits for."""

    def steps_on(self, *nodes: str) -> bool:
        """Return whether a member has ended a section on each of these nodes."""
        used = {line["device"] for line in self.lines("SectionEnded")}
        return {f"{node}/cpu:0" for node in nodes} <= used

    def until(self, true: Callable[[], object]) -> None:
        """Wait until `true()` holds; fail if the run ends first."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true():
            assert self.driver.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def ends(self, status: str, *, code: int = 0) -> None:
        """Wait for the run to end, with this status and exit code."""
        assert self.driver.wait(PATIENCE_SECONDS) == code, self.said
        assert json.loads((self.folder / "out").read_text())["status"] == status

    def equals_one_process(self) -> None:
        """Assert that the results equal those of one process without faults."""
        assert evidence.results(self.directory) == self.faultless()


@pytest.fixture
def run(tmp_path: Path, cluster: raylets.Raylets) -> Iterator[Driven]:
    """A run of four members; its driver is killed after the test."""
    found = Driven(tmp_path, cluster.address, members=4, epochs=100, checkpoint_seconds=0.5)
    yield found
    if found.driver.poll() is None:
        found.driver.kill()
        found.driver.wait()


def workers(cluster: raylets.Raylets, role: str = "") -> list[psutil.Process]:
    """Return the run's worker processes of this role on the cluster's nodes."""
    named = []
    for process in cluster.processes():
        try:
            if process.name().startswith(f"argosy-{role}") and process.status() != psutil.STATUS_ZOMBIE:
                named.append(process)
        except psutil.NoSuchProcess:
            continue
    return named


@pytest.mark.timeout(900)
def test_a_run_that_is_hurt_goes_on_and_leaves_nothing(cluster: raylets.Raylets, run: Driven) -> None:
    run.until(partial(run.steps_on, "node0", "node1"))
    workers(cluster, "trainer")[0].kill()
    run.until(lambda: len(run.lines("WorkerLost")) == 1)
    workers(cluster, "feeder")[0].send_signal(signal.SIGSTOP)
    run.until(lambda: len(run.lines("WorkerLost")) == 2)
    run.driver.kill()
    run.driver.wait()
    deadline = time.monotonic() + ORPHANS_SECONDS
    while left := workers(cluster):
        assert time.monotonic() < deadline, [process.cmdline() for process in left]
        time.sleep(0.1)
    sections = len(run.lines("SectionEnded"))
    run.start()
    run.until(lambda: len(run.lines("SectionEnded")) > sections)
    run.driver.send_signal(signal.SIGINT)
    run.ends("paused", code=130)
    run.hurry.touch()
    run.start()
    run.ends("done")
    run.equals_one_process()


@pytest.mark.timeout(900)
def test_a_raylet_that_comes_is_used_and_one_that_goes_is_left(cluster: raylets.Raylets, run: Driven) -> None:
    run.until(partial(run.steps_on, "node0", "node1"))
    cluster.tell("add")
    run.until(partial(run.steps_on, "node2"))
    cluster.tell("kill 1")
    run.until(lambda: any(line["worker"].startswith("node") for line in run.lines("WorkerLost")))
    run.hurry.touch()
    run.ends("done")
    (came,) = run.lines("NodeCame")
    assert (came["node"], [device["name"] for device in came["devices"]]) == ("node2", ["node2/cpu:0"])
    (gone,) = [line for line in run.lines("WorkerLost") if line["worker"] in ("node0", "node1")]
    assert "is gone" in gone["detail"]
    run.equals_one_process()


@pytest.mark.timeout(900)
def test_one_object_runs_one_study_after_another(cluster: raylets.Raylets, tmp_path: Path) -> None:
    """A launcher object can be used for more runs than the number of agents that one run may start on a node."""
    from argosy.running.hosts.ray_cluster import MOST_AGENTS

    launcher = argosy.Ray(address=cluster.address)
    for number in range(MOST_AGENTS + 1):
        report = argosy.train(studies.study(), directory=tmp_path / str(number), launcher=launcher)
        assert report.status == "done"


def test_an_agent_takes_what_its_devices_need() -> None:
    from argosy.running.hosts.ray_cluster import share_of

    node = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}
    assert share_of(Settings(), {"CPU": 4.0}) == (Settings(devices="cpu:4"), {"num_cpus": 4})
    assert share_of(Settings(devices="cpu:2", threads=2), node) == (
        Settings(devices="cpu:2", threads=2),
        {"num_cpus": 4},
    )
    assert share_of(Settings(devices="cuda:0,1"), node) == (Settings(devices="cuda"), {"num_cpus": 2, "num_gpus": 2})
    assert share_of(Settings(), node) == (Settings(devices="cuda"), {"num_cpus": 2, "num_gpus": 2})
    assert share_of(Settings(), {"CPU": 0.0}) is None, "a head node without CPUs gets no agent"
    assert share_of(Settings(devices="cpu:9"), node) is None
    assert share_of(Settings(devices="cuda"), {"CPU": 8.0}) is None
