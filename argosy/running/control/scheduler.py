"""The legs of a run: starts them, judges their members, and at their barriers carries changes out.

A barrier is where a leg stands when all its assignments have reported everything that it has credit for. There members whose fate it is
leave, the policy is asked once, and assignments change: who leaves is told to, who starts waits until its last file is journaled, and
everybody else goes on at once with the next credit. Nobody who does not move is saved, stopped or started again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from argosy.planning import POLICIES
from argosy.plans import Flotilla
from argosy.protocol.events import MemberRested, Split
from argosy.protocol.feeder import Credit, Held, Hold, Opened
from argosy.protocol.trainer import Assign, Seat, Unassign
from argosy.running.control.asking import Asking
from argosy.running.control.launching import Launching
from argosy.running.control.leg_starts import LegStarts, assignments_of
from argosy.running.control.legs import Change, Leaving, LiveLeg, Starting, difference, reseated
from argosy.running.control.predictions import Predictions
from argosy.running.control.recovering import Recovering
from argosy.running.control.verdicts import Fate, Verdict, judge

if TYPE_CHECKING:
    from argosy.running.control.driver import Driver

__all__ = ["LegScheduler"]


class LegScheduler:
    """All legs of one run."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.member_table, self.pool, self.state = driver.member_table, driver.pool, driver.state
        packs, name = driver.packs, driver.settings.policy
        self.launching = Launching(
            cluster=driver.cluster,
            policy_name=packs.name if packs else name,
            policy=packs or POLICIES[name],
        )
        self.leg_starts, self.asking = LegStarts(self), Asking(self)
        self.recovering, self.predictions = Recovering(self), Predictions(self)
        self.legs: list[LiveLeg] = []
        self.flotillas: dict[int, Flotilla] = {}
        """What was planned, by number of its leg."""
        self.assignment_count = 0
        self.changed = False
        """Whether members wait or devices are free that the policy has not been asked about."""
        self.judged: set[str] = set()
        """Members aboard that have ended a section since the last barrier, where their verdicts count."""
        self.leaving: dict[str, Leaving] = {}
        """Members that were told to leave, until they are saved."""
        self.rendezvous: dict[str, str] = {}
        """Of members that several devices carry: where these find each other."""

    # ---- what is aboard

    @property
    def devices(self) -> list[str]:
        """Those that carry somebody, or are about to."""
        return [device for leg in self.legs for device in (*leg.devices, *leg.boarding)]

    @property
    def under_way(self) -> bool:
        """Whether somebody trains, is being saved, or is to join."""
        return bool(self.legs or self.leaving or self.leg_starts.newcomers)

    def afloat(self) -> set[str]:
        """Members that train, or are about to."""
        return {name for leg in self.legs for name in leg.members} | set(self.leaving)

    def assignment_of(self, device: str) -> list[str]:
        """The members aboard a device."""
        return [name for leg in self.legs if device in leg.assignments for name in leg.assignments[device].members]

    def leg_of(self, member: str) -> LiveLeg | None:
        """Where a member trains."""
        return next((leg for leg in self.legs if leg.devices_of(member)), None)

    def number_of_leg(self, member: str) -> int:
        """Of the leg where a member trains, or that it is leaving; 0 where there is none."""
        if member in self.leaving:
            return self.leaving[member].leg
        leg = self.leg_of(member)
        return 0 if leg is None else leg.number

    def legs_of(self, worker: str) -> list[LiveLeg]:
        """Those that a worker feeds, or steps members of."""
        return [leg for leg in self.legs if worker in (*leg.feeders, *leg.devices, *leg.boarding)]

    def leaving_of(self, legs: Iterable[LiveLeg] | None) -> dict[str, str]:
        """Members that leave these legs, or any, and the devices that save them."""
        numbers = None if legs is None else {leg.number for leg in legs}
        return {
            name: leaving.device for name, leaving in self.leaving.items() if numbers is None or leaving.leg in numbers
        }

    def know(self, opened: Opened) -> None:
        """The data is open."""
        self.launching.preparation_seconds = opened.seconds_per_sample
        self.launching.samples_per_epoch = opened.lengths["train"]
        self.launching.opening_seconds = opened.opening_seconds
        self.driver.measuring.samples_per_epoch = opened.lengths["train"]

    def clear(self, legs: Sequence[LiveLeg], members: Collection[str]) -> None:
        """Nobody carries these members any more, who were all that these legs had."""
        for leg in legs:
            self._end(leg)
        self.judged.difference_update(members)
        for name in members:
            self.leaving.pop(name, None)
        self.leg_starts.forget_measuring()
        self.driver.measuring.again()

    def _end(self, leg: LiveLeg) -> None:
        self.legs.remove(leg)
        self.pool.rest(leg.feeders)
        self.recovering.over(leg)
        self.predictions.end(leg)
        self.changed = True

    def forget_measurements(self) -> None:
        """A worker is gone, or its exchange with others broke: what was being found out together comes to nothing."""
        self.leg_starts.know_cluster()
        self.leg_starts.forget_measuring()
        self.leg_starts.sharing.ask(())

    def ended(self, member: str) -> None:
        """A member has left the run, wherever it was."""
        self.judged.discard(member)
        self.changed |= self.leaving.pop(member, None) is not None
        self.leg_starts.ended(member)
        self.recovering.forget(member)
        for leg in self.legs:
            devices = leg.devices_of(member)
            for device in devices if len(devices) > 1 else ():
                # One of its ranks has said so.
                self.pool.send(device, Unassign(members=(member,)))
            if leg.remove(member):
                self.changed = True
        self.arrive(member)

    def make_room(self) -> None:
        """Somebody waits: let every leg come to a barrier at an epoch's end."""
        self.changed = True
        for leg in [leg for leg in self.legs if self.recovering.goes_to(leg) is None]:
            self._hold(leg)

    def _hold(self, leg: LiveLeg) -> None:
        multiple = self.driver.study.validations_per_epoch
        for feeder in leg.hold():
            self.pool.send(feeder, Hold(leg=leg.number, multiple=multiple))

    # ---- what assignments say

    def judge(self, member: str) -> None:
        """After a section of a member: how far it goes on for certain; where it does not, the leg comes to a barrier."""
        leg = self.leg_of(member)
        if leg is None:
            return
        self.judged.add(member)
        self._verdict(leg, member)

    def _verdict(self, leg: LiveLeg, member: str) -> Verdict:
        verdict = judge(self.driver.judges, member, self.state, self.driver.study)
        certain = verdict.certain if verdict.fate is Fate.GO_ON else 0
        leg.free_until[member] = self._next_section(member) + certain
        if verdict.longest is not None:
            leg.last[member] = self._next_section(member) + verdict.longest
        return verdict

    def _fates(self, leg: LiveLeg) -> dict[str, Verdict]:
        """Who leaves a leg at its barrier: with what others have reached there, who would have waited for it may go on."""
        judged = [name for name in leg.members if name in self.judged]
        self.judged -= set(judged)
        verdicts = {name: self._verdict(leg, name) for name in judged}
        return {name: verdict for name, verdict in verdicts.items() if verdict.fate is not Fate.GO_ON}

    def _next_section(self, member: str) -> int:
        last = self.state.member(member).sections[-1]
        return last.stream_epoch * self.driver.study.validations_per_epoch + last.section + 1

    def section_ended(self, device: str, section: int) -> None:
        """An assignment is through a section."""
        for leg in self.legs:
            if device in leg.assignments:
                leg.reported(device, section)
                self.predictions.turn(leg)

    def held(self, feeder: str, held: Held) -> None:
        """A feeder has said where it stops; when all have, those that are behind may come as far as the others."""
        for leg in self.legs:
            if leg.number == held.leg and leg.held(feeder, held.until):
                self.allow(leg, leg.until)
                self.changed = True  # Whoever is to meet it there may be sent off.

    def left(self, member: str) -> None:
        """A member was saved and let go."""
        told = self.driver.requests.was_told_to_stop(member)
        if member not in self.leaving or told:
            # A person said so, or all leave and `Driver` knows why.
            if told:
                self.driver.end(member, "stopped", "by command")
            return
        verdict = self.leaving.pop(member).verdict
        if verdict is None:
            self.driver.record(MemberRested(member=member, reason=""))
            self.member_table.take_back([member])
            self.changed = True
            self.arrive(member)
        elif verdict.fate is Fate.REST:
            self.driver.record(MemberRested(member=member, reason=verdict.reason))
            self.member_table.rest(member)
            self.recovering.forget(member)
            self.changed = True
        else:
            self.driver.end(member, "done", verdict.reason)

    def arrive(self, member: str) -> None:
        """A member's last file is journaled, or there will be none: whoever waited for it to board waits no longer."""
        for leg in self.legs:
            for device, boarding in list(leg.boarding.items()):
                boarding.missing.discard(member)
                if not boarding.missing:
                    del leg.boarding[device]
                    self.board(leg, device, start=boarding.start)

    # ---- barriers

    def go_on(self) -> None:
        """Whatever can go on goes on: barriers, credit, and new legs for members that wait."""
        self.call()
        self.leg_starts.bring()
        self.leg_starts.admit_nodes()
        for leg in list(self.legs):
            if leg.at_barrier and not leg.boarding and not self.recovering.awaited(leg):
                self._barrier(leg)
            elif not leg.holding and leg.members:
                self._extend(leg)
        if self.changed:
            self.changed = False
            self.leg_starts.launch()
        self.leg_starts.measure_unknown()

    def call(self) -> None:
        """Let those resting members wait for a place whom a judge calls, or end."""
        driver = self.driver
        called = {n for j in driver.judges for n in j.called(self.member_table.resting, self.state, driver.study)}
        for name in called & self.member_table.resting:
            verdict = judge(driver.judges, name, self.state, driver.study)
            if verdict.fate is Fate.END:
                driver.end(name, "done", verdict.reason)
            else:
                self.member_table.call(name)
                self.make_room()

    def _extend(self, leg: LiveLeg) -> None:
        if self._others_wait and leg.until % self.driver.study.validations_per_epoch == 0:
            return  # The barrier that others wait for.
        until = leg.reach(turns=self.turns(leg))
        if until > leg.until:
            self.allow(leg, until)

    def turns(self, leg: LiveLeg) -> int | None:
        """Where others wait for their turn, it may come at the next epoch's end; who is to meet others goes to their barrier."""
        meets = self.recovering.goes_to(leg)
        if meets is not None:
            return meets.until
        if self.recovering.to_meet(leg):
            return leg.until + 1
        per_epoch = self.driver.study.validations_per_epoch
        return (leg.until // per_epoch + 1) * per_epoch if self._others_wait else None

    @property
    def _others_wait(self) -> bool:
        """Whether somebody has no place, or is leaving one for no other."""
        leaving = (name for name, leaving in self.leaving.items() if leaving.verdict is None)
        return bool(self.recovering.others(self.member_table.waiting)) or any(
            self.leg_of(name) is None for name in leaving
        )

    def allow(self, leg: LiveLeg, until: int) -> None:
        leg.until = until
        turns = (self._others_wait and leg.makes_room) or self.recovering.goes_to(leg) is not None
        horizon = until if turns else leg.horizon
        credit = Credit(leg=leg.number, until=until, horizon=_most(horizon, until), assignments=leg.numbers())
        leg.readers = tuple(credit.assignments)
        self.pool.allow(leg.feeders, credit)

    def _barrier(self, leg: LiveLeg) -> None:
        """Nobody steps: let those leave whose fate it is, ask the policy if anything has changed, and go on."""
        self.recovering.meet(leg)
        fates = self._fates(leg)
        live = [name for name in leg.members if name not in fates]
        wanted: Mapping[str, Iterable[str]] = {
            device: [name for name in assignment.members if name not in fates]
            for device, assignment in leg.assignments.items()
        }
        joins, meets, anew = leg.holding, self.recovering.goes_to(leg), set[str]()
        leg.holding = False
        if meets is not None and meets.until == leg.until:
            wanted = {}
        elif fates or joins or self.recovering.others(self.member_table.waiting):
            flotilla = self.asking.ask(leg, live)
            wanted = {} if flotilla is None else assignments_of(flotilla)
            if flotilla is not None and leg.makes_room:
                anew = reseated(self.flotillas[leg.number], flotilla)
                self.flotillas[leg.number] = flotilla
        changes = difference(
            {device: assignment.members for device, assignment in leg.assignments.items()}, wanted, anew
        )
        if changes:
            self._change(leg, changes, fates)
        if not leg.members:
            self._end(leg)
            if not self.member_table.waiting:
                # Others may spread over its devices.
                self.make_room()
            return
        if changes:
            self.predictions.change(leg, [name for change in changes.values() for name in change.start])
        too_soon = (fates or joins) and self.asking.too_soon(leg)
        self.allow(leg, leg.reach(turns=self.turns(leg)))
        leg.holding = self.recovering.to_meet(leg)
        if too_soon:
            self._hold(leg)
        # Who found no place here may find one on devices that are free.
        self.changed |= joins and bool(self.member_table.waiting)

    def _change(self, leg: LiveLeg, changes: Mapping[str, Change], fates: Mapping[str, Verdict]) -> None:
        """Let assignments change on these devices; whoever moves starts when the device that it leaves has saved it."""
        started = {name for change in changes.values() for name in change.start}
        for name in dict.fromkeys(name for change in changes.values() for name in change.leave):
            self.leaving[name] = Leaving(leg=leg.number, device=leg.savers[name], verdict=fates.get(name))
            if name not in started:
                leg.forget(name)
        self.seat(leg, started)
        for device, change in changes.items():
            self.assignment_count += 1
            leg.change(device, self.assignment_count, change)
            missing = {name for name in change.start if name in self.leaving}
            self.expect(leg, [name for name in change.start if name not in missing])
            if missing:
                leg.boarding[device] = Starting(start=change.start, missing=missing)
                self.member_table.joining.difference_update(change.start)  # their next epoch is this leg's
                self.pool.send(device, Unassign(members=change.leave))
            else:
                self.board(leg, device, leave=change.leave, start=change.start)

    def expect(self, leg: LiveLeg, names: Iterable[str]) -> None:
        """These are about to begin in a leg: how far they go for certain, and at most."""
        for name in names:
            verdict = judge(self.driver.judges, name, self.state, self.driver.study)
            leg.free_until[name] = self.member_table.place(name) + verdict.certain
            leg.last[name] = self.member_table.last_section(name)

    def seat(self, leg: LiveLeg, names: Iterable[str]) -> None:
        """These are about to begin: who saves each; those that several devices carry need a place to meet."""
        placements = [self.flotillas[leg.number].of(name) for name in names]
        leg.savers |= {placement.member: placement.devices[0] for placement in placements}
        self.rendezvous |= {split.member: self.pool.workers.rendezvous() for split in placements if split.is_split}

    def _seat_of(self, leg: LiveLeg, name: str, device: str) -> Seat | None:
        """The place of a device among those that carry a member; journaled before anybody steps."""
        placement, before = self.flotillas[leg.number].of(name), self.state.member(name).split
        split = Split(member=name, devices=placement.devices, shares=placement.all_shares)
        if split != before and (placement.is_split or before is not None):
            self.driver.record(split)
        if not placement.is_split:
            return None
        rank, number = placement.devices.index(device), self.member_table.number(name)
        return Seat(rank=rank, shares=split.shares, number=number, rendezvous=self.rendezvous[name])

    def board(self, leg: LiveLeg, device: str, *, leave: tuple[str, ...] = (), start: Iterable[str]) -> None:
        """Send an assignment what it has to know; which stream epochs its members train on is journaled before."""
        member_table, measured = self.member_table, self.driver.measuring.measured
        aboard = set(leg.assignments[device].members)
        names = [name for name in start if name in aboard]
        assigned = member_table.assign(names)
        if assigned is not None:
            self.driver.record(assigned)
        member_table.leave(names)
        self.recovering.boarded(names)
        # A trainer that reads from nobody would take this for what was said before its feeder was lost.
        self.pool.attach(leg.feeders, device)
        self.pool.define(device, map(self.driver.study.member, names))
        starts = tuple(
            replace(member_table.start_member(name, measured[name].notes), seat=self._seat_of(leg, name, device))
            for name in names
        )
        self.pool.send(device, Assign(assignment=leg.assignments[device].number, leave=leave, start=starts))
        told = tuple(filter(self.driver.requests.was_told_to_stop, names))
        if told:
            # Before they were aboard: their trainer did not know them then.
            self.pool.send(device, Unassign(members=told))


def _most(horizon: int | None, until: int) -> int | None:
    return None if horizon is None else max(horizon, until)
