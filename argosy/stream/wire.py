"""Sockets between processes of one run: a door that authenticates callers and never blocks, and the call to it.

Contract. The listener has an abstract AF_UNIX name (nothing on disk, nothing to leak) and a key that only processes of
the run know; both sides prove the key (HMAC-SHA256 over the other's nonce) before the first pickle is read. Everything
after that are pickled values under 16 KiB, so that a peer that stops in the middle of one is a dead peer, not a slow one.
"""

import hmac
import os
import selectors
import socket
import time
from multiprocessing.connection import Connection

from argosy.errors import WorkerError

__all__ = ["Door", "Peer", "dial"]

Peer = Connection
"""An authenticated two-way connection of pickled values."""

NONCE = NAME = PROOF = 32
PATIENCE_SECONDS = 5.0
"""A caller that has not proved itself by then is hung up on."""


class Door:
    """The listening end. Its `fileno` is readable when `enter` has something to do."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.address = f"\0argosy-{os.urandom(12).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._callers: dict[socket.socket, tuple[bytes, bytearray, float]] = {}

    def fileno(self) -> int:
        """For selectors."""
        return self._selector.fileno()

    def enter(self) -> list[tuple[str, Peer]]:
        """Callers that have just proved the key, with the name that they gave; never waits."""
        entered = []
        for key, _ in self._selector.select(timeout=0):
            if key.fileobj is self._listener:
                self._welcome()
            elif (caller := self._read(key.fileobj)) is not None:  # type: ignore[arg-type]
                entered.append(caller)
        for caller_socket, (_, _, since) in list(self._callers.items()):
            if time.monotonic() - since > PATIENCE_SECONDS:
                self._hang_up(caller_socket)
        return entered

    def close(self) -> None:
        """No more callers."""
        for caller in list(self._callers):
            self._hang_up(caller)
        self._selector.close()
        self._listener.close()

    def _welcome(self) -> None:
        caller, _ = self._listener.accept()
        caller.setblocking(False)
        nonce = os.urandom(NONCE)
        self._callers[caller] = (nonce, bytearray(), time.monotonic())
        self._selector.register(caller, selectors.EVENT_READ)
        self._say(caller, nonce)

    def _read(self, caller: socket.socket) -> tuple[str, Peer] | None:
        nonce, received, _ = self._callers[caller]
        try:
            received += caller.recv(PROOF + NONCE + NAME - len(received))
        except OSError:
            received.clear()
        if len(received) < PROOF + NONCE + NAME:
            if not received:
                self._hang_up(caller)
            return None
        proof, challenge, name = (bytes(received[i : i + 32]) for i in (0, 32, 64))
        if not hmac.compare_digest(proof, _prove(self.key, b"caller", nonce)):
            self._hang_up(caller)
            return None
        if not self._say(caller, _prove(self.key, b"door", challenge)):
            return None
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.setblocking(True)
        return name.rstrip(b"\0").decode(), Connection(caller.detach())

    def _say(self, caller: socket.socket, words: bytes) -> bool:
        """Send; False where the caller has gone."""
        try:
            caller.send(words)
        except OSError:
            self._hang_up(caller)
            return False
        return True

    def _hang_up(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.close()


def dial(address: str, key: bytes, name: str) -> Peer:
    """Call a door under a name (at most 32 bytes); raises WorkerError where nobody answers with the right key."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(PATIENCE_SECONDS)
    try:
        caller.connect(address)
        nonce = _receive(caller, NONCE)
        challenge = os.urandom(NONCE)
        caller.sendall(_prove(key, b"caller", nonce) + challenge + name.encode().ljust(NAME, b"\0"))
        proof = _receive(caller, PROOF)
    except OSError as error:
        raise WorkerError(f"{name}: the call to {address[1:]} failed: {error}.") from error
    if not hmac.compare_digest(proof, _prove(key, b"door", challenge)):
        raise WorkerError(f"{name}: whoever answers at {address[1:]} does not know the run's key.")
    caller.settimeout(None)
    return Connection(caller.detach())


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionResetError("hung up before the key was proved")
        received += piece
    return received


def _prove(key: bytes, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + nonce, "sha256")
