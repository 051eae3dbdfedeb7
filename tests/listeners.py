"""Fixtures with listeners for other nodes, with and without TLS; calls to them, and a relay between caller and listener."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certificates
import pytest

from argosy.errors import WorkerError
from argosy.stream import listener as entrance
from argosy.stream.listener import Listener, dial
from argosy.stream.tls import Certificate
from argosy.stream.wire import Peer


@pytest.fixture
def refused() -> list[str]:
    """Return the list to which the listener adds its reasons for refusing callers."""
    return []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Make the job's certificate."""
    return Certificate.load(certificates.make(tmp_path_factory.mktemp("certificate") / "job.pem"))


@pytest.fixture(params=["plain", "sealed"])
def sealed(request: pytest.FixtureRequest) -> Certificate | None:
    """Return the certificate that both ends have, or None for connections without TLS."""
    found: Certificate | None = request.getfixturevalue("certificate") if request.param == "sealed" else None
    return found


@pytest.fixture
def network_listener(
    refused: list[str], sealed: Certificate | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Listener]:
    """Open a listener for other nodes, which waits long enough for slow ones."""
    monkeypatch.setattr(entrance, "PATIENCE_SECONDS", 200.0)
    listener = Listener(bytes(32), refused.append, seal=sealed and sealed.called)
    yield listener
    listener.close()


def enter(listener: Listener, call: Callable[[], Any]) -> tuple[list[tuple[str, Peer]], list[Any]]:
    """Accept callers while `call` runs on a thread; returns the peers that entered, and what it returned or raised."""
    got: list[Any] = []

    def guarded() -> None:
        try:
            got.append(call())
        except WorkerError as error:
            got.append(error)

    thread, entered = threading.Thread(target=guarded), []
    thread.start()
    while thread.is_alive():
        entered += listener.accept()
    thread.join()
    entered += listener.accept()
    deadline = time.monotonic() + 10
    while isinstance(got[0], Peer) and not entered and time.monotonic() < deadline:
        entered += listener.accept()  # the caller's last proof may not have arrived yet
    return entered, got


def call(port: int, *, key: bytes = bytes(32), name: str = "rank 1", certificate: Certificate | None = None) -> Peer:
    """Connect as another node and return the connection."""
    return dial(("127.0.0.1", port), key, name, seconds=60, seal=certificate and certificate.calling)


class Trap:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Relay:
    """An attacker between two nodes: it passes on their proofs; after `stop`, tests send what they like through its sockets."""

    caller: socket.socket
    called: socket.socket

    def __init__(self, between: socket.socket, port: int) -> None:
        self._between, self._port = between, port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pass_proofs)
        self._thread.start()

    def _pass_proofs(self) -> None:
        self.caller, self.called = self._between.accept()[0], socket.create_connection(("127.0.0.1", self._port))
        ends = {self.caller: self.called, self.called: self.caller}
        while not self._over.is_set():
            for end in select.select(list(ends), [], [], 0.01)[0]:
                ends[end].sendall(end.recv(2**16))

    def stop(self) -> None:
        """Stop passing on data."""
        self._over.set()
        self._thread.join()

    def close(self) -> None:
        """Close both connections."""
        self.stop()
        self.caller.close()
        self.called.close()

    def keep(self, frames: int, peer: Peer) -> list[bytes]:
        """Let the caller send this many frames and keep them back; returns the bytes of each."""
        kept = []
        for number in range(frames):
            peer.send(f"word {number}")
            kept.append(self.caller.recv(2**16))
        return kept
