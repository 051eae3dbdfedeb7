"""How processes of one run meet: a door that authenticates callers, and the call to it.

Contract. The key is known to processes of the run alone, and both sides prove it (HMAC-SHA256 over the other's nonce)
before the first pickle is read; until then a caller may send a few hundred bytes, and none of them means anything. A door
has an abstract AF_UNIX name (nothing on disk, nothing to leak), where callers of other users are turned away by the
kernel's word as well; or a TCP port that the kernel chooses, for other nodes, which may be sealed with TLS
(`argosy.stream.tls`). Nobody behind it ever waits for a caller.
"""

import contextlib
import hmac
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

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
LEFT = "hung up before it had proved the run's key"
TLS_BEGINS = b"\x16\x03"
"""The first bytes of a caller that calls by TLS."""
CREDENTIALS = struct.Struct("3i")
"""Of the process at the other end: pid, user, group."""
ANSWER_SECONDS = 600.0
"""A caller waits so long for the door: whoever is behind it may be in the middle of a slow sample. One that is gone
hangs up at once."""
UNHEARD_SECONDS = 30.0
"""A node that acknowledges nothing for so long is gone: no end-of-file tells of one without power."""


Seal = Callable[[socket.socket], socket.socket]
"""Puts an end of a connection inside TLS."""


def _ignore(refusal: str) -> None:
    """Of those who call on one machine the kernel keeps strangers away."""


@dataclass(kw_only=True, slots=True)
class _Caller:
    """Somebody who has not proved the key."""

    nonce: bytes
    since: float
    greeted: bool = False
    """Whether it was sent the nonce; inside TLS the two shake hands before."""
    received: bytearray = field(default_factory=bytearray)

    @property
    def missing(self) -> int:
        """Bytes to read, and never past its name: what follows is the peer's. The caller waits for the proof before it goes on."""
        received = self.received
        wanted = HELLO + 1 + received[HELLO] if len(received) > HELLO else HELLO + 1
        return wanted - len(received)


class Door:
    """The listening end. Its `fileno` is readable when `enter` has something to do."""

    def __init__(
        self,
        key: bytes,
        *,
        listener: socket.socket | None = None,
        refused: Callable[[str], None] = _ignore,
        seal: Seal | None = None,
    ) -> None:
        self.key = key
        self._seal = seal
        self._listener = listener or _listen_here()
        self._listener.setblocking(False)
        self._refused = refused
        """Told of each caller that is hung up on, in words."""
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._callers: dict[socket.socket, _Caller] = {}

    @classmethod
    def to_network(cls, key: bytes, refused: Callable[[str], None], *, seal: Seal | None = None) -> "Door":
        """A door for other nodes, at every IPv4 interface of this one."""
        return cls(key, listener=socket.create_server(("", 0), backlog=128), refused=refused, seal=seal)

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

    def wait(self, seconds: float) -> None:
        """Until `enter` has something to do, or the time is over."""
        self._selector.select(seconds)

    def enter(self) -> list[tuple[str, Peer]]:
        """Callers that have just proved the key, with the name that they gave; never waits."""
        entered = []
        for key, _ in self._selector.select(timeout=0):
            if key.fileobj is self._listener:
                self._welcome()
            elif key.fileobj in self._callers and (proved := self._read(key.fileobj)) is not None:
                entered.append(proved)
        for silent, caller in list(self._callers.items()):
            if time.monotonic() - caller.since > PATIENCE_SECONDS:
                said = f"said nothing for {PATIENCE_SECONDS:g} s that would prove the run's key"
                self._hang_up(silent, said if caller.greeted else "does not show the job's certificate")
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
        try:
            caller = caller if self._seal is None else self._seal(caller)
        except OSError:
            caller.close()  # it has gone
            return
        self._callers[caller] = _Caller(nonce=os.urandom(NONCE), since=time.monotonic())
        self._selector.register(caller, selectors.EVENT_READ)
        self._greet(caller)

    def _greet(self, caller: socket.socket) -> bool:
        """Send the nonce; False where the caller does not take it, or not yet."""
        try:
            caller.send(self._callers[caller].nonce)
        except BlockingIOError:
            return False
        except OSError as error:
            self._hang_up(caller, f"does not show the job's certificate: {error}" if self._seal else LEFT)
            return False
        self._callers[caller].greeted = True
        return True

    def _read(self, connection: socket.socket) -> tuple[str, Peer] | None:
        caller = self._callers[connection]
        if not caller.greeted and not self._greet(connection):
            return None
        try:
            while caller.missing:
                caller.received += connection.recv(caller.missing) or _gone()
        except BlockingIOError:
            return None
        except OSError:
            self._hang_up(connection, LEFT)
            return None
        hello = bytes(caller.received)
        proof, challenge, name = hello[:PROOF], hello[PROOF:HELLO], hello[HELLO + 1 :]
        if not hmac.compare_digest(proof, _prove(self.key, b"caller", caller.nonce)):
            self._hang_up(connection, "does not know the run's key")
            return None
        try:
            connection.send(_prove(self.key, b"door", challenge))
        except OSError:
            self._hang_up(connection, LEFT)
            return None
        self._forget(connection)
        _hurry(connection)
        return name.decode(errors="replace"), Peer(connection)

    def _hang_up(self, caller: socket.socket, why: str) -> None:
        if self._callers[caller].received.startswith(TLS_BEGINS):
            why = "calls with a certificate, and this end has none"
        self._forget(caller)
        who = "somebody"
        with contextlib.suppress(OSError):  # one that has gone has no name any more
            who = _words(caller.getpeername())
        caller.close()
        self._refused(f"{who} {why}")

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]


def dial(address: Address, key: bytes, name: str, *, seconds: float = ANSWER_SECONDS, seal: Seal | None = None) -> Peer:
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
        _connect(caller, address, time.monotonic() + seconds)
        caller = caller if seal is None else seal(caller)
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


def _connect(caller: socket.socket, address: Address, deadline: float) -> None:
    """Wait as well where so many call at once that the kernel keeps no more of them for the door, which it says at once."""
    while True:
        try:
            caller.connect(address)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(BREATH_SECONDS)
        else:
            return


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


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        received += connection.recv(size - len(received)) or _gone()
    return received


def _gone() -> NoReturn:
    raise ConnectionResetError("hung up before the key was proved")


def _prove(key: bytes, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + nonce, "sha256")
