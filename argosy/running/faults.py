"""Faults and what follows from them: a worker that is lost or hangs, an exchange that breaks, a device without memory.

There is one way out, *regroup*: every trainer saves its members and lets them go; when the last one has, what was lost is there
again, and the policy is asked anew. A member goes on from its newest file, exactly. The same way ends a run that is paused.
"""

import time
from functools import partial
from typing import TYPE_CHECKING

from argosy.commands import Broke, Lost, OutOfMemory, Parted, Pause
from argosy.events import Divided, MemberEnded, MemberRested, WorkerLost
from argosy.running.hangs import Hangs
from argosy.running.phase import Phase
from argosy.running.recovery import Regrouping, next_division
from argosy.running.tolerance import Tolerance
from argosy.running.verdicts import Fate, judge
from argosy.study import Member

if TYPE_CHECKING:
    from argosy.running.driver import Driver

__all__ = ["Faults"]

BROKEN_SECONDS = 2.0
"""How long the reason of a broken group may be on its way."""


class Faults:
    """Of one run."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.regrouping = Regrouping()
        self.afloat: set[str] = set()
        """Members that trained when a regrouping began."""
        self.hangs = Hangs(driver.settings.hang_seconds)
        self._hung: dict[str, str] = {}
        """What workers were doing that were killed for hanging, until they are lost."""
        self.tolerance = Tolerance(driver.directory / "workers")
        self._broken: dict[str, tuple[float, str, str]] = {}
        """By member whose group broke: when, on which worker, and why."""

    def out_of_memory(self, worker: str, message: OutOfMemory) -> None:
        """Next time the member gets a device for itself; where it had one, smaller micro-batches."""
        member, measured = self.driver.study.member(message.member), self.driver.measuring.measured.get(message.member)
        device = self.driver.cluster.device(worker)
        now = self.driver.roster.accumulate(member.name)
        crowded = (
            measured is not None
            and measured.memory_bytes < device.memory_bytes
            and len(self.driver.voyage.crew_of(worker)) > 1
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
        elif self.driver.phase is Phase.SAILING:
            self.regroup()

    def _division(self, member: Member, now: int, message: OutOfMemory) -> int | None:
        """Into how many micro-batches to cut its batches next; None where there is no such number, or none is allowed."""
        if self.driver.settings.numerics == "exact":
            return None
        measured = self.driver.measuring.measured.get(member.name)
        batch_norm = message.batch_norm if measured is None else measured.batch_norm
        return next_division(member, self.driver.lengths["train"], now, batch_norm=batch_norm)

    def lost(self, worker: str, detail: str) -> None:
        self.hangs.forget(worker)
        self._note_loss(worker, self._hung.pop(worker, detail))
        feeder = self.driver.force.feeders.get(worker)
        if feeder is not None and self.tolerance.gives_up(feeder.node) and len(self.driver.cluster.nodes) > 1:
            self._give_up(feeder.node)
        self.driver.force.lost(worker)
        self.driver.voyage.lost(worker)
        if self.driver.phase is Phase.OPENING:
            # Nobody else would start a feeder again that has not opened the data.
            self.driver.force.free_team(self.driver.force.devices, ())
        elif self.driver.phase is Phase.MEASURING:
            self.driver.measure()
        elif self.driver.phase is Phase.SAILING:
            self.regroup(gone=worker)
        self.regrouping.let_go(worker)

    def parted(self, worker: str, parted: Parted) -> None:
        """Where a feeder is gone, the couriers of all the others break: only the first word counts."""
        if self.driver.phase is Phase.REGROUPING or not self.driver.force.in_team(worker, parted.team):
            return
        self._note_loss(f"{worker}/courier", f"its exchange with the other nodes broke: {parted.detail}")
        self.driver.voyage.lost(worker)
        if self.driver.phase is Phase.MEASURING:
            self.driver.measure()
        elif self.driver.phase is Phase.SAILING:
            self.regroup()

    def broke(self, worker: str, broke: Broke) -> None:
        """A group breaks where a rank is gone, was told to leave, or has failed; of each there is other word, mostly sooner."""
        self._broken.setdefault(broke.member, (time.monotonic(), worker, broke.detail))

    def _look_at_groups(self) -> None:
        """Where nothing else was heard of a member whose group broke, its devices have lost each other."""
        for member, (when, worker, detail) in list(self._broken.items()):
            waits = self.driver.phase is Phase.SAILING and self.driver.voyage.leg_of(member) is not None
            if not waits or member in self.driver.voyage.leaving or self.driver.orders.was_told_to_stop(member):
                del self._broken[member]
            elif time.monotonic() - when > BROKEN_SECONDS:
                del self._broken[member]
                self._note_loss(f"{worker}/group", f"the group of {member!r} broke: {detail}")
                self.regroup()

    def _give_up(self, node: str) -> None:
        """Go on without a node whose feeders do not live."""
        self.driver.cluster = self.driver.cluster.without(node)
        left = ", ".join(other.name for other in self.driver.cluster.nodes)
        gone = Lost(detail=f"given up, its feeders do not live; the run goes on with {left}")
        self.driver.record(WorkerLost(worker=node, detail=gone.detail))
        self.driver.view.hear(node, gone)
        for device in self.driver.force.abandon(node):
            self.regrouping.let_go(device)

    def _note_loss(self, worker: str, detail: str) -> None:
        self.driver.record(WorkerLost(worker=worker, detail=detail))
        self.tolerance.worker_lost(worker, detail)

    def look(self) -> None:
        for worker in self.driver.force.everybody:
            pulse = self.driver.force.workers.pulse(worker)
            if pulse is not None:
                seconds = partial(self.driver.force.workers.cpu_seconds, worker)
                self.hangs.look(time.monotonic(), worker, pulse.look(), seconds)
        for worker, doing, still in self.hangs.hanging():
            self._hung[worker] = f"no progress for {still:.0f} s while {doing}"
            self.driver.force.workers.kill(worker)
        self._look_at_groups()

    def regroup(self, *, gone: str | None = None) -> None:
        """Let every trainer save its members and let them go; `regrouped` goes on from there."""
        self.driver.phase = Phase.REGROUPING
        self.afloat = self.driver.voyage.afloat()
        busy = {device for device in self.driver.voyage.devices if self.driver.force.knows(device) and device != gone}
        self.driver.voyage.board_nobody()
        self.regrouping.begin(busy)
        for device in busy:
            self.driver.force.send(device, Pause())

    def regrouped(self) -> None:
        """Nobody carries a member: end the run, or start again with what is there."""
        self.regrouping.end()
        afloat, self.afloat = self.afloat, set()
        self.driver.voyage.clear()
        for name in sorted(afloat):
            self._settle(name)
        if self.driver.orders.pausing is not None:
            for name in sorted({*self.driver.roster.waiting} & afloat):
                self.driver.tell(MemberEnded(member=name, status="paused", reason=self.driver.orders.pausing))
            self.driver.phase = Phase.OVER
            return
        if self.driver.measuring.missing & set(self.driver.roster.waiting):
            self.driver.measure()
        else:
            self.driver.sail()

    def _settle(self, name: str) -> None:
        """What becomes of a member that was saved, or lost, where a fault found it."""
        if self.driver.orders.was_told_to_stop(name):
            self.driver.end(name, "stopped", "by command")
        elif name not in self.driver.roster.waiting and not self._decided(name):
            # One that waits had not boarded yet, and goes on where it was to.
            self.driver.roster.take_back([name])

    def settle_earlier(self) -> None:
        """An earlier driver may have gone between a member's last file and its word on that member."""
        for name in self.driver.study.names:
            status = self.driver.state.member(name).status
            # One that was done, and waits, may do so because a search is to compare more than it was.
            revived = status == "done" and name in self.driver.roster.waiting
            if (status in ("training", "paused") and name not in self.driver.roster.resting) or revived:
                self._decided(name)

    def _decided(self, name: str) -> bool:
        """Let a member end or rest if that is its verdict, and its newest file is that of its last section."""
        driver = self.driver
        verdict = judge(driver.judges, name, driver.state, driver.study)
        if verdict.fate is Fate.GO_ON or not driver.state.member(name).saved_at_its_end:
            return False
        if verdict.fate is Fate.END:
            driver.end(name, "done", verdict.reason)
        else:
            driver.tell(MemberRested(member=name, reason=verdict.reason))
            driver.roster.leave([name])
            driver.roster.rest(name)
        return True
