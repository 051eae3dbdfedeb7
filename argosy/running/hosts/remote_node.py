"""The driver's handle of another node's workers, by way of the node's agent (`argosy.running.hosts.agent`).

Contract. Messages are kept until the next `flush_commands`, as in every launcher. A node is gone when its connection breaks, or
when nothing was received from it during `SILENCE_SECONDS` of listening. Then each of its workers is lost once, and so is
each one that is started there later. Files of a node that does not see the run directory are on the
driver's disk before the report that names them is returned; files that its members continue from are sent before the
command to do so.
"""

import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.disk.files import make_folder, open_append
from argosy.errors import WorkerError
from argosy.protocol.events import Saved
from argosy.protocol.trainer import Assign, Failed, Journaled, Lost, SectionReport
from argosy.running.hosts.agent import (
    BLOBS,
    BlobsSent,
    EndWorkers,
    Heartbeats,
    KillWorker,
    LogText,
    Ready,
    StartWorker,
    WorkerCommand,
    WorkerMessage,
)
from argosy.running.hosts.file_transfer import FilePiece, IncomingFiles, Outbox
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.wire import Peer, poll
from argosy.training.member.files import KeptFiles

__all__ = ["RemoteNode"]

SILENCE_SECONDS = 30.0
"""Silence after which a node counts as gone; agents send heartbeats once a second."""
LISTENED_SECONDS = 1.0
"""Most seconds between two polls that count as silence, because a delayed driver could not receive anything."""
FAREWELL_SECONDS = 10.0
"""Seconds that an agent has to end what it started."""


class RemoteNode:
    """Handle of one node's workers."""

    def __init__(self, node: str, host: str, peer: Peer, directory: Path) -> None:
        self.node = node
        self.host = host
        self.peer = peer
        self.outbox: Outbox = Outbox(peer)
        self.file_sync: _FileSync | None = None
        """None if the node sees the run directory."""
        self.directory = directory
        self.workers: set[str] = set()
        """Workers that have not been lost."""
        self.gone: str = ""
        """Why nothing can be started here any more; empty while the node is there."""
        self.said: list[tuple[str, Any]] = []
        self._unsent: list[Any] = []
        self._signs: dict[str, tuple[Heartbeat, float]] = {}
        """By worker: its heartbeat and its CPU seconds, as the agent sent them last."""
        self._silent = 0.0
        self._polled = time.monotonic()

    def send_blobs(self, blobs: Mapping[str, int], mark: str) -> None:
        """Send the blobs that workers unpack; the caller keeps the descriptors open as long as this object lives."""
        for role, descriptor in blobs.items():
            self.outbox.put_file(BLOBS + role, Path(f"/proc/self/fd/{descriptor}"))
        self.outbox.put(BlobsSent(tuple(blobs), mark, str(self.directory), tuple(sys.path)))

    def start(self, name: str, role: str) -> None:
        """Have the agent start a worker; it is lost at once if the node is gone."""
        if self.gone:
            self.said.append((name, Lost(detail=self.gone, node_gone=True)))
            return
        self.workers.add(name)
        self._signs.pop(name, None)
        self._unsent.append(StartWorker(name, role))

    def send(self, worker: str, command: Any) -> None:
        """Keep the command for the next `flush_commands`; ignored for a worker that was lost."""
        if worker in self.workers:
            self._unsent.append(WorkerCommand(worker, command))

    def kill(self, worker: str) -> None:
        """Have the agent kill the worker."""
        if worker in self.workers:
            self._unsent.append(KillWorker(worker))

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return the heartbeat that the agent sent last, at most about a second old."""
        return self._signs[worker][0] if worker in self._signs else None

    def cpu_seconds(self, worker: str) -> float:
        """Return the seconds that the agent sent last, at most about a second old."""
        return self._signs[worker][1] if worker in self._signs else 0.0

    def flush_commands(self) -> None:
        """Write the messages since the last call, as far as the connection takes them."""
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            if self.file_sync is not None and isinstance(message, WorkerCommand):
                for name, path in self.file_sync.before(message.command):
                    self.outbox.put_file(name, path)
            self.outbox.put(message)
        if not self.gone:
            self.outbox.flush()

    def receive(self) -> list[tuple[str, Any]]:
        """Return (worker, message) of all messages received; never waits."""
        if not self.gone:
            self._listen()
        if self.file_sync is not None:
            self.file_sync.arrivals.settle()
        messages, self.said = self.said, []
        return messages

    def mark_gone(self, why: str) -> None:
        """Report each worker of this node as lost, once: nothing more comes from it."""
        if self.gone:
            return
        self.gone = f"its node, {self.node} on {self.host}, is gone: {why}"
        self.peer.close()
        self.said += [(worker, Lost(detail=self.gone, node_gone=True)) for worker in sorted(self.workers)]
        self.workers.clear()

    def close(self) -> None:
        """Let the agent end what it started, and close the connection."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        if not self.gone:
            self.peer.send(EndWorkers())
        while not self.gone and (left := deadline - time.monotonic()) > 0:
            poll(left, [(self.peer, self.outbox.unsent)])
            self.outbox.flush()
            self._listen()
        if self.file_sync is not None:
            self.file_sync.close()
        self.peer.close()

    def _listen(self) -> None:
        now = time.monotonic()
        self._silent += min(now - self._polled, LISTENED_SECONDS)
        self._polled = now
        try:
            received = self.peer.receive()
        except EOFError:
            self.mark_gone("its connection broke")
            return
        except WorkerError as error:
            self.mark_gone(str(error))
            return
        if received:
            self._silent = 0.0
        for message in received:
            self._handle(message)
        if self._silent > SILENCE_SECONDS:
            self.mark_gone(f"nothing was heard from it for {SILENCE_SECONDS:g} s")

    def _handle(self, message: Any) -> None:
        match message:
            case WorkerMessage():
                self._handle_worker(message.worker, message.message)
            case Heartbeats():
                for name, (snapshot, cpu_seconds) in message.workers.items():
                    self._signs[name] = Heartbeat.of(snapshot), cpu_seconds
            case FilePiece():
                assert self.file_sync is not None
                self.file_sync.arrivals.take(message)
            case LogText():
                path = self.directory / message.name
                make_folder(path.parent)
                with open_append(path) as file:
                    file.write(message.text)
            case Ready(sees_directory=False):
                self.file_sync = _FileSync(self.directory, self.node)

    def _handle_worker(self, worker: str, message: Any) -> None:
        if self.file_sync is not None and isinstance(message, SectionReport):
            self.file_sync.handle(message)
        if isinstance(message, Lost):
            self.workers.discard(worker)
        elif isinstance(message, Failed):
            message.error.args = (f"{self.node} on {self.host}: {message.error}",)
        self.said.append((worker, message))


class _FileSync:
    """Transfer of files between the run directory and a node that does not see it."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory = directory
        self.arrivals: IncomingFiles = IncomingFiles(directory, directory / "workers" / f"arriving-{node}")
        self.kept: dict[str, KeptFiles] = {}
        """By member whose files were sent there."""

    def before(self, command: Any) -> list[tuple[str, Path]]:
        """Return the files that must arrive before a command."""
        if isinstance(command, Journaled):
            # As the node's trainer does.
            for name, file in command.files.items():
                self.kept[name].note_journaled(file)
        if not isinstance(command, Assign):
            return []
        files = []
        for start in command.start:
            folder = self.directory / "members" / start.member
            make_folder(folder)
            self.kept[start.member] = KeptFiles(folder, start.checkpoint)
            if start.checkpoint is not None:
                files.append((f"members/{start.member}/{start.checkpoint.file}", folder / start.checkpoint.file))
        return files

    def handle(self, report: SectionReport) -> None:
        """Note the files that a report names; they have arrived before it."""
        for event in report.events:
            if isinstance(event, Saved):
                self.kept[event.member].add(event.checkpoint)

    def close(self) -> None:
        """Delete partially received files: nothing more arrives."""
        with contextlib.suppress(OSError):  # the directory was removed
            self.arrivals.close()
