"""Files between nodes without a common file system: sent in pieces, in order with the messages around them.

Contract. An outbox is received in the order of its contents, so a message that names a file arrives after it. A file is
read piece by piece, the next one when the connection has accepted the last. Neither end holds more of it in memory, and
neither waits. An arriving file is written beside its place, and moved there once it is complete and on the disk.
"""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from argosy.disk.files import create_new, make_folder
from argosy.disk.settled import rename_flushed
from argosy.errors import CheckpointError
from argosy.stream.wire import Peer

__all__ = ["IncomingFiles", "Outbox", "FilePiece", "read_pieces"]

PIECE_BYTES = 2**20
"""Most bytes of a file that either end holds in memory."""


class FilePiece(NamedTuple):
    """The next bytes of a file."""

    name: str
    """Path of the file, relative to the run directory."""
    data: bytes
    last: bool


def read_pieces(name: str, path: Path) -> Iterator[FilePiece]:
    """Yield the pieces of a file; raises CheckpointError if the file does not exist any more."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {path}, which another node needs, is in the journal but does not exist: it was moved or "
            "deleted. Restore the original file, or train in another directory."
        ) from error
    with file:
        remaining = os.fstat(file.fileno()).st_size
        while True:
            data = file.read(PIECE_BYTES)
            remaining -= len(data)
            last = remaining <= 0 or not data
            yield FilePiece(name, data, last)
            if last:
                return


class Outbox:
    """Queue of messages and files for a peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._waiting: deque[Iterator[Any]] = deque()

    @property
    def unsent(self) -> bool:
        """Whether something is left to send; if so, wait until the connection is writable and call `flush`."""
        return bool(self._waiting) or self.peer.unsent

    def put(self, value: Any) -> None:
        """Queue a message."""
        self._waiting.append(iter((value,)))

    def put_file(self, name: str, path: Path) -> None:
        """Queue a file, which must not change until it has been sent."""
        self._waiting.append(read_pieces(name, path))

    def flush(self) -> None:
        """Send as much as the connection takes."""
        self.peer.flush()
        while self._waiting and not self.peer.unsent:
            # One piece at a time: a file is read no faster than the connection takes it.
            for value in self._waiting[0]:
                self.peer.send(value)
                break
            else:
                self._waiting.popleft()

    def drain(self, seconds: float) -> None:
        """Send what is left at the end of a conversation, for at most so many seconds."""
        deadline = time.monotonic() + seconds
        self.flush()
        while self.unsent and (left := deadline - time.monotonic()) > 0:
            self.peer.drain(left)
            self.flush()


class IncomingFiles:
    """Files that arrive from another node, on their way into a folder."""

    def __init__(self, folder: Path, unfinished: Path) -> None:
        self.folder = folder
        self._unfinished = unfinished
        """Folder on the same file system, used by this connection alone."""
        self._open: dict[str, BinaryIO] = {}
        self._whole: list[str] = []

    def take(self, piece: FilePiece) -> None:
        """Write a piece. After the last piece of a file, the next `rename_flushed` moves the file to its place."""
        if piece.name not in self._open:
            make_folder(self._unfinished)
            self._beside(piece.name).unlink(missing_ok=True)  # left by a driver that was killed
            self._open[piece.name] = create_new(self._beside(piece.name))
        self._open[piece.name].write(piece.data)
        if piece.last:
            self._open.pop(piece.name).close()
            self._whole.append(piece.name)

    def settle(self) -> None:
        """Flush all complete files to the disk, and move them to their places; raises DiskError."""
        whole, self._whole = self._whole, []
        for name in whole:
            make_folder((self.folder / name).parent)
        if whole:
            rename_flushed([(self._beside(name), self.folder / name) for name in whole])

    def close(self) -> None:
        """Delete incomplete files."""
        for file in self._open.values():
            file.close()
        if self._unfinished.is_dir():
            for path in self._unfinished.iterdir():
                path.unlink()
            self._unfinished.rmdir()

    def _beside(self, name: str) -> Path:
        return self._unfinished / name.replace("/", "%")
