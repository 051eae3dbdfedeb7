"""How processes of a run find each other to exchange tensors: through a file on one machine, or through the driver's store.

Contract. torch's own TCPStore lets every process that reaches its port list, read, replace and delete its entries. So the
store of a run on several nodes is behind one of the run's listeners (`argosy.stream.listener`). A rendezvous names the listener's address, the key
that opens it, and the prefix of its own entries, and is sent only over authenticated connections. A thread of the driver's process
answers; it never waits for a caller.
"""

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from argosy.errors import WorkerError
from argosy.stream.listener import Listener, dial
from argosy.stream.wire import Peer

__all__ = ["FORMING", "RendezvousStore", "NetworkRendezvous", "open_store"]

FORMING = datetime.timedelta(seconds=60)
"""Timeout of connecting, which begins when all processes have arrived."""
SCHEME = "tcp://"


class NetworkRendezvous:
    """The store in the driver's process, in which each rendezvous has its own entries."""

    def __init__(self, host: str, refused: Callable[[str], None]) -> None:
        self.host = host
        """Address by which other nodes reach this one."""
        self._key = os.urandom(32)
        self._listener = Listener(self._key, refused)
        self._entries: dict[str, bytes] = {}
        self._waiting: list[tuple[Peer, Sequence[str]]] = []
        """Callers to answer when all of these entries exist."""
        self._over = threading.Event()
        serve, given = self._listener.serve, (self._over, self._receive)
        self._thread = threading.Thread(target=serve, args=given, name="argosy-rendezvous", daemon=True)
        self._thread.start()

    def rendezvous(self) -> str:
        """Return a rendezvous that no process has used yet. Its last part is its name, which is not secret."""
        return f"{SCHEME}{self.host}:{self._listener.port}/{self._key.hex()}/{os.urandom(16).hex()}"

    def close(self) -> None:
        """End all rendezvous."""
        self._over.set()
        self._thread.join()

    def _receive(self, peer: Peer) -> bool:
        """Execute a caller's requests. Returns whether it is still connected."""
        try:
            for message in peer.receive():
                self._obey(peer, *message)
                self._answer_waiting()
        except (EOFError, WorkerError):
            self._waiting = [(other, names) for other, names in self._waiting if other is not peer]
            peer.close()
            return False
        return True

    def _obey(self, peer: Peer, command: str, name: str, value: Any) -> None:
        match command:
            case "set":
                self._entries[name] = value
                peer.send(None)
            case "add":
                total = int(self._entries.get(name, b"0")) + value
                self._entries[name] = str(total).encode()
                peer.send(total)
            case "delete":
                peer.send(self._entries.pop(name, None) is not None)
            case "check":
                peer.send(all(name + one in self._entries for one in value))
            case "wait":
                self._waiting.append((peer, [name + one for one in value]))

    def _answer_waiting(self) -> None:
        still = []
        for peer, names in self._waiting:
            if all(name in self._entries for name in names):
                peer.send([self._entries[name] for name in names])
            else:
                still.append((peer, names))
        self._waiting = still


class RendezvousStore(Store):
    """One process's end of a rendezvous at the driver's store. Its methods are those that torch requires of a store.

    Raises RuntimeError if the driver does not answer in time. torch keeps no reference to the Python object, so it must
    outlive the groups that use it.
    """

    def __init__(self, host: str, port: int, key: bytes, name: str) -> None:
        super().__init__()
        self._name = f"{name}/"
        self._asking = threading.Lock()
        try:
            self._peer = dial((host, port), key, "rendezvous", seconds=FORMING.total_seconds())
        except WorkerError as error:
            raise RuntimeError(str(error)) from error

    def set(self, key: str, value: bytes | str) -> None:
        """Write an entry."""
        self._ask("set", self._name + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Read an entry, waiting until it exists."""
        value: bytes = self._ask("wait", self._name, [key])[0]
        return value

    def wait(self, keys: list[str], timeout: datetime.timedelta = FORMING) -> None:
        """Wait until these entries exist."""
        self._ask("wait", self._name, keys, timeout)

    def check(self, keys: list[str]) -> bool:
        """Return whether these entries exist."""
        return bool(self._ask("check", self._name, keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a numeric entry and return the sum."""
        return int(self._ask("add", self._name + key, amount))

    def delete_key(self, key: str) -> bool:
        """Delete an entry and return whether it existed."""
        return bool(self._ask("delete", self._name + key, None))

    def clone(self) -> "RendezvousStore":
        """Return this store, which threads may share. NCCL asks for one per thread."""
        return self

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()

    def _ask(self, command: str, name: str, value: Any, timeout: datetime.timedelta = FORMING) -> Any:
        deadline = time.monotonic() + timeout.total_seconds()
        with self._asking:
            self._peer.send((command, name, value))
            with contextlib.suppress(EOFError, WorkerError):
                for answer in self._peer.wait(deadline - time.monotonic()):
                    return answer
            self._peer.close()  # a late answer would be taken for that to the next request
        raise RuntimeError(f"the driver's store has not answered {command} within {timeout}")


def open_store(rendezvous: str, size: int) -> Any:
    """Return the store of a rendezvous of so many processes. Raises RuntimeError if it cannot be reached."""
    if not rendezvous.startswith(SCHEME):
        return FileStore(os.fsencode(rendezvous), size)  # type: ignore[arg-type]  # a string must be UTF-8
    place, key, name = rendezvous.removeprefix(SCHEME).split("/")
    host, _, port = place.rpartition(":")
    return RendezvousStore(host, int(port), bytes.fromhex(key), name)
