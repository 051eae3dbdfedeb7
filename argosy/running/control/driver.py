"""The driver: the only decision maker and the only writer of the journal.

It starts workers, has members measured, has the policy plan, and answers what workers say. It never waits for one of them:
what it says is kept until the next round, and the journal is flushed before anything leaves (`Driver.run`). What it decides is
elsewhere, one question a file: who is aboard where (`legs`), what to ask the policy (`launching`), what becomes of a member
(`verdicts`), what must be measured (`measuring`), how faults end (`recovery`). `scheduler` carries changes out.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from argosy.cluster import Cluster
from argosy.errors import StudyError
from argosy.planning.policy import NamedPolicy
from argosy.protocol.events import (
    BeganAnew,
    Event,
    MemberEnded,
    MemberRested,
    MemberStarted,
    Retried,
    Saved,
    SectionEnded,
)
from argosy.protocol.feeder import Held, Opened, Parted, Probed
from argosy.protocol.packs import Packed
from argosy.protocol.trainer import (
    Broke,
    Came,
    Failed,
    Journaled,
    Lost,
    Measured,
    OutOfMemory,
    Paused,
    SectionReport,
    SumsTimed,
)
from argosy.results.fold import RunState
from argosy.running.control.additions import Additions
from argosy.running.control.costs import ASSUMED_LINK
from argosy.running.control.ending import end_run
from argosy.running.control.faults import Faults
from argosy.running.control.measuring import Measuring
from argosy.running.control.member_table import FINAL, MemberTable
from argosy.running.control.refusals import check_batch_norm, check_batches
from argosy.running.control.requests import Requests
from argosy.running.control.scheduler import LegScheduler
from argosy.running.control.splitting import measuring_of_run
from argosy.running.control.verdicts import Bringer, Judge, Rules
from argosy.running.control.worker_pool import Feeder, WorkerPool
from argosy.running.directory.anew import keep_aside
from argosy.running.directory.identity import Identity
from argosy.running.directory.journal import Journal
from argosy.running.directory.records import Metrics, run_started, tree_cpu_seconds
from argosy.running.launch.launcher import Job, Workers
from argosy.running.watch.energy import Meter
from argosy.running.watch.interrupts import interrupts
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.study import Study

__all__ = ["Driver", "drive"]

TICK_SECONDS = 0.2
FAREWELL_SECONDS = 3.0
LOOK_SECONDS = 0.5


class Driver:
    """One run. `run` is its life; handlers are named after what they answer."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        workers: Workers,
        journal: Journal,
        state: RunState,
        view: View,
        *,
        judges: Sequence[Judge] = (),
        bringers: Sequence[Bringer] = (),
        packs: NamedPolicy | None = None,
        anew: BeganAnew | None = None,
        node_devices: int | None = None,
        only_measure: bool = False,
    ) -> None:
        self.directory = job.directory
        self.settings = job.settings
        self.cluster = cluster
        self.journal = journal
        self.state = state
        self.view = view
        self.began, self.cpu_before = time.monotonic(), tree_cpu_seconds()
        self.phase = Phase.OPENING
        self.judges: tuple[Judge, ...] = (Rules(), *judges)
        self.bringers = bringers
        self.anew = anew
        """What `state` knows already, and the journal does not."""
        self.packs = packs
        """A policy in the place of that of the settings."""
        self.member_table = MemberTable(job, state, self.judges)
        self.pool = WorkerPool(workers, cluster)
        if only_measure:
            kind, exact = cluster.devices[0].kind, job.settings.numerics == "exact"
            self.measuring = Measuring(device_kind=kind, node_devices=node_devices, link=ASSUMED_LINK, exact=exact)
        else:
            self.measuring = measuring_of_run(job.settings, cluster, side_by_side=workers.side_by_side)
        self.only_measure = only_measure
        self.scheduler = LegScheduler(self)
        self.requests = Requests(self)
        self.additions = Additions(self)
        self.faults = Faults(self)
        self.metrics = Metrics(job.directory)
        self.meter = Meter.here(gpus=any(device.torch_name.startswith("cuda") for device in cluster.devices))
        self.identity = Identity(job.directory, state.members, job.process_state, of_search=bool(bringers))
        self.begun = False
        """Whether the directory was found to be this study's, or empty."""
        self.lengths: Mapping[str, int] = {}
        self.data: Opened | None = None
        """What the first feeder said of its node's data; that of other nodes must be the same."""
        self._written: dict[str, dict[str, str]] = {}
        """By trainer: files that were journaled in this round."""
        self._looked = 0.0

    @property
    def study(self) -> Study:
        """With the members that were added."""
        return self.member_table.study

    # ---- life

    def run(self) -> str:
        """Train to the end; returns the run's status."""
        self.member_table.begin()
        self.view.study(self.study)
        # Before anything is said of what is there: it may be another study's.
        self.identity.check(self.study)
        self.scheduler.call()
        if not self.member_table.waiting:
            self.faults.settle_earlier()
            self.identity.leave_out(self.study)
            if not self._more_to_come:
                return "paused" if self.member_table.resting else "done"
        self.pool.start()
        # Members that rest are to be known as well: whoever calls them does so in the middle of the stream.
        self.measuring.want(map(self.study.member, self.member_table.unfinished()))
        while self._goes_on():
            self._round()
        # The last member may have ended just before a pause.
        return "paused" if self.member_table.unfinished() or self._more_to_come else "done"

    def _round(self) -> None:
        """Hear what was said, decide, journal; what is said in answer leaves at the beginning of the next round."""
        for worker, message in self.pool.workers.receive(TICK_SECONDS):
            if isinstance(message, Came):
                self.scheduler.leg_starts.nodes.append(message.node)
            elif self.pool.knows(worker):
                self._hear(worker, message)
        for worker, files in self._written.items():
            self.pool.send(worker, Journaled(files=files))
        self._written.clear()
        if self.phase is Phase.REGROUPING and self.faults.regrouping.over:
            self.faults.regrouped()
        if self.phase is Phase.TRAINING:
            self.scheduler.go_on()
        self.requests.look()
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self.faults.look()
            self.metrics.write()
            self.meter.look()
        self.journal.commit_due()
        self.view.tick(self.phase)

    def _goes_on(self) -> bool:
        if self.phase is Phase.OVER:
            return False
        if (
            self.phase is Phase.REGROUPING
            or self.member_table.waiting
            or self.scheduler.under_way
            or self.additions.pending
        ):
            return True
        return self.requests.pausing is None and self._more_to_come

    @property
    def _more_to_come(self) -> bool:
        """Whether somebody would bring members if nobody trained any more."""
        return any(bringer.has_more(self.state) for bringer in self.bringers)

    def stop_workers(self) -> None:
        """Ask every worker for its last word and wait a little for it."""
        for _, message in self.pool.farewell(FAREWELL_SECONDS):
            if self.begun and isinstance(message, Event) and not isinstance(message, MemberEnded):
                self.record(message)

    def record(self, event: Event) -> None:
        """Journal an event, before anything else leaves, fold it into the state, and show it."""
        self.journal.append(event)
        self.state.apply(event)
        self.view.hear("", event)

    # ---- messages

    def _hear(self, worker: str, message: Any) -> None:
        if not isinstance(message, Event | SectionReport):
            self.view.hear(worker, message)
        match message:
            case SectionReport():
                self._reported(worker, message)
            case Opened():
                self._opened(worker, message)
            case Measured() if message.member in self.study.names:
                self.scheduler.leg_starts.measured(message)
                self._known()
            case Held():
                self.scheduler.held(worker, message)
            case Paused():
                self.faults.regrouping.let_go(worker)
            case SumsTimed():
                self.scheduler.leg_starts.sums_timed(worker, message)
                self._known()
            case Broke():
                self.faults.broke(worker, message)
            case OutOfMemory() if message.member in self.study.names:
                self.faults.out_of_memory(worker, message)
            case Probed():
                self.scheduler.leg_starts.probed(worker, message)
            case Parted():
                self.faults.parted(worker, message)
            case Lost():
                self.faults.lost(worker, message)
            case Failed():
                if not self.faults.does_without(worker, message.error):
                    raise message.error
            case Event():
                self.record(message)

    def _reported(self, worker: str, report: SectionReport) -> None:
        """What an assignment says together, in the order of its events."""
        self.faults.saved_at.setdefault(worker, time.monotonic())
        for event in report.events:
            if isinstance(event, SectionEnded):
                self.record(event)
                self.faults.tolerance.section_ended()
                self.metrics.note(self.state.member(event.member))
                self.measuring.saw(event, self.state.member(event.member))
                self.scheduler.predictions.stepped(event)
                self.scheduler.judge(event.member)
            elif isinstance(event, Saved):
                self.record(replace(event, leg=self.scheduler.number_of_leg(event.member)))
                self.faults.saved_at[worker] = time.monotonic()
                self._written.setdefault(worker, {})[event.member] = event.checkpoint.file
            elif isinstance(event, MemberRested):
                self.scheduler.left(event.member)
            elif isinstance(event, MemberEnded):
                self.end(event.member, event.status, event.reason)
            else:
                if isinstance(event, Packed):
                    self.measuring.stepped(event)
                self.record(event)
                if isinstance(event, MemberStarted):
                    self.scheduler.predictions.started(event.member)
        if report.section is not None:
            self.scheduler.section_ended(worker, report.section)

    def _opened(self, worker: str, opened: Opened) -> None:
        feeder = self.pool.feeders.get(worker)
        if feeder is None:
            return
        try:
            self._check_same_data(feeder, opened)
        except StudyError as error:
            if self.faults.does_without(worker, error):
                return
            raise
        feeder.opened = opened
        if not self.begun:
            self.lengths = opened.lengths
            check_batches(map(self.study.member, self.member_table.waiting), self.lengths)
            self.scheduler.know(opened)
            self.identity.check(self.study, **self._known_of_study())
            launching, per_epoch = self.scheduler.launching, self.study.validations_per_epoch
            costs = launching.preparation_rate, launching.opening_seconds
            self.record(run_started(self.settings, self.lengths, per_epoch, self.cluster.devices, *costs))
            if self.member_table.retried:
                self.record(Retried(members=self.member_table.retried))
            if self.anew is not None:
                self.record(self.anew)
            # Before the study is there that they are members of now: those of before are none of it.
            self.journal.commit()
            keep_aside(self.state.members.values(), self.directory)
            self.write_study()
            self.begun = True
            self.faults.settle_earlier()
            if self.phase is Phase.OPENING:  # and not about to end, as a person wants
                self.phase = Phase.MEASURING
        if self.phase is Phase.MEASURING:
            self.measure()
        self.scheduler.leg_starts.opened(feeder.node)

    def _check_same_data(self, feeder: Feeder, opened: Opened) -> None:
        known = self.data = self.data or opened
        for what in ("lengths", "fingerprints", "block_size"):
            here, there = getattr(opened, what), getattr(known, what)
            if here != there:
                raise StudyError(
                    f"the data of node {feeder.node!r} is not that of the others: {what} {here}, elsewhere {there}. Every "
                    "node opens the data itself; let all of them see the same files."
                )

    # ---- measuring

    def measure(self) -> None:
        """Let every trainer measure its share of the members that nobody knows, on the first block of a leg of their own."""
        self.phase = Phase.MEASURING
        if self.measuring.missing & set(self.member_table.waiting):
            self.scheduler.leg_starts.measure_at_rest()
        else:
            self._known()

    def _known(self) -> None:
        """Somebody's costs are known, or nobody wants them any more."""
        if self.phase in (Phase.TRAINING, Phase.MEASURING):
            self.scheduler.leg_starts.newcomers_known()
        if self.phase is not Phase.MEASURING:
            return
        if self.measuring.missing & set(self.member_table.waiting):
            self.scheduler.leg_starts.measure_rest()
            return
        self.scheduler.leg_starts.fail_unfit(self.member_table.waiting)
        check_batch_norm(map(self.study.member, self.member_table.waiting), self.lengths, self.measuring.measured)
        if self.only_measure:
            if self.measuring.needs_groups(self.member_table.waiting):
                self.measure()
            else:
                self.phase = Phase.OVER
            return
        if self.scheduler.leg_starts.time_sums():
            return
        self.write_study()
        self.start_training()

    def start_training(self) -> None:
        """Everybody who waits is known: let the policy say who trains where."""
        self.phase = Phase.TRAINING
        self.scheduler.changed = True
        self.scheduler.leg_starts.welcome()

    # ---- members

    def end(self, member: str, status: str, reason: str) -> None:
        """A member leaves the run, or does not come to be in it."""
        if member not in self.study.names:
            return  # it was not added, as another one of its file had failed before
        if self.additions.failed(member, reason):
            self._known()
            return
        if self.state.member(member).status in FINAL:
            return  # another of the devices that carried it has said so
        self.record(MemberEnded(member=member, status=status, reason=reason))
        self.faults.afloat.discard(member)
        self.measuring.forget(member)
        self.scheduler.ended(member)
        if status == "failed":
            any_section = any(state.sections for state in self.state.members.values())
            self.faults.tolerance.member_failed(member, reason, any_section=any_section)
        if member in self.member_table.waiting:
            # It failed while it was measured, or was told to stop while it waited.
            self.member_table.leave([member])
            self._known()
        self.member_table.leave([member])

    def pause(self) -> None:
        """Save every member where it is, and end."""
        self.faults.regroup()

    # ---- files

    def write_study(self) -> None:
        """``study.json``; raises RunError where the directory holds another study's run."""
        self.identity.write(self.study, **self._known_of_study())

    def _known_of_study(self) -> dict[str, Any]:
        """What only open data and built networks tell."""
        assert self.data is not None
        fingerprints, measured = self.data.fingerprints, self.measuring.measured
        return {"lengths": self.lengths, "fingerprints": fingerprints, "measured": measured}


def drive(
    job: Job,
    cluster: Cluster,
    workers: Workers,
    journal: Journal,
    state: RunState,
    view: View,
    *,
    judges: Sequence[Judge] = (),
    bringers: Sequence[Bringer] = (),
    packs: NamedPolicy | None = None,
    anew: BeganAnew | None = None,
) -> None:
    """Train a study to its end, and journal it; `state` is the fold of what the journal holds already, and of `anew`."""
    driver = Driver(
        job, cluster, workers, journal, state, view, judges=judges, bringers=bringers, packs=packs, anew=anew
    )
    with interrupts(driver.requests.want_pause):
        status, reason = "failed", ""
        try:
            with workers:
                driver.view.begin(job, state)
                try:
                    status = driver.run()
                finally:
                    driver.stop_workers()
            reason = driver.requests.pausing if status == "paused" and driver.requests.pausing else ""
        except BaseException as error:
            status, reason = "failed", str(error)
            raise
        finally:
            end_run(driver, status=status, reason=reason)
