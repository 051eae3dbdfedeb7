"""The default launcher: one process per feeder and trainer on this machine, forked from a warm fork server."""

import contextlib
import os
import selectors
from collections import deque
from dataclasses import replace
from typing import Any, NoReturn

from argosy.cluster import Cluster
from argosy.commands import Lost
from argosy.errors import StudyError
from argosy.running.forkserver import ForkServer
from argosy.running.launcher import Job, discover
from argosy.running.worker import pack
from argosy.settings import Settings
from argosy.stream.wire import Door, Peer
from argosy.study import Study

__all__ = ["Processes"]


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
        return discover(settings.devices, settings.threads)

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
        self.started: set[str] = set()
        self.unsent: dict[str, deque[Any]] = {}
        self.selector = selectors.DefaultSelector()
        self.blobs = blobs
        """Descriptors of what workers of each role unpack."""
        self.said: list[tuple[str, Any]] = []

    def __enter__(self) -> "ProcessWorkers":
        (self.job.directory / "workers").mkdir(parents=True, exist_ok=True)
        self.selector.register(self.door, selectors.EVENT_READ, self._admit)
        self.selector.register(self.server.channel, selectors.EVENT_READ, self._note_ends)
        return self

    def __exit__(self, *error: Any) -> None:
        for peer in self.peers.values():
            peer.close()
        self.selector.close()
        self.door.close()
        self.server.close()
        for descriptor in self.blobs.values():
            os.close(descriptor)

    def start_feeder(self, name: str) -> None:
        """See `Workers.start_feeder`."""
        self._start(name, "feeder")

    def start_trainer(self, name: str) -> None:
        """See `Workers.start_trainer`."""
        self._start(name, "trainer")

    def send(self, worker: str, command: Any) -> None:
        """See `Workers.send`."""
        if worker not in self.peers:
            self.unsent.setdefault(worker, deque()).append(command)
            return
        # A broken connection's end-of-file is on the way and becomes `Lost`.
        with contextlib.suppress(OSError):
            self.peers[worker].send(command)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`."""
        for key, _ in self.selector.select(timeout):
            key.data()
        said, self.said = self.said, []
        return said

    def _start(self, name: str, role: str) -> None:
        arguments = {"name": name, "role": role, "address": self.door.address, "key": self.key.hex()}
        self.started.add(name)
        log = self.job.directory / "workers" / f"{name.replace(':', '-')}.log"
        self.server.fork(arguments, [self.blobs[role], self.job.lock], log)

    def _admit(self) -> None:
        for name, peer in self.door.enter():
            self.peers[name] = peer
            self.selector.register(peer, selectors.EVENT_READ, lambda name=name, peer=peer: self._hear(name, peer))
            for command in self.unsent.pop(name, ()):
                self.send(name, command)

    def _hear(self, name: str, peer: Peer) -> None:
        try:
            self.said.append((name, peer.recv()))
        except (EOFError, OSError):
            self.selector.unregister(peer)
            peer.close()
            del self.peers[name]
            self.said.append((name, Lost(detail="its process ended without a word")))

    def _note_ends(self) -> None:
        try:
            for pid, status in self.server.ends():
                self.said.append(("", (pid, status)))
        except (EOFError, OSError):
            self.selector.unregister(self.server.channel)
            self.said.append(("fork server", Lost(detail="it ended, and every worker with it")))


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
