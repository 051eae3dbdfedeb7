"""One trial of a search: the members that train for it, and its results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from argosy.errors import StudyError
from argosy.results.fold import MemberState, RunState
from argosy.stopping import Either, Stop, is_better
from argosy.study import Member
from argosy.tuning.objectives import Objectives, reached_metrics

__all__ = ["Trial", "build_members"]


@dataclass(kw_only=True, slots=True)
class Trial:
    """A trial and its progress."""

    number: int
    parameters: Mapping[str, Any]
    built_from: dict[str, Any]
    """Argument of `Search.build`: the parameters, or what the space returned if it is a function."""
    name: str
    """Name of its member, or of the configuration that its members repeat."""
    members: tuple[Member, ...]
    """Members that train for it, or the last ones that did: one, or several whose mean is its result."""
    sections: int | None
    """Sections that the members train; None if the scheduler decides, and the number may grow."""
    best: float = math.nan
    """Best value of the first objective so far, the mean of the members."""
    reached: Mapping[str, float] = field(default_factory=dict)
    """Metrics and totals at that section, means of the members."""
    constrained: tuple[float, ...] = ()
    """Constraint values at that section."""
    reported_sections: int = 0
    """Number of sections whose results were reported; later members do not report these again."""
    failed: str = ""
    """Why the other members end, if one of several has failed."""
    _sections_ended: int = 0
    """Sections that all members have ended."""

    @property
    def member(self) -> Member:
        """The only member, or the first."""
        return self.members[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its members."""
        return tuple(member.name for member in self.members)

    @property
    def own_epochs(self) -> float | None:
        """Epochs after which its members' own rules end it at the latest; None if they have none, or none with a bound."""
        # `build_members` has combined each member's own rule with the search's limit; the own rule is first.
        rules = (member.stop.first for member in self.members if isinstance(member.stop, Either))
        return min((rule.max_epochs for rule in rules if rule.max_epochs is not None), default=None)

    def here(self, state: RunState) -> list[MemberState]:
        """Return the state of each member."""
        return [state.member(member.name) for member in self.members]

    def begin_anew(self, name: str, members: tuple[Member, ...], sections: int) -> None:
        """Continue the trial with other members."""
        self.name, self.members, self.sections = name, members, sections
        self.best, self._sections_ended = math.nan, 0
        self.reached, self.constrained = {}, ()

    def new_sections(self, here: Sequence[MemberState], objectives: Objectives) -> Iterator[tuple[int, float]]:
        """Yield (sections, value of the first objective) to report for each new section; the value is the mean of all members.

        The sections of a clone's source do not count for the clone.
        """
        behind = max(one.behind for one in here)
        while self._sections_ended < min(len(one.sections) for one in here):
            ended = [one.sections[self._sections_ended].metrics for one in here]
            value = sum(metrics.get(objectives.first, math.nan) for metrics in ended) / len(here)
            self._sections_ended += 1
            if self._sections_ended > behind and is_better(value, self.best, objectives.mode):
                self.best = value
                self.reached = reached_metrics((one.sections[: self._sections_ended], one.parameters) for one in here)
                self.constrained = objectives.constrained(self.reached)
            if self._sections_ended > self.reported_sections:
                self.reported_sections = self._sections_ended
                yield self._sections_ended, value

    def is_between_rungs(self, here: Sequence[MemberState], most: int) -> bool:
        """Return whether its members have finished their rung, and another rung may follow before `most` sections."""
        return self.sections is not None and self.sections <= min(len(one.history) for one in here) < most

    def shared_end_reason(self, one: MemberState, state: RunState) -> str | None:
        """Return why a member ends because another member of the trial has; None if it continues."""
        if len(self.members) == 1 or self.failed:
            return self.failed or None
        first = self.first_ended(self.here(state))
        if first is None or first.name == one.name or len(one.history) < len(first.history):
            return None
        return f"{first.name} ended after section {len(first.history)}"

    def first_ended(self, here: Sequence[MemberState]) -> MemberState | None:
        """Return the first member that ended by its own stopping rule; the others end after the same section."""
        rules = zip(self.members, here, strict=True)
        ended = (
            one for member, one in rules if member.stop is not None and member.stop.reason(one.history) is not None
        )
        return min(ended, key=lambda one: len(one.history), default=None)


def build_members(
    built: Any, parameters: Mapping[str, Any], suffix: str, limit: Stop
) -> tuple[str, tuple[Member, ...]]:
    """Return a trial's name and members from the result of `Search.build`; the members end by `limit` at the latest.

    Raises StudyError if the result cannot be trained.
    """
    if isinstance(built, Member):
        name = f"{built.name}-{suffix}"
        return name, (replace(built, name=name, stop=_with_limit(built, limit)),)
    several = built if isinstance(built, list | tuple) else ()
    repeated = {one.repetition.of for one in several if isinstance(one, Member) and one.repetition is not None}
    if len(repeated) != 1 or not all(isinstance(one, Member) and one.repetition is not None for one in several):
        raise StudyError(
            f"build({dict(parameters)}) returned {type(built).__name__}; it must return an argosy.Member, or the "
            "list that argosy.kfold, argosy.bootstrap or argosy.replicate returns for one. The trial is then the "
            "mean of that list."
        )
    name = f"{repeated.pop()}-{suffix}"
    renamed = tuple(_rename(one, name, limit) for one in several)
    return name if len(renamed) > 1 else renamed[0].name, renamed


def _rename(member: Member, of: str, limit: Stop) -> Member:
    assert member.repetition is not None
    name = f"{of}-{member.repetition.under}"
    return replace(member, name=name, repetition=replace(member.repetition, of=of), stop=_with_limit(member, limit))


def _with_limit(member: Member, limit: Stop) -> Stop:
    return limit if member.stop is None else member.stop | limit
