"""Tests that `argosy doctor --cluster` finds nodes that differ or cannot be reached; two process trees act as nodes."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import certificates
import forked
import pytest

from argosy.errors import WorkerError
from argosy.running.doctor import cluster as cluster_doctor
from argosy.running.doctor import cluster_checks
from argosy.running.doctor.cluster import examine_cluster, examine_other_node
from argosy.running.doctor.cluster_checks import Findings, MeasuredLink, NodeInfo, Samples, judge_cluster
from argosy.running.hosts.place import JobPlace
from argosy.stream import listener

STUDY = "import studies\nstudy = studies.study({samples}, fleet=[studies.member()])\n"
Faults = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relax all time and bandwidth limits, so that no node fails because the test machine is slow."""
    for limit in ("JOIN_SECONDS", "CALL_SECONDS", "ANSWER_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(cluster_doctor, limit, 200.0)
    monkeypatch.setattr(listener, "PATIENCE_SECONDS", 200.0)
    monkeypatch.setattr(cluster_checks, "LEAST_BYTES_PER_SECOND", 0.0)


def of_mpirun(rank: int) -> dict[str, str]:
    """Return the environment that mpirun gives one of two processes, each on its own node."""
    each = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in each.items()}


def start(rank: int, folder: Path, out: int, *, samples: int, faults: Faults) -> forked.Forked:
    """Start the doctor as one node of the job, in a folder of its own."""
    folder.mkdir()
    (folder / "study.py").write_text(STUDY.format(samples=samples))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in of_mpirun(rank).items():
            patch.setenv(name, value)
        faults(patch)
        words = ["doctor", "--cluster", "study.py", "--dir", str(folder.parent / "runs" / "x"), "--json"]
        return forked.started(folder, words, out=out)


def two_nodes(folder: Path, *, samples: int = 40, faults: Faults = lambda patch: None) -> tuple[int, dict[str, Any]]:
    """Return the exit code of rank 0 and its checks by name; `samples` and `faults` apply to rank 1."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as nothing:
        second = start(1, folder / "1", nothing.fileno(), samples=samples, faults=faults)
        first = start(0, folder / "0", said.fileno(), samples=40, faults=lambda patch: None)
        code, other = first.wait(250), second.wait(250)
        said.seek(0)
        nothing.seek(0)
        found = json.load(said)
        assert (other, nothing.read()) == (0, b"")
    assert found["ok"] is (code == 0)
    assert not (folder / "runs").exists()
    return code, {check["name"]: check for check in found["checks"]}


@pytest.mark.usefixtures("_patient")
def test_a_node_may_take_longer_than_the_first_one_to_open_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(patch: pytest.MonkeyPatch) -> None:
        samples = cluster_doctor._samples
        patch.setattr(cluster_doctor, "_samples", lambda file: (time.sleep(3.0), samples(file))[1])

    monkeypatch.setattr(cluster_doctor, "ANSWER_SECONDS", 0.5)
    code, checks = two_nodes(tmp_path, faults=slow)
    assert code == 0, checks


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_nodes_that_are_alike_are_well(tmp_path: Path, sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if sealed:
        monkeypatch.setenv("ARGOSY_CERTIFICATE", str(certificates.make(tmp_path / "job.pem")))
    code, checks = two_nodes(tmp_path)
    assert code == 0, checks
    assert list(checks) == ["nodes", "reachability", "equal versions", "clocks", "bandwidth", "equal data"]
    assert checks["reachability"]["found"] == "2 calls succeeded"
    assert checks["equal data"]["found"] == "train: 40 samples, val: 41 samples"
    assert checks["bandwidth"]["found"].endswith("MB/s, the slowest")
    assert not any(check["fix"] for check in checks.values())


def unlike(patch: pytest.MonkeyPatch) -> None:
    """Give a node another version of torch and a clock that is ten minutes ahead."""
    versions = cluster_doctor.versions() | {"torch": "2.9.1"}
    patch.setattr(cluster_doctor, "versions", lambda: versions)
    patch.setattr(cluster_doctor, "_now", lambda: time.time() + 600.0)


@pytest.mark.usefixtures("_patient")
def test_nodes_that_are_unlike_are_told_what_makes_them_alike(tmp_path: Path) -> None:
    wanted = cluster_doctor.versions()["torch"]
    code, checks = two_nodes(tmp_path, samples=41, faults=unlike)
    assert code == 1
    assert [name for name, check in checks.items() if not check["ok"]] == ["equal versions", "clocks", "equal data"]
    assert checks["equal versions"]["found"].endswith("has torch 2.9.1")
    assert checks["equal versions"]["fix"].endswith(f": pip install 'torch=={wanted}'")
    assert "ahead of rank 0" in checks["clocks"]["found"]
    assert "chronyc makestep" in checks["clocks"]["fix"]
    assert "41 samples of train instead of 40" in checks["equal data"]["found"]
    assert "rsync" in checks["equal data"]["fix"]


def hidden(patch: pytest.MonkeyPatch) -> None:
    """Close a node's listening port, so that no other node can reach it."""
    told = cluster_doctor._Desk.here

    def here(desk: Any, rank: int, address: str) -> NodeInfo:
        found = told(desk, rank, address)
        desk._listener._selector.unregister(desk._listener._socket)
        desk._listener._socket.close()
        return found

    patch.setattr(cluster_doctor._Desk, "here", here)


@pytest.mark.usefixtures("_patient")
def test_a_node_that_calls_and_cannot_be_called_is_found(tmp_path: Path) -> None:
    code, checks = two_nodes(tmp_path, faults=hidden)
    assert code == 1
    assert [name for name, check in checks.items() if not check["ok"]] == ["reachability"]
    assert "rank 0 on" in checks["reachability"]["found"]
    assert "cannot reach rank 1" in checks["reachability"]["found"]
    assert "iptables -I INPUT" in checks["reachability"]["fix"]


def place(rank: int) -> JobPlace:
    return JobPlace(launcher="srun", rank=rank, size=2, local_rank=0, nodes=2, job="4711.0")


def test_nodes_that_do_not_find_each_other_say_so_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_doctor, "JOIN_SECONDS", 0.2)
    checks = {check.name: check for check in examine_cluster(place(0), tmp_path / "here", None)}
    assert [name for name, check in checks.items() if not check.ok] == ["nodes"]
    assert checks["nodes"].found.startswith("1 of 2: rank 0 on ")
    assert "--dir DIR that all nodes see" in checks["nodes"].fix
    with pytest.raises(WorkerError, match=r"within 0\.2 s: it has left no notice"):
        examine_other_node(place(1), tmp_path / "there", None)
    assert not list(tmp_path.iterdir())


def node(rank: int, **other: Any) -> NodeInfo:
    fixed: dict[str, Any] = {"host": f"host-{rank}", "address": f"10.0.0.{rank + 1}", "port": 40000 + rank}
    return NodeInfo(rank=rank, **({"versions": {"python": "3.12.1", "torch": "2.13.0"}, **fixed} | other))


def found(name: str, nodes: list[NodeInfo], findings: dict[int, Findings]) -> Any:
    return next(check for check in judge_cluster(nodes, len(nodes), findings, []) if check.name == name)


def test_a_clock_counts_as_wrong_only_where_the_round_trip_cannot_explain_it() -> None:
    nodes = [node(0), node(1)]
    for ahead, within, ok in ((0.9, 0.0, True), (5.0, 4.5, True), (5.0, 0.1, False), (-5.0, 0.1, False)):
        links = [MeasuredLink(to=1, ahead_seconds=ahead, within_seconds=within)]
        assert found("clocks", nodes, {0: Findings(links=links, samples=None)}).ok is ok


def test_the_slow_link_is_named() -> None:
    nodes, rates = [node(0), node(1), node(2)], (1e9, 2e6, 1e9)
    findings = {
        rank: Findings(links=[MeasuredLink(to=(rank + 1) % 3, bytes_per_second=rate)], samples=None)
        for rank, rate in enumerate(rates)
    }
    check = found("bandwidth", nodes, findings)
    assert (check.ok, check.found) == (False, "rank 1 on host-1 to rank 2 on host-2 2 MB/s")
    assert check.fix.startswith("on host-1: ethtool $(ip -o route get 10.0.0.3 ")


def test_a_node_that_falls_silent_is_named() -> None:
    nodes = [node(0), node(1)]
    check = found("reachability", nodes, {0: Findings(links=[MeasuredLink(to=1)], samples=None)})
    assert (check.ok, check.found) == (False, "rank 1 on host-1 has not reported which nodes it reaches")


def test_data_that_cannot_be_opened_and_data_of_other_bytes_are_named() -> None:
    nodes = [node(0), node(1), node(2)]
    samples = [
        Samples(lengths={"train": 4}, fingerprints={"train": "a"}),
        Samples(lengths={}, fingerprints={}, problem="no such folder."),
        Samples(lengths={"train": 4}, fingerprints={"train": "b"}),
    ]
    check = found("equal data", nodes, {rank: Findings(links=[], samples=one) for rank, one in enumerate(samples)})
    assert not check.ok
    assert check.found.startswith("rank 1 on host-1: no such folder.; rank 2 on host-2 differs from ")


def test_another_python_wants_another_environment() -> None:
    nodes = [node(0), node(1, versions={"python": "3.11.7", "torch": "2.13.0"})]
    assert found("equal versions", nodes, {}).fix == "on host-1: an environment of Python 3.12.1"
