"""What becomes of members: they go on elsewhere, rest, end, or do not come to be in the run."""

from argosy.protocol.events import REFUSED, MemberEnded, MemberRested
from argosy.results.fold import RunState
from argosy.running.control.carry_out import CarryOut
from argosy.running.control.measuring import Measuring
from argosy.running.control.members import Members, State
from argosy.running.control.positions import FINAL
from argosy.running.control.run import Run
from argosy.running.control.verdicts import Fate

__all__ = ["Outcomes"]


class Outcomes:
    """Decides what becomes of the members of one run."""

    def __init__(self, run: Run, carry_out: CarryOut) -> None:
        self.run = run
        self.carry_out = carry_out
        self.members: Members = run.members
        self.measuring: Measuring = run.measuring
        self.state: RunState = run.state

    def end(self, member: str, status: str, reason: str) -> None:
        """A member leaves the run, or does not come to be in it."""
        if member not in self.run.study.names:
            return  # it was not added, as another one of its file had failed before
        addition = self.members.addition(member)
        if addition:
            *more, last = reason.strip().removesuffix(".").splitlines()
            log = f"; its traceback is in members/{member}/log.txt" if more else ""
            self.refuse(addition, f"member {member!r} failed while it was measured: {last}{log}.")
            self.run.costs_settled = True
            return
        if self.state.member(member).status in FINAL:
            return  # another of the devices that stepped it has said so
        self.run.record(MemberEnded(member=member, status=status, reason=reason))
        self.measuring.forget(member)
        leaving = self.members.leaves(member)
        # Where no leg is left, the policy is asked when all that go on elsewhere are saved.
        self.run.wants_plan |= leaving is not None and leaving.verdict is None
        # It may have failed while it was measured, or was told to stop while it waited.
        self.run.costs_settled |= self.members.waits(member)
        if member in self.members.new:
            # A member whose costs are not known was here all the same.
            self.announce([member])
        self.members.end(member)
        self.carry_out.unassign(member)
        if status == "failed":
            any_section = any(state.sections for state in self.state.members.values())
            self.run.tolerance.member_failed(member, reason, any_section=any_section)

    def announce(self, names: list[str]) -> None:
        """Let study.json have members that joined."""
        self.members.announced(names)
        self.run.identity.add(self.run.study, names, shapes=self.measuring.shapes)

    def refuse(self, addition: str, why: str) -> None:
        """The members that a command brought come to nothing."""
        names = self.members.of_additions()[addition]
        self.members.remove(names)
        self.run.positions.remove(names)
        self.measuring.remove(names)
        self.run.pool.forget_members(names)
        self.run.view.study(self.run.study)
        self.run.write_study()
        self.run.answer(addition, f"{REFUSED}{why}")

    def left(self, member: str) -> None:
        """A trainer has saved a member and let it go."""
        leaving = self.members.leaves(member)
        if self.members.is_told_to_stop(member):
            self.end(member, "stopped", "by command")
        elif leaving is None:
            return  # its leg regroups: what becomes of it is decided when all are saved
        elif leaving.verdict is None:
            self.run.record(MemberRested(member=member, reason=""))
            self.members.saved(member)
            self.run.wants_plan = True
            self.carry_out.saved(member)
        elif leaving.verdict.fate is Fate.REST:
            self.run.record(MemberRested(member=member, reason=leaving.verdict.reason))
            self.members.rest(member)
            self.run.wants_plan = True
        else:
            self.end(member, "done", leaving.verdict.reason)

    def call(self) -> None:
        """Let those resting members wait for a place that a judge calls, or end."""
        run, resting = self.run, self.members.resting
        called = {name for one in run.judges for name in one.called(resting, run.state, run.study)}
        for name in sorted(called & resting):
            verdict = run.verdict(name)
            if verdict.fate is Fate.END:
                self.end(name, "done", verdict.reason)
            else:
                self.members.call(name)
                self.carry_out.make_room()

    def settle(self, name: str) -> None:
        """Decide on a member that was saved, or lost, where a fault found it."""
        if self.members.is_told_to_stop(name):
            self.end(name, "stopped", "by command")
        elif self.members.state(name) is State.REGROUPING and not self.decided(name):
            self.members.take_back(name)

    def settle_earlier(self) -> None:
        """An earlier driver may have gone between a member's last file and its word on that member."""
        for name in self.run.study.names:
            status, state = self.state.member(name).status, self.members.state(name)
            # One that was done, and waits, may do so because a search is to compare more than it was.
            revived = status == "done" and state is State.WAITING
            if (status in ("training", "paused") and state is not State.RESTING) or revived:
                self.decided(name)

    def decided(self, name: str) -> bool:
        """Let a member end or rest if that is its verdict, and its newest file is that of its last section."""
        verdict = self.run.verdict(name)
        if verdict.fate is Fate.GO_ON or not self.state.member(name).saved_at_its_end:
            return False
        if verdict.fate is Fate.END:
            self.end(name, "done", verdict.reason)
        else:
            self.run.record(MemberRested(member=name, reason=verdict.reason))
            self.members.rest(name)
        return True
