"""The driver: the only decision maker and the only writer of the journal.

It starts workers, has members measured, plans, starts legs (one feeder, some trainers, one flotilla), answers each
member's end of epoch, and starts the next legs as devices become free. It never waits for one worker: everything it
does is an answer to a message.
"""

import json
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy
import torch

import argosy
from argosy.cluster import Cluster
from argosy.commands import (
    Attach,
    Continue,
    Exit,
    Failed,
    Feed,
    Leg,
    Lost,
    Measure,
    Measured,
    Open,
    Opened,
    Pause,
    StartMember,
    Stop,
    Train,
)
from argosy.errors import MemberError, PlanError, StudyError, WorkerError
from argosy.events import EpochEnded, Event, Fed, MemberEnded, PlanMade, RunEnded, RunStarted, Used
from argosy.planning import make_plan
from argosy.plans import Flotilla, Plan
from argosy.profiles import Profile
from argosy.report import MemberState, RunState
from argosy.running.identity import check_identity, summarize, write_json
from argosy.running.journal import Journal
from argosy.running.launcher import Job, Workers
from argosy.running.resume import Resume, leg_for, resume_points
from argosy.running.view import Silent, View
from argosy.stream.order import Selection
from argosy.study import Member

__all__ = ["drive", "explain"]

EQUAL_FAILURES = 3
"""So many first members that fail with one traceback stop the study."""
TICK_SECONDS = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class _Sailing:
    """One flotilla on its feeder's stream."""

    number: int
    feeder: str
    flotilla: Flotilla
    live: set[str]


@dataclass(slots=True)
class _Feeder:
    """What the driver knows of a feeder."""

    name: str
    opened: Opened | None = None
    readers: set[str] = field(default_factory=set)
    """Trainers that were told to read from it."""


class Driver:
    """One run. `drive` is its life; handlers are named after what they answer."""

    def __init__(
        self, job: Job, cluster: Cluster, workers: Workers, journal: Journal, state: RunState, view: View
    ) -> None:
        self.job = job
        self.study = job.study
        self.settings = job.settings
        self.cluster = cluster
        self.workers = workers
        self.journal = journal
        self.state = state
        self.view = view
        self.began = time.monotonic()
        self.feeders: dict[str, _Feeder] = {}
        self.measured: dict[str, Measured] = {}
        self.unmeasured: set[str] = set()
        self.waiting: list[str] = []
        self.legs: list[_Sailing] = []
        self.count = 0
        self.points: dict[str, Resume] = {}
        self.begun = False
        """Whether the directory was found to be this study's, or empty."""
        self.launched = False
        self.early: list[Fed] = []
        self.explained: Plan | None = None
        self.only_explain = False
        self.failures: list[str] = []
        self.pausing: str | None = None
        self.exiting: set[str] = set()
        self.found: Mapping[str, Any] | None = None
        self._devices = {device.name for device in cluster.devices}
        self.wanted_pause: str | None = None
        """Set by signal handlers, which may not talk to workers: they interrupt whoever is talking."""

    # ---- life

    def run(self, found: Mapping[str, Any] | None) -> str:
        """Train to the end; returns the run's status. `found` is the ``study.json`` of an earlier driver."""
        self.found = found
        self.waiting = [member.name for member in self.study.members if self._unfinished(member)]
        if not self.waiting:
            return "done"
        self._start_feeder()
        for device in self.cluster.devices:
            self.workers.start_trainer(device.name)
        self.points = resume_points([self.state.member(name) for name in self.waiting], self.job.directory)
        self.unmeasured = set(self.waiting)
        while self.unmeasured or self.legs:
            for worker, message in self.workers.receive(TICK_SECONDS):
                self._hear(worker, message)
            if (reason := self.wanted_pause or self._out_of_time()) and self.pausing is None:
                self._pause(reason)
            self.view.tick()
        return "paused" if self.pausing else "done"

    def explain(self) -> Plan:
        """Measure and plan, without training."""
        self.only_explain = True
        self.run(None)
        if self.explained is None:
            raise PlanError("no member could be measured; see the errors above.")
        return self.explained

    def stop_workers(self) -> None:
        """Ask every worker for its last word and wait a little for it."""
        self.exiting = {*self.feeders, *(device.name for device in self.cluster.devices)} if self.feeders else set()
        for worker in self.exiting:
            self.workers.send(worker, Exit())
        deadline = time.monotonic() + 3.0
        while self.exiting and time.monotonic() < deadline:
            for worker, message in self.workers.receive(TICK_SECONDS):
                if self.begun and isinstance(message, Event) and not isinstance(message, MemberEnded):
                    self._record(message)
                if isinstance(message, Used | Lost | Failed):
                    self.exiting.discard(worker)

    def want_pause(self, reason: str) -> None:
        """Save every member where it is, and end; from any thread or signal handler."""
        self.wanted_pause = reason

    def _pause(self, reason: str) -> None:
        self.pausing = reason
        self.unmeasured.clear()
        for leg in self.legs:
            for device in leg.flotilla.devices:
                self.workers.send(device, Pause(reason=reason))

    # ---- messages

    def _hear(self, worker: str, message: Any) -> None:
        self.view.hear(worker, message)
        if isinstance(message, Opened):
            self._opened(worker, message)
        elif isinstance(message, Measured):
            self.measured[message.member] = message
            self._one_measured(message.member)
        elif isinstance(message, EpochEnded):
            self._epoch_ended(worker, message)
        elif isinstance(message, MemberEnded):
            self._record(message)
            self._member_ended(message)
        elif isinstance(message, Failed):
            raise message.error
        elif isinstance(message, Lost):
            raise WorkerError(
                f"worker {worker!r} is lost: {message.detail}. The same command goes on from the checkpoints."
            )
        elif isinstance(message, Fed) and not self.launched:
            # Counts only if the stream that members are measured on becomes the first leg's.
            self.early.append(message)
        elif isinstance(message, Event):
            self._record(message)

    def _record(self, event: Event) -> None:
        self.journal.append(event)
        self.state.apply(event)

    def _opened(self, worker: str, opened: Opened) -> None:
        feeder = self.feeders[worker]
        feeder.opened = opened
        if self.measured:
            self._launch()
            return
        self._check_batches(opened.lengths)
        self._write_study()
        self._record(self._run_started(opened))
        self.begun = True
        devices = [device.name for device in self.cluster.devices]
        self._attach(feeder, devices)
        # The first leg's number: if its flotilla reads from the start, the blocks that were measured on are its first.
        self._feed(feeder, self._leg_for(self.waiting, opened.lengths), tuple(devices))
        for number, device in enumerate(devices):
            self.workers.send(device, Measure(members=tuple(self.waiting[number :: len(devices)])))

    def _one_measured(self, member: str) -> None:
        self.unmeasured.discard(member)
        if not self.unmeasured and not self.legs and self.pausing is None:
            self._check_members()
            if self.only_explain:
                profiles = [self._profile(self.measured[name]) for name in self.waiting]
                self.explained = make_plan(profiles, self.cluster.devices, policy=self.settings.policy)
                return
            self._write_study()
            self._launch()

    def _epoch_ended(self, worker: str, ended: EpochEnded) -> None:
        self._record(ended)
        state = self.state.member(ended.member)
        self._write_metrics(state, ended)
        best = state.best(self.study.objective, self.study.mode or "min")
        is_best = best is not None and best.epoch == ended.epoch
        reason = self.study.stop_of(self.study.member(ended.member)).reason(state.history)
        if reason is None:
            self.workers.send(worker, Continue(member=ended.member, best=is_best))
        else:
            self.workers.send(worker, Stop(member=ended.member, best=is_best))
            over = MemberEnded(member=ended.member, status="done", reason=reason)
            self._record(over)
            self.view.hear(worker, over)
            self._member_ended(over)

    def _member_ended(self, ended: MemberEnded) -> None:
        self.unmeasured.discard(ended.member)
        if ended.status == "failed":
            self._failed(ended)
        if not self.legs:
            # It failed before the first leg, while it was measured.
            self.waiting = [name for name in self.waiting if name != ended.member]
            self._one_measured(ended.member)
            return
        leg = next((leg for leg in self.legs if ended.member in leg.live), None)
        if leg is None:
            return
        leg.live.discard(ended.member)
        if not leg.live:
            self.legs.remove(leg)
            self._feed(self.feeders[leg.feeder], Leg.empty(), ())
            if self.pausing is None:
                self._launch()

    def _failed(self, ended: MemberEnded) -> None:
        self.failures.append(ended.reason)
        finished = any(state.epochs for state in self.state.members.values())
        if not finished and len(self.failures) >= EQUAL_FAILURES and len({_cause(r) for r in self.failures}) == 1:
            raise MemberError(f"the first {EQUAL_FAILURES} members failed alike, so the study stops:\n{ended.reason}")

    # ---- legs

    def _launch(self) -> None:
        """Ask the policy what to start on the devices that are free."""
        busy = {device for leg in self.legs for device in leg.flotilla.devices}
        free = [device for device in self.cluster.devices if device.name not in busy]
        profiles = [self._profile(self.measured[name]) for name in self.waiting]
        if not profiles or not free:
            return
        plan = make_plan(profiles, free, policy=self.settings.policy)
        for flotilla in plan.flotillas:
            feeder = self._free_feeder()
            if feeder is not None:
                self._start_leg(feeder, flotilla)
            elif all(feeder.opened for feeder in self.feeders.values()):
                # The policy is asked again when it is open.
                self._start_feeder()
        for device in self._devices - {device for leg in self.legs for device in leg.flotilla.devices}:
            # Lets go of the block that it measured on.
            self.workers.send(device, Train(leg=self.count, members=()))
        self._record(PlanMade(plan=plan.to_json()))
        write_json(self.job.directory / "plan.json", plan.to_json())
        self.view.plan(plan)

    def _start_leg(self, feeder: _Feeder, flotilla: Flotilla) -> None:
        assert feeder.opened is not None
        members = list(flotilla.members)
        # The stream that members were measured on goes on as the first leg where everybody stays on it.
        goes_on = not self.launched and set(members) == set(self.waiting)
        self.launched = True
        self.waiting = [name for name in self.waiting if name not in members]
        self._attach(feeder, flotilla.devices)
        if goes_on:
            for fed in self.early:
                self._record(fed)
        else:
            self.count += 1
            self._feed(feeder, self._leg_for(members, feeder.opened.lengths), flotilla.devices)
        leg = _Sailing(self.count, feeder.name, flotilla, set(members))
        self.legs.append(leg)
        for device in flotilla.devices:
            aboard = [p.member for p in flotilla.placements if device in p.devices]
            self.workers.send(device, Train(leg=leg.number, members=tuple(self._start_member(name) for name in aboard)))

    def _start_member(self, name: str) -> StartMember:
        point = self.points[name]
        return StartMember(
            member=name,
            stream_epoch=point.stream_epoch,
            checkpoint=point.checkpoint,
            notes=(*self.measured[name].notes, *point.notes),
        )

    def _leg_for(self, members: list[str], lengths: Mapping[str, int]) -> Leg:
        return leg_for(self.study, [self.points[name] for name in members], lengths, number=self.count)

    def _feed(self, feeder: _Feeder, leg: Leg, readers: tuple[str, ...]) -> None:
        self.workers.send(feeder.name, Feed(leg=leg, readers=readers))

    def _attach(self, feeder: _Feeder, devices: Any) -> None:
        assert feeder.opened is not None
        for device in devices:
            if device not in feeder.readers:
                for other in self.feeders.values():
                    other.readers.discard(device)
                feeder.readers.add(device)
                self.workers.send(device, Attach(address=feeder.opened.address))

    def _start_feeder(self) -> None:
        name = f"feeder-{len(self.feeders)}"
        self.feeders[name] = _Feeder(name)
        self.workers.start_feeder(name)
        self.workers.send(name, Open())

    def _free_feeder(self) -> _Feeder | None:
        busy = {leg.feeder for leg in self.legs}
        return next((f for f in self.feeders.values() if f.opened is not None and f.name not in busy), None)

    # ---- what is refused before it starts

    def _check_batches(self, lengths: Mapping[str, int]) -> None:
        for name in self.waiting:
            member = self.study.member(name)
            for split, subset in (("train", member.subset), ("val", member.val_subset)):
                if subset is not None and not 0 <= min(subset) <= max(subset) < lengths.get(split, 0):
                    raise StudyError(
                        f"member {name!r}: its {split} subset has indices {min(subset)} to {max(subset)}; the split has "
                        f"{lengths.get(split, 0)} samples."
                    )
            length = Selection.of(member.subset, lengths["train"]).length
            if member.batch_size > length:
                raise StudyError(
                    f"member {name!r}: batch_size {member.batch_size} is larger than its {length} training samples. "
                    "Lower it."
                )

    def _check_members(self) -> None:
        lengths = next(feeder.opened.lengths for feeder in self.feeders.values() if feeder.opened)
        for name in self.waiting:
            member = self.study.member(name)
            rest = Selection.of(member.subset, lengths["train"]).length % member.batch_size
            if self.measured[name].batch_norm and rest == 1 and not member.drop_last:
                raise PlanError(
                    f"member {name!r} has BatchNorm, and its last batch of each epoch would hold 1 sample, which "
                    "BatchNorm cannot train on. Set drop_last=True or another batch_size."
                )

    def _unfinished(self, member: Member) -> bool:
        state = self.state.member(member.name)
        if state.status in ("failed", "diverged"):
            return False
        return self.study.stop_of(member).reason(state.history) is None

    # ---- files and time

    def _run_started(self, opened: Opened) -> RunStarted:
        versions = {
            "argosy": argosy.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        }
        return RunStarted(
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=versions,
            settings=asdict(self.settings),
            lengths=dict(opened.lengths),
        )

    def _write_study(self) -> None:
        opened = next(feeder.opened for feeder in self.feeders.values() if feeder.opened)
        summary = summarize(self.study, lengths=opened.lengths, fingerprint=opened.fingerprint, measured=self.measured)
        if self.found is not None:
            check_identity(self.job.directory, self.found, summary)
            for name, described in summary["members"].items():
                known = self.found["members"].get(name, {})
                described["parameter_shapes"] = described["parameter_shapes"] or known.get("parameter_shapes")
        write_json(self.job.directory / "study.json", summary)

    def _write_metrics(self, state: MemberState, ended: EpochEnded) -> None:
        folder = self.job.directory / "members" / state.name
        header = ["epoch", *ended.metrics, "seconds"]
        path = folder / "metrics.csv"
        rows = [ended]
        if ended.epoch == 0 or not path.exists() or self.found is not None:
            rows = [state.epochs[k] for k in sorted(state.epochs)]
            path.write_text(",".join(header) + "\n")
        with path.open("a") as file:
            for row in rows:
                file.write(",".join(str(v) for v in (row.epoch, *row.metrics.values(), row.seconds)) + "\n")

    def _out_of_time(self) -> str | None:
        limit = self.settings.time_limit
        return f"time limit of {limit:g} s" if limit is not None and time.monotonic() - self.began > limit else None

    @staticmethod
    def _profile(measured: Measured) -> Profile:
        return Profile(
            member=measured.member,
            device_kind="",
            samples_per_second=(measured.samples_per_second,),
            memory_bytes=measured.memory_bytes,
            state_bytes=measured.state_bytes,
        )


def explain(job: Job, cluster: Cluster, workers: Workers, journal: Journal) -> Plan:
    """What a run of this job would start with."""
    driver = Driver(job, cluster, workers, journal, RunState(), Silent())
    with workers:
        try:
            return driver.explain()
        finally:
            driver.stop_workers()


def drive(job: Job, cluster: Cluster, workers: Workers, journal: Journal, state: RunState, view: View) -> None:
    """Train a study to its end, and journal it; `state` is the fold of what the journal holds already."""
    driver = Driver(job, cluster, workers, journal, state, view)
    found = _found_study(job)
    with workers, _signals(driver.want_pause):
        view.begin(job, state)
        status, reason = "failed", ""
        try:
            status = driver.run(found)
            reason = driver.pausing or ""
        except BaseException as error:
            status, reason = "failed", str(error)
            raise
        finally:
            driver.stop_workers()
            if driver.begun or driver.pausing:
                driver._record(RunEnded(status=status, reason=reason, seconds=time.monotonic() - driver.began))
            view.end()


def _found_study(job: Job) -> dict[str, Any] | None:
    path = job.directory / "study.json"
    return json.loads(path.read_text()) if path.exists() else None


def _cause(trace: str) -> str:
    """The last line of a traceback and where it was raised."""
    return "\n".join(trace.strip().splitlines()[-3:])


@contextmanager
def _signals(pause: Callable[[str], None]) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM pauses the run, the second ends it at once as it would have without us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(number: int, frame: Any) -> None:
        for each, handler in earlier.items():
            signal.signal(each, handler)
        pause(f"{signal.Signals(number).name}; the same command goes on")
        chained = earlier[signal.Signals(number)]
        if callable(chained) and chained is not signal.default_int_handler:
            chained(number, frame)

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
