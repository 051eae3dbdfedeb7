"""The agent of a node: it starts the workers of its node, and passes messages between them and the driver.

Contract. An agent decides nothing. It has one connection to the driver, in which messages keep their order, and the
same handle of its node's workers as the driver has of its own (`argosy.running.launch.processes`), so the same guarantees
hold on every node. It never waits for either side. If its node does not see the run directory, its workers write into a
folder of the node; each file that a trainer reports as saved is sent before the report, and each file that a member
continues from arrives before the command to do so. Without the driver the agent ends, and so does everything that it started:
the kernel ties the fork server to the agent, and the workers to the fork server.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from argosy.cluster import Node
from argosy.disk.files import check_directory
from argosy.disk.scratch import scratch
from argosy.errors.system import explain_refusals
from argosy.protocol.events import Saved
from argosy.protocol.trainer import Assign, Lost, SectionReport
from argosy.readings import is_installed
from argosy.running.directory.versions import versions
from argosy.running.hosts.file_transfer import FilePiece, IncomingFiles, Outbox
from argosy.running.hosts.notices import connect_to_driver, interface_of, make_board, read_certificate, read_key
from argosy.running.hosts.place import JobPlace
from argosy.running.launch.forkserver import IGNORED_SIGNALS
from argosy.running.launch.processes import Processes, ProcessWorkers
from argosy.settings import Settings
from argosy.stream.wire import Peer, poll

__all__ = [
    "BLOBS",
    "EndWorkers",
    "BlobsSent",
    "Joined",
    "KillWorker",
    "Ready",
    "WorkerMessage",
    "WorkerCommand",
    "Heartbeats",
    "StartWorker",
    "LogText",
    "run_agent",
    "run_job_process",
]

SIGNS_SECONDS = 1.0
"""Seconds between two messages with heartbeats."""
TICK_SECONDS = 0.2
"""Longest time that the agent waits for messages."""
LAST_WORD_SECONDS = 5.0
"""Seconds that the last messages to the driver may take."""
BLOBS = "blobs/"
"""Prefix of the names of blobs, which workers unpack."""


class BlobsSent(NamedTuple):
    """To an agent: all blobs have been sent."""

    roles: tuple[str, ...]
    mark: str
    """Name of a file in ``workers/`` of the run directory; an agent that finds the file sees the directory."""
    directory: str
    """Path of the run directory on the driver's node."""
    path: tuple[str, ...]
    """The driver's ``sys.path``."""


class StartWorker(NamedTuple):
    """To an agent: start a worker."""

    name: str
    role: str


class WorkerCommand(NamedTuple):
    """To an agent: pass this command to a worker."""

    worker: str
    command: Any


class KillWorker(NamedTuple):
    """To an agent: end a worker that does not answer."""

    worker: str


class EndWorkers(NamedTuple):
    """To an agent: the run is over; end all workers."""


class Joined(NamedTuple):
    """From an agent: its first message."""

    rank: int
    host: str
    node: Node
    """The node, with the device names that it uses itself."""
    versions: Mapping[str, str]


class Ready(NamedTuple):
    """From an agent: workers can be started."""

    sees_directory: bool


class WorkerMessage(NamedTuple):
    """From an agent: a worker's message."""

    worker: str
    message: Any


class Heartbeats(NamedTuple):
    """From an agent, once a second: its workers' heartbeats, and their CPU seconds while they are in opaque code."""

    workers: Mapping[str, tuple[bytes, float]]


class LogText(NamedTuple):
    """From an agent on a node that does not see the run directory: the text added to a log file."""

    name: str
    """Path of the file, relative to the run directory."""
    text: bytes


def run_job_process(place: JobPlace, settings: Settings, directory: Path) -> int:
    """Run a process of a job that is not its driver; returns the exit code."""
    if place.local_rank:
        print(
            f"rank {place.rank}: another process on this node is already its agent; one per node is enough.",
            file=sys.stderr,
        )
        return 0

    def call() -> Peer:
        board, certificate = make_board(place, directory, os.environ), read_certificate(os.environ)
        return connect_to_driver(place, board, read_key(os.environ), certificate=certificate)[0]

    return run_agent(place.rank, call, settings, directory)


def run_agent(rank: int, call: Callable[[], Peer], settings: Settings, directory: Path | None = None) -> int:
    """Run the agent of this node. `directory` is the run directory's path on this node; by default the driver's."""
    with contextlib.closing(Processes().warm()) as processes:
        (node,) = processes.discover(replace(settings, nodes=1, preparing_nodes=None)).nodes
        # The folder only then: a signal may end an agent that looks for its driver.
        with contextlib.closing(call()) as peer, scratch("node") as folder:
            for number in IGNORED_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # the driver acts on them
            peer.send(Joined(rank, socket.gethostname(), node, versions()))
            agent = Agent(peer, directory, folder)
            try:
                with explain_refusals(folder):
                    return agent.run(processes)
            except EOFError:
                print(
                    f"rank {rank}: the driver has hung up: it is gone, refuses this node, or continues without it, as its "
                    "own output says.",
                    file=sys.stderr,
                )
                return 1


class Agent:
    """The agent of one node, for one run."""

    def __init__(self, peer: Peer, directory: Path | None, scratch: Path) -> None:
        self.peer = peer
        self.outbox: Outbox = Outbox(peer)
        self.directory = directory
        """The run directory from the command line of this node; None if it names none."""
        self.scratch = scratch
        self.arrivals: IncomingFiles = IncomingFiles(scratch, scratch / "arriving")
        self.sees_directory: bool = False
        self._received: deque[Any] = deque()
        """Messages of the driver that have not been carried out yet."""
        self._logs = _Logs(scratch)
        self._told = 0.0
        self._best: dict[str, str] = {}
        """By member: the file of its best weights that was sent last."""

    def run(self, processes: Processes) -> int:
        """Serve until the run is over, and return 0; raises EOFError if the driver is lost before.

        Raises RunError if another user owns the directory, or may write to it, on this node.
        """
        blobs_of_run = self._receive_blobs()
        if blobs_of_run is None:
            return 0
        sys.path[:] = _merge_paths(sys.path, blobs_of_run.path)
        directory = self.directory or Path(blobs_of_run.directory)
        # `Path.exists` would raise if this node's user has no access.
        self.sees_directory = os.path.exists(directory / "workers" / blobs_of_run.mark)  # noqa: PTH110
        if self.sees_directory:
            check_directory(directory)  # as the driver does: the directory of this name here may be another user's
        directory = directory if self.sees_directory else self.scratch
        blobs = {role: os.open(self.scratch / BLOBS / role, os.O_RDONLY) for role in blobs_of_run.roles}
        lock = os.open(
            self.scratch, os.O_RDONLY
        )  # workers get a descriptor where those of the driver's node get its lock
        try:
            interface = interface_of(self.peer.host)
            with processes.workers(blobs, directory=directory, lock=lock, interface=interface) as workers:
                self.outbox.put(Ready(self.sees_directory))
                self._relay_messages(workers)
            self._send_logs()
            self.outbox.drain(LAST_WORD_SECONDS)
        finally:
            os.close(lock)
        return 0

    def _receive_blobs(self) -> BlobsSent | None:
        """Receive until the driver has sent all blobs; returns None if the run is over before that."""
        while True:
            self._received += self.peer.wait()
            while self._received:
                message = self._received.popleft()
                match message:
                    case BlobsSent():
                        return message
                    case EndWorkers():
                        self.arrivals.close()
                        return None
                    case FilePiece():
                        self._take(message)

    def _take(self, piece: FilePiece) -> None:
        self.arrivals.take(piece)
        if piece.last:
            self.arrivals.settle()

    def _relay_messages(self, workers: ProcessWorkers) -> None:
        """Pass messages between the driver and the workers until the driver says that the run is over."""
        while True:
            workers.flush_commands()
            self.outbox.flush()
            poll(TICK_SECONDS, [(self.peer, self.outbox.unsent), (workers, False)])
            self._received += self.peer.receive()
            while self._received:
                message = self._received.popleft()
                if isinstance(message, EndWorkers):
                    return
                self._handle_command(workers, message)
            for worker, received in workers.receive(0):
                self._forward(worker, received)
            if time.monotonic() - self._told > SIGNS_SECONDS:
                self._told = time.monotonic()
                self._send_heartbeats(workers)

    def _handle_command(self, workers: ProcessWorkers, message: Any) -> None:
        match message:
            case WorkerCommand():
                if isinstance(message.command, Assign):
                    for start in message.command.start:
                        self._best.pop(start.member, None)
                workers.send(message.worker, message.command)
            case FilePiece():
                self._take(message)
            case StartWorker():
                workers.start(message.name, message.role)
            case KillWorker():
                workers.kill(message.worker)

    def _forward(self, worker: str, message: Any) -> None:
        if not self.sees_directory:
            if isinstance(message, SectionReport):
                for event in message.events:
                    if isinstance(event, Saved):
                        self._send_files(event)
            elif isinstance(message, Lost):
                self._send_logs()
        self.outbox.put(WorkerMessage(worker, message))

    def _send_files(self, saved: Saved) -> None:
        """Send the member's file, and the file of its best weights if this node wrote a new one."""
        folder, best = f"members/{saved.member}", saved.checkpoint.best
        self.outbox.put_file(f"{folder}/{saved.checkpoint.file}", self.scratch / folder / saved.checkpoint.file)
        if best is None or best == self._best.get(saved.member):
            return
        self._best[saved.member] = best
        if best != saved.checkpoint.file and (self.scratch / folder / best).exists():
            self.outbox.put_file(f"{folder}/{best}", self.scratch / folder / best)

    def _send_heartbeats(self, workers: ProcessWorkers) -> None:
        """Send heartbeats ahead of other queued messages, because they show that this node is alive."""
        signs = {}
        for name in list(workers.workers):
            heartbeat = workers.heartbeat(name)
            assert heartbeat is not None
            opaque = any(sign.busy and sign.opaque for sign in heartbeat.read())
            signs[name] = heartbeat.snapshot(), workers.cpu_seconds(name) if opaque else 0.0
        self.peer.send(Heartbeats(signs))
        self._send_logs()

    def _send_logs(self) -> None:
        if not self.sees_directory:
            for words in self._logs.new():
                self.outbox.put(words)


def _merge_paths(own: Sequence[str], drivers: Sequence[str]) -> list[str]:
    """Return where this node looks for modules. Folders of the driver's study come first, as for the driver: they may hide packages.

    >>> _merge_paths(["/node/site-packages"], ["/study", "/driver/site-packages"])
    ['/study', '/node/site-packages', '/driver/site-packages']
    """
    users = [folder for folder in drivers if not is_installed(Path(folder))]
    return list(dict.fromkeys([*users, *own, *drivers]))


class _Logs:
    """Log files of the members and workers of this node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> list[LogText]:
        """Return the text added since the last call."""
        texts = []
        for path in (*self.folder.glob("members/*/log.txt"), *self.folder.glob("workers/*.log")):
            read = self._read.get(path, 0)
            if path.stat().st_size > read:
                with path.open("rb") as file:
                    file.seek(read)
                    text = file.read()
                self._read[path] = read + len(text)
                texts.append(LogText(str(path.relative_to(self.folder)), text))
        return texts
