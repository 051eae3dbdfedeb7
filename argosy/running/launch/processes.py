"""The default launcher: one process per feeder and trainer on this machine, forked from a warm fork server.

Contract. Each connection is a pair of sockets, made here and handed over: a worker gets its end when it is forked, and
a trainer and its feeder get the ends of another pair with the driver's `Attach`. So no process listens, and no other process can connect.

The driver's thread never waits for a worker or for the fork server: messages to them are kept until they take them, and
written from `receive` alone. A worker is lost once, when nothing more can come from it: when its connection has broken, or a
moment after the fork server reports its end, if its connection does not break with it, because a process that the user's
code forked holds it open. The fork server reports how a worker ended, and is given a moment to do so.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import time
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from argosy.cluster import Cluster
from argosy.disk.files import make_folder, open_append
from argosy.protocol.feeder import Lend
from argosy.protocol.trainer import Attach, Lost
from argosy.running.launch.discovery import discover
from argosy.running.launch.forkserver import STOPPED_SECONDS, ForkServer, check_linux, error_line
from argosy.running.launch.limits import restrict_to_cores
from argosy.settings import Settings
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.wire import Peer

if TYPE_CHECKING:
    from argosy.running.launch.launcher import Job
    from argosy.study import Member

__all__ = ["ProcessWorkers", "Processes", "tree_activity"]

POLL_SECONDS = 2.0
"""Seconds between two checks for stopped processes; a check reads about every process of the machine."""
NEWS_SECONDS = 0.5
"""Seconds, after a worker's connection broke, that the fork server has to report how the worker ended."""
FAREWELL_SECONDS = 2.0
"""Seconds that the last messages to live workers may take."""
BYTES_PER_SECOND = 1e8
"""Bytes read or written that count as one second of CPU time when a worker's progress is judged."""


class Processes:
    """Launcher of worker processes. The fork server starts on first use, unless it is given; `warm` starts it ahead of time."""

    def __init__(self, server: ForkServer | None = None) -> None:
        check_linux()  # before a directory is made
        self._server: ForkServer | None = server

    def warm(self) -> "Processes":
        """Start the fork server, which imports while the caller continues."""
        if self._server is None:
            self._server = ForkServer.start()
        return self

    def discover(self, settings: Settings) -> Cluster:
        """Return this machine as a cluster, and restrict the fork server to the run's cores."""
        self.warm()
        assert self._server is not None
        # The server may be older than the run's limits.
        restrict_to_cores(self._server.process.pid, settings.cores)
        return discover(settings)

    def open(self, job: "Job") -> "ProcessWorkers":
        """Implement `Launcher.open`: worker processes of this machine."""
        # It imports torch, which an agent does not need, because an agent only passes blobs on.
        from argosy.running.launch.blobs import make_blobs

        return self.workers(make_blobs(job), directory=job.directory, lock=job.lock, nodes_here=job.settings.nodes)

    def workers(self, blobs: dict[str, int], **rest: Any) -> "ProcessWorkers":
        """Return workers that are given these blobs; `rest` is passed to `ProcessWorkers`."""
        self.warm()
        assert self._server is not None
        server, self._server = self._server, None
        return ProcessWorkers(server, blobs, **rest)

    def close(self) -> None:
        """Stop the fork server if it has not been used."""
        if self._server is not None:
            self._server.close()
            self._server = None


@dataclass(slots=True, eq=False)
class _Worker:
    """One process, from the request to start it until it is reported lost."""

    name: str
    worker_id: str
    """The worker's id for the driver and the fork server: its name and a number, since its name may be used again."""
    heartbeat: Heartbeat
    peer: Peer | None
    """None after its connection has broken."""
    pid: int | None = None
    """None until the fork server has reported it."""
    broke: float | None = None
    """When the connection broke, or when the fork server reported the worker's end."""
    ended: str = ""
    """How it ended, set when the fork server reports it or when this process kills the worker."""


@dataclass(eq=False)
class ProcessWorkers:
    """The processes of one run on this machine, and the connections to them."""

    side_by_side: ClassVar[bool] = True

    server: ForkServer
    blobs: dict[str, int]
    """By role: descriptor of the blob that workers unpack."""
    _: KW_ONLY
    directory: Path
    """Run directory, or the folder that replaces it on this machine."""
    lock: int
    """A descriptor that workers hold as long as they live."""
    nodes_here: int = 1
    """Nodes that share this machine's cores."""
    interface: str = ""
    """Network interface for exchanging tensors with other nodes; empty if all nodes are on this machine."""
    workers: dict[str, _Worker] = field(default_factory=dict, init=False)
    """By name; each is removed exactly once, and then reported lost."""
    started: int = field(default=0, init=False)
    selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector, init=False)
    said: list[tuple[str, Any]] = field(default_factory=list, init=False)
    stopped_since: dict[int, float] = field(default_factory=dict, init=False)
    _unsent: list[tuple[_Worker, Any]] = field(default_factory=list, init=False)
    """Commands since the last `receive`."""
    _polled: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.directory = self.directory.resolve()

    def __enter__(self) -> "ProcessWorkers":
        self._forget_rendezvous()
        make_folder(self.directory / "workers")
        self.selector.register(self.server.channel, selectors.EVENT_READ, self._handle_server)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._bid_farewell()
        finally:
            self.selector.close()
            self._close_server()
            self._forget_rendezvous()
            for descriptor in self.blobs.values():
                os.close(descriptor)

    def fileno(self) -> int:
        """Descriptor for selectors, readable when `receive` has something to report or to write."""
        return self.selector.fileno()

    def send(self, worker: str, command: Any) -> None:
        """Keep the command for the next `receive`; ignored for a worker that was lost."""
        if worker in self.workers:
            self._unsent.append((self.workers[worker], command))

    def kill(self, worker: str) -> None:
        """Kill the process.

        A worker that was never forked hangs in the fork server, which is killed with all of its workers.
        """
        process = self.workers.get(worker)
        if process is not None and not process.ended:  # otherwise its pid may belong to another process
            _kill(process.pid or self.server.process.pid)

    def enlist(self, worker: str, members: "tuple[Member, ...]") -> None:
        """Implement `Workers.enlist`: send the members, pickled."""
        from argosy.running.launch.blobs import make_enlist  # as in `Processes.open`

        self.send(worker, make_enlist(members))

    def rendezvous(self) -> str:
        """Return the path of a file in a folder that only this user can access."""
        self._rendezvous.mkdir(mode=0o700, exist_ok=True)
        return str(self._rendezvous / os.urandom(16).hex())

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Implement `Workers.heartbeat`: read from shared memory."""
        process = self.workers.get(worker)
        return process.heartbeat if process is not None else None

    def cpu_seconds(self, worker: str) -> float:
        """Implement `Workers.cpu_seconds`: before a worker is forked, those of the fork server, which works for it."""
        process = self.workers.get(worker)
        if process is None:
            return 0.0
        return tree_activity(process.pid) if process.pid is not None else _activity(self.server.process.pid)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """Implement `Workers.receive`: wait for connections, and report workers that were lost or killed."""
        self.flush_commands()
        for key, events in self.selector.select(0 if self.said else timeout):
            # Skip a connection that was closed by an earlier handler of this loop.
            if self.selector.get_map().get(key.fd) is key:
                key.data(events)
        if time.monotonic() - self._polled > POLL_SECONDS:
            self._polled = time.monotonic()
            self._kill_stopped()
        for worker in list(self.workers.values()):
            if worker.broke is not None and time.monotonic() - worker.broke > NEWS_SECONDS:
                self._disconnect(worker)
                self._lost(worker, worker.ended or "its connection broke")
        messages, self.said = self.said, []
        return messages

    def flush_commands(self) -> None:
        """Write the commands since the last `receive`, as far as connections take them."""
        unsent, self._unsent = self._unsent, []
        for worker, command in unsent:
            if worker.peer is None:
                continue
            if isinstance(command, Attach):
                self._attach(worker.peer, worker.name, command)
            else:
                worker.peer.send(command)
            self._watch(worker.peer)
        if self.server.channel.fileno() >= 0:  # otherwise no other server could be started
            self._watch(self.server.channel)

    def start(self, name: str, role: str, node: str = "") -> None:
        """Fork a worker on this machine, whatever its node is called."""
        self.started += 1
        heartbeat, descriptor = Heartbeat.create()
        # From here on the worker counts as busy, whatever keeps it from starting.
        heartbeat.start("starting", opaque=True)
        ours, theirs = Peer.pair()
        worker = self.workers[name] = _Worker(name, f"{name} {self.started}", heartbeat, ours)
        self.selector.register(ours, selectors.EVENT_READ, partial(self._receive, worker, ours))
        arguments: dict[str, Any] = {"name": name, "worker_id": worker.worker_id, "role": role}
        arguments |= {"directory": str(self.directory), "nodes_here": self.nodes_here, "interface": self.interface}
        log = self.directory / "workers" / f"{name.replace(':', '-').replace('/', '-')}.log"
        # A server that has just died is replaced once its end-of-file is read; requests until then are lost.
        data = [self.blobs["data"]] if role == "feeder" else []
        inherited = [theirs.fileno(), self.blobs[role], descriptor, self.lock, self.blobs["state"], *data]
        self.server.fork(arguments, inherited, log)
        theirs.close()
        os.close(descriptor)

    def _attach(self, trainer: Peer, name: str, command: Attach) -> None:
        """Give a trainer and a feeder the two ends of a connection; if the feeder is gone, the trainer finds the connection broken."""
        feeder = self.workers.get(command.feeder)
        one, other = socket.socketpair()
        with one, other:
            trainer.send(command, [one.fileno()])
            if feeder is not None and feeder.peer is not None:
                feeder.peer.send(Lend(reader=name), [other.fileno()])
                self._watch(feeder.peer)

    def _watch(self, peer: Peer) -> None:
        """Wait for room in a connection only while something is unsent."""
        key = self.selector.get_key(peer)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if key.events != events:
            self.selector.modify(peer, events, key.data)

    def _receive(self, worker: _Worker, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            peer.flush()
            self._watch(peer)
        try:
            self.said += [(worker.name, message) for message in peer.receive()]
        except EOFError:
            self._disconnect(worker)
            worker.broke = time.monotonic()
            if worker.ended:
                self._lost(worker, worker.ended)

    def _disconnect(self, worker: _Worker) -> None:
        """Close the worker's connection, if it has one."""
        if worker.peer is not None:
            self.selector.unregister(worker.peer)
            worker.peer.close()
            worker.peer = None

    def _handle_server(self, events: int) -> None:
        """Hear of workers that have started or ended."""
        self.server.channel.flush()
        try:
            for worker_id, pid, status in self.server.read_reports():
                worker = self.workers.get(worker_id.rpartition(" ")[0])
                if worker is None or worker.worker_id != worker_id:
                    continue  # it was reported lost already
                if status is None:
                    worker.pid = pid
                else:
                    self._ended(
                        worker, status if isinstance(status, str) else _describe_exit(os.waitstatus_to_exitcode(status))
                    )
        except EOFError:
            self._replace_server()

    def _ended(self, worker: _Worker, how: str) -> None:
        """Note how a worker ended; it is lost with its connection, once everything that it sent has been received."""
        worker.ended = worker.ended or how
        if worker.peer is None:
            self._lost(worker, worker.ended)
        else:
            worker.broke = time.monotonic()

    def _lost(self, worker: _Worker, detail: str) -> None:
        del self.workers[worker.name]
        last = worker.heartbeat.read()[0]
        self.said.append((worker.name, Lost(detail=f"{detail} while {last.doing}" if last.busy else detail)))

    def _replace_server(self) -> None:
        """Start another fork server; the kernel's tie has ended every worker with the last one."""
        self.selector.unregister(self.server.channel)
        reason = self._close_server() or _describe_exit(self.server.process.returncode)
        self.server = ForkServer.start()
        self.selector.register(self.server.channel, selectors.EVENT_READ, self._handle_server)
        for worker in list(self.workers.values()):
            how = (
                "the fork server ended before it could start" if worker.pid is None else "it ended with the fork server"
            )
            self._ended(worker, f"{how}: {reason}")

    def _close_server(self) -> str:
        """Close the fork server, and log its standard error with the workers' logs.

        Returns the reason of its end if known.
        """
        words = self.server.close()
        if words:
            with contextlib.suppress(OSError), open_append(self.directory / "workers" / "fork-server.log") as log:
                log.write(words.encode(errors="backslashreplace"))
        return error_line(words)

    def _kill_stopped(self) -> None:
        """Kill processes stopped for too long, because their trainers or the ring would wait for them forever."""
        server = psutil.Process(self.server.process.pid)
        stopped = set()
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    stopped.add(process.pid)
        now = time.monotonic()
        self.stopped_since = {pid: self.stopped_since.get(pid, now) for pid in stopped}
        for pid, since in self.stopped_since.items():
            if now - since > STOPPED_SECONDS:
                for worker in self.workers.values():
                    if worker.pid == pid:
                        worker.ended = f"it was stopped for {STOPPED_SECONDS:g} s, and was killed"
                _kill(pid)

    def _bid_farewell(self) -> None:
        """Let live workers receive the last messages, all together for a bounded time, and close their connections."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        self.receive(0)
        while any(peer.unsent for peer in self._peers()) and (left := deadline - time.monotonic()) > 0:
            self.receive(left)
        for peer in self._peers():
            self.selector.unregister(peer)
            peer.close()
        if any(worker.pid is None for worker in self.workers.values()):
            self.server.process.kill()  # it still imports, for seconds, for workers that will have nothing to do
        self.workers.clear()

    @property
    def _rendezvous(self) -> Path:
        """Folder of the files by which exchange processes and ranks of members find each other; it exists as long as the run."""
        return self.directory / "rendezvous"

    def _forget_rendezvous(self) -> None:
        shutil.rmtree(self._rendezvous, ignore_errors=True)

    def _peers(self) -> list[Peer]:
        return [worker.peer for worker in self.workers.values() if worker.peer is not None]


def tree_activity(pid: int) -> float:
    """Return the work of a process and of all its descendants so far, in the unit of `Workers.cpu_seconds`."""
    children: list[int] = []
    with contextlib.suppress(psutil.Error):
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return sum(map(_activity, (pid, *children)))


def _activity(pid: int) -> float:
    """Return the CPU seconds of a process and of its ended children, plus its reads and writes converted to seconds."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        seconds += sum(process.cpu_times()[:4])
        traffic = process.io_counters()
        seconds += (traffic.read_chars + traffic.write_chars + traffic.read_bytes) / BYTES_PER_SECOND
    return seconds


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    hint = " (the kernel does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"it was ended by {signal.Signals(-code).name}{hint}"
