"""What becomes of a member after a section: it goes on, rests, or ends. One seam for all that have a say in it.

A judge is one class with three answers, all functions of what is journaled: stopping rules, a budget, a search. The driver asks
each of them after every section; a verdict to end counts before one to rest, and that before one to go on. A verdict
counts at the barrier behind the section, where it is asked for again: what others have reached there is known by then.

A class that brings members (`Bringer`) may judge them as well, and need not.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from argosy.protocol.events import Cloned, Event, Proposed
from argosy.results.fold import RunState
from argosy.study import Member, Study

__all__ = ["GO_ON", "Bringer", "Fate", "Judge", "Newcomer", "Rules", "Verdict", "judge"]


class Fate(IntEnum):
    """What a verdict says; the higher one counts."""

    GO_ON = 0
    REST = 1
    """Saved and let go; it comes back, exactly, when a judge calls it."""
    END = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one member, after one section."""

    fate: Fate
    reason: str = ""
    certain: int = 1
    """Sections for which it is sure that the member goes on, whatever comes of them."""
    longest: int | None = None
    """And those after which it surely does not, so that none are prepared for it; None where that is not known."""


GO_ON = Verdict(Fate.GO_ON)


class Judge(Protocol):
    """One that has a say."""

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """On a member where its history ends; asked after each of its sections, and before its first."""

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Those of the resting members whose rest is over: they train again, or end if that is their verdict.

        Asked in every round of the driver, so it must be quick.
        A member that was called, and was lost before it ended a section, is judged by its old history and may rest again.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Newcomer:
    """What is to join a run, a member or several that are one trial, and what is journaled of it before any other part of the run uses it."""

    members: tuple[Member, ...]
    proposed: Proposed
    cloned: Cloned | None = None
    """Where it takes over what another member is: of which."""

    @property
    def events(self) -> tuple[Event, ...]:
        """To be journaled: what was proposed comes last, as without that there is no newcomer."""
        return (self.proposed,) if self.cloned is None else (self.cloned, self.proposed)


class Bringer(Protocol):
    """Lets members join while a run goes on."""

    def found(self, state: RunState) -> Sequence[Event]:
        """What it has found out about members and the journal does not have; asked before each `bring`."""

    def bring(self, state: RunState) -> Sequence[Newcomer]:
        """Members that join now, each once; asked in every round of the driver after `Judge.called`, so it must be quick.

        The bringer finds their events in the journal of a later driver, and has them in the study that it starts with.
        """

    def has_more(self, state: RunState) -> bool:
        """Whether members are to come yet, at the latest when all that are here have ended: the run is not done before."""


class Rules:
    """The study's stopping rules: a function of the member's own history and of nothing else."""

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """End a member when its stopping rule gives a reason."""
        rule, history = study.stop_of(study.member(member)), state.member(member).history
        reason = rule.reason(history)
        if reason is not None:
            return Verdict(Fate.END, reason)
        return Verdict(Fate.GO_ON, certain=rule.certain(history, study.validations_per_epoch))

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Return none: rules let no member rest."""
        return ()


def judge(judges: Sequence[Judge], member: str, state: RunState, study: Study) -> Verdict:
    """What they say together: the gravest fate, and what is certain to all of them."""
    verdicts = [one.verdict(member, state, study) for one in judges]
    gravest = max(verdicts, key=lambda verdict: verdict.fate)
    if gravest.fate is not Fate.GO_ON:
        return gravest
    longest = min((verdict.longest for verdict in verdicts if verdict.longest is not None), default=None)
    return Verdict(Fate.GO_ON, certain=min(verdict.certain for verdict in verdicts), longest=longest)
