"""A search on a living fleet: it brings trials as members, and judges them by its scheduler.

Everything that is decided follows from the journal: which parameters a trial has (`Proposed`, before it trains), what it reached
(its sections), and how it ended. A later driver tells a scheduler of its own the same, and asks it the same.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from argosy.errors import RunError, StudyError
from argosy.events import Event, MemberEnded, Proposed, RunStarted, SearchBegan
from argosy.fold import MemberState, RunState
from argosy.running.identity import spell
from argosy.running.verdicts import GO_ON, Fate, Newcomer, Verdict
from argosy.stopping import MaxEpochs, better
from argosy.study import Member, Study
from argosy.tuning import make_scheduler
from argosy.tuning.sampling import Copy, Outcome, Sampling
from argosy.tuning.search import Search, Store

__all__ = ["Tuner"]

OVER = ("done", "failed", "diverged", "stopped")
TOTALS = ("max_epochs", "n_trials")


class Tuner:
    """The judge and the bringer of one search."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.objective, self.mode = search.ranks_by
        grid = search.scheduler == "grid"
        self.sampling = Sampling(search.space, mode=self.mode, seed=search.seed, sampler=search.sampler, grid=grid)
        points = self.sampling.points
        self.total = search.trials(None if points is None else len(points))
        self.scheduler = make_scheduler(
            search.scheduler, most=search.most, eta=search.eta, trials=self.total, brackets=search.brackets
        )
        self.copy: Copy | None = None
        self.members: list[Member] = []
        self.numbers: dict[str, int] = {}
        self.parameters: dict[str, Mapping[str, Any]] = {}
        self._told: list[int] = []
        """Sections of each trial that the scheduler was told of."""
        self._best: list[float] = []
        """What each is worth so far."""
        self._open: dict[str, int] = {}
        """Trials that may still reach something, by name."""
        self._ended: dict[str, str] = {}
        """Why trials ended that the search ended under its present terms: it does not change its mind."""
        self._older: set[str] = set()
        """Trials that ended under earlier terms, and may go on under these."""
        self._changed: set[int] = set()
        """Trials of which Optuna's storage does not know everything."""

    @property
    def terms(self) -> dict[str, Any]:
        """What must be the same, or grow, in every driver of one search."""
        search = self.search
        return {
            "seed": search.seed,
            "scheduler": search.scheduler,
            "eta": search.eta,
            "brackets": search.brackets,
            "sampler": _name(search.sampler),
            "objective": self.objective,
            "mode": self.mode,
            "max_epochs": search.max_epochs,
            "n_trials": self.total,
        }

    @property
    def study(self) -> Study:
        """All trials so far."""
        return self.search.study(self.members)

    # ---- what was before

    def recall(self, events: Sequence[Event], state: RunState) -> None:
        """Take up what earlier drivers journaled; raises RunError where that was no search, or another."""
        if not any(isinstance(event, RunStarted) for event in events):
            return  # Nobody has trained: what stood in the way may have been changed since.
        terms: Mapping[str, Any] | None = None
        proposed: dict[int, Mapping[str, Any]] = {}
        for event in events:
            if isinstance(event, SearchBegan):
                if event.terms != terms:
                    self._older |= self._ended.keys()
                terms = event.terms
            elif isinstance(event, Proposed):
                # The first of them comes twice where an earlier driver got no further.
                proposed = {**({} if event.trial == 0 else proposed), event.trial: event.parameters}
            elif isinstance(event, MemberEnded) and event.status == "done":
                self._ended[event.member] = event.reason
                self._older.discard(event.member)
        check_terms(terms, self.terms)
        if terms != self.terms:
            self._older |= self._ended.keys()
        for name in self._older:
            self._ended.pop(name, None)
        for parameters in proposed.values():
            self._take_up(*self.sampling.again(parameters))
        for name, number in self.numbers.items():
            self._tell(number, state.member(name))
        self._sweep(state)

    def show(self, directory: Path, store: Store) -> None:
        """Let Optuna's storage show the search from here on."""
        self.copy = Copy(directory, store, mode=self.mode)
        self.copy.settle(self.sampling.frozen())
        self._changed.clear()

    def leave(self, state: RunState) -> None:
        """The run is over: let the storage know the last of it; raises RunError where that fails."""
        self._sweep(state)
        self._write()
        if self.copy is not None:
            self.copy.close()

    # ---- the judge

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """See `Judge.verdict`; of members that are no trials it says nothing."""
        number = self.numbers.get(member)
        if number is None:
            return GO_ON
        here = state.member(member)
        self._tell(number, here)
        if member in self._ended and here.status == "done":
            return Verdict(Fate.END, self._ended[member])
        left = self.scheduler.budget(number) - len(here.history)
        if left > 0:
            return Verdict(Fate.GO_ON, certain=left)
        reason = self.scheduler.out(number)
        if reason is None:
            return Verdict(Fate.REST, f"waits after section {len(here.history)} for others")
        return Verdict(Fate.END, reason)

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """See `Judge.called`."""
        self._sweep(state)
        return [name for name in resting if name in self.numbers and self._waits_no_more(self.numbers[name])]

    def _waits_no_more(self, number: int) -> bool:
        return self.scheduler.budget(number) > self._told[number] or self.scheduler.out(number) is not None

    # ---- the bringer

    def bring(self, state: RunState) -> Sequence[Newcomer]:
        """See `Bringer.bring`."""
        self._write()
        count = self.scheduler.wanted(len(self.members))
        if count and self.search.at_once is not None:
            count = min(count, max(self.search.at_once - self._training(state), 0))
        return [self._propose() for _ in range(count)]

    def _training(self, state: RunState) -> int:
        """Trials that train, or are about to; those that leave have not left yet."""
        return sum(
            self._told[number] < self.scheduler.budget(number) or state.member(name).status == "training"
            for name, number in self._open.items()
        )

    def _propose(self) -> Newcomer:
        parameters, built_from = self.sampling.ask()
        member = self._take_up(parameters, built_from)
        return Newcomer(
            member=member,
            proposed=Proposed(trial=self.numbers[member.name], member=member.name, parameters=parameters),
        )

    def _take_up(self, parameters: Mapping[str, Any], built_from: dict[str, Any]) -> Member:
        number = len(self.members)
        built = self.search.build(built_from)
        if not isinstance(built, Member):
            raise StudyError(
                f"build({dict(parameters)}) returned {type(built).__name__}; it must return an argosy.Member."
            )
        limit = MaxEpochs(self.search.max_epochs)
        member = replace(built, name=f"{built.name}-{number}", stop=limit if built.stop is None else built.stop | limit)
        self.members.append(member)
        self.parameters[member.name] = parameters
        self.numbers[member.name] = self._open[member.name] = number
        self._told.append(0)
        self._best.append(math.nan)
        self._changed.add(number)
        return member

    # ---- what trials reach

    def _tell(self, number: int, here: MemberState) -> None:
        """Let the scheduler and Optuna know what a trial is worth after each section: the best that it has had."""
        if here.name not in self._open:
            return  # What it has been told with was its last.
        for sections in range(self._told[number] + 1, len(here.history) + 1):
            value = here.history[sections - 1].get(self.objective, math.nan)
            if better(value, self._best[number], self.mode):
                self._best[number] = value
            best = self._best[number]
            self.scheduler.tell(number, sections, best if self.mode == "min" else -best)
            self.sampling.report(number, sections, best)
            self._told[number] = sections
            self._changed.add(number)

    def _sweep(self, state: RunState) -> None:
        """Look who has ended since the last time."""
        for name, number in list(self._open.items()):
            here = state.member(name)
            if here.status not in OVER:
                self._older.discard(name)
            elif name not in self._older or self.scheduler.out(number) is not None:
                self._tell(number, here)
                self._end(name, number, here)

    def _end(self, name: str, number: int, here: MemberState) -> None:
        outcome: Outcome = "failed"
        if here.status == "done":
            self._ended[name] = here.reason
            rule = self.members[number].stop
            outcome = "complete" if rule is not None and rule.reason(here.history) else "pruned"
        if outcome == "complete":
            self.scheduler.close(number)
        elif outcome == "failed":
            self.scheduler.fail(number)
        best = self._best[number]
        self.sampling.end(number, "failed" if math.isnan(best) else outcome, best)
        self._changed.add(number)
        del self._open[name]

    def _write(self) -> None:
        """Let Optuna's storage show what has changed."""
        if self.copy is not None and self._changed:
            trials = self.sampling.frozen()
            self.copy.show([trials[number] for number in sorted(self._changed)])
            self._changed.clear()


def check_terms(there: Mapping[str, Any] | None, here: Mapping[str, Any]) -> None:
    """Raise RunError where a search with the terms `here` cannot go on with one that had those `there`."""
    if there is None:
        raise RunError("the directory holds a run that is not a search of `argosy tune`; choose another directory.")
    differences = [
        f"{key}: {there[key]!r} there, {value!r} here"
        for key, value in here.items()
        if (value < there[key] if key in TOTALS else value != there[key])
    ]
    if differences:
        raise RunError(
            "the directory holds another search:\n  " + "\n  ".join(differences) + "\n"
            f"Choose another directory, or undo the change; {' and '.join(TOTALS)} may grow."
        )


def _name(sampler: Any) -> str:
    return "random" if sampler is None else spell(sampler)
