"""Errors of jobs on several nodes."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from argosy.api import ray_cluster
from argosy.cli.doctor import doctor
from argosy.cluster import Device, Node
from argosy.protocol.events import Checkpoint
from argosy.results.fold import MemberState
from argosy.running.control.resume import resume_point, resume_points
from argosy.running.doctor.cluster import require_job_place
from argosy.running.hosts import agent_listener, notices
from argosy.running.hosts.agent import Joined
from argosy.running.hosts.agents import Agents
from argosy.running.hosts.file_transfer import read_pieces
from argosy.running.hosts.notices import (
    FileBoard,
    Notice,
    connect_to_driver,
    format_notice,
    parse_notice,
    read_certificate,
    read_key,
)
from argosy.running.hosts.place import JobPlace, choose_job_place, find_job_place
from argosy.settings import Settings

__all__ = ["CASES"]

RUN = Path("runs/x")
PLACE = JobPlace(launcher="srun", rank=0, size=2, local_rank=0, nodes=2, job="4711.0")
NOTICE = Notice(job=PLACE.job, hosts=("10.0.0.1",), port=40000)
SLURM = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")} | {
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def damaged_notice() -> None:
    """Read a notice that something else has overwritten."""
    RUN.mkdir(parents=True)
    (RUN / "driver.json").write_bytes(b"\xff\xfe")
    FileBoard(RUN).read()


def no_driver(patch: pytest.MonkeyPatch) -> None:
    """Call a driver that has ended, or uses another directory."""
    patch.setattr(notices.socket, "gethostname", lambda: "host-1")
    connect_to_driver(PLACE, FileBoard(RUN), None, seconds=0.0)


def no_store(patch: pytest.MonkeyPatch) -> None:
    """Look for the driver's notice in a store of torchrun that cannot be reached."""
    patch.setattr(notices.socket, "gethostname", lambda: "host-1")
    patch.setattr(notices, "JOIN_SECONDS", 0.1)
    notices.StoreBoard(replace(PLACE, store=("127.0.0.1", 1)), b"key", keeps=False)


def uncertified(patch: pytest.MonkeyPatch) -> None:
    """Join a driver with a certificate from a node without one."""
    patch.setattr(notices.socket, "gethostname", lambda: "host-1")
    notice = Notice(job=PLACE.job, hosts=("10.0.0.1",), port=40000, certificate="b5bb9d80")
    notices._check_certificate("rank 0", notice, None)


def no_certificate() -> None:
    """Read a certificate from a file without one."""
    Path("job.pem").write_text("-----BEGIN NOTHING-----\n")
    read_certificate({"ARGOSY_CERTIFICATE": "job.pem"})


def lonely() -> None:
    """Wait for agents that do not arrive."""
    launcher = Agents(PLACE, RUN)
    try:
        launcher._gather(launcher._open_listener(), waited=1000.0)
    finally:
        launcher.close()


def unlike(patch: pytest.MonkeyPatch) -> None:
    """Join from a node with a different torch."""
    patch.setattr(agent_listener, "versions", lambda: {"argosy": "0.1.0", "torch": "2.13.0"})
    patch.setattr(agent_listener.socket, "gethostname", lambda: "host-0")
    node = Node(name="local", devices=(Device(name="cpu:0", node="local", kind="cpu", memory_bytes=1),), cores=1)
    joined = Joined(rank=1, host="host-1", node=node, versions={"argosy": "0.1.0", "torch": "2.12.1"})
    agent_listener.check_versions(joined)


def gone() -> None:
    """Resume a member whose newest file is missing."""
    saved = Checkpoint(file="e0002-s0000000.pt", sha256="", epoch=2, section=0, position=0, carried=0, best=None)
    resume_point(MemberState(name="mlp", saved=[saved]), RUN)


def damaged(**keywords: Any) -> None:
    """Resume members whose only files are damaged."""
    saved = Checkpoint(file="e0002-s0000000.pt", sha256="", epoch=2, section=0, position=0, carried=0, best=None)
    for name in ("mlp", "cnn"):
        (RUN / "members" / name).mkdir(parents=True)
        (RUN / "members" / name / saved.file).touch()
    resume_points([MemberState(name=name, saved=[saved]) for name in ("mlp", "cnn")], RUN, **keywords)


def without_ray(patch: pytest.MonkeyPatch) -> None:
    """Use Ray without installing it."""
    patch.delitem(sys.modules, "argosy.running.hosts.ray_cluster", raising=False)
    patch.setitem(sys.modules, "ray", None)
    ray_cluster()


def with_ray(patch: pytest.MonkeyPatch) -> Any:
    """Return a launcher for a Ray without a cluster."""
    patch.delitem(sys.modules, "argosy.running.hosts.ray_cluster", raising=False)
    names = ("ray", "ray.util", "ray.util.scheduling_strategies")
    for name in names:
        patch.setitem(sys.modules, name, ModuleType(name))

    def init(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance")

    sys.modules["ray"].init, sys.modules["ray"].is_initialized = init, lambda: False  # type: ignore[attr-defined]
    sys.modules[names[2]].NodeAffinitySchedulingStrategy = None  # type: ignore[attr-defined]
    launcher = ray_cluster("auto")
    patch.delitem(sys.modules, "argosy.running.hosts.ray_cluster")
    return launcher


def no_cluster(patch: pytest.MonkeyPatch) -> None:
    """Connect to a Ray that does not answer."""
    with_ray(patch).discover(Settings())


def no_agents(patch: pytest.MonkeyPatch) -> None:
    """Wait for agents that Ray has no devices for."""
    raise with_ray(patch)._missing_nodes_error([], "")


CASES = {
    "launcher agents outside a job": lambda: choose_job_place("agents", {}),
    "a launcher variable that is not a number": lambda: find_job_place(SLURM | {"SLURM_PROCID": "first"}),
    "contradictory launcher variables": lambda: find_job_place(SLURM | {"SLURM_PROCID": "2"}),
    "different numbers of processes per node": lambda: find_job_place(OPEN_MPI),
    "a key that can be guessed": lambda: read_key({"ARGOSY_KEY": "secret"}),
    "a notice that the driver did not write": lambda: parse_notice(format_notice(NOTICE, b"another key"), b"key"),
    "a notice that cannot be read": lambda: parse_notice("7", None, f" in {RUN}/driver.json"),
    "a file that is not a certificate": no_certificate,
    "a node without the job's certificate": uncertified,
    "doctor --cluster outside a job": lambda: require_job_place({}),
    "doctor without --cluster, with a study": lambda: doctor(Path("study.py")),
    "a job whose driver cannot be found": no_driver,
    "a store of torchrun that cannot be reached": no_store,
    "a damaged notice of a driver": damaged_notice,
    "a job whose agents do not arrive": lonely,
    "nodes with different environments": unlike,
    "a different number of nodes than the job has": lambda: Agents(PLACE, RUN).discover(Settings(nodes=3)),
    "launcher 'ray' without Ray": without_ray,
    "no Ray cluster": no_cluster,
    "a Ray cluster without free devices": no_agents,
    "a checkpoint that disappears before it is transferred": lambda: next(
        read_pieces("", Path("members/mlp/e0002-s0000000.pt"))
    ),
    "a journaled checkpoint that is missing": gone,
    "members whose checkpoints are all damaged": damaged,
    "trials whose checkpoints are all damaged": lambda: damaged(search=True),
}
