"""A launcher that runs every worker in this process, one after another: for debuggers, breakpoints and tests."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.protocol.events import Skipped, Used
from argosy.protocol.feeder import Credit, Feed, Hold, Leg, Open, Opened
from argosy.protocol.trainer import Attach, Exit, Lost
from argosy.running.launch.discovery import discover
from argosy.running.launch.launcher import Job
from argosy.running.launch.limits import check_proc, feeder_cache_bytes
from argosy.running.launch.worker import COPY_SECONDS
from argosy.settings import Settings
from argosy.stream.blocks import Block, Place
from argosy.stream.course import FeedSchedule
from argosy.stream.gauges import StreamGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.mapped import check_files, files_of_data
from argosy.stream.opening import make_opened, open_kept_rows, open_sources
from argosy.stream.schedule import Orders, choose_block_size
from argosy.stream.shards import ShardMarks
from argosy.stream.sources import DatasetSource, Filled
from argosy.stream.standby import cache_for
from argosy.study import Member
from argosy.training.device.devices import open_backend
from argosy.training.device.moved import COPIES
from argosy.training.device.process_state import preserve_process_state
from argosy.training.trainer.trainer import Trainer

__all__ = ["Inline"]


class Inline:
    """Launcher of workers without processes; samples are prepared in this process, and ``loader_workers`` is ignored."""

    def discover(self, settings: Settings) -> Cluster:
        """Return this machine as a cluster; raises PlanError if the settings ask for several nodes, or on a Linux without /proc."""
        if settings.nodes > 1:
            raise PlanError(
                f"nodes is {settings.nodes}, but launcher inline has one process and one node. Use launcher "
                "'processes'."
            )
        check_proc()
        return discover(settings)

    def open(self, job: Job) -> "InlineWorkers":
        """Implement `Launcher.open`: workers of this process."""
        return InlineWorkers(job)

    def close(self) -> None:
        """Implement `Launcher.close`: nothing was prepared."""


class InlineWorkers:
    """Workers as plain objects; `receive` lets the feeder prepare a block and the trainers take it."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, job: Job) -> None:
        self.job = job
        self.unsent: deque[tuple[str, Any]] = deque()
        self.said: list[tuple[str, Any]] = []
        self.feeders: dict[str, _InlineFeeder] = {}
        self.trainers: dict[str, Trainer] = {}
        self.leaving: contextlib.ExitStack[bool | None] = contextlib.ExitStack()
        """Restores the caller's process state at the end."""
        self.until: float = 0.0
        """Time at which `receive` has to return to the driver, even in the middle of a slow block."""

    def start(self, name: str, role: str, node: str) -> None:
        """Create a feeder, which opens its data when it is told to, or a trainer, which reports to this object directly."""
        if role == "feeder":
            self.feeders[name] = _InlineFeeder(self.job, name)
            return
        self.trainers[name] = Trainer(
            self.job.study.terms,
            self.job.settings,
            self.job.directory,
            name=name,
            backend=open_backend(name),
            emit=lambda message: self.said.append((name, message)),
            listen=lambda: time.monotonic() > self.until,
        )

    def send(self, worker: str, command: Any) -> None:
        """Keep the command for the next `receive`."""
        self.unsent.append((worker, command))

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """Pass the members to the trainer as they are, so breakpoints in their code work."""
        self.trainers[worker].enlist(members)

    def kill(self, worker: str) -> None:
        """Implement `Workers.kill`: never called, because a worker that hangs here hangs the driver too."""
        raise AssertionError(f"{worker} cannot be killed: it is a part of this process")

    def rendezvous(self) -> str:
        """Implement `Workers.rendezvous`: never called, because workers of one process do not exchange tensors."""
        raise AssertionError("workers of one process exchange nothing")

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """Return None: if a worker hangs, so does the driver in the same process."""
        return None

    def cpu_seconds(self, worker: str) -> float:
        """Return 0.0: workers have no CPU time apart from the driver's."""
        return 0.0

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """Carry out the unsent commands, and pass one block to every trainer that reads it."""
        self.until = time.monotonic() + timeout
        while self.unsent:
            self._obey(*self.unsent.popleft())
        for trainer in self.trainers.values():
            trainer.go_on()
        for name, feeder in self.feeders.items():
            if not self.said and all(self.trainers[reader].ready for reader in feeder.course.assignments):
                self.said += [(name, message) for message in feeder.feed(self.trainers)]
        if behind := [trainer for trainer in self.trainers.values() if trainer.behind]:
            time.sleep(COPY_SECONDS)
            for trainer in behind:
                trainer.waited(COPY_SECONDS)
        messages, self.said = self.said, []
        return messages

    def _obey(self, worker: str, command: Any) -> None:
        if worker in self.feeders:
            self.said += [(worker, answer) for answer in self.feeders[worker].obey(command)]
        elif isinstance(command, Attach):
            feeder = self.feeders[command.feeder]
            layouts = {split: source.layout for split, source in feeder.sources.items()}
            self.trainers[worker].set_splits(feeder.course.lengths, layouts, feeder.orders.shards)
        elif isinstance(command, Exit):
            if worker in self.trainers:  # its device may not have opened
                self.said.append((worker, self.trainers.pop(worker).used(cpu_seconds=0.0)))
            self.said.append((worker, Lost(detail="it was told to exit")))
        else:
            self.trainers[worker].obey(command)

    def __enter__(self) -> "InlineWorkers":
        self.leaving.enter_context(preserve_process_state())
        self.leaving.callback(COPIES.clear)  # the caller may change what was copied before the next run
        torch.set_num_threads(self.job.settings.threads)
        return self

    def __exit__(self, *error: Any) -> None:
        self.leaving.close()


class _InlineFeeder:
    """A feeder that prepares a block once the block may be announced."""

    def __init__(self, job: Job, name: str) -> None:
        self.job = job
        self.name = name
        self.gauge = StreamGauge()
        self.marks = ShardMarks()
        self.course = FeedSchedule({}, per_epoch=job.study.validations_per_epoch, block_size=1)

    def obey(self, command: Any) -> list[Any]:
        """Carry out a command of the driver; returns the answers."""
        if isinstance(command, Open):
            return [self._open(command)]
        if isinstance(command, Feed):
            self.marks = ShardMarks(command.leg.marks)
            for mark in command.leg.marks:
                train = self.sources["train"]
                assert isinstance(train, DatasetSource)
                train.resume_from(mark)
            return list(self.course.begin(command.leg))
        if isinstance(command, Credit):
            self.course.allow(command)
        elif isinstance(command, Hold):
            return [self.course.hold(command)]
        elif isinstance(command, Exit):
            return [
                *self.course.begin(Leg.empty()),
                Used(worker=self.name, cpu_seconds=0.0, gauge=self.gauge.to_json()),
            ]
        return []

    def feed(self, trainers: dict[str, Trainer]) -> Iterator[Any]:
        """Pass the next block to the trainers if there is credit for one; yields messages for the driver."""
        place = self.course.peek()
        if place is None or not self.course.assignments or not self.course.may_announce(place):
            return
        self.course.next()
        block, filled = self._prepare(place)
        for index, error in filled.holes:
            yield Skipped(split=place.split, epoch=place.epoch, index=index, error=error)
        for reader, assignment in self.course.assignments.items():
            trainers[reader].take(block, assignment)
        fed = self.course.note_announced(place, filled.prepared)
        if fed is not None:
            yield fed

    def _open(self, command: Open) -> Opened:
        began, study, settings = time.monotonic(), self.job.study, self.job.settings
        data_files = files_of_data(study.data)
        self.sources = open_sources(
            study.data, seed=study.seed, cache=cache_for(study.data, settings.keep_bytes), shards=command.shards
        )
        self.files = (*data_files, *(file for source in self.sources.values() for file in source.facts.files))
        open_kept_rows(self.sources, feeder_cache_bytes(settings.nodes))
        lengths = {split: source.length for split, source in self.sources.items()}
        self.orders = Orders(study.seed, lengths, shards=self.sources["train"].facts.shards)
        block_size = settings.block_size or choose_block_size(self.sources["train"].layout)
        self.course = FeedSchedule(lengths, per_epoch=study.validations_per_epoch, block_size=block_size)
        return make_opened(self.sources, block_size=block_size, seconds=time.monotonic() - began)

    def _prepare(self, place: Place) -> tuple[Block, Filled]:
        source = self.sources[place.split]
        memory = source.layout.memory(place.rows)
        block = source.layout.block(place, memory)
        filled = source.fill(block, 0, self.orders.block(place))
        check_files(self.files)
        self.gauge.prepared += filled.prepared
        self.gauge.kept += place.rows - filled.prepared
        # Fresh views, because members' writes to the block are counted from here on.
        block = source.layout.block(place, memory)
        block.fixed = source.fixed(block.indices)
        if place.split == "train":
            block.marks = self.marks.after(filled.marks)
        return block, filled
