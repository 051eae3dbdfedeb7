"""Faults and what follows from them: a worker that is lost or hangs, an exchange that breaks, a device without memory.

Whoever shares no stream with what was lost goes on. Members of a lost trainer fall behind the others of their leg, and how they
go on is decided by what each way costs (`recovery`). What takes more, and every pause, is a *regrouping*: the trainers of the
legs concerned save their members and let them go; when the last one has, or has been ended because its time was over, the policy
is asked anew. A member goes on from its newest file, exactly.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from argosy.protocol.events import Divided, MemberEnded, MemberRested, Recovered, WorkerLost
from argosy.protocol.feeder import Parted
from argosy.protocol.trainer import Broke, Lost, OutOfMemory, Pause
from argosy.running.control.hangs import Hangs
from argosy.running.control.legs import LiveLeg
from argosy.running.control.recovery import Loss, Regrouping, Way, next_division
from argosy.running.control.standstills import Devices, Standstills
from argosy.running.control.tolerance import Tolerance
from argosy.running.control.verdicts import Fate, judge
from argosy.running.watch.phase import Phase
from argosy.stream.heartbeat import Sign
from argosy.study import Member

if TYPE_CHECKING:
    from argosy.running.control.driver import Driver

__all__ = ["Faults"]

BROKEN_SECONDS = 2.0
"""How long the reason of a broken group may be on its way."""
HANGS_TO_LET_GO = 2
"""Times ``hang_seconds`` that a trainer has to let its members go: a step may take as long as that, and so may their files."""


class Faults:
    """Of one run."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.regrouping = Regrouping()
        self.regrouped_legs: list[LiveLeg] = []
        """Those whose members are saved and let go."""
        self.afloat: set[str] = set()
        """Members that trained when a regrouping began, or were leaving a trainer that is gone."""
        self.hangs = Hangs(driver.settings.hang_seconds)
        self.standstills = Standstills(driver.settings.hang_seconds)
        self._hung: dict[str, str] = {}
        """What workers were doing that were killed for hanging, until they are lost."""
        self.saved_at: dict[str, float] = {}
        """By trainer: when members of it were saved last, or began; what they do from there on may have to be done again."""
        self.tolerance = Tolerance(driver.directory / "workers")
        self._broken: dict[str, tuple[float, str, str]] = {}
        """By member whose group broke: when, on which worker, and why."""

    def out_of_memory(self, worker: str, message: OutOfMemory) -> None:
        """Next time the member gets a device for itself; where it had one, smaller micro-batches."""
        if self.driver.scheduler.leg_starts.measures_beside(message.member):
            self.driver.measuring.too_large_beside(message.member)
            return
        member, measured = self.driver.study.member(message.member), self.driver.measuring.measured.get(message.member)
        device = self.driver.cluster.device(worker)
        now = self.driver.member_table.accumulate(member.name)
        crowded = (
            measured is not None
            and measured.memory_bytes < device.memory_bytes
            and len(self.driver.scheduler.assignment_of(worker)) > 1
        )
        if crowded:
            self.driver.measuring.crowded(member.name, device.memory_bytes)
        elif (parts := self._division(member, now, message)) is not None:
            self.driver.record(Divided(member=member.name, accumulate=parts))
        else:
            exact = self.driver.settings.numerics == "exact" and now < member.batch_size
            advice = "Lower its batch_size" + (" or allow numerics='equivalent'." if exact else ".")
            self.driver.end(member.name, "failed", f"out of memory alone on {worker}: {message.detail}. {advice}")
            return
        if self.driver.phase is Phase.MEASURING:
            self.driver.measure()
        elif self.driver.phase is Phase.TRAINING:
            self.regroup()

    def _division(self, member: Member, now: int, message: OutOfMemory) -> int | None:
        """Into how many micro-batches to cut its batches next; None where there is no such number, or none is allowed."""
        if self.driver.settings.numerics == "exact" or member.optimizers is not None:
            return None
        measured = self.driver.measuring.measured.get(member.name)
        batch_norm = message.batch_norm if measured is None else measured.batch_norm
        return next_division(member, self.driver.lengths["train"], now, batch_norm=batch_norm)

    # ---- losses

    def lost(self, worker: str, lost: Lost) -> None:
        self.hangs.forget(worker)
        detail = self._hung.pop(worker, lost.detail)
        self._note_loss(worker, detail)
        given_up = self._gives_up_node_of(worker, lost)
        self.driver.pool.lost(worker)
        self.driver.scheduler.forget_measurements()
        if not lost.node_gone:
            self._suspect_newcomers(worker, detail)
        if self.driver.phase is Phase.OPENING:
            # Nobody else would start a feeder again that has not opened the data.
            self.driver.pool.free_team(self.driver.pool.devices, ())
        elif self.driver.phase is Phase.MEASURING:
            for name in self.driver.scheduler.recovering.drop_unsaved(worker):
                self._settle(name)
            self.driver.measure()
        elif self.driver.phase is not Phase.OVER:
            self._go_on_without(worker, given_up=given_up)
        self.regrouping.let_go(worker)

    def _gives_up_node_of(self, worker: str, lost: Lost) -> bool:
        """Whether the run goes on without the node of a lost worker, and members may have trained there."""
        feeder, node = self.driver.pool.feeders.get(worker), self.driver.pool.node(worker)
        given_up = lost.node_gone or (feeder is not None and self.tolerance.gives_up(node))
        if not given_up or len(self.driver.cluster.nodes) == 1:
            return False
        unused = node in self.driver.scheduler.leg_starts.unopened
        self._give_up(node, lost.detail if lost.node_gone else "its feeders do not live")
        return not unused

    def _suspect_newcomers(self, trainer: str, detail: str) -> None:
        """A trainer may be lost for a newcomer that it was to measure; one that this happens to twice has failed."""
        driver = self.driver
        why = driver.measuring.lost(trainer, driver.scheduler.leg_starts.newcomers)
        if why is not None:
            driver.end(why, "failed", f"its trainer was lost for the second time ({detail})")

    def does_without(self, worker: str, error: Exception) -> bool:
        """Whether this is of a node that came while the run went on and cannot be used, which is given up for that."""
        node, unopened = self.driver.pool.node(worker), self.driver.scheduler.leg_starts.unopened
        if node not in unopened or len(self.driver.cluster.nodes) == 1:
            return False
        self._give_up(node, f"it cannot be used: {error}", answers=True)
        return True

    def _go_on_without(self, worker: str, *, given_up: bool) -> None:
        legs, sailing = self.driver.scheduler.legs_of(worker), self.driver.phase is Phase.TRAINING
        if sailing and not given_up and worker in self.driver.pool.devices and not self._shares(worker):
            self._fall_behind(worker)
            return
        self.afloat.update(self.driver.scheduler.recovering.drop_unsaved(worker))
        if given_up:
            self.regroup()
        elif any(leg not in self.regrouped_legs for leg in legs):
            self.regroup(legs)
        elif sailing:
            self.driver.start_training()  # It fed nobody.

    def _shares(self, trainer: str) -> bool:
        """Whether it carries a member together with others, which wait for it."""
        scheduler = self.driver.scheduler
        return any(len(leg.devices_of(name)) > 1 for leg in scheduler.legs for name in scheduler.assignment_of(trainer))

    def _fall_behind(self, trainer: str) -> None:
        """The members of a lost trainer wait for a place; the others of their leg go on, unless all going back is cheaper."""
        driver = self.driver
        recovering, legs = driver.scheduler.recovering, driver.scheduler.legs_of(trainer)
        lost = recovering.take_off(trainer)
        for name in lost:
            self._settle(name)
        lost = [name for name in lost if name in driver.member_table.waiting]
        leg = next((leg for leg in legs if leg.devices), None)
        way = Way.APART if leg is None or not lost else self._way_on(trainer, lost, leg)
        self.saved_at.pop(trainer, None)
        if way is Way.BACK:
            self.regroup(legs)
        else:
            recovering.fall_behind(lost, leg if way is Way.MEET else None)
            driver.start_training()

    def _way_on(self, trainer: str, lost: Sequence[str], leg: LiveLeg) -> Way:
        """By the planner's own figures; it is journaled."""
        driver, scheduler, launching = self.driver, self.driver.scheduler, self.driver.scheduler.launching
        profiles = driver.measuring.profiles(lost, driver.study)
        plan = launching.launch(scheduler.asking.situation(profiles, {}))
        beside = [scheduler.flotillas[leg.number].keeping(leg.members) for leg in scheduler.legs if leg.members]
        assignments = [
            driver.measuring.profiles(assignment.members, driver.study) for assignment in leg.assignments.values()
        ]
        sections = driver.study.validations_per_epoch
        ends = [driver.member_table.last_section(name) for name in lost]
        last = max(section if section is not None else (leg.section // sections + 2) * sections for section in ends)
        now = time.monotonic()
        loss = Loss(
            repeated_seconds=now - self.saved_at.get(trainer, now),
            restart_seconds=launching.restart_seconds([*assignments, profiles]),
            to_meeting=driver.member_table.samples_until(leg.section + 1, lost, driver.lengths),
            to_end=driver.member_table.samples_until(last, lost, driver.lengths),
            sample_seconds=launching.sample_seconds(
                [flotilla.samples_per_second for flotilla in (*beside, *plan.flotillas)]
            ),
        )
        # Where the policy has nothing for its device alone, its members would wait for the others' end.
        way = Way.BACK if plan.waiting else loss.cheapest
        costs = {str(way): round(seconds, 3) for way, seconds in loss.costs.items()}
        driver.record(Recovered(worker=trainer, members=tuple(lost), way=way, costs=costs))
        return way

    def parted(self, worker: str, parted: Parted) -> None:
        """Where a feeder is gone, the exchanges of all the others break: only the first word counts."""
        if not self.driver.pool.disband(worker, parted.team):
            return
        self._note_loss(f"{worker}/exchange", f"its exchange with the other nodes broke: {parted.detail}")
        self.driver.scheduler.forget_measurements()
        if self.driver.phase is Phase.MEASURING:
            self.driver.measure()
        elif self.driver.phase is not Phase.OVER:
            self._go_on_without(worker, given_up=False)

    def broke(self, worker: str, broke: Broke) -> None:
        """A group breaks where a rank is gone, was told to leave, or has failed; of each there is other word, mostly sooner."""
        self._broken.setdefault(broke.member, (time.monotonic(), worker, broke.detail))

    def _look_at_groups(self) -> None:
        """Where nothing else was heard of a member whose group broke, its devices have lost each other."""
        for member, (when, worker, detail) in list(self._broken.items()):
            waits = self.driver.phase is Phase.TRAINING and self.driver.scheduler.leg_of(member) is not None
            if not waits or member in self.driver.scheduler.leaving or self.driver.requests.was_told_to_stop(member):
                del self._broken[member]
            elif time.monotonic() - when > BROKEN_SECONDS:
                del self._broken[member]
                self._note_loss(f"{worker}/group", f"the group of {member!r} broke: {detail}")
                self.regroup(self.driver.scheduler.legs_of(worker))

    def _look_at_sums(self, shown: Mapping[str, Sequence[Sign]]) -> None:
        """Devices that wait for one another in vain have lost each other, though all of them live."""
        together: dict[Devices, list[str]] = {}
        for leg in self.driver.scheduler.legs:
            workers = [*leg.feeders, *leg.devices]
            # Who cannot board yet waits for somebody else.
            if leg not in self.regrouped_legs and not leg.boarding and all(worker in shown for worker in workers):
                together |= dict.fromkeys(leg.together, workers)
        for devices, detail in self.standstills.look(time.monotonic(), together, shown):
            self._note_loss(f"{devices[0]}/group", detail)
            self.regroup(self.driver.scheduler.legs_of(devices[0]))

    def _give_up(self, node: str, why: str, *, answers: bool = False) -> None:
        """Go on without a node."""
        self.driver.scheduler.leg_starts.unopened.discard(node)
        self.driver.cluster = self.driver.cluster.without(node)
        left = ", ".join(other.name for other in self.driver.cluster.nodes)
        detail = f"given up, {why}; the run goes on with {left}"
        self.driver.record(WorkerLost(worker=node, detail=detail))
        for device in self.driver.pool.abandon(node, answers=answers):
            self.regrouping.let_go(device)

    def _note_loss(self, worker: str, detail: str) -> None:
        self.driver.record(WorkerLost(worker=worker, detail=detail))
        self.tolerance.worker_lost(worker, detail)

    def look(self) -> None:
        shown: dict[str, tuple[Sign, ...]] = {}
        for worker in self.driver.pool.everybody:
            heartbeat = self.driver.pool.workers.heartbeat(worker)
            if heartbeat is not None:
                shown[worker] = heartbeat.look()
                seconds = partial(self.driver.pool.workers.cpu_seconds, worker)
                self.hangs.look(time.monotonic(), worker, shown[worker], seconds)
        for worker, doing, still in self.hangs.hanging():
            self._hung[worker] = f"no progress for {still:.0f} s while {doing}"
            self.driver.pool.workers.kill(worker)
        self._look_at_groups()
        self._look_at_sums(shown)
        for trainer in self.regrouping.late(time.monotonic()):
            self._hung[trainer] = f"its members were not saved and let go within {self._patience:g} s"
            self.driver.pool.workers.kill(trainer)

    # ---- regrouping

    @property
    def _patience(self) -> float:
        return HANGS_TO_LET_GO * self.driver.settings.hang_seconds

    def regroup(self, legs: Iterable[LiveLeg] | None = None) -> None:
        """Let every trainer of these legs, or of all, save its members and let them go; `regrouped` goes on from there."""
        scheduler = self.driver.scheduler
        chosen = scheduler.legs if legs is None else legs
        new = [leg for leg in chosen if leg not in self.regrouped_legs]
        self.driver.phase = Phase.REGROUPING
        self.regrouped_legs += new
        leaving = scheduler.leaving_of(None if legs is None else new)
        self.afloat.update(leaving, (name for leg in new for name in leg.members))
        devices = [*leaving.values(), *(device for leg in new for device in (*leg.devices, *leg.boarding))]
        busy = dict.fromkeys(device for device in devices if self.driver.pool.knows(device))
        for leg in new:
            leg.boarding.clear()  # Whoever waits to board has no part in it.
        self.regrouping.begin(busy, until=time.monotonic() + self._patience)
        for device in busy:
            self.driver.pool.send(device, Pause())

    def regrouped(self) -> None:
        """Nobody carries a member of these legs: end the run, or start again with what is there."""
        driver = self.driver
        self.regrouping.end()
        afloat, self.afloat = self.afloat, set()
        legs, self.regrouped_legs = self.regrouped_legs, []
        driver.scheduler.clear(legs, afloat)
        for name in sorted(afloat):
            self._settle(name)
        if driver.requests.pausing is not None:
            for name in sorted(driver.member_table.waiting):
                if name in afloat or driver.state.member(name).status == "training":
                    driver.record(MemberEnded(member=name, status="paused", reason=driver.requests.pausing))
            driver.phase = Phase.OVER
            return
        driver.scheduler.recovering.fall_behind(afloat.intersection(driver.member_table.waiting), None)
        if driver.measuring.missing & set(driver.member_table.waiting):
            driver.measure()
        else:
            driver.start_training()

    def _settle(self, name: str) -> None:
        """What becomes of a member that was saved, or lost, where a fault found it."""
        if self.driver.requests.was_told_to_stop(name):
            self.driver.end(name, "stopped", "by command")
        elif name not in self.driver.member_table.waiting and not self.decided(name):
            # One that waits had not boarded yet, and goes on where it was to.
            self.driver.member_table.take_back([name])

    def settle_earlier(self) -> None:
        """An earlier driver may have gone between a member's last file and its word on that member."""
        for name in self.driver.study.names:
            status = self.driver.state.member(name).status
            # One that was done, and waits, may do so because a search is to compare more than it was.
            revived = status == "done" and name in self.driver.member_table.waiting
            if (status in ("training", "paused") and name not in self.driver.member_table.resting) or revived:
                self.decided(name)

    def decided(self, name: str) -> bool:
        """Let a member end or rest if that is its verdict, and its newest file is that of its last section."""
        driver = self.driver
        verdict = judge(driver.judges, name, driver.state, driver.study)
        if verdict.fate is Fate.GO_ON or not driver.state.member(name).saved_at_its_end:
            return False
        if verdict.fate is Fate.END:
            driver.end(name, "done", verdict.reason)
        else:
            driver.record(MemberRested(member=name, reason=verdict.reason))
            driver.member_table.leave([name])
            driver.member_table.rest(name)
        return True
