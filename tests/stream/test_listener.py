"""Tests that the listener admits callers that know the key, under any name, and receives nothing from others."""

import contextlib
import functools
import os
import pickle
import random
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import certificates
import pytest
from listeners import Trap, call, enter
from test_wire import no_more_files

from argosy.errors import PlanError, WorkerError
from argosy.settings import Settings
from argosy.stream import listener as entrance
from argosy.stream.listener import Listener
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer


@pytest.fixture
def listener(refused: list[str]) -> Iterator[Listener]:
    """A listener on this machine, without a certificate."""
    listener = Listener(bytes(32), refused.append)
    yield listener
    listener.close()


@pytest.mark.parametrize("name", ["", "cpu:0 1", "n" * 33, "node/üöä-" * 20, "n" * 255])
def test_a_name_of_any_length_shifts_nothing(listener: Listener, name: str) -> None:
    entered, (caller,) = enter(listener, lambda: call(listener.port, name=name))
    assert [found for found, _ in entered] == [name]
    caller.send("first word")
    assert entered[0][1].wait(5) == ["first word"]


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(WorkerError, match="256 bytes; at most 255 are possible"):
        call(1, name="n" * 256)


def test_a_caller_that_proved_itself_while_the_listener_was_not_looked_at_is_let_in(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting = bytes(entrance.NONCE) + b"\x04name"
    with socket.create_connection(("127.0.0.1", listener.port)) as caller:
        caller.sendall(greeting)
        while not any(one.greeted for one in listener._callers.values()):
            assert listener.accept() == []
        nonce = caller.recv(entrance.NONCE + entrance.PROOF)[: entrance.NONCE]
        caller.sendall(entrance._make_proof(bytes(32), b"caller", nonce, greeting))
        select.select(list(listener._callers), [], [])
        monkeypatch.setattr(entrance, "PATIENCE_SECONDS", 0.0)
        assert [found for found, _ in listener.accept()] == ["name"]


def test_more_call_at_once_than_are_kept_without_a_proof(listener: Listener) -> None:
    names = [str(number) for number in range(200)]
    with ThreadPoolExecutor(len(names)) as pool:
        calls = [pool.submit(call, listener.port, name=name) for name in names]
        time.sleep(0.2)  # the process behind the listener is busy with something else
        entered: list[str] = []
        while len(entered) < len(names) and not any(call.done() and call.exception() for call in calls):
            entered += [name for name, _ in listener.accept()]
        assert sorted(entered) == sorted(names)
        for one in calls:
            one.result().close()


def test_a_call_waits_where_too_many_files_are_open(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as caller:
        with no_more_files():
            assert listener.accept() == []
            assert listener.accept() == []
        caller.sendall(bytes(entrance.NONCE + 1))
        while not select.select([caller], [], [], 0)[0]:
            listener.accept()
        assert len(caller.recv(100)) == entrance.NONCE + entrance.PROOF


def test_callers_from_the_network_are_let_in_and_say_more_than_a_socket_holds(
    network_listener: Listener, sealed: Certificate | None
) -> None:
    entered, (caller,) = enter(network_listener, lambda: call(network_listener.port, certificate=sealed))
    ((name, peer),) = entered
    assert (name, peer.host, caller.host) == ("rank 1", "127.0.0.1", "127.0.0.1")
    for here, there in ((caller, peer), (peer, caller)):
        here.send(bytes(5_000_000))
        while not (heard := there.receive()):
            here.flush()
        assert heard == [bytes(5_000_000)]
        here.send("a last word")
    assert peer.wait(60) == ["a last word"]
    caller.close()
    with pytest.raises(EOFError):
        peer.wait(60)


def test_a_wrong_key_from_the_network_is_refused_and_told(
    network_listener: Listener, refused: list[str], sealed: Certificate | None
) -> None:
    entered, (error,) = enter(network_listener, lambda: call(network_listener.port, key=b"x" * 32, certificate=sealed))
    while not refused:
        assert network_listener.accept() == []
    assert entered == []
    assert isinstance(error, WorkerError)
    assert [words.partition(" port ")[0] for words in refused] == ["127.0.0.1"]
    assert refused[0].endswith("does not accept the proof of the run's key: it has a different key")


def test_a_wrong_proof_from_the_network_is_refused_and_told(refused: list[str]) -> None:
    listener = Listener(bytes(32), refused.append)
    with socket.create_connection(("127.0.0.1", listener.port)) as caller:
        caller.sendall(bytes(entrance.NONCE + 1) + bytes(entrance.PROOF))
        while not refused:
            assert listener.accept() == []
    listener.close()
    assert refused[0].endswith("does not know the run's key")


def test_nothing_can_be_read_between_two_nodes_with_a_certificate(
    network_listener: Listener, sealed: Certificate | None
) -> None:
    passed = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as between:
        thread = threading.Thread(target=lambda: carry(between, network_listener.port, passed))
        thread.start()
        ((_, peer),), (caller,) = enter(network_listener, lambda: call(between.getsockname()[1], certificate=sealed))
        caller.send("the weights of a network")
        assert peer.wait(60) == ["the weights of a network"]
        caller.close()
        peer.close()
        thread.join()
    assert (b"the weights of a network" in passed) is (sealed is None)


def carry(between: socket.socket, port: int, passed: bytearray) -> None:
    """Pass data between a caller and the listener, and record it, until one of them hangs up."""
    ends = [between.accept()[0], socket.create_connection(("127.0.0.1", port))]
    others = dict(zip(ends, reversed(ends), strict=True))
    with ends[0], ends[1], contextlib.suppress(ConnectionError):
        while True:
            for end in select.select(ends, [], [])[0]:
                piece = end.recv(2**16)
                passed += piece
                if not piece:
                    return
                others[end].sendall(piece)


@pytest.mark.parametrize("other", ["another", "none"])
def test_a_caller_without_the_certificate_of_the_job_is_refused_with_a_reason(
    certificate: Certificate, refused: list[str], other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance, "PATIENCE_SECONDS", 0.2 if other == "none" else 60)
    its = Certificate.load(certificates.make(tmp_path / "another.pem")) if other == "another" else None
    listener = Listener(bytes(32), refused.append, seal=certificate.called)
    entered, (error,) = enter(listener, lambda: call(listener.port, certificate=its))
    while not refused:
        assert listener.accept() == []
    listener.close()
    assert entered == []
    assert isinstance(error, WorkerError)
    assert "does not show the job's certificate" in refused[0]


def test_a_connection_outlives_a_process_that_reads_nothing_for_as_long_as_one_may_hang(listener: Listener) -> None:
    ((_, called),), (caller,) = enter(listener, lambda: call(listener.port))
    for peer in (called, caller):
        with socket.socket(fileno=os.dup(peer.fileno())) as end:
            seconds = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
        assert seconds >= Settings().hang_seconds
        peer.close()


def test_an_expired_certificate_is_refused_by_each_node(tmp_path: Path) -> None:
    path = certificates.make(tmp_path / "job.pem")
    words = ["openssl", "x509", "-in", path, "-signkey", path, "-days", "-1"]
    expired = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    path.write_text(path.read_text().partition("-----BEGIN CERTIFICATE-----")[0] + expired)
    with pytest.raises(PlanError, match=r"job\.pem cannot be used .*: certificate has expired, by the clock of"):
        Certificate.load(path)


@pytest.mark.parametrize("purpose", ["serverAuth", "clientAuth"])
def test_a_certificate_for_one_side_of_calls_alone_is_refused(tmp_path: Path, purpose: str) -> None:
    path = certificates.make(tmp_path / "job.pem", "-addext", f"extendedKeyUsage={purpose}")
    with pytest.raises(PlanError, match=r"job\.pem cannot be used .*: unsuitable certificate purpose"):
        Certificate.load(path)


def test_another_certificate_of_the_same_authority_is_refused(refused: list[str], tmp_path: Path) -> None:
    """A peer must show the job's own certificate; another one of the same authority does not do.

    Each file also has the authority's certificate, like the chain of a server.
    """
    first, second = (Certificate.load(path) for path in certificates.make_chains(tmp_path))
    for its, welcome in ((second, False), (first, True)):
        listener = Listener(bytes(32), refused.append, seal=first.called)
        entered, (answer,) = enter(listener, functools.partial(call, listener.port, certificate=its))
        assert [name for name, _ in entered] == ["rank 1"] * welcome
        assert isinstance(answer, Peer if welcome else WorkerError)
        listener.close()
    for its, shown in ((first, second), (second, first)):  # the caller checks the listener's certificate too
        listener = Listener(bytes(32), refused.append, seal=shown.called)
        _, (answer,) = enter(listener, functools.partial(call, listener.port, certificate=its))
        assert isinstance(answer, WorkerError)
        listener.close()


def test_a_caller_with_a_certificate_is_refused_with_a_reason_if_the_job_has_none(
    certificate: Certificate, refused: list[str]
) -> None:
    listener = Listener(bytes(32), refused.append)
    entered, (error,) = enter(listener, lambda: call(listener.port, certificate=certificate))
    while not refused:
        assert listener.accept() == []
    listener.close()
    assert entered == []
    assert isinstance(error, WorkerError)
    assert refused[0].endswith("calls with a certificate, but this end has none")


def test_what_a_scanner_of_ports_says_is_ignored(
    network_listener: Listener, refused: list[str], sealed: Certificate | None, tmp_path: Path
) -> None:
    """Callers that send other protocols, noise, unproved messages or nothing are refused, while others are admitted."""
    trap = pickle.dumps(Trap(tmp_path / "sprung"), protocol=5)
    word = len(trap).to_bytes(8, "little") + trap
    said = [b"", b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-scan\r\n", word, bytes(63), bytes(64) + b"\x02me" + word]
    said += [random.Random(seed).randbytes(5000) for seed in range(5)]
    address, callers = ("127.0.0.1", network_listener.port), []
    for words in said:
        callers.append(socket.create_connection(address))
        callers[-1].sendall(words)
        assert network_listener.accept() == []
    entered, _ = enter(network_listener, lambda: call(network_listener.port, certificate=sealed))
    assert [name for name, _ in entered] == ["rank 1"]
    for caller in callers:
        caller.close()
    deadline = time.monotonic() + 10
    while network_listener._callers and time.monotonic() < deadline:
        assert network_listener.accept() == []
    assert len(refused) == len(said)
    assert not (tmp_path / "sprung").exists()
