"""How processes of one run meet: a door that authenticates callers, and the call to it.

Contract. The key is known to processes of the run alone, and both sides prove it (HMAC-SHA256 over the other's nonce)
before the first pickle is read; until then a caller may send a few hundred bytes, and none of them means anything. A door
has an abstract AF_UNIX name (nothing on disk, nothing to leak), where callers of other users are turned away by the
kernel's word as well; or a TCP port that the kernel chooses, for other nodes. Nobody behind it ever waits for a caller.
"""

import contextlib
import hmac
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable

from argosy.errors import WorkerError
from argosy.stream.wire import Peer

__all__ = ["Address", "Door", "dial"]

Address = str | tuple[str, int]
"""The abstract name of a door on this node, or the host and port of one on another."""

NONCE = PROOF = 32
HELLO = PROOF + NONCE
"""Bytes of a caller before the length of its name."""
LONGEST_NAME = 255
PATIENCE_SECONDS = 5.0
"""A caller that has not proved itself by then is hung up on."""
UNPROVED = 128
"""Most callers at a time that have not proved themselves: for another one the oldest is hung up on."""
BREATH_SECONDS = 0.01
"""Pause after a call that could not be taken, as this process has too many files open: it is still waiting then."""
CREDENTIALS = struct.Struct("3i")
"""Of the process at the other end: pid, user, group."""
ANSWER_SECONDS = 600.0
"""A caller waits so long for the door: whoever is behind it may be in the middle of a slow sample. One that is gone
hangs up at once."""
UNHEARD_SECONDS = 30.0
"""A node that acknowledges nothing for so long is gone: no end-of-file tells of one without power."""


def _ignore(refusal: str) -> None:
    """Of those who call on one machine the kernel keeps strangers away."""


class Door:
    """The listening end. Its `fileno` is readable when `enter` has something to do."""

    def __init__(
        self, key: bytes, *, listener: socket.socket | None = None, refused: Callable[[str], None] = _ignore
    ) -> None:
        self.key = key
        self._listener = listener or _listen_here()
        self._listener.setblocking(False)
        self._refused = refused
        """Told of each caller that is hung up on, in words."""
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._callers: dict[socket.socket, tuple[bytes, bytearray, float]] = {}

    @classmethod
    def to_network(cls, key: bytes, refused: Callable[[str], None]) -> "Door":
        """A door for other nodes, at every IPv4 interface of this one."""
        return cls(key, listener=socket.create_server(("", 0), backlog=128), refused=refused)

    @property
    def address(self) -> str:
        """For callers on this node."""
        name: bytes | str = self._listener.getsockname()
        assert isinstance(name, bytes)
        return name.decode()

    @property
    def port(self) -> int:
        """For callers from the network."""
        return int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        """For selectors."""
        return self._selector.fileno()

    def enter(self) -> list[tuple[str, Peer]]:
        """Callers that have just proved the key, with the name that they gave; never waits."""
        entered = []
        for key, _ in self._selector.select(timeout=0):
            if key.fileobj is self._listener:
                self._welcome()
            elif key.fileobj in self._callers and (caller := self._read(key.fileobj)) is not None:
                entered.append(caller)
        for silent, (_, _, since) in list(self._callers.items()):
            if time.monotonic() - since > PATIENCE_SECONDS:
                self._hang_up(silent, f"said nothing for {PATIENCE_SECONDS:g} s that would prove the run's key")
        return entered

    def close(self) -> None:
        """No more callers."""
        for caller in list(self._callers):
            self._forget(caller)
            caller.close()
        self._selector.close()
        self._listener.close()

    def _welcome(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except OSError:
            time.sleep(BREATH_SECONDS)
            return
        if caller.family == socket.AF_UNIX and _user_of(caller) != os.geteuid():
            caller.close()
            return
        if len(self._callers) == UNPROVED:
            self._hang_up(next(iter(self._callers)), "had not proved the run's key when too many others called")
        caller.setblocking(False)
        nonce = os.urandom(NONCE)
        self._callers[caller] = (nonce, bytearray(), time.monotonic())
        self._selector.register(caller, selectors.EVENT_READ)
        self._say(caller, nonce)

    def _read(self, caller: socket.socket) -> tuple[str, Peer] | None:
        nonce, received, _ = self._callers[caller]
        # All that is there: who said it while nobody looked has not been silent.
        while not _is_whole(received):
            # Never past the name: what follows it is the peer's to read. The caller waits for the proof before it goes on.
            wanted = HELLO + 1 + received[HELLO] if len(received) > HELLO else HELLO + 1
            try:
                piece = caller.recv(wanted - len(received))
            except BlockingIOError:
                return None
            except OSError:
                piece = b""
            received += piece
            if not piece:
                self._hang_up(caller, "hung up before it had proved the run's key")
                return None
        proof, challenge, name = bytes(received[:PROOF]), bytes(received[PROOF:HELLO]), bytes(received[HELLO + 1 :])
        if not hmac.compare_digest(proof, _prove(self.key, b"caller", nonce)):
            self._hang_up(caller, "does not know the run's key")
            return None
        if not self._say(caller, _prove(self.key, b"door", challenge)):
            return None
        self._forget(caller)
        _hurry(caller)
        return name.decode(errors="replace"), Peer(caller)

    def _say(self, caller: socket.socket, words: bytes) -> bool:
        """Send; False where the caller has gone."""
        try:
            caller.send(words)
        except OSError:
            self._hang_up(caller, "hung up before it had proved the run's key")
            return False
        return True

    def _hang_up(self, caller: socket.socket, why: str) -> None:
        self._forget(caller)
        who = "somebody"
        with contextlib.suppress(OSError):  # one that has gone has no name any more
            who = _words(caller.getpeername())
        caller.close()
        self._refused(f"{who} {why}")

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]


def dial(address: Address, key: bytes, name: str, *, seconds: float = ANSWER_SECONDS) -> Peer:
    """Call a door under a name (at most 255 bytes); raises WorkerError where nobody answers with the right key in time."""
    words = name.encode()
    if len(words) > LONGEST_NAME:
        raise WorkerError(
            f"{name[:20]!r}… has {len(words)} bytes; a caller's name has at most {LONGEST_NAME}. Shorten it."
        )
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    caller = socket.socket(family, socket.SOCK_STREAM)
    caller.settimeout(seconds)
    try:
        caller.connect(address)
        nonce = _receive(caller, NONCE)
        challenge = os.urandom(NONCE)
        caller.sendall(_prove(key, b"caller", nonce) + challenge + bytes([len(words)]) + words)
        proof = _receive(caller, PROOF)
    except OSError as error:
        caller.close()
        raise WorkerError(
            f"{name}: the call to {_words(address)} failed: {error}. Run the same command again."
        ) from error
    if not hmac.compare_digest(proof, _prove(key, b"door", challenge)):
        caller.close()
        raise WorkerError(
            f"{name}: whoever answers at {_words(address)} does not know the run's key. Run the same command again."
        )
    _hurry(caller)
    return Peer(caller)


def _listen_here() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0argosy-{os.urandom(12).hex()}")
    listener.listen(128)
    return listener


def _hurry(connection: socket.socket) -> None:
    """Let words to another node leave at once, and its silence be noticed."""
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNHEARD_SECONDS * 1000))


def _user_of(caller: socket.socket) -> int:
    """Whose process is at the other end, by the kernel's word."""
    found = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(found)[1])


def _words(address: Address) -> str:
    return address[1:] if isinstance(address, str) else f"{address[0]} port {address[1]}"


def _is_whole(received: bytearray) -> bool:
    """Whether a caller has said all that it has to prove itself by."""
    return len(received) > HELLO and len(received) == HELLO + 1 + received[HELLO]


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
