"""Legs at their barriers: members leave if that is their verdict, the policy is asked once, and assignments change.

A leg is at a barrier when all its assignments have reported everything that it has credit for. Leaving members are told to leave, starting
members wait until their last file is journaled, and all others continue at once with the next credit: a member that does not move is
neither saved nor stopped.
"""

from collections.abc import Iterable, Mapping

from argosy.plans import Flotilla
from argosy.protocol.feeder import Held
from argosy.running.control.carry_out import ActingPart
from argosy.running.control.legs import Gate, LiveLeg, assignment_changes, resplit_members
from argosy.running.control.verdicts import Fate, Verdict

__all__ = ["Barriers", "assignments_of"]


class Barriers(ActingPart):
    """Handles the barriers of all legs of a run."""

    # ---- messages from workers

    def judge(self, member: str) -> None:
        """Note how far a member certainly continues after a section; if it does not, bring its leg to a barrier."""
        leg = self.legs.of(member)
        if leg is not None:
            leg.judged.add(member)
            self._verdict(leg, member)

    def handle_section_end(self, device: str, section: int) -> None:
        """Note that an assignment has finished a section."""
        for leg in self.legs.live:
            if device in leg.assignments:
                leg.note_section_end(device, section)
                self.carry_out.record(*self.predictions.note_section_end(leg))

    def handle_held(self, feeder: str, held: Held) -> None:
        """Note where a held feeder stops; once all have answered, let those that are behind catch up."""
        for leg in self.legs.live:
            if leg.number == held.leg and leg.held(feeder, held.until):
                self.carry_out.give_credit(leg, leg.until)
                self.run.wants_plan = True  # Members that will rejoin it there may start.

    # ---- legs that continue

    def advance(self) -> None:
        """Let every leg continue that can, from its barrier or with more credit."""
        for leg in list(self.legs.live):  # a copy, because legs may end
            if leg.gate is Gate.REGROUPING:
                continue
            if leg.at_barrier and not leg.starting and not self.decisions.has_members_on_way(leg):
                self._pass_barrier(leg)
            elif leg.gate is Gate.OPEN and leg.devices:
                self._extend(leg)

    def _extend(self, leg: LiveLeg) -> None:
        if leg.certain <= leg.until or (leg.until % self.run.per_epoch == 0 and self.decisions.has_waiting_members):
            return  # No member is known to go on, or others wait for this barrier.
        until = self.decisions.credit_limit(leg)
        if until > leg.until:
            self.carry_out.give_credit(leg, until)

    def _pass_barrier(self, leg: LiveLeg) -> None:
        """At a barrier, let members leave by their verdicts, ask the policy if anything has changed, and continue."""
        if self.decisions.can_all_rejoin(leg):
            self.carry_out.end_rejoining(leg)
        fates = self._leaving_verdicts(leg)
        wanted, anew = self._next_assignments(leg, fates)
        joins, leg.gate = leg.gate is Gate.HOLDING, Gate.OPEN
        now = {device: assignment.members for device, assignment in leg.assignments.items()}
        changes = assignment_changes(now, wanted, anew)
        if changes:
            self.carry_out.change_assignments(leg, changes, fates)
        if not leg.members:
            self.carry_out.end_leg(leg)
            if not self.members.waiting:
                # Other legs may use its devices.
                self.carry_out.make_room()
            return
        if changes:
            self.predictions.change(leg, [name for change in changes.values() for name in change.start])
        # Before the credit, which moves the barrier.
        too_soon = (fates or joins) and self.decisions.must_finish_epoch(leg)
        self.carry_out.give_credit(leg, self.decisions.credit_limit(leg))
        if self.decisions.will_be_rejoined(leg):
            leg.gate = Gate.HOLDING
        if too_soon:
            self.carry_out.hold(leg, multiple=self.run.per_epoch)
        # A member without a place here may find one on free devices.
        self.run.wants_plan |= joins and bool(self.members.waiting)

    def _next_assignments(
        self, leg: LiveLeg, fates: Mapping[str, Verdict]
    ) -> tuple[Mapping[str, Iterable[str]], set[str]]:
        """Return the members of each device from this barrier on, and those of them that have to start again."""
        met = self.decisions.leg_to_rejoin(leg)
        if met is not None and met.until == leg.until:
            return {}, set()
        live = [name for name in leg.members if name not in fates]
        if not (fates or leg.gate is Gate.HOLDING or self.members.any_unplaced):
            return {device: tuple(assignment.members) for device, assignment in leg.assignments.items()}, set()
        if leg.until % self.run.per_epoch == 0 and self.run.packs is None:
            self.positions.join(self.members.waiting, leg.until // self.run.per_epoch)
        profiles = self.decisions.profiles([*live, *self.members.unplaced])
        self.carry_out.record(*self.predictions.note_profiles(profiles))
        with self.predictions.time_planning():
            flotilla, keeps = self.decisions.next_flotilla(leg, live, profiles)
        leg.makes_room = not keeps
        if flotilla is None:
            return {}, set()
        anew = set[str]() if keeps else resplit_members(leg.flotilla, flotilla)
        leg.flotilla = flotilla
        return assignments_of(flotilla.keeping(live) if keeps else flotilla), anew

    # ---- verdicts

    def _leaving_verdicts(self, leg: LiveLeg) -> dict[str, Verdict]:
        """Return the members that leave a leg at its barrier; they are judged again, because results of others may change a verdict."""
        judged = [name for name in leg.members if name in leg.judged]
        leg.judged.clear()
        verdicts = {name: self._verdict(leg, name) for name in judged}
        return {name: verdict for name, verdict in verdicts.items() if verdict.fate is not Fate.GO_ON}

    def _verdict(self, leg: LiveLeg, member: str) -> Verdict:
        verdict, section = self.positions.verdict(member), self._next_section(member)
        leg.free_until[member] = section + (verdict.certain if verdict.fate is Fate.GO_ON else 0)
        if verdict.longest is not None:
            leg.last[member] = section + verdict.longest
        return verdict

    def _next_section(self, member: str) -> int:
        last = self.state.member(member).sections[-1]
        return last.stream_epoch * self.run.per_epoch + last.section + 1


def assignments_of(flotilla: Flotilla) -> dict[str, list[str]]:
    """Return the members of each device, in the order of their steps."""
    return {device: [placement.member for placement in flotilla.pack(device)] for device in flotilla.devices}
