"""One trial of a search: which members train for it, and what it is worth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from argosy.errors import StudyError
from argosy.results.fold import MemberState, RunState
from argosy.stopping import History, Mode, better
from argosy.study import Member

__all__ = ["Trial", "members_of"]


@dataclass(kw_only=True, slots=True)
class Trial:
    """How far it is."""

    number: int
    parameters: Mapping[str, Any]
    built_from: dict[str, Any]
    """What `Search.build` gets: the parameters, or what a space that is a function makes of them."""
    mode: Mode
    name: str
    """Of its member; of several, what these repeat."""
    members: tuple[Member, ...]
    """That train for it, or were the last to do so: one, or those whose mean it is."""
    sections: int | None
    """For which they train; None where that is for the scheduler to say, and grows."""
    best: float = math.nan
    """What they are worth so far."""
    told: int = 0
    """Sections up to which the worth of the trial is known; later members say nothing of those again."""
    failed: str = ""
    """Why the others of several end, where one of them has failed."""
    _heard: int = 0
    """Sections that all of the members have ended."""

    @property
    def member(self) -> Member:
        """The only one, or the first."""
        return self.members[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Of its members."""
        return tuple(member.name for member in self.members)

    @property
    def worthless(self) -> bool:
        """Whether there is nothing to compare it by."""
        return math.isnan(self.best)

    def here(self, state: RunState) -> list[MemberState]:
        """How far its members are."""
        return [state.member(member.name) for member in self.members]

    def begin_anew(self, name: str, members: tuple[Member, ...], sections: int) -> None:
        """Others train for it from here on."""
        self.name, self.members, self.sections = name, members, sections
        self.best, self._heard = math.nan, 0

    def hear(
        self, histories: Sequence[History], objective: str, *, behind: int = 0
    ) -> Iterator[tuple[int, float, float]]:
        """(sections, value, best so far) of what is to be told, for each section that is new: the mean of all its members.

        The first `behind` sections are those of a clone's source, which say nothing of what the clone is worth.
        """
        while self._heard < min(map(len, histories)):
            value = sum(history[self._heard].get(objective, math.nan) for history in histories) / len(histories)
            if self._heard >= behind and better(value, self.best, self.mode):
                self.best = value
            self._heard += 1
            if self._heard > self.told:
                self.told = self._heard
                yield self._heard, value, self.best

    def is_between(self, here: Sequence[MemberState], most: int) -> bool:
        """Whether its members have trained for their rung, of at most so many sections, and another one may follow."""
        return self.sections is not None and self.sections <= min(len(one.history) for one in here) < most

    def ends_with_others(self, one: MemberState, state: RunState) -> str | None:
        """Why one of several members ends because another one has."""
        if len(self.members) == 1 or self.failed:
            return self.failed or None
        first = self.ends_with(self.here(state))
        if first is None or first.name == one.name or len(one.history) < len(first.history):
            return None
        return f"{first.name} ended with section {len(first.history)}"

    def ends_with(self, here: Sequence[MemberState]) -> MemberState | None:
        """The first of its members that has ended by its own rule: the others end with that section."""
        rules = zip(self.members, here, strict=True)
        ended = (one for member, one in rules if member.stop and member.stop.reason(one.history) is not None)
        return min(ended, key=lambda one: len(one.history), default=None)


def members_of(built: Any, parameters: Mapping[str, Any], suffix: str) -> tuple[str, tuple[Member, ...]]:
    """A trial's name and members, of what `Search.build` returned; raises StudyError where that is nothing to train."""
    if isinstance(built, Member):
        name = f"{built.name}-{suffix}"
        return name, (replace(built, name=name),)
    several = built if isinstance(built, list | tuple) else ()
    repeated = {one.repetition.of for one in several if isinstance(one, Member) and one.repetition is not None}
    if len(repeated) != 1 or not all(isinstance(one, Member) and one.repetition is not None for one in several):
        raise StudyError(
            f"build({dict(parameters)}) returned {type(built).__name__}; it must return an argosy.Member, or the list that "
            "argosy.kfold, argosy.bootstrap or argosy.replicate makes of one: the trial is their mean then."
        )
    name = f"{repeated.pop()}-{suffix}"
    return name, tuple(_renamed(one, name) for one in several)


def _renamed(member: Member, of: str) -> Member:
    assert member.repetition is not None
    name = f"{of}-{member.repetition.under}"
    return replace(member, name=name, repetition=replace(member.repetition, of=of))
