"""The driver: the only decision maker of a run and the only writer of its journal.

Contract. A round receives messages from workers and requests from the user, decides, writes the journal, and carries the decisions out.
Commands are sent at the beginning of the next round, when the journal is on disk. The driver never waits for a worker. It imports all other
parts, and none of them imports it:

`run`: what all parts share · `members`, `positions`, `legs`: where members are · `decisions`: questions, which change nothing ·
`carry_out`: changes of legs and members, as events and commands · `barriers`: legs that continue · `leg_starts`: new legs ·
`measurements`: members that join · `faults`: lost workers · `requests`: commands of the user.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from argosy.cluster import Cluster
from argosy.disk.scratch import is_scratch
from argosy.errors import StudyError
from argosy.errors.warned import warn_caller
from argosy.planning.policy import NamedPolicy
from argosy.protocol.events import (
    BeganAnew,
    DataOpened,
    Event,
    MemberEnded,
    MemberRested,
    MemberStarted,
    Retried,
    RunEnded,
    Saved,
    SectionEnded,
)
from argosy.protocol.feeder import Held, Opened, Parted, Probed
from argosy.protocol.packs import Packed
from argosy.protocol.trainer import (
    Broke,
    Came,
    DevicePoisoned,
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
from argosy.running.control.barriers import Barriers
from argosy.running.control.carry_out import ActingPart, CarryOut
from argosy.running.control.choices import warn_of_other_bits
from argosy.running.control.cost_table import CostTable
from argosy.running.control.faults import Faults
from argosy.running.control.leg_starts import LegStarts
from argosy.running.control.measurements import Measurements
from argosy.running.control.members import State
from argosy.running.control.refusals import check_batches
from argosy.running.control.requests import Requests
from argosy.running.control.resume import settle_files
from argosy.running.control.run import Run
from argosy.running.control.verdicts import Bringer, Judge
from argosy.running.control.worker_pool import Feeder
from argosy.running.directory.anew import set_members_aside
from argosy.running.directory.journal import Journal
from argosy.running.directory.records import make_run_started, tree_cpu_seconds
from argosy.running.launch.launcher import Job, Workers
from argosy.running.watch.energy import Meter
from argosy.running.watch.interrupts import pausing_on_signal
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.stream.opening import identities_of_arrays
from argosy.study import Study, sharing_warnings
from argosy.training.choice.measure import SOFTMAX, UNMOVED
from argosy.training.choice.unsaved import LOADED, RESET, TOGETHER, VALIDATING

__all__ = ["INTERRUPTED_AGAIN", "Driver", "drive"]

WARNED = (TOGETHER, LOADED, UNMOVED, VALIDATING, SOFTMAX)
"""Words of notes about members of which the caller is warned."""

TICK_SECONDS = 0.2
"""Longest time that a round waits for messages; requests and signals are handled as often."""
INTERRUPTED_AGAIN = (
    "interrupted again before every member was saved; the same command resumes the run from the latest checkpoints"
)
"""What a second Ctrl-C says."""
FAREWELL_SECONDS = 3.0
"""Seconds that workers have at the end to send their last messages."""
POLL_SECONDS = 0.5
"""Seconds between two looks at signs of life and energy counters, and two writes of metrics."""


class Driver(ActingPart):
    """Drives one run: `drive` is the main loop, `_handle` dispatches messages, and `end` comes last, whatever went wrong before."""

    def __init__(self, run: Run, *, anew: BeganAnew | None = None, only_measure: bool = False) -> None:
        super().__init__(run, CarryOut(run))
        self.anew = anew
        """Event that is applied to the state, but not yet in the journal."""
        self.barriers: Barriers = Barriers(run, self.carry_out)
        self.starts: LegStarts = LegStarts(run, self.carry_out)
        self.measurements: Measurements = Measurements(run, self.carry_out, self.starts, only_measure=only_measure)
        self.faults: Faults = Faults(run, self.carry_out, self.measurements)
        self.additions: Additions = Additions(run, self.carry_out, self.measurements)
        self.requests: Requests = Requests(run, self.carry_out, self.faults, self.additions)
        self.meter: Meter = Meter.here(gpus=any(device.torch_name.startswith("cuda") for device in run.cluster.devices))
        self._written: dict[str, dict[str, str]] = {}
        """By trainer: checkpoint files that were journaled in this round, by member."""
        self._warned: set[str] = set()
        """Notes on members that the caller has already been warned of."""
        self._polled = 0.0

    # ---- main loop

    def drive(self) -> str:
        """Train to the end and return the run's status."""
        run = self.run
        self.members.begin()
        run.view.study(run.study)
        # Before anything else: the directory may belong to another study.
        run.identity.check(run.study)
        run.identity.warn_if_missing()
        self.carry_out.call_resting()
        if not self.members.waiting:
            # Nothing is left to train, so no feeder will open the data.
            fingerprints = identities_of_arrays(run.study.data)
            run.identity.check(run.study, fingerprints=fingerprints)
            self.carry_out.settle_undecided()
            lengths = None if self.state.started is None else self.state.started.lengths
            run.identity.update(run.study, fingerprints=fingerprints, lengths=lengths)
            if not self._more_to_come:
                return "paused" if self.members.resting else "done"
        if run.ensemble_judge is not None:
            run.ensemble_judge.check_kept(self.state, run.study)
        warn_of_other_bits(run.settings, self.state)
        run.choices.warn_if_none_is_known([member.name for member in run.study.members])
        self.pool.start()
        # The costs of resting members have to be known too: a judge may call them in the middle of the stream.
        self.cost_table.request_costs(map(run.study.member, self.positions.unfinished()))
        while self._has_work():
            self._round()
        # The last member may have ended just before a pause.
        return "paused" if self.positions.unfinished() or self._more_to_come else "done"

    def _round(self) -> None:
        """Receive messages, decide, and write the journal; the commands of this round are sent at the beginning of the next one."""
        run = self.run
        for worker, message in self.pool.workers.receive(TICK_SECONDS):
            if isinstance(message, Came):
                self.starts.nodes.append(message.node)
            elif self.pool.has_worker(worker):
                self._handle(worker, message)
                self._settle_costs()
        # Sent with the next `receive`, when the journal has these files: trainers then delete older ones.
        self.carry_out.send({worker: Journaled(files=files) for worker, files in self._written.items()})
        self._written.clear()
        # First: no leg starts while another one regroups.
        self.faults.finish_regrouping()
        if run.phase is Phase.TRAINING:
            self.advance()
        self.requests.poll()
        self._settle_costs()  # a request may have ended a member whose costs the others waited for
        if time.monotonic() - self._polled > POLL_SECONDS:
            self._polled = time.monotonic()
            self.faults.poll()
            run.metrics.write()
            self.meter.poll()
        self.carry_out.record(*run.choices.take_answers())
        run.journal.commit_due()
        recovers = self.legs.regrouping and run.phase is not Phase.ENDING
        run.view.tick(Phase.REGROUPING if recovers else run.phase)

    def advance(self) -> None:
        """Select the ensemble, then advance everything that can: resting members, joining members and nodes, legs, and new legs for waiting members."""
        self._choose_ensemble()
        self.carry_out.call_resting()
        for bringer in self.run.bringers:
            self.carry_out.record(*bringer.found(self.state))
        self.measurements.add_newcomers()
        self.starts.admit_nodes()
        self.barriers.advance()
        if self.run.wants_plan:
            self.run.wants_plan = False
            self.starts.launch()
        self.measurements.measure_unknown()

    def _choose_ensemble(self) -> None:
        judge = self.run.ensemble_judge
        while judge is not None and (decision := judge.decide(self.state, self.run.study)) is not None:
            self.carry_out.record(decision)

    def _settle_costs(self) -> None:
        if self.run.costs_settled:
            self.run.costs_settled = False
            self.measurements.proceed()

    def _has_work(self) -> bool:
        run, members = self.run, self.members
        if run.phase is Phase.OVER:
            return False
        if self.faults.regrouping.under_way or self.legs.live or self.additions.pending:
            return True
        if members.waiting or members.leaving or members.new:
            return True
        # A request may have ended the last member that others rested for, after this round had called them.
        return run.pause_reason is None and (self._more_to_come or bool(self.decisions.called()))

    @property
    def _more_to_come(self) -> bool:
        """Whether a search would add members if no member trained any more."""
        return any(bringer.has_more(self.state) for bringer in self.run.bringers)

    def stop_workers(self) -> None:
        """Ask every worker to exit, wait briefly, and journal its last messages."""
        for _, message in self.pool.exit_workers(FAREWELL_SECONDS):
            if self.run.begun and isinstance(message, Event) and not isinstance(message, MemberEnded):
                self.carry_out.record(message)

    def end(self, status: str, reason: str) -> None:
        """Clean up, write the final files, and journal the end of the run. Every step is tried even if others fail."""
        run, state, before = self.run, self.state, self.state.ended
        self.meter.poll()
        ended = RunEnded(
            status=status,
            reason=reason,
            seconds=time.monotonic() - run.began,
            cpu_seconds=tree_cpu_seconds() - run.cpu_before,
            joules=self.meter.joules,
        )
        # An earlier driver may have been killed after everything was done; then this one journals the end.
        untold = state.started is not None and status == "done" != (before.status if before else "")
        # Callbacks run last to first: the end is journaled once everything is closed, then flushed, and only then shown.
        with contextlib.ExitStack() as last_first:
            last_first.callback(run.view.end)
            last_first.callback(run.journal.commit)
            if run.begun or run.pause_reason or untold:
                last_first.callback(self.carry_out.record, ended)
            last_first.callback(self.additions.close)
            last_first.callback(run.metrics.write)
            # The next run repeats these at its end.
            with contextlib.suppress(OSError):
                self.cost_table.remember(state, run.study)
            for member in state.members.values():
                with contextlib.suppress(OSError):
                    settle_files(member, run.directory)

    # ---- messages

    def _handle(self, worker: str, message: Any) -> None:
        run, names = self.run, self.run.study.names
        if not isinstance(message, Event | SectionReport):
            run.view.handle(worker, message)
        match message:
            case SectionReport():
                self._handle_report(worker, message)
            case Opened():
                self._handle_opened(worker, message)
            case Measured() if message.member in names:  # not if its addition was refused meanwhile
                self.measurements.handle_measured(message)
            case Held():
                self.barriers.handle_held(worker, message)
            case Paused():
                self.faults.regrouping.mark_released(worker)
            case SumsTimed():
                self.measurements.handle_sums_timed(worker, message)
            case Broke():
                self.faults.handle_broke(worker, message)
            case OutOfMemory() if message.member in names:
                self.faults.handle_out_of_memory(worker, message)
            case Probed():
                self.starts.handle_probed(worker, message)
            case Parted():
                self.faults.handle_parted(worker, message)
            case DevicePoisoned():
                self.faults.poisoned[worker] = message
            case Lost():
                self.faults.handle_lost(worker, message)
            case Failed():
                if not self.faults.give_up_new_node(worker, message.error):
                    raise message.error
            case Event():
                self.carry_out.record(message)

    def _handle_report(self, worker: str, report: SectionReport) -> None:
        """Handle the report of an assignment, in the order of its events."""
        run = self.run
        self.faults.saved_at.setdefault(worker, time.monotonic())
        if run.ensemble_judge is not None and report.answers:
            # First: the answers of a section in the journal must be on the disk, for a driver that follows.
            ended = [event for event in report.events if isinstance(event, SectionEnded)]
            run.ensemble_judge.keep(ended, report.answers, run.per_epoch)
        for event in report.events:
            match event:
                case SectionEnded():
                    self.carry_out.record(event)
                    run.tolerance.reset_losses()
                    run.metrics.note(self.state.member(event.member))
                    self.cost_table.update_rate(event, self.state.member(event.member))
                    self.predictions.note_stepped(event)
                    self.barriers.judge(event.member)
                case Saved():
                    self.carry_out.record(replace(event, leg=self._leg_number(event.member)))
                    self.faults.saved_at[worker] = time.monotonic()
                    self._written.setdefault(worker, {})[event.member] = event.checkpoint.file
                case MemberRested():
                    self.carry_out.handle_released(event.member)
                case MemberEnded():
                    self.carry_out.end(event.member, event.status, event.reason)
                case MemberStarted() if self.members.state(event.member) is State.ENDED:
                    pass  # another rank of a split member has reported its failure before
                case MemberStarted():
                    self.carry_out.record(event)
                    self.predictions.note_started(event.member)
                    self._warn_of_state(event)
                case Packed():
                    self.cost_table.note_program_costs(event)
                    run.choices.keep_programs(event)
                    self.carry_out.record(event)
                case _:
                    self.carry_out.record(event)
        if report.section is not None:
            self.barriers.handle_section_end(worker, report.section)

    def _warn_of_state(self, started: MemberStarted) -> None:
        """Warn once of what a member may be wrong by: state that is shared or lost, weights without an optimizer, or probabilities as logits."""
        continued = started.epoch or started.section or started.position
        told = (*WARNED, RESET) if continued else WARNED
        for note in started.notes:
            if any(words in note for words in told) and note not in self._warned:
                self._warned.add(note)
                warn_caller(f"member {started.member!r}: {note}.")

    def _leg_number(self, member: str) -> int:
        """Return the number of the leg that a member trains in or leaves; 0 if there is none."""
        leaving, leg = self.members.leaving_of(member), self.legs.of(member)
        return leaving.leg if leaving is not None else leg.number if leg is not None else 0

    def _handle_opened(self, worker: str, opened: Opened) -> None:
        feeder = self.pool.feeders.get(worker)
        if feeder is None:
            return
        try:
            self._check_same_data(feeder, opened)
        except StudyError as error:
            if self.faults.give_up_new_node(worker, error):
                return
            raise
        feeder.opened = opened
        if not self.run.begun:
            self._begin(opened)
        if self.run.phase is Phase.MEASURING:
            self.measurements.measure()
        self.starts.handle_opened(feeder.node)

    def _begin(self, opened: Opened) -> None:
        """Begin the run in its directory once the first feeder has opened the data."""
        run, planner = self.run, self.planner
        run.lengths = opened.lengths
        for doubt in (*opened.doubts, *sharing_warnings(run.study.members)[:1]):
            warn_caller(doubt)
        check_batches(map(run.study.member, self.members.waiting), run.lengths)
        planner.preparation_seconds = opened.seconds_per_sample
        self.cost_table.samples_per_epoch = opened.lengths["train"]
        planner.opening_seconds = opened.opening_seconds
        run.identity.check(run.study, **run.study_properties())
        costs = planner.preparation_rate, planner.opening_seconds
        started = make_run_started(run.settings, run.lengths, run.per_epoch, run.cluster.devices, *costs)
        retried = [Retried(members=self.positions.retried)] if self.positions.retried else []
        data = DataOpened(keeping=opened.keeping, shards=opened.shards)
        self.carry_out.record(started, data, *retried, *([] if self.anew is None else [self.anew]))
        # Move the files of members that start over before study.json describes the new ones.
        run.journal.commit()
        set_members_aside(self.state.members.values(), run.directory)
        run.write_study()
        run.begun = True
        self.carry_out.settle_undecided()
        if run.phase is Phase.OPENING:  # not if the user has asked the run to end
            run.phase = Phase.MEASURING

    def _check_same_data(self, feeder: Feeder, opened: Opened) -> None:
        known = self.run.data = self.run.data or opened
        for what in ("lengths", "shards", "fingerprints", "block_size"):
            value, elsewhere = getattr(opened, what), getattr(known, what)
            if value != elsewhere:
                raise StudyError(
                    f"node {feeder.node!r} has different data than the other nodes: {what} {value}, elsewhere "
                    f"{elsewhere}. Every node opens the data itself; make the same files visible to all of them."
                )


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
) -> Study:
    """Train a study to its end and journal it; `state` is the fold of the existing journal and of `anew`. Returns it with added members."""
    costs = CostTable.of(job.settings, cluster, side_by_side=workers.side_by_side)
    run = Run(job, cluster, workers, journal, state, view, costs, judges=judges, bringers=bringers, packs=packs)
    driver = Driver(run, anew=anew)
    with contextlib.closing(run), pausing_on_signal(driver.requests.request_pause):
        status, reason = "failed", ""
        try:
            with workers:
                view.begin(job, state)
                try:
                    status = driver.drive()
                finally:
                    driver.stop_workers()
            reason = run.pause_reason or "" if status == "paused" else ""
        except BaseException as error:  # also where the workers end, after `drive` has returned another status
            if isinstance(error, KeyboardInterrupt) and not is_scratch(job.directory, "fit"):
                error.args = (INTERRUPTED_AGAIN,)
            status, reason = "failed", str(error)
            raise
        finally:
            driver.end(status, reason)
    return run.study
