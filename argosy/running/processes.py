"""The default launcher: one process per feeder and trainer on this machine, forked from a warm fork server."""

import contextlib
import os
import selectors
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import psutil

from argosy.cluster import Cluster
from argosy.commands import Lost
from argosy.errors import StudyError
from argosy.running.forkserver import ForkServer
from argosy.running.launcher import Job, discover
from argosy.running.limits import restrict
from argosy.running.worker import pack
from argosy.settings import Settings
from argosy.stream.wire import Door, Peer
from argosy.study import Study

__all__ = ["Processes"]

LOOK_SECONDS = 1.0
"""Time between two looks for stopped processes."""
STOPPED_SECONDS = 5.0
"""How long a process may stay stopped."""


class Processes:
    """Launcher of worker processes. The fork server starts on first use; `warm` starts it ahead of time."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def warm(self) -> "Processes":
        """Start the fork server, whose imports go on beside whatever the caller does next."""
        if self._server is None:
            self._server = ForkServer.start()
        return self

    def discover(self, settings: Settings) -> Cluster:
        """See `Launcher.discover`."""
        self.warm()
        assert self._server is not None
        # It may be older than the run's limits.
        restrict(self._server.process.pid, settings.cores)
        return discover(settings)

    def open(self, job: Job) -> "ProcessWorkers":
        """See `Launcher.open`."""
        self.warm()
        assert self._server is not None
        blobs = _pack_job(job)
        server, self._server = self._server, None
        return ProcessWorkers(job, server, blobs)

    def close(self) -> None:
        """See `Launcher.close`."""
        if self._server is not None:
            self._server.close()
            self._server = None


class ProcessWorkers:
    """The processes of one run and the connections to them."""

    def __init__(self, job: Job, server: ForkServer, blobs: dict[str, int]) -> None:
        self.job = job
        self.server = server
        self.key = os.urandom(32)
        self.door = Door(self.key)
        self.peers: dict[str, Peer] = {}
        self.pids: dict[str, int] = {}
        self.unsent: dict[str, list[Any]] = {}
        self.selector = selectors.DefaultSelector()
        self.blobs = blobs
        """Descriptors of what workers of each role unpack."""
        self.said: list[tuple[str, Any]] = []
        self.stopped_since: dict[int, float] = {}
        self._looked = 0.0

    def __enter__(self) -> "ProcessWorkers":
        (self.job.directory / "workers").mkdir(parents=True, exist_ok=True)
        self.selector.register(self.door, selectors.EVENT_READ, self._admit)
        self.selector.register(self.server.channel, selectors.EVENT_READ, self._hear_server)
        return self

    def __exit__(self, *error: Any) -> None:
        for peer in self.peers.values():
            peer.close()
        self.selector.close()
        self.door.close()
        self.server.close()
        self._drop_blobs()

    def start_feeder(self, name: str) -> None:
        """See `Workers.start_feeder`."""
        self._start(name, "feeder")

    def start_trainer(self, name: str) -> None:
        """See `Workers.start_trainer`."""
        self._start(name, "trainer")

    def send(self, worker: str, command: Any) -> None:
        """See `Workers.send`."""
        if worker not in self.peers:
            self.unsent.setdefault(worker, []).append(command)
            return
        # A broken connection's end-of-file is on the way and becomes `Lost`.
        with contextlib.suppress(OSError):
            self.peers[worker].send(command)

    def kill(self, worker: str) -> None:
        """See `Workers.kill`."""
        if worker in self.pids:
            _kill(self.pids[worker])

    def renew(self, job: Job) -> None:
        """See `Workers.renew`."""
        blobs = _pack_job(job)
        self._drop_blobs()
        self.job, self.blobs = job, blobs

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`."""
        for key, _ in self.selector.select(timeout):
            key.data()
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._kill_stopped()
        said, self.said = self.said, []
        return said

    def _start(self, name: str, role: str) -> None:
        arguments = {"name": name, "role": role, "address": self.door.address, "key": self.key.hex()}
        log = self.job.directory / "workers" / f"{name.replace(':', '-').replace('/', '-')}.log"
        self.unsent[name] = []
        # A server that has just died is replaced when its end-of-file is read; until then requests go nowhere.
        with contextlib.suppress(OSError):
            self.server.fork(arguments, [self.blobs[role], self.job.lock], log)

    def _admit(self) -> None:
        for name, peer in self.door.enter():
            self.peers[name] = peer
            self.selector.register(peer, selectors.EVENT_READ, partial(self._hear, name, peer))
            for command in self.unsent.pop(name, ()):
                self.send(name, command)

    def _hear(self, name: str, peer: Peer) -> None:
        try:
            self.said.append((name, peer.recv()))
        except (EOFError, OSError):
            self.selector.unregister(peer)
            peer.close()
            del self.peers[name]
            self._lost(name, "its connection broke")

    def _hear_server(self) -> None:
        try:
            name, pid, status = self.server.news()
        except (EOFError, OSError):
            self._replace_server()
            return
        if status is None:
            self.pids[name] = pid
        elif self.pids.get(name) == pid and name not in self.peers:
            self._lost(name, _how_it_ended(status))

    def _lost(self, name: str, detail: str) -> None:
        """Once per worker, whether its connection or the fork server tells first."""
        if self.pids.pop(name, None) is not None:
            self.said.append((name, Lost(detail=detail)))

    def _replace_server(self) -> None:
        """The fork server is gone, and by the kernel's tie every worker with it."""
        self.selector.unregister(self.server.channel)
        self.server.close()
        self.server = ForkServer.start()
        self.selector.register(self.server.channel, selectors.EVENT_READ, self._hear_server)
        for name in {*self.pids, *self.unsent} - set(self.peers):
            # Started and not yet connected: nothing else would tell that it is gone.
            self.pids[name] = 0
            self._lost(name, "the fork server ended before it could start")

    def _kill_stopped(self) -> None:
        """A process that was stopped would keep its trainer or the ring waiting for ever: end it, as if it had died."""
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
                _kill(pid)

    def _drop_blobs(self) -> None:
        for descriptor in self.blobs.values():
            os.close(descriptor)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _how_it_ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"it ended with exit code {code}"
    hint = " (the kernel does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"it was ended by {signal.Signals(-code).name}{hint}"


def _pack_job(job: Job) -> dict[str, int]:
    """One blob per role: a trainer has no use for the data, a feeder none for the members."""
    data = job.study.data
    absent = replace(data, train=_absent, val=_absent if data.has_val else None, arrays=None, val_arrays=None)
    return {
        "feeder": _pack((data, job.settings, job.study.seed), job.study),
        "trainer": _pack((replace(job.study, data=absent), job.settings, job.directory.resolve()), job.study),
    }


def _pack(value: Any, study: Study) -> int:
    try:
        return pack(value)
    except Exception as error:  # whatever the user's objects raise when they are pickled
        raise StudyError(f"{_culprit(study)} cannot be sent to another process: {error!r}. {ADVICE}") from error


ADVICE = (
    "Give a factory that opens files, locks and connections itself (a module-level function, a class, a partial), "
    "instead of an object that holds them."
)


def _culprit(study: Study) -> str:
    """The first part of a study that cannot be pickled."""
    for member in study.members:
        try:
            os.close(pack(member))
        except Exception:  # as above; the cause is reported by the caller
            return f"member {member.name!r}"
    return "Data"


def _absent() -> NoReturn:
    raise AssertionError("trainers do not open the data")
