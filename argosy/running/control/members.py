"""The one table of where members are: each member has exactly one state, and one method makes each lawful change of it.

Contract. Nothing else says where a member is, but for the assignments of legs, which have its devices. A change that `LAWFUL` does not have raises AssertionError with both names: it is a bug of the control plane.
Where a member goes on in the stream is another question (`positions`); the changes that settle it ask for it here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from argosy.running.control.positions import Positions
from argosy.running.control.verdicts import Verdict

__all__ = ["LAWFUL", "Leaving", "Members", "State"]


class State(StrEnum):
    """Where a member is."""

    JOINING = "joining"
    """It is to be added, and its costs are not known."""
    WAITING = "waiting"
    """It trains nowhere, and wants to."""
    RECOVERING = "recovering"
    """It waits as well, behind the others of the leg that its trainer was lost in."""
    STARTING = "starting"
    """It is in an assignment that starts when other members have been saved elsewhere."""
    ASSIGNED = "assigned"
    """A trainer steps it, or several do."""
    MOVING = "moving"
    """Its device saves it; another assignment of its leg has it already."""
    LEAVING = "leaving"
    """Its device saves it; its verdict says what becomes of it then."""
    RESTING = "resting"
    """It trains nowhere until a judge calls it."""
    REGROUPING = "regrouping"
    """Its trainers are lost, or save their members and let them go; what becomes of it is decided when all have."""
    ENDED = "ended"


WAITS = (State.WAITING, State.RECOVERING, State.STARTING)
LEAVES = (State.MOVING, State.LEAVING)

LAWFUL: dict[State, frozenset[State]] = {
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaving:
    """How a member leaves its device."""

    leg: int
    """Number of the leg that it leaves, or moves in."""
    device: str
    """That saves it."""
    verdict: Verdict | None
    """None where it goes on elsewhere."""


@dataclass(slots=True)
class _Member:
    state: State
    leaving: Leaving | None = None
    """While it is saved by the device that it leaves."""
    apart: bool = False
    """Whether it lost its trainer and goes on without the others, until it is assigned."""
    has_started: bool = True
    """Whether a trainer had it, when its leg began to regroup."""


class Members:
    """The members of a run by name, in the order of the study."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self._members: dict[str, _Member] = {}
        self._of_state: dict[State, set[str]] = {state: set() for state in State}
        self._new: set[str] = set()
        self._additions: dict[str, str] = {}
        """By member: the command that brought it, until that is answered."""
        self._meets: dict[str, int] = {}
        """By member: number of the leg that it is to meet again, from the loss of its trainer until it does."""
        self._told_to_stop: set[str] = set()

    def begin(self) -> None:
        """Find what an earlier driver has left: members that rest, wait, and have ended."""
        resting = self.positions.begin()
        unfinished = set(self.positions.unfinished())
        for name in self.positions.study.names:
            state = State.RESTING if name in resting else State.WAITING if name in unfinished else State.ENDED
            self._put(name, _Member(state))

    # ---- what there is

    def state(self, name: str) -> State:
        """Where a member is."""
        return self._members[name].state

    def waits(self, name: str) -> bool:
        """Whether no trainer has a member, which wants one."""
        return self._members[name].state in WAITS

    def having(self, *states: State) -> list[str]:
        """All members in one of these states, in the order of the study."""
        found = [name for state in states for name in self._of_state[state]]
        return sorted(found, key=self.positions.number) if len(found) > 1 else found

    @property
    def waiting(self) -> list[str]:
        """Members that no trainer has and that want one, placed or not."""
        return self.having(*WAITS)

    @property
    def unassigned(self) -> list[str]:
        """Those of them that are in no assignment."""
        return self.having(State.WAITING, State.RECOVERING)

    @property
    def unplaced(self) -> list[str]:
        """Those of them for which other members may have to make room."""
        return self.having(State.WAITING)

    @property
    def any_unplaced(self) -> bool:
        """Whether there are such: asked for each leg in every round."""
        return bool(self._of_state[State.WAITING])

    @property
    def resting(self) -> set[str]:
        """Members that wait for a judge to call them."""
        return set(self._of_state[State.RESTING])

    @property
    def new(self) -> frozenset[str]:
        """Members that study.json does not have yet: their costs are not known."""
        return frozenset(self._new)

    @property
    def leaving(self) -> dict[str, Leaving]:
        """Members that are saved by the device that they leave."""
        left = {name: self._members[name].leaving for name in self.having(*LEAVES)}
        return {name: leaving for name, leaving in left.items() if leaving is not None}

    def leaves(self, name: str) -> Leaving | None:
        """How a member leaves its device, if it does."""
        member = self._members.get(name)
        return None if member is None or member.state not in LEAVES else member.leaving

    @property
    def regrouping(self) -> list[str]:
        """Members whose trainers save them and let them go."""
        return self.having(State.REGROUPING)

    def addition(self, name: str) -> str:
        """The command that brought a member, where it is not answered yet."""
        return self._additions.get(name, "")

    def of_additions(self) -> dict[str, list[str]]:
        """Members of commands that are not answered yet, by command."""
        found: dict[str, list[str]] = {}
        for name, addition in self._additions.items():
            found.setdefault(addition, []).append(name)
        return found

    def is_told_to_stop(self, name: str) -> bool:
        """Whether a person wants a member to end."""
        return name in self._told_to_stop

    @property
    def meeting(self) -> Mapping[str, int]:
        """By member that is to meet a leg again: the number of that leg."""
        return MappingProxyType(self._meets)

    # ---- members that join

    def expect(self, names: Iterable[str], *, addition: str = "") -> None:
        """These have become members of the study, and their costs are to be measured."""
        for name in names:
            self._put(name, _Member(State.JOINING))
            self._new.add(name)
            if addition:
                self._additions[name] = addition

    def enter(self, names: Iterable[str]) -> None:
        """Joining members wait from here on, for a device or to be measured where nothing trains."""
        names = tuple(names)
        self.positions.enter(names)
        for name in names:
            if self.state(name) is State.JOINING:
                self._to(name, State.WAITING)

    def announced(self, names: Iterable[str]) -> None:
        """study.json has these."""
        self._new.difference_update(names)

    def answered(self, addition: str) -> None:
        """The command that brought members is answered: they are like all others."""
        self._additions = {name: other for name, other in self._additions.items() if other != addition}

    def remove(self, names: Iterable[str]) -> None:
        """Members that were to join come to nothing."""
        for name in names:
            self._of_state[self._members.pop(name).state].discard(name)
            self._new.discard(name)
            self._additions.pop(name, None)

    # ---- members that train

    def place(self, names: Iterable[str]) -> None:
        """These are in an assignment of a leg that is to start; members that move are there when they are saved."""
        for name in names:
            if self.state(name) is not State.MOVING:
                self._to(name, State.STARTING)

    def assign(self, names: Collection[str]) -> None:
        """The trainer of their assignment is told to step these."""
        self.positions.settled(names)
        for name in names:
            if self.state(name) is not State.ASSIGNED:  # of those that several devices carry, each is told
                self._to(name, State.ASSIGNED)
            self._members[name].apart = False

    def leave(self, name: str, leaving: Leaving, *, moves: bool) -> None:
        """Its device is told to save a member and to let it go."""
        self._to(name, State.MOVING if moves else State.LEAVING)
        self._members[name].leaving = leaving

    def saved(self, name: str) -> None:
        """A member that goes on elsewhere is saved: one that moves has its place, others wait for one."""
        self.positions.find(name)
        if self.state(name) is State.MOVING:
            self._to(name, State.STARTING)
        else:
            self._wait(name)

    def take_off(self, name: str) -> None:
        """A member is in no assignment any more: one that no trainer has had waits as before, one that was to move is saved yet."""
        member = self._members[name]
        if member.state is State.STARTING:
            self._wait(name)
        elif member.state is State.MOVING:
            self._to(name, State.LEAVING)

    def take_back(self, name: str) -> None:
        """A member that was lost, or saved for a regrouping, goes on from its newest file."""
        if self._members[name].has_started:
            self.positions.find(name)
        self._wait(name)

    def rest(self, name: str) -> None:
        """A member trains no more until it is called."""
        self.positions.find(name)
        self.positions.settled([name])
        self._to(name, State.RESTING)
        self._forget_loss(name)

    def call(self, name: str) -> None:
        """A resting member wants to train again; in the middle of an epoch where it was."""
        self.positions.call(name)
        self._to(name, State.WAITING)

    def stop(self, name: str) -> None:
        """A person wants a member to end."""
        self._told_to_stop.add(name)

    def end(self, name: str) -> None:
        """A member has left the run."""
        self.positions.settled([name])
        if self.state(name) is not State.ENDED:
            self._to(name, State.ENDED)
        self._forget_loss(name)

    # ---- members that were lost

    def regroup(self, names: Iterable[str]) -> None:
        """The trainers of these are lost, or save them and let them go."""
        for name in names:
            self._members[name].has_started = self.state(name) is not State.STARTING
            self._to(name, State.REGROUPING)

    def fall_behind(self, names: Iterable[str], leg: int) -> None:
        """These wait behind others, and are to meet this leg again; 0 where they go on apart."""
        for name in names:
            if leg:
                self._meets[name], self._members[name].apart = leg, False
            elif name not in self._meets:
                self._members[name].apart = True
            if self.state(name) is State.WAITING:
                self._to(name, State.RECOVERING)

    def catch_up(self, names: Iterable[str]) -> None:
        """These are like all others again."""
        for name in names:
            self._forget_loss(name)
            if self.state(name) is State.RECOVERING:
                self._to(name, State.WAITING)

    def _forget_loss(self, name: str) -> None:
        self._meets.pop(name, None)
        self._members[name].apart = False

    # ---- the table

    def _wait(self, name: str) -> None:
        behind = name in self._meets or self._members[name].apart
        self._to(name, State.RECOVERING if behind else State.WAITING)

    def _to(self, name: str, state: State) -> None:
        member = self._members[name]
        assert state in LAWFUL[member.state], f"{name} is {member.state} and cannot become {state}"
        self._of_state[member.state].discard(name)
        member.state = state
        self._of_state[state].add(name)
        if state not in LEAVES:
            member.leaving = None

    def _put(self, name: str, member: _Member) -> None:
        self._members[name] = member
        self._of_state[member.state].add(name)
