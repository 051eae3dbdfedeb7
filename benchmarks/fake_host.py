"""A process with many fake workers of one node, each with its own connection to the driver; and the fork server that starts such processes.

Before each report of an epoch, a trainer sends a number of progress messages, like a real one that trains for some seconds.
All workers send as fast as the driver reads.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fake_workers import FakeFeeder, FakeTrainer

from argosy.protocol.feeder import Lend
from argosy.protocol.trainer import Attach, Enlist, SectionReport
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.wire import Peer

__all__ = ["Hosts"]


class Hosts:
    """Replaces a fork server: the workers that it is asked to start begin in the process of their node."""

    def __init__(self, nodes: list[str], words: int) -> None:
        self.channel, self._news = Peer.pair()
        self._hosts: dict[str, tuple[subprocess.Popen[bytes], Peer]] = {}
        for node in nodes:
            ours, theirs = socket.socketpair()
            command = [sys.executable, __file__, str(theirs.fileno()), str(words)]
            self._hosts[node] = subprocess.Popen(command, pass_fds=[theirs.fileno()]), Peer(ours)
            theirs.close()
        self.process = SimpleNamespace(pid=os.getpid())

    def fork(self, arguments: dict[str, Any], descriptors: list[int], log: Path) -> None:
        """See `ForkServer.fork`."""
        process, peer = self._hosts[arguments["name"].partition("/")[0]]
        Heartbeat.open(descriptors[2]).rest()  # a worker that only talks shows no signs
        peer.send(arguments, descriptors[:1])
        self._news.send((arguments["worker_id"], process.pid, None))

    def read_reports(self) -> list[tuple[str, int, None]]:
        """See `ForkServer.news`; it reports something to read for as long as a request is not written completely."""
        told = self.channel.receive()
        for _, peer in self._hosts.values():
            peer.flush()
        if any(peer.unsent for _, peer in self._hosts.values()):
            self._news.send(("of nobody", 0, None))
        return told

    def close(self) -> str:
        """See `ForkServer.close`."""
        for process, peer in self._hosts.values():
            peer.close()
            process.wait()
        return ""


# ---- one host


@dataclass(slots=True, eq=False)
class _Worker:
    peer: Peer
    plays: FakeFeeder | FakeTrainer
    words: int
    """Progress messages before the report of an epoch."""
    unsaid: deque[Any] = field(default_factory=deque)

    def say(self, messages: list[Any]) -> None:
        """Queue these messages, to be sent when the connection takes them."""
        for message in messages:
            if (
                isinstance(message, SectionReport)
                and message.section is not None
                and isinstance(self.plays, FakeTrainer)
            ):
                self.unsaid.extend([self.plays.progress()] * self.words)
            self.unsaid.append(message)

    def speak(self) -> None:
        """Send as much as the connection takes."""
        self.peer.flush()
        while self.unsaid and not self.peer.unsent:
            self.peer.send(self.unsaid.popleft())


class _Host:
    def __init__(self, channel: Peer, words: int) -> None:
        self.channel = channel
        self.words = words
        self.workers: dict[str, _Worker] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ)

    def run(self) -> None:
        """Work until the driver closes the connection."""
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self._start()
                else:
                    self._listen(key.data)
            self._speak()
            while self._feed():
                self._speak()

    def _speak(self) -> None:
        for worker in self.workers.values():
            worker.speak()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.peer.unsent else 0)
            if self.selector.get_key(worker.peer).events != wanted:
                self.selector.modify(worker.peer, wanted, worker)

    def _start(self) -> None:
        for asked in self.channel.receive():
            name, directory = asked["name"], Path(asked["directory"])
            peer = Peer(socket.socket(fileno=self.channel.descriptors.popleft()))
            plays = FakeFeeder(name) if asked["role"] == "feeder" else FakeTrainer(name=name, directory=directory)
            self.workers[name] = worker = _Worker(peer=peer, plays=plays, words=self.words)
            self.selector.register(peer, selectors.EVENT_READ, worker)

    def _listen(self, worker: _Worker) -> None:
        for command in worker.peer.receive():
            if not isinstance(command, Attach | Enlist | Lend):
                worker.say(worker.plays.obey(command))

    def _feed(self) -> bool:
        """Announce an epoch to readers that have sent all of the one before; return whether there was one."""
        announced = False
        for worker in list(self.workers.values()):
            if not isinstance(worker.plays, FakeFeeder) or (place := worker.plays.place) is None:
                continue
            assignments = worker.plays.course.assignments
            readers = [(one, one.plays, assignments[name]) for name, one in self.workers.items() if name in assignments]
            ready = [isinstance(plays, FakeTrainer) and plays.ready and not one.unsaid for one, plays, _ in readers]
            if len(readers) == len(assignments) and all(ready):
                announced = True
                for one, plays, assignment in readers:
                    assert isinstance(plays, FakeTrainer)
                    one.say(plays.take(place, assignment))
                worker.say(worker.plays.announce(place))
        return announced


def main() -> None:
    channel = Peer(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(EOFError):  # the run is over
        _Host(channel, int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
