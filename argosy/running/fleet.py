"""The driver's picture of its workers: which feeders are open, who reads from whom, who is about to be replaced."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from argosy.commands import Attach, Exit, Failed, Feed, Leg, Lost, Open, Opened
from argosy.events import Used
from argosy.running.launcher import Job, Workers

__all__ = ["Feeder", "Fleet"]


@dataclass(slots=True)
class Feeder:
    """One feeder."""

    name: str
    opened: Opened | None = None
    """What it said when its data was open."""
    readers: set[str] = field(default_factory=set)
    """Trainers that were told to read from it."""


class Fleet:
    """One trainer per device, all the time, and as many feeders as there are legs at once."""

    def __init__(self, workers: Workers, devices: tuple[str, ...]) -> None:
        self.workers = workers
        self.devices = devices
        self.feeders: dict[str, Feeder] = {}
        self.replaced: set[str] = set()
        """Trainers that were told to exit, to start again with what they do not know yet."""
        self._feeder_count = 0

    def start(self) -> None:
        """One feeder, and every trainer."""
        self.open_feeder()
        for device in self.devices:
            self.workers.start_trainer(device)

    def send(self, worker: str, command: Any) -> None:
        """Say something to a worker."""
        self.workers.send(worker, command)

    def open_feeder(self) -> None:
        """Start another feeder, unless one is on its way."""
        if all(feeder.opened for feeder in self.feeders.values()):
            name = f"feeder-{self._feeder_count}"
            self._feeder_count += 1
            self.feeders[name] = Feeder(name)
            self.workers.start_feeder(name)
            self.workers.send(name, Open())

    def free_feeder(self, busy: Iterable[str]) -> Feeder | None:
        """An open feeder that feeds no leg; where there is none, one is started, and says Opened in a while."""
        busy = set(busy)
        found = next((f for f in self.feeders.values() if f.opened is not None and f.name not in busy), None)
        if found is None:
            self.open_feeder()
        return found

    def feed(self, feeder: Feeder, leg: Leg, readers: tuple[str, ...]) -> None:
        """Let these trainers read a leg."""
        assert feeder.opened is not None
        for device in readers:
            if device not in feeder.readers:
                self._detach(device)
                feeder.readers.add(device)
                self.workers.send(device, Attach(address=feeder.opened.address))
        self.workers.send(feeder.name, Feed(leg=leg, readers=readers))

    def rest(self, feeder: str) -> None:
        """Let a feeder prepare nothing; one that is gone needs no telling."""
        if feeder in self.feeders:
            self.workers.send(feeder, Feed(leg=Leg.empty(), readers=()))

    def lost(self, worker: str) -> None:
        """Forget a feeder, start a trainer again."""
        self.feeders.pop(worker, None)
        if worker in self.devices:
            self._detach(worker)
            self.workers.start_trainer(worker)

    def renew(self, job: Job) -> None:
        """Workers that start from here on get this job."""
        self.workers.renew(job)

    def replace_trainers(self) -> None:
        """Let every trainer exit; `expects` says who is lost for that reason."""
        for device in self.devices:
            self.replaced.add(device)
            self.workers.send(device, Exit())

    def expects(self, worker: str) -> bool:
        """Whether a worker that is lost was told to exit; asked once for each."""
        expected = worker in self.replaced
        self.replaced.discard(worker)
        return expected

    def farewell(self, seconds: float) -> Iterator[tuple[str, Any]]:
        """Ask everybody to exit, and yield what they still say, until all have gone or the time is over."""
        remaining = {*self.feeders, *self.devices} if self.feeders else set()
        for worker in remaining:
            self.workers.send(worker, Exit())
        deadline = time.monotonic() + seconds
        while remaining and time.monotonic() < deadline:
            for worker, message in self.workers.receive(0.1):
                yield worker, message
                if isinstance(message, Used | Lost | Failed):
                    remaining.discard(worker)

    def _detach(self, device: str) -> None:
        for feeder in self.feeders.values():
            feeder.readers.discard(device)
