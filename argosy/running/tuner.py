"""A search on a living fleet: it brings trials as members, and judges them by its scheduler.

Everything that is decided follows from the journal: which parameters a trial has (`Proposed`, before it trains), what it reached
(its sections), and how it ended. A later driver tells a scheduler of its own the same, and asks it the same.

A trial is a member that rests between two rungs, or, where trials begin anew at each rung, one member after another.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from argosy.errors import StudyError
from argosy.events import Event, MemberEnded, Proposed, RunStarted, SearchBegan
from argosy.fold import OVER, MemberState, RunState
from argosy.running.clones import newest_file
from argosy.running.populations import Population
from argosy.running.rungs import InPacks
from argosy.running.terms import check_terms, terms_of
from argosy.running.trials import Trial
from argosy.running.verdicts import GO_ON, Fate, Newcomer, Verdict
from argosy.stopping import MaxEpochs
from argosy.study import Member, Study
from argosy.tuning import make_scheduler
from argosy.tuning.packing import Candidate, make_packing
from argosy.tuning.pbt import Pbt
from argosy.tuning.sampling import Copy, Outcome, Sampling
from argosy.tuning.search import Search, Store

__all__ = ["Tuner"]


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
            search.scheduler,
            most=search.most,
            eta=search.eta,
            trials=self.total,
            brackets=search.brackets,
            generation=search.epochs_per_generation * search.validations_per_epoch,
            seed=search.seed,
        )
        self.population = self._population()
        """Where trials take over weights of others."""
        self.copy: Copy | None = None
        self.members: list[Member] = []
        self.trials: list[Trial] = []
        self.trial_of: dict[str, Trial] = {}
        """By member."""
        self._open: dict[int, Trial] = {}
        """Those that may still reach something."""
        self._ended: dict[str, str] = {}
        """Why members ended that the search ended under its present terms: it does not change its mind."""
        self._older: set[str] = set()
        """Members that ended under earlier terms, and may go on under these."""
        self._changed: set[int] = set()
        """Trials of which Optuna's storage does not know everything."""

    def _population(self) -> Population | None:
        if not isinstance(self.scheduler, Pbt):
            return None
        return Population(
            scheduler=self.scheduler,
            sampling=self.sampling,
            build=lambda parameters: self._build(0, parameters, dict(parameters), None),
            sections=self.search.validations_per_epoch,
        )

    @property
    def terms(self) -> dict[str, Any]:
        """What must be the same, or grow, in every driver of one search."""
        return terms_of(self.search, self.total)

    @property
    def study(self) -> Study:
        """All members so far."""
        return self.search.study(self.members)

    @property
    def policy(self) -> InPacks | None:
        """How rungs are packed; None where the planner does that."""
        packs, seed = self.search.packs, self.search.seed
        packing = make_packing(packs, seed=seed, choices=self.sampling.choices)
        return None if packing is None else InPacks(name=packs, packing=packing, candidate=self._candidate)

    def _candidate(self, member: str) -> tuple[int, Candidate] | None:
        trial = self.trial_of.get(member)
        if trial is None:
            return None
        candidate = Candidate(name=member, batch_size=trial.member.batch_size, parameters=trial.parameters)
        return self.scheduler.budget(trial.number), candidate

    # ---- what was before

    def recall(self, events: Sequence[Event], state: RunState) -> None:
        """Take up what earlier drivers journaled; raises RunError where that was no search, or another."""
        if not any(isinstance(event, RunStarted) for event in events):
            return  # Nobody has trained: what stood in the way may have been changed since.
        terms: Mapping[str, Any] | None = None
        proposed: list[Proposed] = []
        begun = False
        for event in events:
            begun = begun or isinstance(event, RunStarted)
            if isinstance(event, SearchBegan):
                if event.terms != terms:
                    self._older |= self._ended.keys()
                terms = event.terms
                if not begun:
                    proposed.clear()  # of an earlier driver that got no further
            elif isinstance(event, Proposed):
                proposed.append(event)
            elif isinstance(event, MemberEnded) and event.status == "done":
                self._ended[event.member] = event.reason
                self._older.discard(event.member)
        check_terms(terms, self.terms)
        if terms != self.terms:
            self._older |= self._ended.keys()
        for name in self._older:
            self._ended.pop(name, None)
        for event in proposed:
            self._recall(event, state)
        for trial in self.trials:
            self._tell(trial, state.member(trial.member.name))
        self._sweep(state)

    def _recall(self, event: Proposed, state: RunState) -> None:
        if event.trial < len(self.trials):
            trial = self.trials[event.trial]
            self._tell(trial, state.member(trial.member.name))
            assert event.sections is not None
            self._begin_anew(trial, event.sections)
        else:
            self._take_up(*self.sampling.again(event.parameters), sections=event.sections)

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
        trial = self.trial_of.get(member)
        if trial is None or trial.member.name != member:
            return GO_ON
        here = state.member(member)
        self._tell(trial, here)
        if trial.sections is not None:
            # The member's own rule ends it; what becomes of the trial is for another member.
            return Verdict(Fate.GO_ON, certain=max(trial.sections - len(here.history), 1))
        if member in self._ended and here.status == "done":
            return Verdict(Fate.END, self._ended[member])
        left = self.scheduler.budget(trial.number) - len(here.history)
        if left > 0:
            return Verdict(Fate.GO_ON, certain=left)
        reason = self.scheduler.out(trial.number)
        if reason is None:
            return Verdict(Fate.REST, f"waits after section {len(here.history)} for others")
        return Verdict(Fate.END, reason)

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """See `Judge.called`."""
        self._sweep(state)
        return [name for name in resting if name in self.trial_of and self._waits_no_more(self.trial_of[name])]

    def _waits_no_more(self, trial: Trial) -> bool:
        return self.scheduler.budget(trial.number) > trial.told or self.scheduler.out(trial.number) is not None

    def to_come(self, state: RunState) -> float:
        """Epochs that all trials together have before them, as far as that is known."""
        done = sum(len(state.member(member.name).sections) for member in self.members)
        return max(self.scheduler.foreseen(again=not self.search.warm) - done, 0) / self.search.validations_per_epoch

    # ---- the bringer

    def bring(self, state: RunState) -> Sequence[Newcomer]:
        """See `Bringer.bring`."""
        self._write()
        again = [self._propose_again(trial) for trial in list(self._open.values()) if self._goes_on_anew(trial, state)]
        count = self.scheduler.wanted(len(self.trials))
        if count and self.search.at_once is not None:
            count = min(count, max(self.search.at_once - self._training(state), 0))
        return [*again, *self._propose(count, state)]

    def _training(self, state: RunState) -> int:
        """Trials that train, or are about to; those that leave have not left yet."""
        return sum(
            trial.told < self.scheduler.budget(trial.number) or state.member(trial.member.name).status == "training"
            for trial in self._open.values()
        )

    def _goes_on_anew(self, trial: Trial, state: RunState) -> bool:
        """Whether a trial that begins anew at each rung has another one before it."""
        if trial.sections is None or self.scheduler.budget(trial.number) <= trial.sections:
            return False
        return state.member(trial.member.name).status == "done"

    def _propose(self, count: int, state: RunState) -> Iterator[Newcomer]:
        """So many more trials, or as many as need not wait for a file of another one."""
        for _ in range(count):
            newcomer = self._propose_one(state)
            if newcomer is None:
                return
            yield newcomer

    def _propose_one(self, state: RunState) -> Newcomer | None:
        number = len(self.trials)
        source = None if self.population is None else self.population.source(number)
        if source is not None:
            return self._propose_clone(self.trials[source], state)
        parameters, built_from = self.sampling.ask()
        if self.population is not None:
            self.population.movable(parameters)
        sections = None if self.search.warm else self.scheduler.budget(number)
        return self._newcomer(self._take_up(parameters, built_from, sections=sections))

    def _propose_clone(self, source: Trial, state: RunState) -> Newcomer | None:
        """None while its source has not been saved where it is."""
        assert self.population is not None
        here = state.member(source.member.name)
        if here.status not in OVER and not self.population.is_saved(source, here):
            return None
        parameters = self.population.explored(source)
        trial = self._take_up(*self.sampling.again(parameters), sections=None)
        return replace(self._newcomer(trial), cloned=self.population.cloned(trial, source, newest_file(here)))

    def _propose_again(self, trial: Trial) -> Newcomer:
        self._begin_anew(trial, self.scheduler.budget(trial.number))
        return self._newcomer(trial)

    def _newcomer(self, trial: Trial) -> Newcomer:
        proposed = Proposed(
            trial=trial.number,
            member=trial.member.name,
            parameters=trial.parameters,
            sections=trial.sections,
            in_step=self.population is not None,
        )
        return Newcomer(member=trial.member, proposed=proposed)

    def _take_up(self, parameters: Mapping[str, Any], built_from: dict[str, Any], *, sections: int | None) -> Trial:
        number = len(self.trials)
        member = self._build(number, parameters, built_from, sections)
        trial = Trial(
            number=number,
            parameters=parameters,
            built_from=built_from,
            member=member,
            sections=sections,
            mode=self.mode,
        )
        self.trials.append(trial)
        self._open[number] = trial
        self._enter(trial)
        return trial

    def _begin_anew(self, trial: Trial, sections: int) -> None:
        """From here on a trial is another member, which trains for so many sections."""
        built = self._build(trial.number, trial.parameters, trial.built_from, sections)
        trial.begin_anew(replace(built, name=f"{built.name}-s{sections}"), sections)
        self._enter(trial)

    def _enter(self, trial: Trial) -> None:
        self.members.append(trial.member)
        self.trial_of[trial.member.name] = trial
        self._changed.add(trial.number)

    def _build(
        self, number: int, parameters: Mapping[str, Any], built_from: dict[str, Any], sections: int | None
    ) -> Member:
        built = self.search.member(dict(built_from), sections or self.search.most)
        if not isinstance(built, Member):
            raise StudyError(
                f"build({dict(parameters)}) returned {type(built).__name__}; it must return an argosy.Member."
            )
        epochs = self.search.max_epochs if sections is None else sections / self.search.validations_per_epoch
        stop = MaxEpochs(epochs) if built.stop is None else built.stop | MaxEpochs(epochs)
        return replace(built, name=f"{built.name}-{number}", stop=stop)

    # ---- what trials reach

    def _tell(self, trial: Trial, here: MemberState) -> None:
        """Let the scheduler and Optuna know what a trial is worth after each section: the best that it has had.

        Those of a population are compared as they are: clones have the best of their sources.
        """
        if trial.number not in self._open:
            return  # What it has been told with was its last.
        for sections, value, best in trial.hear(here.history, self.objective):
            worth = best if self.population is None else value
            self.scheduler.tell(trial.number, sections, worth if self.mode == "min" else -worth)
            self.sampling.report(trial.number, sections, best)
            self._changed.add(trial.number)

    def _sweep(self, state: RunState) -> None:
        """Look who has ended since the last time."""
        for trial in list(self._open.values()):
            here = state.member(trial.member.name)
            if here.status not in OVER:
                self._older.discard(here.name)
                if here.inherited is not None and not trial.told:
                    self._tell(trial, here)
                continue
            out = self.scheduler.out(trial.number) is not None
            if trial.sections is not None or here.name not in self._older or out:
                self._tell(trial, here)
                if out or not self._is_between(trial, here):
                    self._end(trial, here)

    def _is_between(self, trial: Trial, here: MemberState) -> bool:
        """Whether a member has trained for its rung, and nobody knows yet what becomes of its trial."""
        if trial.sections is None or here.status != "done":
            return False
        return trial.sections <= len(here.history) < self.search.most and self.scheduler.out(trial.number) is None

    def _end(self, trial: Trial, here: MemberState) -> None:
        outcome: Outcome = "failed"
        if here.status == "done":
            self._ended[here.name] = here.reason
            rule = trial.member.stop
            over = rule is not None and rule.reason(here.history) is not None
            # Of one that begins anew at each rung, the rule of the last of its members is that of its rung.
            out = trial.sections is not None and self.scheduler.out(trial.number) is not None
            outcome = "complete" if over and not out else "pruned"
        if outcome == "complete":
            self.scheduler.close(trial.number)
        elif outcome == "failed":
            self.scheduler.fail(trial.number)
        self.sampling.end(trial.number, "failed" if trial.worthless else outcome, trial.best)
        self._changed.add(trial.number)
        del self._open[trial.number]

    def _write(self) -> None:
        """Let Optuna's storage show what has changed."""
        if self.copy is not None and self._changed:
            trials = self.sampling.frozen()
            self.copy.show([trials[number] for number in sorted(self._changed)])
            self._changed.clear()
