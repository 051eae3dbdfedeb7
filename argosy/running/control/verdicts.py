"""Verdicts: whether a member continues, rests or ends after a section. Stopping rules, ensembles and searches all implement `Judge`.

A judge's answers are functions of the journal. The driver asks every judge after each section; ending takes precedence over resting, and
resting over continuing. Verdicts take effect at the barrier after the section. They are asked for again there, when the results of the
other members are known.

A class that adds members (`Bringer`) may be a judge too, but need not be.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from argosy.errors import StudyError
from argosy.errors.traces import user_errors_in
from argosy.protocol.events import Cloned, Event, Proposed
from argosy.results.fold import RunState
from argosy.stopping import Combined, Stop
from argosy.study import Member, Study

__all__ = ["GO_ON", "Bringer", "Fate", "Judge", "Newcomer", "StoppingRules", "Verdict", "combine_verdicts"]


FIX = "Fix the rule, and run the same command again."


class Fate(IntEnum):
    """Outcome of a verdict; the highest of several counts."""

    GO_ON = 0
    REST = 1
    """The member is saved and released; it resumes exactly when a judge calls it."""
    END = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one member after a section."""

    fate: Fate
    reason: str = ""
    certain: int = 1
    """Number of further sections that the member trains whatever their results."""
    longest: int | None = None
    """Number of further sections that it trains at most, so that no more are prepared; None if unknown."""


GO_ON = Verdict(Fate.GO_ON)


class Judge(Protocol):
    """Decides whether members continue."""

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """Return the verdict on a member at the end of its history; asked before its first section and after each one."""

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Return the resting members that train again, or end if that is their verdict.

        Asked in every round of the driver, so it must be fast. A member that was called and lost before it ended a section is judged by its
        old history and may rest again.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Newcomer:
    """Members that join a run together, for example those of one trial, and the events that are journaled before they are used."""

    members: tuple[Member, ...]
    proposed: Proposed
    cloned: Cloned | None = None
    """The event that names the source, if it continues from another member."""

    @property
    def events(self) -> tuple[Event, ...]:
        """Events to journal; `proposed` comes last, because it makes the newcomer valid."""
        return (self.proposed,) if self.cloned is None else (self.cloned, self.proposed)


class Bringer(Protocol):
    """Adds members during a run."""

    def found(self, state: RunState) -> Sequence[Event]:
        """Return new findings about members, as events for the journal; asked before each `bring`."""

    def bring(self, state: RunState) -> Sequence[Newcomer]:
        """Return the members that join now, each once; asked in every round of the driver after `Judge.called`, so it must be fast.

        After a restart of the driver, the bringer finds their events in the journal and includes them in its study.
        """

    def has_more(self, state: RunState) -> bool:
        """Return whether more members will come, at the latest when all present ones have ended; the run is not done before."""


class StoppingRules:
    """The study's stopping rules, which depend on a member's own history alone."""

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """End a member if its stopping rule gives a reason.

        Raises StudyError if the rule raises, changes itself, or returns something else.
        """
        rule, history = study.stop_of(study.member(member)), state.member(member).history
        named = f"member {member!r}: its stopping rule"
        before = _kept_by(rule)
        with user_errors_in(named, FIX):
            reason = rule.reason(history)
        kept = _kept_by(rule)
        if history and (changed := sorted({place[1] for place, value in before.items() if kept.get(place) != value})):
            raise StudyError(
                f"{named} changes its attributes ({', '.join(changed)}) when it is asked, but members may share it, and it is asked "
                f"several times after a section, and anew after a resume. Compute the reason from the history alone. {FIX}"
            )
        if isinstance(reason, str):
            return Verdict(Fate.END, reason)
        if reason is not None:  # the journal could not be read with it
            raise StudyError(f"{named} returned {reason!r}; it must return the reason to stop as text, or None. {FIX}")
        return Verdict(Fate.GO_ON, certain=rule.certain(history, study.validations_per_epoch))

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Return none: stopping rules never let members rest."""
        return ()


def _kept_by(rule: Stop) -> dict[tuple[int, str], str]:
    """Return the attributes of a rule, or of the rules that it combines, as text. One that is first set when the rule is asked may be a cache."""
    if isinstance(rule, Combined):
        return _kept_by(rule.first) | _kept_by(rule.second)
    return {(id(rule), name): repr(value) for name, value in getattr(rule, "__dict__", {}).items()}


def combine_verdicts(judges: Sequence[Judge], member: str, state: RunState, study: Study) -> Verdict:
    """Combine the verdicts of all judges: the highest fate, and the sections that all of them are certain of."""
    verdicts = [one.verdict(member, state, study) for one in judges]
    gravest = max(verdicts, key=lambda verdict: verdict.fate)
    if gravest.fate is not Fate.GO_ON:
        return gravest
    longest = min((verdict.longest for verdict in verdicts if verdict.longest is not None), default=None)
    return Verdict(Fate.GO_ON, certain=min(verdict.certain for verdict in verdicts), longest=longest)
