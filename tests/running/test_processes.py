"""Tests that the loss of a worker is reported once, in whatever order the fork server, the kernel and the worker itself report it."""

import io
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evidence
import pytest
import studies

import argosy
from argosy.errors import WorkerError
from argosy.protocol.feeder import Lend
from argosy.protocol.trainer import Attach, Lost
from argosy.running.launch import forkserver, processes, worker
from argosy.running.launch.forkserver import ForkServer
from argosy.running.launch.processes import ProcessWorkers
from argosy.stream.wire import Peer

PATIENCE = round(1.5 * processes.NEWS_SECONDS / 0.02)
"""Number of polls that together last longer than the wait for news from the fork server."""


class Server(ForkServer):
    """A fork server that forks nothing and reports what the test tells it to."""

    def __init__(self) -> None:
        channel, self.far_end = Peer.pair()
        self.kills: list[str] = []
        process = SimpleNamespace(pid=os.getpid(), kill=partial(self.kills.append, "kill"), returncode=-signal.SIGKILL)
        super().__init__(process, channel, io.BytesIO())  # type: ignore[arg-type]
        self.asked: list[str] = []
        """Ids of the requested workers."""
        self.ends: list[Peer] = []
        """The workers' ends of their connections to the driver."""

    def fork(self, arguments: dict[str, Any], descriptors: list[int], log: Path) -> None:
        self.asked.append(arguments["worker_id"])
        self.ends.append(Peer(socket.socket(fileno=os.dup(descriptors[0]))))

    def tell(self, worker_id: str, pid: int, status: int | str | None) -> None:
        self.far_end.send((worker_id, pid, status))

    def die(self) -> None:
        """End together with all workers, as when the kernel kills workers whose fork server has died."""
        for end in self.ends:
            end.close()
        self.far_end.close()

    def close(self) -> str:
        self.channel.close()
        self.far_end.close()
        return "a warning\n"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The first fork server and those that replaced it."""
    found = [Server()]

    def start() -> Server:
        found.append(Server())
        return found[-1]

    monkeypatch.setattr(processes, "ForkServer", SimpleNamespace(start=start))
    return found


@pytest.fixture
def workers(tmp_path: Path, servers: list[Server]) -> Iterator[ProcessWorkers]:
    blobs = {"trainer": os.memfd_create("blob"), "state": os.memfd_create("state")}
    with ProcessWorkers(servers[0], blobs, directory=tmp_path, lock=0) as workers:
        workers.start("cpu:0", "trainer", "local")
        workers.send("cpu:0", "first")
        yield workers


def lost(workers: ProcessWorkers, times: int = 5) -> int:
    """Return how often the loss of the worker is reported in `times` polls."""
    said = [message for _ in range(times) for message in workers.receive(0.02)]
    assert all(message == ("cpu:0", message[1]) and isinstance(message[1], Lost) for message in said)
    return len(said)


def test_a_worker_whose_start_was_never_told_is_lost_with_the_server(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    """A worker is lost even if the server died before it could report the worker's start."""
    workers.receive(0)
    assert servers[0].ends[0].wait(10) == ["first"]
    servers[0].die()
    assert lost(workers) == 1
    assert len(servers) == 2


@pytest.mark.parametrize(
    ("pid", "words"), [(None, "the fork server ended before it could start"), (7, "it ended with the fork server")]
)
def test_how_the_server_ended_is_told(
    workers: ProcessWorkers, servers: list[Server], pid: int | None, words: str
) -> None:
    """A server that the kernel ended says nothing by itself."""
    if pid is not None:
        servers[0].tell(servers[0].asked[0], pid, None)
        workers.receive(0.02)
    servers[0].die()
    [(_, loss)] = [message for _ in range(5) for message in workers.receive(0.02)]
    assert loss.detail.startswith(f"{words}: it was ended by SIGKILL (the kernel does that when memory runs out)")


def test_workers_are_lost_with_the_server_though_another_process_holds_their_connections_open(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    servers[0].far_end.close()
    assert lost(workers) == 0
    assert len(servers) == 2
    assert lost(workers, PATIENCE) == 1


def test_what_becomes_of_a_worker_takes_nothing_from_its_successor(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    first, end = servers[0].asked[0], servers[0].ends[0]
    servers[0].tell(first, 7, None)
    servers[0].tell(first, 7, 9)
    end.close()
    assert lost(workers) == 1
    workers.start("cpu:0", "trainer", "local")
    workers.send("cpu:0", "second")
    assert lost(workers) == 0
    assert servers[0].ends[1].wait(10) == ["second"]
    servers[0].tell(first, 7, 9)
    assert lost(workers) == 0
    servers[0].ends[1].close()
    assert lost(workers, PATIENCE) == 1


def test_an_end_that_is_told_before_the_connection_breaks_is_told_once(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    worker_id, peer = servers[0].asked[0], servers[0].ends[0]
    servers[0].tell(worker_id, 7, None)
    servers[0].tell(worker_id, 7, 9)
    assert lost(workers) == 0
    peer.close()
    assert lost(workers) == 1


def test_a_worker_that_ended_is_lost_though_another_process_holds_its_connection_open(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    """A worker is lost even if a process that user code forked in it lives on and holds the connection."""
    worker_id, peer = servers[0].asked[0], servers[0].ends[0]
    servers[0].tell(worker_id, 7, None)
    peer.send("last word")
    servers[0].tell(worker_id, 7, 9)
    said = [message for _ in range(PATIENCE) for message in workers.receive(0.02)]
    assert [message if isinstance(message, str) else type(message) for _, message in said] == ["last word", Lost]


def test_a_trainer_and_a_feeder_are_given_the_ends_of_one_connection(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    workers.blobs |= {"feeder": os.memfd_create("blob"), "data": os.memfd_create("data")}
    workers.start("feeder-0", "feeder", "local")
    workers.send("cpu:0", Attach(feeder="feeder-0"))
    workers.send("cpu:0", "then")
    workers.receive(0)
    trainer, feeder = servers[0].ends
    assert trainer.wait(10) == ["first", Attach(feeder="feeder-0"), "then"]
    assert feeder.wait(10) == [Lend(reader="cpu:0")]
    here, there = (Peer(socket.socket(fileno=end.descriptors.popleft())) for end in (trainer, feeder))
    here.send("back")
    assert there.wait(10) == ["back"]
    here.close()
    with pytest.raises(EOFError):
        there.wait(10)


def test_a_trainer_finds_the_connection_to_a_feeder_broken_that_is_gone(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    workers.send("cpu:0", Attach(feeder="feeder-7"))
    workers.receive(0)
    (trainer,) = servers[0].ends
    assert trainer.wait(10) == ["first", Attach(feeder="feeder-7")]
    with pytest.raises(EOFError):
        Peer(socket.socket(fileno=trainer.descriptors.popleft())).wait(10)


def test_where_no_other_server_can_be_started_the_workers_are_let_go_all_the_same(
    workers: ProcessWorkers, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Server:
        raise WorkerError("no more processes. Allow more.")

    monkeypatch.setattr(processes, "ForkServer", SimpleNamespace(start=refused))
    servers[0].die()
    with pytest.raises(WorkerError, match="no more processes"):
        lost(workers)
    workers.receive(0)


@pytest.mark.fresh
def test_a_server_is_refused_in_a_sentence_where_not_even_a_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(WorkerError, match=r"the fork server cannot be started.*ulimit -u"):
        ForkServer.start()


@pytest.mark.fresh
def test_workers_have_what_was_set_since_their_server_began_and_no_path_that_python_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path, tmp_path])
    launcher = processes.Processes().warm()
    monkeypatch.setenv("ARGOSY_TEST_ROWS", "40")
    data = argosy.Data(train=lambda: studies.Vectors(int(os.environ["ARGOSY_TEST_ROWS"])))
    study = studies.study(data=data, fleet=[studies.member()], epochs=1)
    report = argosy.train(study, directory=tmp_path / "run", launcher=launcher, devices="cpu:1")
    assert report.status == "done"


@pytest.mark.parametrize(
    ("status", "words"),
    [(9, "it was ended by SIGKILL (the kernel does that when memory runs out)"), (256, "it ended with exit code 1")],
)
def test_how_a_worker_ended_is_told(workers: ProcessWorkers, servers: list[Server], status: int, words: str) -> None:
    """The cause is reported even if the connection breaks just before the fork server learns of the end."""
    worker_id, peer = servers[0].asked[0], servers[0].ends[0]
    servers[0].tell(worker_id, 7, None)
    peer.close()
    assert lost(workers) == 0
    servers[0].tell(worker_id, 7, status)
    assert workers.receive(1) == [("cpu:0", Lost(detail=f"{words} while starting"))]


def test_a_worker_that_cannot_be_forked_is_lost_with_the_reason(workers: ProcessWorkers, servers: list[Server]) -> None:
    servers[0].tell(servers[0].asked[0], 0, "it could not be forked: no more processes")
    servers[0].ends[0].close()
    assert workers.receive(1) == [("cpu:0", Lost(detail="it could not be forked: no more processes while starting"))]


@pytest.mark.fresh
def test_a_server_whose_interpreter_cannot_start_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(
        WorkerError, match=r"the fork server ended before it could start: Fatal Python error: .*, the 11th loss"
    ):
        argosy.train(studies.study(epochs=1), directory=tmp_path, devices="cpu:1")
    assert "Fatal Python error" not in capfd.readouterr().err
    assert (tmp_path / "workers" / "fork-server.log").read_text().count("Fatal Python error") >= 5


@pytest.mark.fresh
def test_a_server_stopped_before_its_program_began_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = tmp_path / "began"
    tie = forkserver.die_with_parent

    def stop_the_first(parent: int) -> None:
        tie(parent)
        with began.open("a") as file:
            file.write(".")
        if began.read_text() == ".":
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(forkserver, "die_with_parent", stop_the_first)
    monkeypatch.setattr(forkserver, "STOPPED_SECONDS", 0.1)
    report = argosy.train(studies.study(epochs=1), directory=tmp_path / "run", devices="cpu:1")
    assert report.status == "done"
    assert began.read_text() == ".."


def test_what_is_sent_in_a_round_leaves_with_the_next_one(workers: ProcessWorkers, servers: list[Server]) -> None:
    """A message is sent only in the next round, when the driver's journal is already on disk."""
    (peer,) = servers[0].ends
    assert workers.receive(0) == []
    assert peer.wait(10) == ["first"]
    workers.send("cpu:0", "answer")
    assert peer.wait(0.1) == []
    assert workers.receive(0) == []
    assert peer.wait(10) == ["answer"]


def test_a_worker_that_does_not_read_holds_up_neither_the_driver_nor_the_others(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    """Both sides may send more than their sockets hold before either reads."""
    workers.start("cpu:1", "trainer", "local")
    deaf, other = servers[0].ends
    messages = ["x" * 300 + str(number) for number in range(3000)]
    for message in messages:
        workers.send("cpu:0", message)
        deaf.send(message)
    workers.send("cpu:1", "here")
    said = workers.receive(0.1)
    assert other.wait(10) == ["here"]
    heard = []
    while len(heard) < 3001 or len(said) < 3000:
        heard += deaf.receive()
        deaf.flush()
        said += workers.receive(0.0)
    assert heard == ["first", *messages]
    assert said == [("cpu:0", message) for message in messages]


def test_the_last_messages_reach_live_workers_and_one_that_does_not_read_delays_none(
    workers: ProcessWorkers, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FAREWELL_SECONDS", 0.5)
    workers.start("cpu:1", "trainer", "local")
    _deaf, other = servers[0].ends
    workers.send("cpu:0", bytes(10**7))
    workers.send("cpu:1", bytes(10**6))
    heard: list[Any] = []
    thread = threading.Thread(target=lambda: heard.extend(other.wait(10)))
    thread.start()
    workers._bid_farewell()
    thread.join()
    assert heard == [bytes(10**6)]


@pytest.mark.parametrize("forked", [False, True])
def test_a_server_that_still_imports_for_a_worker_is_not_waited_for(
    workers: ProcessWorkers, servers: list[Server], *, forked: bool
) -> None:
    if forked:
        servers[0].tell(*servers[0].asked, os.getpid(), None)
    workers._bid_farewell()
    assert servers[0].kills == ([] if forked else ["kill"])


def test_a_worker_shows_that_it_starts_before_its_first_message(workers: ProcessWorkers) -> None:
    heartbeat = workers.heartbeat("cpu:0")
    assert heartbeat is not None
    (sign,) = heartbeat.read()
    assert (sign.busy, sign.opaque, sign.doing) == (True, True, "starting")
    assert workers.heartbeat("cpu:7") is None
    assert workers.cpu_seconds("cpu:7") == 0.0
    # The worker's CPU time includes the fork server's, which is this process in the test.
    before = workers.cpu_seconds("cpu:0")
    sum(range(5_000_000))
    assert workers.cpu_seconds("cpu:0") > before


def test_a_worker_that_never_starts_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_process, began = worker.name_process, tmp_path / "began"

    def hang_the_first(name: str) -> None:
        name_process(name)
        if not began.exists():
            began.touch()
            signal.pause()

    monkeypatch.setattr(worker, "name_process", hang_the_first)
    report = argosy.train(studies.study(epochs=1), directory=tmp_path / "run", devices="cpu:1", hang_seconds=2)
    assert report.status == "done"
    (lost,) = evidence.event_lines(tmp_path / "run", "WorkerLost")
    assert re.fullmatch(r"no progress for [2-9] s while starting", lost["detail"])


@pytest.mark.fresh
def test_a_server_closes_where_the_system_waits_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the program ignores SIGCHLD, the server is not killed by its process id, which may already belong to another process."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        server = ForkServer.start()
        killed: list[int] = []
        monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
        assert server.close() == ""
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert killed == []


def test_a_command_waits_while_one_that_came_with_it_is_carried_out() -> None:
    """A trainer looks for commands while it waits for the other devices of a member, and nothing else would end that wait."""
    driver, end = Peer.pair()
    for command in ("assign", "pause"):
        driver.send(command)
    commands = worker._Commands(end)
    waiting = {command: commands.waiting() for command in commands.take()}
    assert waiting == {"assign": True, "pause": False}


def pausing(batch: Any) -> Any:
    """Call a debugger, from within `Member.augment`."""
    breakpoint()
    return batch


def leaving(batch: Any) -> Any:
    """Call sys.exit, from within `Data.on_device`."""
    sys.exit(3)


def test_a_breakpoint_in_a_worker_says_where_a_debugger_works(tmp_path: Path) -> None:
    fleet = [studies.member("good"), studies.member("bad", augment=pausing)]
    with pytest.warns(
        argosy.errors.MemberFailed, match=r'breakpoint\(\) in .*test_processes\.py:.*use launcher="inline"'
    ):
        report = argosy.train(studies.study(fleet=fleet, epochs=1), directory=tmp_path, devices="cpu:1")
    assert report.member("good").status == "done"


def test_the_breakpoints_of_an_editor_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook() -> None:
        """Stand for the debugger of an editor, which attaches to processes."""

    monkeypatch.setattr(sys, "breakpointhook", hook)
    monkeypatch.setattr(worker, "name_process", lambda _: None)
    with pytest.raises(IndexError):  # its first descriptor
        worker.run_worker({"name": "cpu:1", "role": "trainer"}, [])
    assert sys.breakpointhook is hook


def test_code_of_all_members_that_calls_sys_exit_ends_the_run_with_its_line(tmp_path: Path) -> None:
    data = argosy.Data(train=studies.Vectors(170), val=studies.Vectors(41), on_device=leaving)
    with pytest.raises(WorkerError, match=r"(?s)worker 'cpu:0' cannot continue:.*sys\.exit\(3\)"):
        argosy.train(studies.study(data=data, epochs=1), directory=tmp_path, devices="cpu:1")
