"""Files between nodes that have no file system in common: they travel in pieces, in one line with the words around them.

Contract. What is put into an outbox arrives in that order, so whoever hears of a file has it. A file is read piece by piece,
the next one when the connection has taken the last: neither end ever holds more of it, and nobody waits. What arrives is
written beside its place, and is there when it is whole and on the disk.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from argosy.disk.files import created, make_folder
from argosy.errors import CheckpointError
from argosy.stream.wire import Peer
from argosy.training.member.checkpoint import settle

__all__ = ["Arrivals", "Outbox", "FilePiece", "pieces"]

PIECE_BYTES = 2**20


class FilePiece(NamedTuple):
    """The next bytes of a file."""

    name: str
    """Relative to the run directory."""
    data: bytes
    last: bool


def pieces(name: str, path: Path) -> Iterator[FilePiece]:
    """A file; raises CheckpointError where it is not there any more."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {path} is journaled and is to go to another node, and does not exist: it was moved or deleted. Put it "
            "back as it was written, or train in another directory."
        ) from error
    with file:
        left = os.fstat(file.fileno()).st_size
        while True:
            data = file.read(PIECE_BYTES)
            left -= len(data)
            last = left <= 0 or not data
            yield FilePiece(name, data, last)
            if last:
                return


class Outbox:
    """What goes to a peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._waiting: deque[Iterator[Any]] = deque()

    @property
    def unsent(self) -> bool:
        """Whether something is left: then watch for room, and call `flush`."""
        return bool(self._waiting) or self.peer.unsent

    def put(self, value: Any) -> None:
        """Say something."""
        self._waiting.append(iter((value,)))

    def put_file(self, name: str, path: Path) -> None:
        """Send a file, which stays as it is until it is through."""
        self._waiting.append(pieces(name, path))

    def flush(self) -> None:
        """Let go what the connection takes."""
        self.peer.flush()
        while self._waiting and not self.peer.unsent:
            for value in self._waiting[0]:
                self.peer.send(value)
                break
            else:
                self._waiting.popleft()

    def drain(self, seconds: float) -> None:
        """At the end of a conversation: let go what is left, for at most so long."""
        deadline = time.monotonic() + seconds
        self.flush()
        while self.unsent and (left := deadline - time.monotonic()) > 0:
            self.peer.drain(left)
            self.flush()


class Arrivals:
    """Files of another node, on their way into a folder."""

    def __init__(self, folder: Path, unfinished: Path) -> None:
        self.folder = folder
        self._unfinished = unfinished
        """A folder of the same file system, of this connection alone."""
        self._open: dict[str, BinaryIO] = {}
        self._whole: list[str] = []

    def take(self, piece: FilePiece) -> None:
        """Write it; where it was the last of its file, that is there after the next `settle`."""
        if piece.name not in self._open:
            make_folder(self._unfinished)
            self._beside(piece.name).unlink(missing_ok=True)  # of a driver that was killed
            self._open[piece.name] = created(self._beside(piece.name))
        self._open[piece.name].write(piece.data)
        if piece.last:
            self._open.pop(piece.name).close()
            self._whole.append(piece.name)

    def settle(self) -> None:
        """Flush what is whole to the disk, all together, and put it where it belongs; raises DiskError."""
        whole, self._whole = self._whole, []
        for name in whole:
            make_folder((self.folder / name).parent)
        if whole:
            settle([(self._beside(name), self.folder / name) for name in whole])

    def close(self) -> None:
        """Forget what is not whole."""
        for file in self._open.values():
            file.close()
        if self._unfinished.is_dir():
            for path in self._unfinished.iterdir():
                path.unlink()
            self._unfinished.rmdir()

    def _beside(self, name: str) -> Path:
        return self._unfinished / name.replace("/", "%")
