"""Measures members whose costs are unknown, at the beginning and when members join.

If no member trains, as at the beginning, all trainers measure on the first block of a separate leg. Members that join later are measured
beside those that train. Additions are atomic: a command is answered once the costs of all its members are known and all of them fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from argosy.errors import PlanError
from argosy.planning.memory import check_memory_fit
from argosy.protocol.feeder import Credit, Leg
from argosy.protocol.trainer import Measured, SumsTimed
from argosy.running.control.carry_out import ActingPart, CarryOut
from argosy.running.control.cost_table import AllReduceTiming
from argosy.running.control.leg_starts import LegStarts
from argosy.running.control.members import State
from argosy.running.control.refusals import check_batch_norm, check_batches
from argosy.running.control.run import Run
from argosy.running.watch.phase import Phase
from argosy.stream.schedule import section_start, section_stop
from argosy.study import Member

__all__ = ["Measurements"]


class Measurements(ActingPart):
    """Measures the members of one run, and admits those that join."""

    def __init__(self, run: Run, carry_out: CarryOut, starts: LegStarts, *, only_measure: bool) -> None:
        super().__init__(run, carry_out)
        self.starts = starts
        self.only_measure = only_measure
        self.timing: AllReduceTiming = AllReduceTiming()

    # ---- while no member trains

    def measure(self) -> None:
        """Let every trainer measure its share of the waiting members with unknown costs, on a separate leg."""
        self.run.phase = Phase.MEASURING
        if self.cost_table.missing & set(self.members.waiting):
            self._start_measuring_leg()
        else:
            self.proceed()

    def proceed(self) -> None:
        """Continue with everything that waited for the costs of a member."""
        run = self.run
        if run.phase in (Phase.TRAINING, Phase.MEASURING):
            self._admit_measured()
        if run.phase is not Phase.MEASURING:
            return
        waiting = self.members.waiting
        if self.cost_table.missing & set(waiting):
            self._measure_remaining()
            return
        self._fail_unfit(waiting)
        waiting = self.members.waiting
        check_batch_norm(map(run.study.member, waiting), run.lengths, self.cost_table.measured)
        if self.only_measure and self.cost_table.request_groups(waiting):
            self.measure()
            return
        if self._time_sums():
            return
        if self.only_measure:
            run.phase = Phase.OVER
            return
        run.write_study()
        self.train()

    def train(self) -> None:
        """Ask the policy where members train, once the costs of all waiting ones are known."""
        self.run.phase = Phase.TRAINING
        self.run.wants_plan = True
        self._admit_new()

    def _start_measuring_leg(self) -> None:
        """Feed a leg to all trainers, which measure on its first block."""
        devices, waiting = self.pool.devices, self.members.waiting
        team = self.pool.free_team(devices, ())
        if team is None:
            return
        stretch = self._with_training_samples(self.positions.leg_for(waiting, self.run.lengths))
        fed = self.carry_out.feed(team, stretch, self.starts.sharing.pipeline)
        ends = [self.positions.end_section(name) for name in waiting]
        # A clone may already be at its end.
        until = fed.leg.section + 1
        horizon = None if None in ends else max(until, *(end for end in ends if end is not None))
        names = [feeder.name for feeder in team]
        assignments = dict.fromkeys(devices, fed.assignment)
        self.pool.give_credit(names, Credit(leg=fed.leg.number, until=until, horizon=horizon, assignments=assignments))
        self.starts.measuring_leg = fed
        self.cost_table.keep_requests_on(())
        self._measure(devices, fed.assignment)

    def _with_training_samples(self, leg: Leg) -> Leg:
        """Return the leg, started at least one block before the end of its first section, of which members may need few samples or none.

        A few samples are too few to measure a batch, and for some models.
        """
        length, per_epoch = self.run.lengths["train"], self.run.per_epoch
        assert self.run.data is not None
        start, stop = section_start(leg.section, length, per_epoch), section_stop(leg.section, length, per_epoch)
        latest = max(stop - self.run.data.block_size, start)
        return replace(leg, position=min(leg.position, latest))

    def _measure_remaining(self) -> None:
        """Assign the members that are still unknown; if one failed, another of its kind takes its place."""
        if self.starts.measuring_leg is not None and self.cost_table.representatives(beside=False):
            self._measure(self.pool.devices, self.starts.measuring_leg.assignment)

    def _measure(self, devices: Iterable[str], assignment: int | None) -> None:
        self.carry_out.measure(self.cost_table.commands(tuple(devices), assignment, self.positions.accumulate))

    # ---- sums over devices

    def _time_sums(self) -> bool:
        """Measure the time of all-reduces if a member may be split; return whether their result is still pending."""
        devices = self.pool.devices
        # Only one node with one device may be left.
        if self.timing.over or len(devices) < 2 or self.cost_table.link is not None or not self.cost_table.may_split:
            return False
        self.carry_out.send(self.timing.commands(devices, self.pool.workers.rendezvous))
        return True

    def handle_sums_timed(self, device: str, timed: SumsTimed) -> None:
        """Handle a trainer's timing of all-reduces."""
        link = self.timing.handle(device, timed)
        if link is not None:
            self.cost_table.set_link(link)
        self.proceed()

    # ---- while members train

    def measure_unknown(self) -> None:
        """Let unmeasured members be measured, beside members that train or, if none does, alone.

        These are new members, and resting members whose measurement was lost before they were called.
        """
        missing, new = self.cost_table.missing, self.members.new
        if not missing or not missing & new.union(self.members.waiting):
            return
        if devices := self.legs.devices:
            self.cost_table.keep_requests_on(devices)
            if self.cost_table.representatives(beside=True):
                self._measure([min(devices, key=lambda device: len(self.legs.members_on(device)))], None)
        elif not self.legs.live and not self.starts.sharing.waiting_for:
            self.members.enter(new)
            self.measure()

    def handle_measured(self, message: Measured) -> None:
        """Handle the measured costs of a member, which hold for all of its kind; members that waited for them may be placed."""
        trains = self.run.phase is Phase.TRAINING
        unknown = self.cost_table.missing.intersection(self.members.waiting) if trains else set[str]()
        self.cost_table.handle(message)
        if not unknown <= self.cost_table.missing:
            self.carry_out.make_room()
        self.proceed()

    def is_measured_beside(self, member: str) -> bool:
        """Return whether a member is being added and measured beside those that train."""
        return member in self.members.new and self.run.phase is not Phase.MEASURING

    def discard_measurements(self) -> None:
        """Discard joint measurements of trainers, because a worker is lost."""
        self.starts.discard_measurements()
        self.timing.forget()

    def end_measuring(self) -> None:
        """Note after a regrouping that no trainer is measuring any more."""
        self.starts.measuring_leg = None
        self.timing.forget()
        self.cost_table.keep_requests_on(())

    # ---- members that join

    def add_newcomers(self) -> None:
        """Let the new members of a search join."""
        run = self.run
        if run.pause_reason is not None:
            return
        brought = [new for bringer in run.bringers for new in bringer.bring(run.state)]
        if not brought:
            return
        members = [member for new in brought for member in new.members]
        check_batches(members, run.lengths)
        self.carry_out.journal_newcomers(brought)
        self.expect(members)
        # Other members may have waited for these.
        self.carry_out.call_resting()

    def expect(self, members: Sequence[Member], *, addition: str = "") -> None:
        """Add members of a command or a search to the study; their costs are unknown."""
        self.positions.extend(members)
        self.run.view.study(self.run.study)
        self.members.expect((member.name for member in members), addition=addition)
        if self.run.phase is Phase.TRAINING:
            self._admit_new()

    def _admit_new(self) -> None:
        """Let new members of a known kind wait at once, and measure the others."""
        if self.members.new:
            self.cost_table.request_costs(
                map(self.run.study.member, sorted(self.members.new, key=self.positions.number))
            )
            self._admit_measured()

    def _admit_measured(self) -> None:
        """Let new members whose costs are known wait for devices."""
        self._answer_additions()
        measured = self.cost_table.measured
        ready = (name for name in self.members.new if name in measured and not self.members.addition(name))
        entering = sorted(ready, key=self.positions.number)
        if not entering:
            return
        self.members.enter(entering)
        self.carry_out.write_joined(entering)
        self._fail_unfit(entering)
        for name in entering:
            # A clone may have come before members that it begins with.
            if self.members.state(name) is not State.ENDED:
                self.carry_out.apply_leaving_verdict(name)
        self.carry_out.make_room()

    def _answer_additions(self) -> None:
        """Answer commands whose members all have known costs: the members join, or are refused."""
        for addition, names in self.members.by_addition().items():
            if not all(name in self.cost_table.measured for name in names):
                continue
            try:
                self._check_fit(names)
            except PlanError as error:
                self.carry_out.refuse(addition, str(error))
            else:
                self.members.mark_answered(addition)
                self.carry_out.answer(addition, f"added {', '.join(names)}")

    def _fail_unfit(self, names: Iterable[str]) -> None:
        """Fail trials of a search that fit on no device; the others continue."""
        for name in tuple(names) if self.run.bringers else ():
            try:
                self._check_fit([name])
            except PlanError as error:
                self.carry_out.end(name, "failed", str(error))

    def _check_fit(self, names: Iterable[str]) -> None:
        """Raise PlanError if one of these members, with known costs, fits on no device."""
        members, cluster = [self.run.study.member(name) for name in names], self.starts.planner.cluster
        check_batch_norm(members, self.run.lengths, self.cost_table.measured)
        check_memory_fit([self.cost_table.profile(member) for member in members], cluster.devices)
