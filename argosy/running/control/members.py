"""The table of member states: each member has exactly one state, and each transition is one method.

Contract. No other object knows the state of a member; only the assignments of legs say which devices it has. A transition that is not in
`TRANSITIONS` raises AssertionError with both states: it is a bug of the control plane. `positions` says where in the stream a member
continues; transitions that determine this call it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from argosy.running.control.positions import Positions
from argosy.running.control.verdicts import Verdict

__all__ = ["TRANSITIONS", "Leaving", "Members", "State"]


class State(StrEnum):
    """State of a member."""

    JOINING = "joining"
    """The member was added, and its costs are not known yet."""
    WAITING = "waiting"
    """It has no trainer, and is ready to train."""
    RECOVERING = "recovering"
    """It lost its trainer and waits, at a position behind the other members of that leg."""
    STARTING = "starting"
    """It is in an assignment that starts once other members have been saved on their old devices."""
    ASSIGNED = "assigned"
    """One or several trainers step it."""
    MOVING = "moving"
    """Its device is saving it; it is already in another assignment of its leg."""
    LEAVING = "leaving"
    """Its device is saving it; its verdict says what follows."""
    RESTING = "resting"
    """It does not train until a judge calls it."""
    REGROUPING = "regrouping"
    """Its leg regroups: its trainers were lost, or are saving and releasing their members. When all have, it is decided what follows."""
    ENDED = "ended"


WAITING_STATES = (State.WAITING, State.RECOVERING, State.STARTING)
"""States of a member that has no trainer and is ready for one."""
LEAVING_STATES = (State.MOVING, State.LEAVING)
"""States of a member that its old device is saving."""

TRANSITIONS: dict[State, frozenset[State]] = {
    State.JOINING: frozenset({State.WAITING, State.ENDED}),
    State.WAITING: frozenset({State.RECOVERING, State.STARTING, State.RESTING, State.ENDED}),
    State.RECOVERING: frozenset({State.WAITING, State.STARTING, State.RESTING, State.ENDED}),
    State.STARTING: frozenset({State.ASSIGNED, State.WAITING, State.RECOVERING, State.REGROUPING, State.ENDED}),
    State.ASSIGNED: frozenset({State.MOVING, State.LEAVING, State.REGROUPING, State.ENDED}),
    State.MOVING: frozenset({State.STARTING, State.LEAVING, State.REGROUPING, State.ENDED}),
    State.LEAVING: frozenset({State.WAITING, State.RECOVERING, State.RESTING, State.REGROUPING, State.ENDED}),
    State.RESTING: frozenset({State.WAITING, State.ENDED}),
    State.REGROUPING: frozenset({State.WAITING, State.RECOVERING, State.RESTING, State.ENDED}),
    State.ENDED: frozenset(),
}
"""The states that may follow each state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaving:
    """How a member leaves its device."""

    leg: int
    """Number of the leg that it leaves, or within which it moves."""
    device: str
    """The device that saves it."""
    verdict: Verdict | None
    """None if it continues on another device."""


@dataclass(slots=True)
class _Member:
    state: State
    leaving: Leaving | None = None
    """Set while its old device saves it."""
    has_started: bool = True
    """Whether a trainer had it when its leg began to regroup."""


class Members:
    """The states of a run's members, in the order of the study."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self._members: dict[str, _Member] = {}
        self._of_state: dict[State, set[str]] = {state: set() for state in State}
        self._new: set[str] = set()
        self._additions: dict[str, str] = {}
        """By member: the command that added it, until that command is answered."""
        self._meets: dict[str, int] = {}
        """By member: number of the leg that it will rejoin, from the loss of its trainer until it does."""
        self._told_to_stop: set[str] = set()

    def begin(self) -> None:
        """Set the states that an earlier driver left: resting, waiting, or ended."""
        resting = self.positions.begin()
        unfinished = set(self.positions.unfinished())
        for name in self.positions.study.names:
            state = State.RESTING if name in resting else State.WAITING if name in unfinished else State.ENDED
            self._put(name, _Member(state))

    # ---- queries

    def state(self, name: str) -> State:
        """Return the state of a member."""
        return self._members[name].state

    def is_waiting(self, name: str) -> bool:
        """Return whether a member has no trainer and is ready for one."""
        return self._members[name].state in WAITING_STATES

    def in_states(self, *states: State) -> list[str]:
        """Return all members in one of these states, in the order of the study."""
        # Sorted, because the order of a set differs from run to run, and decisions must not.
        names = [name for state in states for name in self._of_state[state]]
        return sorted(names, key=self.positions.number) if len(names) > 1 else names

    @property
    def waiting(self) -> list[str]:
        """Members without a trainer that are ready for one, whether or not they are in an assignment."""
        return self.in_states(*WAITING_STATES)

    @property
    def unassigned(self) -> list[str]:
        """Waiting members that are in no assignment."""
        return self.in_states(State.WAITING, State.RECOVERING)

    @property
    def unplaced(self) -> list[str]:
        """Waiting members for which other members may have to make room."""
        return self.in_states(State.WAITING)

    @property
    def any_unplaced(self) -> bool:
        """Whether there are `unplaced` members; cheap, because it is asked for each leg in every round."""
        return bool(self._of_state[State.WAITING])

    @property
    def resting(self) -> set[str]:
        """Members that do not train until a judge calls them."""
        return set(self._of_state[State.RESTING])

    @property
    def new(self) -> frozenset[str]:
        """Members that are not in study.json yet, because their costs are not known."""
        return frozenset(self._new)

    @property
    def leaving(self) -> dict[str, Leaving]:
        """Members that their old device is saving."""
        left = self.in_states(*LEAVING_STATES)
        return {name: leaving for name in left if (leaving := self._members[name].leaving) is not None}

    def leaving_of(self, name: str) -> Leaving | None:
        """Return how a member leaves its device; None if it does not."""
        member = self._members.get(name)
        return None if member is None or member.state not in LEAVING_STATES else member.leaving

    @property
    def regrouping(self) -> list[str]:
        """Members whose legs regroup."""
        return self.in_states(State.REGROUPING)

    def addition(self, name: str) -> str:
        """Return the unanswered command that added a member; empty if there is none."""
        return self._additions.get(name, "")

    def by_addition(self) -> dict[str, list[str]]:
        """Return the members of unanswered commands, by command."""
        names: dict[str, list[str]] = {}
        for name, addition in self._additions.items():
            names.setdefault(addition, []).append(name)
        return names

    def is_asked_to_stop(self, name: str) -> bool:
        """Return whether the user has asked a member to stop."""
        return name in self._told_to_stop

    def rejoining(self, leg: int) -> list[str]:
        """Return the members that will rejoin the leg with this number."""
        return [name for name, number in self._meets.items() if number == leg]

    # ---- members that join

    def expect(self, names: Iterable[str], *, addition: str = "") -> None:
        """Add new members of the study, whose costs have to be measured."""
        for name in names:
            self._put(name, _Member(State.JOINING))
            self._new.add(name)
            if addition:
                self._additions[name] = addition

    def enter(self, names: Iterable[str]) -> None:
        """Let joining members wait for a device, or to be measured when nothing trains."""
        names = tuple(names)
        self.positions.enter(names)
        for name in names:
            if self.state(name) is State.JOINING:
                self._to(name, State.WAITING)

    def mark_written(self, names: Iterable[str]) -> None:
        """Note that these members are in study.json now."""
        self._new.difference_update(names)

    def mark_answered(self, addition: str) -> None:
        """Note that a command that added members is answered."""
        self._additions = {name: other for name, other in self._additions.items() if other != addition}

    def remove(self, names: Iterable[str]) -> None:
        """Remove members that could not join."""
        for name in names:
            self._of_state[self._members.pop(name).state].discard(name)
            self._new.discard(name)
            self._additions.pop(name, None)

    # ---- members that train

    def place(self, names: Iterable[str]) -> None:
        """Put members into an assignment that will start; a moving member follows once it is saved."""
        for name in names:
            if self.state(name) is not State.MOVING:
                self._to(name, State.STARTING)

    def assign(self, names: Collection[str]) -> None:
        """Mark members as assigned: their trainers were told to step them."""
        self.positions.mark_settled(names)
        for name in names:
            if self.state(name) is not State.ASSIGNED:  # each trainer of a split member is told
                self._to(name, State.ASSIGNED)

    def leave(self, name: str, leaving: Leaving, *, moves: bool) -> None:
        """Let a member leave its device, which was told to save and release it."""
        self._to(name, State.MOVING if moves else State.LEAVING)
        self._members[name].leaving = leaving

    def mark_saved(self, name: str) -> None:
        """Note that a leaving member is saved. A moving member has its next assignment; others wait for one."""
        self.positions.use_latest_checkpoint(name)
        if self.state(name) is State.MOVING:
            self._to(name, State.STARTING)
        else:
            self._start_waiting(name)

    def unassign(self, name: str) -> None:
        """Take a member out of its assignment: it waits again if no trainer had it, and is still saved if it was moving."""
        member = self._members[name]
        if member.state is State.STARTING:
            self._start_waiting(name)
        elif member.state is State.MOVING:
            self._to(name, State.LEAVING)

    def resume(self, name: str) -> None:
        """Let a member that was lost, or saved for a regrouping, continue from its latest checkpoint."""
        if self._members[name].has_started:
            self.positions.use_latest_checkpoint(name)
        self._start_waiting(name)

    def rest(self, name: str) -> None:
        """Let a member rest until a judge calls it."""
        self.positions.use_latest_checkpoint(name)
        self.positions.mark_settled([name])
        self._to(name, State.RESTING)
        self._meets.pop(name, None)

    def call(self, name: str) -> None:
        """Let a resting member wait for a device again, at its position in the epoch."""
        self.positions.call(name)
        self._to(name, State.WAITING)

    def stop(self, name: str) -> None:
        """Note that the user has asked a member to stop."""
        self._told_to_stop.add(name)

    def end(self, name: str) -> None:
        """End a member."""
        self.positions.mark_settled([name])
        if self.state(name) is not State.ENDED:
            self._to(name, State.ENDED)
        self._meets.pop(name, None)

    # ---- members that were lost

    def regroup(self, names: Iterable[str]) -> None:
        """Let the members of a leg regroup."""
        for name in names:
            self._members[name].has_started = self.state(name) is not State.STARTING
            self._to(name, State.REGROUPING)

    def begin_recovery(self, names: Iterable[str], leg: int) -> None:
        """Let members that are behind recover, to rejoin a leg, or apart from it if `leg` is 0."""
        for name in names:
            if leg:
                self._meets[name] = leg
            if self.state(name) is State.WAITING:
                self._to(name, State.RECOVERING)

    def end_recovery(self, names: Iterable[str]) -> None:
        """Note that recovering members are level with the others again."""
        for name in names:
            self._meets.pop(name, None)
            if self.state(name) is State.RECOVERING:
                self._to(name, State.WAITING)

    # ---- the table

    def _start_waiting(self, name: str) -> None:
        self._to(name, State.RECOVERING if name in self._meets else State.WAITING)

    def _to(self, name: str, state: State) -> None:
        member = self._members[name]
        assert state in TRANSITIONS[member.state], f"{name} is {member.state} and cannot become {state}"
        self._of_state[member.state].discard(name)
        member.state = state
        self._of_state[state].add(name)
        if state not in LEAVING_STATES:
            member.leaving = None

    def _put(self, name: str, member: _Member) -> None:
        self._members[name] = member
        self._of_state[member.state].add(name)
