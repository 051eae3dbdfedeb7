"""Runs on Ray: what is hurt goes on, a node that appears is used, one that goes is left, and nobody's results tell."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import psutil
import pytest
import raylets
import studies

import argosy
from argosy.running.studyfile import load_study
from argosy.settings import Settings

pytest.importorskip("ray")

STUDY = """
import pathlib, time
import studies

def dawdle(batch):
    if not pathlib.Path(HURRY).exists():
        time.sleep(0.1)
    return batch

fleet = [studies.member(f"m{number}", hidden=8 + number, augment=dawdle) for number in range(4)]
study = studies.study(90, fleet=fleet, stop=studies.Unsure(100, sections=4))
"""
"""Takes its time until it may hurry: there is as much to do as a slow cluster takes to do something else."""
PATIENCE_SECONDS = 280.0
ORPHANS_SECONDS = 10.0
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from argosy.cli import main; main()"
)
"""Whatever the shell of the tests has, which ignores SIGINT in the background."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[raylets.Raylets]:
    """The head and another node, each with one CPU."""
    found = raylets.Raylets(1, head_cpus=1)
    yield found
    found.close()


class Driver:
    """``argosy run`` on the cluster, in a folder."""

    def __init__(self, folder: Path, cluster: raylets.Raylets) -> None:
        self.folder, self.run, self.hurry = folder, folder / "run", folder / "hurry"
        (folder / "study.py").write_text(STUDY.replace("HURRY", repr(str(self.hurry))))
        words = ["run", "study.py", "--dir", "run", "--launcher", "ray", "--address", cluster.address, "--json"]
        words += ["--numerics", "exact", "--loader-workers", "1", "--checkpoint-seconds", "0.5"]
        path = {"PYTHONPATH": os.pathsep.join([str(Path(studies.__file__).parent), os.environ.get("PYTHONPATH", "")])}
        with (folder / "out").open("wb") as out, (folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", INTERRUPTIBLE, *words],
                cwd=folder,
                stdout=out,
                stderr=said,
                env=os.environ | path | raylets.QUIET,
            )

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What is journaled so far of one kind, whole lines alone."""
        path = self.run / "journal.jsonl"
        text = path.read_bytes() if path.exists() else b""
        found = [json.loads(line) for line in text.split(b"\n")[:-1]]
        return [line for line in found if line["event"] == event]

    def steps_on(self, *nodes: str) -> bool:
        """Whether a member has ended a section on each of these nodes."""
        used = {line["device"] for line in self.lines("SectionEnded")}
        return {f"{node}/cpu:0" for node in nodes} <= used

    def until(self, true: Callable[[], object]) -> None:
        """Wait for what is to come while the run goes on."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true():
            assert self.process.poll() is None and time.monotonic() < deadline, (self.folder / "said").read_text()
            time.sleep(0.05)

    def ends(self, status: str, *, code: int = 0) -> None:
        """The run does, like this."""
        assert self.process.wait(PATIENCE_SECONDS) == code, (self.folder / "said").read_text()
        assert json.loads((self.folder / "out").read_text())["status"] == status

    def equals_one_process(self) -> None:
        """Nobody's results tell what has happened."""
        alone = self.folder / "alone"
        argosy.train(
            load_study(self.folder / "study.py"), directory=alone, launcher="inline", devices="cpu:1", numerics="exact"
        )
        assert evidence.results(self.run) == evidence.results(alone)

    def close(self) -> None:
        """Leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start(tmp_path: Path, cluster: raylets.Raylets) -> Iterator[Callable[[], Driver]]:
    """Starts drivers, one after another, of one run."""
    drivers: list[Driver] = []

    def started() -> Driver:
        drivers.append(Driver(tmp_path, cluster))
        return drivers[-1]

    yield started
    for driver in drivers:
        driver.close()


def workers(cluster: raylets.Raylets, role: str = "") -> list[psutil.Process]:
    """Processes of the run on the cluster's nodes, by their names."""
    named = []
    for process in cluster.processes():
        try:
            if process.name().startswith(f"argosy-{role}") and process.status() != psutil.STATUS_ZOMBIE:
                named.append(process)
        except psutil.NoSuchProcess:
            continue
    return named


@pytest.mark.timeout(900)
def test_a_run_that_is_hurt_goes_on_and_leaves_nothing(cluster: raylets.Raylets, start: Callable[[], Driver]) -> None:
    driver = start()
    driver.until(partial(driver.steps_on, "node0", "node1"))
    workers(cluster, "trainer")[0].kill()
    driver.until(lambda: len(driver.lines("WorkerLost")) == 1)
    workers(cluster, "feeder")[0].send_signal(signal.SIGSTOP)
    driver.until(lambda: len(driver.lines("WorkerLost")) == 2)
    driver.process.kill()
    driver.process.wait()
    deadline = time.monotonic() + ORPHANS_SECONDS
    while left := workers(cluster):
        assert time.monotonic() < deadline, [process.cmdline() for process in left]
        time.sleep(0.1)
    again = start()
    sections = len(again.lines("SectionEnded"))
    again.until(lambda: len(again.lines("SectionEnded")) > sections)
    again.process.send_signal(signal.SIGINT)
    again.ends("paused", code=130)
    again.hurry.touch()
    last = start()
    last.ends("done")
    last.equals_one_process()


@pytest.mark.timeout(900)
def test_a_raylet_that_comes_is_used_and_one_that_goes_is_left(
    cluster: raylets.Raylets, start: Callable[[], Driver]
) -> None:
    driver = start()
    driver.until(partial(driver.steps_on, "node0", "node1"))
    cluster.tell("add")
    driver.until(partial(driver.steps_on, "node2"))
    cluster.tell("kill 1")
    driver.until(lambda: any(line["worker"].startswith("node") for line in driver.lines("WorkerLost")))
    driver.hurry.touch()
    driver.ends("done")
    (came,) = driver.lines("NodeCame")
    assert (came["node"], [device["name"] for device in came["devices"]]) == ("node2", ["node2/cpu:0"])
    (gone,) = [line for line in driver.lines("WorkerLost") if line["worker"] in ("node0", "node1")]
    assert "is gone" in gone["detail"]
    driver.equals_one_process()


def test_an_agent_takes_what_its_devices_need() -> None:
    from argosy.running.ray_cluster import share_of

    node = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}
    assert share_of(Settings(), {"CPU": 4.0}) == (Settings(devices="cpu:4"), {"num_cpus": 4})
    assert share_of(Settings(devices="cpu:2", threads=2), node) == (
        Settings(devices="cpu:2", threads=2),
        {"num_cpus": 4},
    )
    assert share_of(Settings(devices="cuda:0,1"), node) == (Settings(devices="cuda"), {"num_cpus": 2, "num_gpus": 2})
    assert share_of(Settings(), node) == (Settings(devices="cuda"), {"num_cpus": 2, "num_gpus": 2})
    assert share_of(Settings(), {"CPU": 0.0}) is None, "a head that is to do nothing"
    assert share_of(Settings(devices="cpu:9"), node) is None
    assert share_of(Settings(devices="cuda"), {"CPU": 8.0}) is None
