"""Jobs of two nodes on this machine: the test's process is rank 0, and a forked process is the agent of the other node."""

import sys
from dataclasses import replace
from pathlib import Path

import forked

from argosy.cluster import Cluster
from argosy.running.hosts.agent import run_job_process
from argosy.running.hosts.agents import Agents
from argosy.running.hosts.place import JobPlace
from argosy.running.launch.launcher import Job, Workers
from argosy.settings import Settings


def place(rank: int) -> JobPlace:
    """Return the place of one of two processes, each on its own node."""
    return JobPlace(launcher="torchrun", rank=rank, size=2, local_rank=0, nodes=2, job="test")


class TwoNodes:
    """A launcher of runs with one device on each node.

    The nodes find each other through a folder. If that is the run directory, they have a shared file system.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.agents = Agents(place(0), folder)
        self.agent: forked.Forked | None = None

    def discover(self, settings: Settings) -> Cluster:
        """See `Launcher.discover`."""
        settings = _of_two(settings)
        self.start_agent(settings)
        return self.agents.discover(settings)

    def start_agent(self, settings: Settings) -> None:
        """Start the agent of the other node, forked from the test's process in its present state."""
        if self.agent is None:
            self.agent = forked.fork(lambda: sys.exit(run_job_process(place(1), _of_two(settings), self.folder)))

    def open(self, job: Job) -> Workers:
        """See `Launcher.open`."""
        return self.agents.open(replace(job, settings=_of_two(job.settings)))

    def close(self) -> None:
        """See `Launcher.close`."""
        self.agents.close()
        if self.agent is not None:
            self.agent.wait(30)


def _of_two(settings: Settings) -> Settings:
    return replace(settings, nodes=2, devices="cpu:1")
