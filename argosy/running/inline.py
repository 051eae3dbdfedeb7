"""Every worker in this process, one after another: for debuggers, notebooks' breakpoints and tests."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from argosy.cluster import Cluster
from argosy.commands import Attach, Exit, Feed, Leg, Lost, Open, Opened
from argosy.errors import PlanError
from argosy.events import Fed, Skipped, Used
from argosy.running.launcher import Job, discover
from argosy.settings import Settings
from argosy.stream.blocks import ALIGNMENT, Block
from argosy.stream.gauges import StreamGauge
from argosy.stream.schedule import Orders, choose_block_size, places
from argosy.stream.sources import open_sources
from argosy.training.devices import backend_of
from argosy.training.trainer import Trainer

__all__ = ["Inline"]


class Inline:
    """Launcher of workers without processes; samples are prepared here, whatever ``loader_workers`` says."""

    def discover(self, settings: Settings) -> Cluster:
        """See `Launcher.discover`."""
        if settings.nodes > 1:
            raise PlanError(f"nodes is {settings.nodes}; launcher inline has one process and one node. Use processes.")
        return discover(settings)

    def open(self, job: Job) -> "InlineWorkers":
        """See `Launcher.open`."""
        return InlineWorkers(job)

    def close(self) -> None:
        """See `Launcher.close`."""


class InlineWorkers:
    """Workers as plain objects: `receive` lets the feeder prepare a block and the trainers take it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.said: deque[tuple[str, Any]] = deque()
        self.feeders: dict[str, _InlineFeeder] = {}
        self.trainers: dict[str, Trainer] = {}
        self.attached: dict[str, str] = {}
        self.threads = torch.get_num_threads()

    def start_feeder(self, name: str) -> None:
        """See `Workers.start_feeder`."""
        self.feeders[name] = _InlineFeeder(self.job)

    def start_trainer(self, name: str) -> None:
        """See `Workers.start_trainer`."""
        job = self.job
        self.trainers[name] = Trainer(
            job.study,
            job.settings,
            job.directory,
            name=name,
            backend=backend_of(name),
            emit=lambda message: self.said.append((name, message)),
        )

    def send(self, worker: str, command: Any) -> None:
        """See `Workers.send`; the worker acts at once."""
        if worker in self.feeders:
            self.said.extend((worker, answer) for answer in self.feeders[worker].obey(command, name=worker))
        elif isinstance(command, Attach):
            self.attached[worker] = command.address
            self.trainers[worker].know(self.feeders[command.address].lengths)
        elif isinstance(command, Exit):
            self.said.append((worker, self.trainers.pop(worker).used(cpu_seconds=0.0)))
            self.said.append((worker, Lost(detail="it was told to exit")))
        else:
            self.trainers[worker].obey(command)

    def kill(self, worker: str) -> None:
        """See `Workers.kill`; what hangs here hangs the driver too, so nobody asks."""
        raise AssertionError(f"{worker} cannot be killed: it is a part of this process")

    def renew(self, job: Job) -> None:
        """See `Workers.renew`."""
        self.job = job

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`; one block goes to every trainer that reads it."""
        for name, feeder in self.feeders.items():
            readers = [self.trainers[reader] for reader in feeder.readers if reader in self.trainers]
            if self.said or not readers or not all(trainer.ready for trainer in readers):
                continue
            block = next(feeder.blocks, None)
            if block is not None:
                self.said.extend((name, skipped) for skipped in feeder.skipped)
                feeder.skipped.clear()
                for trainer in readers:
                    trainer.take(block)
                self.said.extend((name, fed) for fed in feeder.fed(block))
        said, self.said = list(self.said), deque()
        return said

    def __enter__(self) -> "InlineWorkers":
        torch.set_num_threads(self.job.settings.threads)
        return self

    def __exit__(self, *error: Any) -> None:
        torch.set_num_threads(self.threads)


class _InlineFeeder:
    """A feeder that prepares a block when it is asked for one."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.gauge = StreamGauge()
        self.readers: tuple[str, ...] = ()
        self.blocks: Iterator[Block] = iter(())
        self.lengths: dict[str, int] = {}
        self.skipped: list[Skipped] = []

    def obey(self, command: Any, *, name: str) -> list[Any]:
        """Do what the driver says; returns the answers."""
        if isinstance(command, Open):
            return [self._open(name)]
        if isinstance(command, Feed):
            self.readers, self.blocks = command.readers, self._prepare(command.leg)
            self.samples: dict[tuple[str, int], int] = {}
        if isinstance(command, Exit):
            self.readers = ()
            return [Used(worker=name, cpu_seconds=0.0, gauge=self.gauge.to_json())]
        return []

    def fed(self, block: Block) -> list[Fed]:
        """What to report after a block."""
        place = block.place
        key = (place.split, place.epoch)
        self.samples[key] = self.samples.get(key, 0) + place.rows
        if not place.last:
            return []
        return [Fed(leg=place.leg, split=place.split, epoch=place.epoch, samples=self.samples.pop(key))]

    def _open(self, name: str) -> Opened:
        settings = self.job.settings
        self.sources = open_sources(self.job.study.data, seed=self.job.study.seed)
        self.lengths = {split: source.length for split, source in self.sources.items()}
        self.orders = Orders(self.job.study.seed, self.lengths)
        self.block_size = settings.block_size or choose_block_size(self.sources["train"].layout)
        fingerprint = self.sources["train"].fingerprint()
        return Opened(
            address=name,
            lengths=self.lengths,
            fingerprint=fingerprint,
            block_size=self.block_size,
            seconds_per_sample=self.sources["train"].seconds_per_sample,
        )

    def _prepare(self, leg: Leg) -> Iterator[Block]:
        for place in places(leg, self.lengths, self.block_size):
            source = self.sources[place.split]
            memory = np.empty(source.layout.block_bytes(place.rows) + ALIGNMENT, np.uint8)
            start = -memory.ctypes.data % ALIGNMENT
            block = source.layout.block(place, memory[start:])
            for index, error in source.fill(block, 0, self.orders.block(place)):
                self.skipped.append(Skipped(split=place.split, epoch=place.epoch, index=index, error=error))
            self.gauge.prepared += place.rows
            # The rows are written; what members do to them is counted from here.
            yield source.layout.block(place, memory[start:])
