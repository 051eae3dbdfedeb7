"""A worker that is gone is told once, in whatever order the fork server, the kernel and the worker itself speak."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import studies

import argosy
from argosy.commands import Lost
from argosy.running import forkserver, processes
from argosy.running.forkserver import ForkServer
from argosy.running.processes import ProcessWorkers
from argosy.stream.wire import Peer, dial


class Server(ForkServer):
    """A fork server that forks nothing; the test says what it tells."""

    def __init__(self) -> None:
        channel, self.far_end = Peer.pair()
        super().__init__(SimpleNamespace(pid=os.getpid()), channel)  # type: ignore[arg-type]
        self.asked: list[dict[str, Any]] = []

    def fork(self, arguments: dict[str, Any], descriptors: list[int], log: Path) -> None:
        self.asked.append(arguments)

    def tell(self, ticket: str, pid: int, status: int | None) -> None:
        self.far_end.send((ticket, pid, status))

    def close(self) -> None:
        self.channel.close()
        self.far_end.close()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The first one, and those that replaced it."""
    found = [Server()]

    def start() -> Server:
        found.append(Server())
        return found[-1]

    monkeypatch.setattr(processes, "ForkServer", SimpleNamespace(start=start))
    return found


@pytest.fixture
def workers(tmp_path: Path, servers: list[Server]) -> Iterator[ProcessWorkers]:
    job = SimpleNamespace(directory=tmp_path, lock=0)
    blobs = {"trainer": os.memfd_create("blob")}
    with ProcessWorkers(job, servers[0], blobs) as workers:  # type: ignore[arg-type]
        workers.start_trainer("cpu:0")
        workers.send("cpu:0", "first")
        yield workers


def call(workers: ProcessWorkers, ticket: str) -> Peer:
    """Call the driver as that worker does, and wait until it has answered."""
    found: list[Peer] = []
    thread = threading.Thread(target=lambda: found.append(dial(workers.door.address, workers.key, ticket)))
    thread.start()
    while thread.is_alive():
        assert lost(workers) == 0
    thread.join()
    return found[0]


def lost(workers: ProcessWorkers, times: int = 5) -> int:
    """How often the loss of the worker is told."""
    said = [message for _ in range(times) for message in workers.receive(0.02)]
    assert all(message == ("cpu:0", message[1]) and isinstance(message[1], Lost) for message in said)
    return len(said)


def test_a_worker_whose_start_was_never_told_is_lost_with_its_connection(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    """The server died with the news of it."""
    peer = call(workers, servers[0].asked[0]["ticket"])
    assert peer.wait(10) == ["first"]
    servers[0].far_end.close()
    assert lost(workers) == 0
    assert len(servers) == 2
    peer.close()
    assert lost(workers) == 1


def test_a_worker_that_has_not_called_is_lost_with_the_server(workers: ProcessWorkers, servers: list[Server]) -> None:
    servers[0].far_end.close()
    assert lost(workers) == 1


def test_a_call_of_a_worker_that_is_gone_takes_nothing_from_its_successor(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    first = servers[0].asked[0]["ticket"]
    servers[0].tell(first, 7, None)
    servers[0].tell(first, 7, 9)
    assert lost(workers) == 1
    workers.start_trainer("cpu:0")
    workers.send("cpu:0", "second")
    with pytest.raises(EOFError):
        call(workers, first).wait(10)
    peer = call(workers, servers[0].asked[1]["ticket"])
    assert peer.wait(10) == ["second"]
    servers[0].tell(first, 7, 9)
    assert lost(workers) == 0
    peer.close()
    assert lost(workers) == 1


def test_an_end_that_is_told_before_the_connection_breaks_is_told_once(
    workers: ProcessWorkers, servers: list[Server]
) -> None:
    ticket = servers[0].asked[0]["ticket"]
    peer = call(workers, ticket)
    servers[0].tell(ticket, 7, None)
    servers[0].tell(ticket, 7, 9)
    assert lost(workers) == 0
    peer.close()
    assert lost(workers) == 1


def test_a_caller_that_hangs_up_at_once_does_no_harm(workers: ProcessWorkers) -> None:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(workers.door.address)
    caller.close()
    assert lost(workers) == 0


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
