"""The members of `small_networks.py` as a study, and the process that runs it, as `argosy.run` does but with additional judges.

It measures the work of the driver's process, and of all processes together, between two moments of the stream.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from small_networks import BATCH, SEED, learning_rate, network, table
from torch.optim import SGD

import argosy
from argosy.protocol.events import Event, MemberEnded, MemberStarted
from argosy.results.fold import RunState
from argosy.running.control.driver import drive
from argosy.running.control.verdicts import Judge
from argosy.running.directory.journal import Journal, read_journal
from argosy.running.directory.lock import Lock
from argosy.running.launch.launcher import Job, Workers
from argosy.running.launch.processes import Processes
from argosy.running.watch.phase import Phase
from argosy.settings import Settings

__all__ = ["Gauge", "Moment", "member", "run", "study"]


def member(name: str, **rest: Any) -> argosy.Member:
    """Return a member with one network; `rest` are fields of Member."""
    optimizer = partial(SGD, lr=learning_rate(name), momentum=0.9)
    return argosy.Member(name, model=network, optimizer=optimizer, batch_size=BATCH, **rest)


def study(
    members: Sequence[argosy.Member], *, samples: int, val: int, epochs: float, sections: int = 1
) -> argosy.Study:
    """Return a study of these members on this number of samples."""
    return argosy.Study(
        data=argosy.Data(arrays=table(samples, seed=1), val_arrays=table(val, seed=2)),
        members=members,
        stop=argosy.MaxEpochs(epochs),
        seed=SEED,
        validations_per_epoch=sections,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Time and work up to a moment."""

    wall: float
    """Unix time."""
    driver_seconds: float
    """CPU time of this process, all its threads included."""
    cpu_seconds: float
    """CPU time of this process and all its descendants."""

    @classmethod
    def here(cls) -> "Moment":
        """Return the present moment."""
        process = psutil.Process()
        cpu = 0.0
        for one in (process, *process.children(recursive=True)):
            # A process may end at any moment.
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                cpu += times.user + times.system
        return cls(wall=time.time(), driver_seconds=time.process_time(), cpu_seconds=cpu)


@dataclass(kw_only=True, slots=True)
class Gauge:
    """A view that records when the first member began and when all had ended."""

    count: int
    """Members that are to end."""
    act: Callable[[Event], None] = lambda event: None
    """Called with every event of a worker."""
    poll: Callable[[], None] = lambda: None
    """Called in every round of the driver."""
    begun: Moment | None = None
    started: Moment | None = None
    ended: Moment | None = None
    over: set[str] = field(default_factory=set)

    def begin(self, job: Job, state: RunState) -> None:
        """See `View.begin`."""
        self.begun = Moment.here()

    def study(self, study: argosy.Study) -> None:
        """See `View.study`."""

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, MemberStarted) and self.started is None:
            self.started = Moment.here()
        elif isinstance(message, MemberEnded):
            self.over.add(message.member)
            if len(self.over) == self.count:
                self.ended = Moment.here()
        self.act(message)

    def tick(self, phase: Phase) -> None:
        """See `View.tick`."""
        self.poll()

    def end(self) -> None:
        """See `View.end`."""

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON for another process."""
        return {name: asdict(moment) for name in ("begun", "started", "ended") if (moment := getattr(self, name))}


def run(
    asked: argosy.Study,
    settings: Settings,
    directory: Path,
    *,
    view: Gauge,
    judges: Sequence[Judge] = (),
    at_rest: Collection[Event] = (),
    opened: Callable[[Workers], None] = lambda workers: None,
) -> None:
    """Run a study as `argosy.api.run` does, with judges; `at_rest` is journaled if the run is new, `opened` gets the workers."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.closing(Processes()) as launcher,
        Lock(directory / "run.lock") as lock,
        Journal(directory / "journal.jsonl") as journal,
    ):
        found = read_journal(directory)
        if not found:
            for event in at_rest:
                journal.append(event)
            journal.commit()
        state = RunState.of(found or at_rest)
        cluster = launcher.discover(settings)
        job = Job(study=asked, settings=settings, directory=directory, lock=lock.descriptor)
        workers = launcher.open(job)
        opened(workers)
        drive(job, cluster, workers, journal, state, view, judges=judges)
