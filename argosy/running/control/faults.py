"""Faults and their handling: a worker that is lost or hangs, an exchange that breaks, a device that runs out of memory.

Members that share no stream with what was lost continue. Members of a lost trainer fall behind the others of their leg; how they
continue is decided by the cost of each way (`losses`). Other faults, and every pause, need a *regrouping*: the trainers of the affected
legs save and release their members, and when the last one has, or was killed after a timeout, the policy is asked again. Members
continue exactly, from their latest checkpoints. Other legs pass their barriers meanwhile.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from argosy.protocol.feeder import Parted
from argosy.protocol.trainer import Broke, DevicePoisoned, Lost, OutOfMemory
from argosy.running.control.carry_out import ActingPart, CarryOut
from argosy.running.control.hangs import Hangs
from argosy.running.control.leg_starts import LegStarts
from argosy.running.control.legs import Gate, LiveLeg
from argosy.running.control.losses import Loss, RecoveryWay, Regrouping, next_micro_batches
from argosy.running.control.measurements import Measurements
from argosy.running.control.members import State
from argosy.running.control.run import Run
from argosy.running.control.standstills import Devices, Standstills
from argosy.running.watch.phase import Phase
from argosy.stream.heartbeat import Sign
from argosy.study import Member

__all__ = ["Faults"]

BROKEN_SECONDS = 2.0
"""How long to wait for a message that explains a broken group."""
HANGS_TO_LET_GO = 2
"""A trainer has this many times ``hang_seconds`` to release its members: once for the step at hand, and once for their files."""


class Faults(ActingPart):
    """Handles the faults of one run."""

    def __init__(self, run: Run, carry_out: CarryOut, measurements: Measurements) -> None:
        super().__init__(run, carry_out)
        self.measurements = measurements
        self.starts: LegStarts = measurements.starts
        self.regrouping: Regrouping = Regrouping()
        self.hangs: Hangs = Hangs(run.settings.hang_seconds)
        self.standstills: Standstills = Standstills(run.settings.hang_seconds)
        self.saved_at: dict[str, float] = {}
        """By trainer: when its members were last saved, or began; work since then may have to be repeated."""
        self.poisoned: dict[str, DevicePoisoned] = {}
        """Last messages of trainers whose devices have become unusable, until these trainers are lost."""
        self._hung: dict[str, str] = {}
        """What hung workers were doing when they were killed, until their loss is reported."""
        self._broken: dict[str, tuple[float, str, str]] = {}
        """By member whose group broke: the time, the worker that reported it, and the reason."""

    # ---- memory

    def handle_out_of_memory(self, worker: str, message: OutOfMemory) -> None:
        """Give the member a device of its own next time, unless memory was freed for it; if it had one, smaller micro-batches."""
        if self.measurements.is_measured_beside(message.member):
            self.cost_table.note_too_large(message.member)
            return
        member, device = self.run.study.member(message.member), self.run.cluster.device(worker)
        measured, exact = self.cost_table.measured.get(message.member), self.run.settings.numerics == "exact"
        now = self.positions.accumulate(member.name)
        crowded = (
            measured is not None
            and measured.memory_bytes < device.memory_bytes
            and len(self.legs.members_on(worker)) > 1
        )
        if message.freed:
            pass  # samples held the memory that it lacked; it continues unchanged
        elif crowded:
            self.cost_table.crowded(member.name, device.memory_bytes)
        elif (parts := self._next_micro_batches(member, now, message)) is not None:
            self.carry_out.set_micro_batches(member.name, parts)
        else:
            allow = " or allow numerics='equivalent'" if exact and now < member.batch_size else ""
            smaller = "batch_size" if member.eval_batch_size is None else "batch_size and its eval_batch_size"
            advice = f"Lower its {smaller}{allow}."
            self.carry_out.end(
                member.name, "failed", f"out of memory even alone on {worker}: {message.detail}. {advice}"
            )
            return
        if self.run.phase is Phase.MEASURING:
            self.measurements.measure()
        elif self.run.phase is Phase.TRAINING and self.members.state(member.name) is not State.REGROUPING:
            self.regroup()

    def _next_micro_batches(self, member: Member, now: int, message: OutOfMemory) -> int | None:
        """Return the next number of micro-batches per batch; None if there is none, or none is allowed."""
        if self.run.settings.numerics == "exact" or member.optimizers is not None:
            return None
        measured = self.cost_table.measured.get(member.name)
        batch_norm = message.batch_norm if measured is None else measured.batch_norm
        return next_micro_batches(member, self.run.lengths["train"], now, batch_norm=batch_norm)

    # ---- losses

    def handle_lost(self, worker: str, lost: Lost) -> None:
        """Handle the loss of a worker."""
        self.hangs.forget(worker)
        detail = self._hung.pop(worker, lost.detail)
        if (poisoned := self.poisoned.pop(worker, None)) is None:
            self.carry_out.record_loss(worker, detail)
        else:
            self._note_poison(worker, poisoned)
        # Before the pool handles the loss, which would start a trainer of the node again.
        given_up = self._give_up_node_of(worker, lost)
        self.pool.handle_lost(worker)
        self.measurements.discard_measurements()
        if not lost.node_gone:
            self._suspect_new(worker, detail)
        if self.run.phase is Phase.OPENING:
            # No other part restarts a feeder that has not opened the data.
            self.pool.free_team(self.pool.devices, ())
        elif self.run.phase is Phase.MEASURING:
            self.carry_out.resume_or_end(self.carry_out.drop_unsaved(worker))
            self.measurements.measure()
        elif self.run.phase is not Phase.OVER:
            self._continue_without(worker, given_up=given_up)
        # Last: a regrouping that has begun above waits for all trainers of its legs, also for this one, which has no members any more.
        self.regrouping.mark_released(worker)

    def _give_up_node_of(self, worker: str, lost: Lost) -> bool:
        """Return whether the run continues without the node of a lost worker, on which members may have trained."""
        node = self.pool.node(worker)
        given_up = lost.node_gone or (worker in self.pool.feeders and self.run.tolerance.count_node_loss(node))
        if not given_up or len(self.run.cluster.nodes) == 1:
            return False
        unused = node in self.starts.unopened
        self._give_up(node, lost.detail if lost.node_gone else "its feeders keep dying")
        return not unused

    def _note_poison(self, trainer: str, poisoned: DevicePoisoned) -> None:
        """Suspect the members of a trainer whose device became unusable; a suspect that certainly caused it has failed.

        The first time, the device itself may be the cause.
        """
        certain = [name for name in poisoned.members if name in self.run.study.names]
        guilty = len(certain) == 1 and certain[0] in self.state.suspects
        if guilty:
            self.run.tolerance.reset_losses()
        self.carry_out.record_loss(trainer, poisoned.detail, suspects=certain or self.legs.members_on(trainer))
        if guilty:
            advice = (
                "Check for labels and indices out of range, and for NaN in probabilities (BCELoss, multinomial). "
                "With CUDA_LAUNCH_BLOCKING=1, the traceback in its log shows the call."
            )
            again = f"its kernel failed an assertion on {trainer} for the second time ({poisoned.detail})"
            self.carry_out.end(certain[0], "failed", f"{again}. {advice}")

    def _suspect_new(self, trainer: str, detail: str) -> None:
        """Suspect a new member that a lost trainer had to measure; a member to which this happens twice has failed."""
        why = self.cost_table.handle_lost_trainer(trainer, self.members.new)
        if why is not None:
            self.carry_out.end(why, "failed", f"its trainer was lost for the second time ({detail})")

    def give_up_new_node(self, worker: str, error: Exception) -> bool:
        """Return whether an error belongs to a node that came during the run; such a node is given up."""
        node = self.pool.node(worker)
        if node not in self.starts.unopened or len(self.run.cluster.nodes) == 1:
            return False
        self._give_up(node, f"it cannot be used: {error}", answers=True)
        return True

    def _continue_without(self, worker: str, *, given_up: bool) -> None:
        legs = self.legs.with_worker(worker)
        regroups = self.run.phase is Phase.ENDING or any(leg.gate is Gate.REGROUPING for leg in legs)
        if not given_up and not regroups and worker in self.pool.devices and not self._steps_split_member(worker):
            self._recover_members(worker)
            return
        self.carry_out.drop_unsaved(worker)
        if given_up:
            self.regroup()
        elif any(leg.gate is not Gate.REGROUPING for leg in legs):
            self.regroup(legs)
        elif not regroups:
            self.measurements.train()  # The node fed no leg.

    def _steps_split_member(self, trainer: str) -> bool:
        """Return whether a trainer steps a split member, whose other devices wait for it."""
        return any(len(leg.devices_of(name)) > 1 for leg in self.legs.live for name in self.legs.members_on(trainer))

    def _recover_members(self, trainer: str) -> None:
        """Let the members of a lost trainer wait for a device while the others of their leg continue, unless going back together is cheaper."""
        legs = self.legs.with_worker(trainer)
        lost = self.carry_out.unassign_lost(trainer)
        self.carry_out.resume_or_end(lost)
        lost = [name for name in lost if self.members.is_waiting(name)]
        leg = next((leg for leg in legs if leg.devices), None)
        way = RecoveryWay.APART if leg is None or not lost else self._choose_way(trainer, lost, leg)
        self.saved_at.pop(trainer, None)
        if way is RecoveryWay.BACK:
            self.regroup(legs)
        else:
            self.carry_out.begin_recovery(lost, leg if way is RecoveryWay.MEET else None)
            self.measurements.train()

    def _choose_way(self, trainer: str, lost: Sequence[str], leg: LiveLeg) -> RecoveryWay:
        """Choose how lost members continue, by the planner's own figures, and journal it."""
        per_epoch, lengths = self.run.per_epoch, self.run.lengths
        profiles = self.decisions.profiles(lost)
        plan = self.planner.launch(self.decisions.situation(profiles, {}))
        beside = [other.flotilla.keeping(other.members) for other in self.legs.live if other.members]
        assignments = [self.decisions.profiles(assignment.members) for assignment in leg.assignments.values()]
        ends = [self.positions.end_section(name) for name in lost]
        # Members without a limit are taken to train to the end of the next epoch.
        beyond = (leg.section // per_epoch + 2) * per_epoch
        now = time.monotonic()
        loss = Loss(
            repeated_seconds=now - self.saved_at.get(trainer, now),
            restart_seconds=self.planner.restart_seconds([*assignments, profiles]),
            to_meeting=self.positions.samples_until(leg.section + 1, lost, lengths),
            to_end=self.positions.samples_until(max(beyond if end is None else end for end in ends), lost, lengths),
            sample_seconds=self.planner.sample_seconds(
                [flotilla.samples_per_second for flotilla in (*beside, *plan.flotillas)]
            ),
        )
        # If the policy starts nothing on its device alone, its members would wait until the others end.
        way = RecoveryWay.BACK if plan.waiting else loss.cheapest
        costs = {str(way): round(seconds, 3) for way, seconds in loss.costs.items()}
        self.carry_out.record_recovery(trainer, lost, way, costs)
        return way

    def handle_parted(self, worker: str, parted: Parted) -> None:
        """Handle a broken exchange between feeders; if a feeder is lost, all others report it, and only the first message counts."""
        if not self.pool.disband(worker, parted.team):
            return
        self.carry_out.record_loss(f"{worker}/exchange", f"its exchange with the other nodes broke: {parted.detail}")
        self.measurements.discard_measurements()
        if self.run.phase is Phase.MEASURING:
            self.measurements.measure()
        elif self.run.phase is not Phase.OVER:
            self._continue_without(worker, given_up=False)

    def handle_broke(self, worker: str, broke: Broke) -> None:
        """Handle a broken group: a rank is lost, was told to leave, or has failed, which is mostly reported earlier."""
        self._broken.setdefault(broke.member, (time.monotonic(), worker, broke.detail))

    def _give_up(self, node: str, why: str, *, answers: bool = False) -> None:
        """Continue without a node."""
        self.starts.unopened.discard(node)
        for device in self.carry_out.give_up(node, why, answers=answers):
            self.regrouping.mark_released(device)

    # ---- signs of life

    def poll(self) -> None:
        """Find workers that hang, groups that broke or are stuck, and trainers that do not release their members."""
        now = time.monotonic()
        shown: dict[str, tuple[Sign, ...]] = {}
        for worker in self.pool.all_workers:
            signs = self.pool.signs(worker)
            if signs is not None:
                shown[worker] = signs
                self.hangs.observe(now, worker, signs, partial(self.pool.workers.cpu_seconds, worker))
        for worker, doing, still in self.hangs.hanging():
            self._kill_hung(worker, f"no progress for {still:.0f} s while {doing}")
        self._check_groups()
        self._check_sums(shown)
        for trainer in self.regrouping.take_overdue(time.monotonic()):
            self._kill_hung(trainer, f"its members were not saved and released within {self._release_seconds:g} s")

    def _kill_hung(self, worker: str, why: str) -> None:
        self._hung[worker] = why
        self.pool.workers.kill(worker)

    def _check_groups(self) -> None:
        """Regroup members whose groups broke for no other reported reason: their devices have lost each other."""
        for member, (when, worker, detail) in list(self._broken.items()):
            leg = self.legs.of(member)
            waits = self.run.phase is Phase.TRAINING and leg is not None and leg.gate is not Gate.REGROUPING
            if not waits or self.members.leaving_of(member) or self.members.is_asked_to_stop(member):
                del self._broken[member]
            elif time.monotonic() - when > BROKEN_SECONDS:
                del self._broken[member]
                self.carry_out.record_loss(f"{worker}/group", f"the group of {member!r} broke: {detail}")
                self.regroup(self.legs.with_worker(worker))

    def _check_sums(self, shown: Mapping[str, Sequence[Sign]]) -> None:
        """Regroup members whose devices wait for each other in vain although all of them are alive."""
        linked_devices: dict[Devices, list[str]] = {}
        for leg in self.legs.live:
            # A device whose assignment cannot start yet waits for another device.
            linked = leg.linked_devices if leg.gate is not Gate.REGROUPING and not leg.starting else []
            workers = [*leg.feeders, *leg.devices] if linked else []
            if all(worker in shown for worker in workers):
                linked_devices |= dict.fromkeys(linked, workers)
        for devices, detail in self.standstills.observe(time.monotonic(), linked_devices, shown):
            self.carry_out.record_loss(f"{devices[0]}/group", detail)
            self.regroup(self.legs.with_worker(devices[0]))

    # ---- regrouping

    @property
    def _release_seconds(self) -> float:
        return HANGS_TO_LET_GO * self.run.settings.hang_seconds

    def pause(self) -> None:
        """Save every member at its position, and end the run."""
        self.run.phase = Phase.ENDING
        self.regroup()

    def regroup(self, legs: Iterable[LiveLeg] | None = None) -> None:
        """Let every trainer of some or all legs save and release its members; `finish_regrouping` continues from there."""
        self.regrouping.begin(self.carry_out.regroup(legs), until=time.monotonic() + self._release_seconds)

    def finish_regrouping(self) -> None:
        """Once no trainer has a member of a regrouping leg, end the run or start again with the remaining workers."""
        if not self.regrouping.over:
            return
        self.regrouping.end()
        names = self.members.regrouping
        for leg in self.legs.regrouping:
            self.carry_out.end_leg(leg)
        self.measurements.end_measuring()
        self.carry_out.resume_or_end(sorted(names))
        waiting = set(self.members.waiting)
        if self.run.pause_reason is not None:
            training = {name for name in waiting if self.state.member(name).status == "training"}
            self.carry_out.record_paused(sorted(training | waiting.intersection(names)), self.run.pause_reason)
            self.run.phase = Phase.OVER
            return
        self.carry_out.begin_recovery(waiting.intersection(names), None)
        if self.cost_table.missing & waiting and not self.legs.live:
            self.measurements.measure()
        else:
            self.measurements.train()
