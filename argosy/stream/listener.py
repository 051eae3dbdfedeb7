"""Connect the nodes of one run: a listener that authenticates callers, and the call to it.

Contract. Only processes of the run know the key. Each side draws a nonce, and both prove the key (HMAC-SHA256 over
both nonces and the caller's name) before the first pickle is read. Until then a caller can send only a few hundred bytes, which are
not interpreted. The called side proves first: a caller may have a wrong address, to which it reveals only a
nonce and its name. So a listener gives each caller one proof, from which a weak key could be guessed offline. Therefore keys are drawn at
random, and a user's own key is stretched (`argosy.running.hosts.notices.read_key`). The nonces also determine the two keys of the
connection, with which each frame carries a MAC (`argosy.stream.framing`), so a relay that forwards the proofs gains nothing.

A listener has a TCP port that the kernel chooses. It may be sealed with TLS (`argosy.stream.tls`); frames inside TLS need no
MAC. Its process never waits for a caller. Strangers may call without end: they displace only callers of their own host, and
those only for a while. Processes on one machine need no listener: they are given socket pairs
(`argosy.running.launch.processes`).
"""

import hmac
import os
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from argosy.errors import WorkerError
from argosy.stream.framing import Authenticated, Framing, Plain
from argosy.stream.wire import Peer, poll

__all__ = ["Address", "Listener", "dial"]

Address = tuple[str, int]
"""Host and port of a listener."""

NONCE = PROOF = 32
LONGEST_NAME = 255
PATIENCE_SECONDS = 5.0
"""Time after which a caller that has not proved the key is disconnected."""
MAX_UNPROVED = 128
"""Most callers at a time that have not proved the key. For another one, the host with most of them loses one."""
GRACE_SECONDS = 0.5
"""Time that a caller has to prove the key before it may be disconnected in favour of others of its host."""
MAX_ACCEPTS = 32
"""Most calls accepted at a time, so that callers do not keep the process from its work."""
BACKLOG = 1024
"""Most calls that the kernel queues until they are accepted."""
ACCEPT_PAUSE_SECONDS = 0.01
"""Pause after a call could not be accepted because this process has too many open files. The kernel keeps the call."""
LEFT = "hung up before it had proved the run's key"
ANOTHER_KEY = "does not accept the proof of the run's key: it has a different key"
NO_CERTIFICATE = "does not show the job's certificate"
TLS_BEGINS = b"\x16\x03"
"""First bytes of a caller that uses TLS."""
TICK_SECONDS = 0.1
"""Time between two checks whether to go on serving."""
SILENT_SECONDS = 120.0
"""Time after which a node that acknowledges or reads nothing is considered lost: a node without power sends no end-of-file.

The kernel does not distinguish it from a driver that is stopped, or waits for its disk, while a checkpoint is sent to it.
"""


Seal = Callable[[socket.socket], socket.socket]
"""Function that wraps one end of a connection in TLS."""


@dataclass(kw_only=True, slots=True)
class _Caller:
    """A connection whose other end has not proved the key yet."""

    where: Address
    """Address of the caller's end."""
    nonce: bytes
    """Nonce drawn by this side."""
    since: float
    received: bytearray = field(default_factory=bytearray)
    """A nonce, the name's length, the name; then the proof."""

    @property
    def host(self) -> str:
        """Host of the caller."""
        return self.where[0]

    @property
    def greeted(self) -> bool:
        """Whether nonce and name have arrived, so this side has proved the key."""
        return len(self.received) > NONCE and len(self.received) >= self._greeting_bytes

    @property
    def missing(self) -> int:
        """Number of bytes of the greeting or proof still to come. No more may be read: what follows is for the peer."""
        wanted = self._greeting_bytes + PROOF if self.greeted else self._greeting_bytes
        return wanted - len(self.received)

    @property
    def greeting(self) -> bytes:
        """Nonce and name."""
        return bytes(self.received[: self._greeting_bytes])

    @property
    def _greeting_bytes(self) -> int:
        return NONCE + 1 + (self.received[NONCE] if len(self.received) > NONCE else 0)


class Listener:
    """The listening end. Its `fileno` is readable when `accept` has work to do."""

    def __init__(self, key: bytes, refused: Callable[[str], None], *, seal: Seal | None = None) -> None:
        self.key = key
        self._seal = seal
        self._socket = socket.create_server(("", 0), backlog=BACKLOG)
        self._socket.setblocking(False)
        self._refused = refused
        """Called with a sentence about each caller that is disconnected."""
        self._selector = selectors.EpollSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._callers: dict[socket.socket, _Caller] = {}

    @property
    def port(self) -> int:
        """Port for callers, on every IPv4 interface of this node."""
        return int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """Return the descriptor for selectors."""
        return self._selector.fileno()

    def wait(self, seconds: float) -> None:
        """Wait until `accept` has work to do, or the time is over."""
        self._selector.select(seconds)

    def accept(self) -> list[tuple[str, Peer]]:
        """Return the callers that have just proved the key, with the names that they gave. Never waits."""
        ready = [key.fileobj for key, _ in self._selector.select(timeout=0)]
        # First, because these might have to make room for callers accepted below.
        entered = [proved for one in ready if one in self._callers and (proved := self._read(one)) is not None]
        if self._socket in ready:
            self._accept_calls()
        for silent, caller in list(self._callers.items()):
            if time.monotonic() - caller.since > PATIENCE_SECONDS:
                why = f"did not prove the run's key within {PATIENCE_SECONDS:g} s"
                self._disconnect(silent, why if caller.received or self._seal is None else NO_CERTIFICATE)
        return entered

    def serve(self, over: threading.Event, receive: Callable[[Peer], bool]) -> None:
        """Accept callers and receive from them until `over` is set, then close.

        `receive` receives from a peer and returns whether it is still connected. It is called for all peers in each round.
        """
        peers: list[Peer] = []
        while not over.is_set():
            poll(TICK_SECONDS, [(self, False), *((peer, peer.unsent) for peer in peers)])
            peers += [peer for _, peer in self.accept()]
            for peer in peers:
                peer.flush()
            peers = [peer for peer in peers if receive(peer)]
        for peer in peers:
            peer.close()
        self.close()

    def close(self) -> None:
        """Accept no more callers."""
        for caller in list(self._callers):
            self._forget(caller)
            caller.close()
        self._selector.close()
        self._socket.close()

    def _accept_calls(self) -> None:
        """Accept a few of the waiting calls."""
        for _ in range(MAX_ACCEPTS):
            try:
                caller, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:
                time.sleep(ACCEPT_PAUSE_SECONDS)
                return
            if not self._make_room(address[0]):
                caller.close()
                continue
            caller.setblocking(False)
            try:
                caller = caller if self._seal is None else self._seal(caller)
            except OSError:
                caller.close()  # it has disconnected
                continue
            self._callers[caller] = _Caller(where=address, nonce=os.urandom(NONCE), since=time.monotonic())
            self._selector.register(caller, selectors.EVENT_READ)

    def _make_room(self, host: str) -> bool:
        """Return whether a caller of that host may be accepted; another one may be disconnected for it."""
        if len(self._callers) < MAX_UNPROVED:
            return True
        # The host with most callers loses one, so that strangers displace only callers of their own host.
        ((crowded, _),) = Counter([host, *(caller.host for caller in self._callers.values())]).most_common(1)
        oldest, caller = next(entry for entry in self._callers.items() if entry[1].host == crowded)
        if crowded == host and time.monotonic() - caller.since < GRACE_SECONDS:
            return False
        self._disconnect(oldest, "had not proved the run's key when too many others called")
        return True

    def _read(self, connection: socket.socket) -> tuple[str, Peer] | None:
        caller = self._callers[connection]
        try:
            while caller.missing:
                greeted = caller.greeted
                caller.received += connection.recv(caller.missing) or _raise_hung_up()
                if caller.greeted and not greeted:
                    proof = _make_proof(self.key, b"called", caller.nonce, caller.greeting)
                    connection.sendall(caller.nonce + proof)
        except BlockingIOError:
            return None
        except OSError as error:
            unsealed = self._seal is not None and not caller.received
            why = f"{NO_CERTIFICATE}: {error}" if unsealed else ANOTHER_KEY if caller.greeted else LEFT
            self._disconnect(connection, why)
            return None
        greeting, proof = caller.greeting, bytes(caller.received[-PROOF:])
        # In constant time, so that a caller learns nothing from how long it takes.
        if not hmac.compare_digest(proof, _make_proof(self.key, b"caller", caller.nonce, greeting)):
            self._disconnect(connection, "does not know the run's key")
            return None
        self._forget(connection)
        framing = _framing(connection, self.key, caller.nonce, greeting, own=b"called", other=b"caller")
        return greeting[NONCE + 1 :].decode(errors="replace"), Peer(connection, framing)

    def _disconnect(self, connection: socket.socket, why: str) -> None:
        caller = self._callers[connection]
        if caller.received.startswith(TLS_BEGINS):
            why = "calls with a certificate, but this end has none"
        self._forget(connection)
        connection.close()
        self._refused(f"{_format_address(caller.where)} {why}")

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]


def dial(address: Address, key: bytes, name: str, *, seconds: float, seal: Seal | None = None) -> Peer:
    """Call a listener under a name (at most 255 bytes). Raises WorkerError if no process answers with the right key in time."""
    encoded = name.encode()
    if len(encoded) > LONGEST_NAME:
        raise WorkerError(
            f"the caller's name {name[:20]!r}… has {len(encoded)} bytes; at most {LONGEST_NAME} are possible. Shorten it."
        )
    caller, deadline = socket.socket(socket.AF_INET, socket.SOCK_STREAM), time.monotonic() + seconds
    greeting = os.urandom(NONCE) + bytes([len(encoded)]) + encoded
    try:
        caller.settimeout(seconds)
        caller.connect(address)
        caller = caller if seal is None else seal(caller)
        caller.sendall(greeting)
        answer = _receive(caller, NONCE + PROOF, deadline)
        nonce, proof = answer[:NONCE], answer[NONCE:]
        if not hmac.compare_digest(proof, _make_proof(key, b"called", nonce, greeting)):
            caller.close()
            raise WorkerError(
                f"{name}: authentication failed: the process at {_format_address(address)} does not have this run's key. "
                "Run the same command again."
            )
        caller.sendall(_make_proof(key, b"caller", nonce, greeting))
    except OSError as error:
        caller.close()
        raise WorkerError(
            f"{name}: the call to {_format_address(address)} failed: {error}. Run the same command again."
        ) from error
    return Peer(caller, _framing(caller, key, nonce, greeting, own=b"caller", other=b"called"))


def _format_address(address: Address) -> str:
    return f"{address[0]} port {address[1]}"


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Receive so many bytes before the deadline, however slowly they arrive. Raises TimeoutError."""
    received = b""
    while len(received) < size:
        connection.settimeout(max(deadline - time.monotonic(), ACCEPT_PAUSE_SECONDS))
        received += connection.recv(size - len(received)) or _raise_hung_up()
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return received


def _raise_hung_up() -> NoReturn:
    raise ConnectionResetError("hung up before the key was proved")


def _framing(
    connection: socket.socket, key: bytes, nonce: bytes, greeting: bytes, *, own: bytes, other: bytes
) -> Framing:
    """Return the framing of a proved connection. Sets it to send messages immediately and to notice a silent node."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENT_SECONDS * 1000))
    if isinstance(connection, ssl.SSLSocket):
        return Plain()
    sends, receives = (_make_proof(key, b"frames of the " + side, nonce, greeting) for side in (own, other))
    return Authenticated(sends=sends, receives=receives)


def _make_proof(key: bytes, label: bytes, nonce: bytes, greeting: bytes) -> bytes:
    """Return a pseudo-random function of nonce and greeting. The labels, none a prefix of another, separate its uses."""
    return hmac.digest(key, label + b"\0" + nonce + greeting, "sha256")
