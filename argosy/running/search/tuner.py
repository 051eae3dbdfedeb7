"""A search during a run: it adds trials as members, and judges them by its scheduler.

Every decision follows from the journal: a trial's parameters (`Proposed`, before it trains), the results of its
sections, and how it ended. A later driver replays the journal to a new scheduler, which then gives the same answers. A
sampler that learns is asked in waves, each when all earlier trials are settled, so that its knowledge does not depend
on when these trained.

A trial is one member, which rests between two rungs. If trials start from scratch at each rung, it is a sequence of members,
one per rung. A trial may also be several members at once, for example folds: these continue, rest and end together,
and their mean is the trial's result.
"""

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from argosy.errors import StudyError
from argosy.errors.warned import warn_caller
from argosy.protocol.events import Constrained, Event, MemberEnded, Proposed, RunStarted, SearchBegan
from argosy.results.fold import FINAL_STATUSES, RunState
from argosy.running.control.verdicts import GO_ON, Fate, Newcomer, Verdict
from argosy.running.directory.clone import link_checkpoint, newest_checkpoint
from argosy.running.directory.identity import Identity
from argosy.running.directory.journal import Journal
from argosy.running.launch.launcher import Job
from argosy.running.search.populations import Population
from argosy.running.search.rungs import PackPolicy
from argosy.running.search.terms import check_terms, terms_of
from argosy.running.search.trial_table import TrialTable
from argosy.running.search.trials import Trial
from argosy.study import Study
from argosy.tuning import make_scheduler
from argosy.tuning.hyperband import Brackets
from argosy.tuning.mirror import StorageMirror, refusal_behind
from argosy.tuning.packing import Candidate, make_packing
from argosy.tuning.pbt import Pbt
from argosy.tuning.sampling import DEFAULT_SAMPLERS, Sampling
from argosy.tuning.scheduler import Scheduler, is_out
from argosy.tuning.search import Search, Store
from argosy.tuning.waves import default_wave_size, explain_no_learning, groups, waves

__all__ = ["Tuner"]

LEARNING = ("hyperband", "asha", "median")
"""Schedulers whose searches use a learning sampler by default: ``random`` and ``grid`` fix the sampling, and populations sample only once."""


class Tuner:
    """Implement `Judge` and `Bringer` for one search."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.sampling: Sampling = Sampling(
            search.space,
            modes=[*search.objectives.modes.values()],
            seed=search.seed,
            sampler=search.sampler,
            grid=search.scheduler == "grid",
            first=search.enqueue,
        )
        points = self.sampling.points
        self.total: int = search.trials(None if points is None else len(points))
        self.brackets: Brackets = search.brackets or ("in-turn" if self.sampling.learns else "together")
        self.scheduler: Scheduler = make_scheduler(
            search.scheduler,
            most=search.most,
            eta=search.eta,
            trials=self.total,
            brackets=self.brackets,
            generation=search.epochs_per_generation * search.validations_per_epoch,
            seed=search.seed,
        )
        self.table: TrialTable = TrialTable(search, self.scheduler, self.sampling)
        self.population: Population | None = self._population()
        """Population of scheduler ``pbt``, in which clones take over weights; None for other schedulers."""
        self.waves: tuple[range, ...] = self._waves()
        """Numbers of the trials that are sampled together, once all earlier ones are settled."""
        self.learns: bool = self.sampling.learns and len(self.waves) > 1
        if not self.learns:
            self.sampling.hide_results()
        self.copy: StorageMirror | None = None

    @classmethod
    def of(cls, search: Search, events: Sequence[Event]) -> "Tuner":
        """Return the tuner of a search, given the events of earlier drivers.

        A search without a sampler gets the first of `DEFAULT_SAMPLERS` if it can learn something, that is, if its trials come in several waves. A
        search that is resumed keeps the sampler with which it began.
        """
        if search.sampler is not None or search.scheduler not in LEARNING:
            return cls(search)
        begun = next((event.terms for event in reversed(events) if isinstance(event, SearchBegan)), None)
        if begun is not None:
            known = (cls(replace(search, sampler=sampler)) for sampler in DEFAULT_SAMPLERS)
            return next((one for one in known if one.terms["sampler"] == begun.get("sampler")), None) or cls(search)
        learning = cls(replace(search, sampler=DEFAULT_SAMPLERS[0]))
        learns = explain_no_learning(learning.search, learning.waves, startup=learning.sampling.startup) is None
        return learning if learns else cls(search)

    def _population(self) -> Population | None:
        if not isinstance(self.scheduler, Pbt):
            return None
        return Population(
            scheduler=self.scheduler,
            sampling=self.sampling,
            build=lambda parameters: self.table.build(0, parameters, dict(parameters), None)[1][0],
            sections=self.search.validations_per_epoch,
        )

    def _waves(self) -> tuple[range, ...]:
        together = groups(self.scheduler, order=self.brackets)
        if not self.sampling.learns or self.population is not None:
            return waves(together, most=None)
        few = None if self.search.scheduler == "hyperband" else default_wave_size(self.total)
        return waves(together, most=self.search.at_once or few)

    def warn(self) -> None:
        """Warn if a sampler that could learn does not, and name the setting that lets it."""
        if self.search.sampler is not None and self.sampling.can_learn:
            why = explain_no_learning(self.search, self.waves, startup=self.sampling.startup)
            if why:
                warnings.warn(f"the sampler of this search learns nothing: {why}.", UserWarning, stacklevel=4)

    @property
    def terms(self) -> dict[str, Any]:
        """Terms that must stay equal, or may only grow, over all drivers of one search."""
        in_waves = self.sampling.learns and self.population is None
        return terms_of(self.search, self.total, brackets=self.brackets, in_waves=in_waves)

    @property
    def study(self) -> Study:
        """The study of all members so far."""
        return self.search.study(self.table.members)

    @property
    def policy(self) -> PackPolicy | None:
        """Policy that packs rungs; None if the planner packs."""
        packs = self.search.packs
        packing = make_packing(packs, seed=self.search.seed, choices=self.sampling.choices)
        return None if packing is None else PackPolicy(name=packs, packing=packing, candidate=self._candidate)

    def _candidate(self, member: str) -> tuple[int, Candidate] | None:
        trial = self.table.of_member(member)
        if trial is None:
            return None
        candidate = Candidate(name=member, batch_size=trial.member.batch_size, parameters=trial.parameters)
        return self.scheduler.budget(trial.number), candidate

    # ---- earlier drivers

    def replay(self, events: Sequence[Event], state: RunState) -> None:
        """Restore the state that earlier drivers journaled; raises RunError if they ran no search, or another one."""
        started = next((place for place, event in enumerate(events) if isinstance(event, RunStarted)), None)
        if started is None:
            return  # no driver has trained yet, so the terms may have been changed since
        terms = [event.terms for event in events if isinstance(event, SearchBegan)]
        check_terms(terms[-1] if terms else None, self.terms)
        then = RunState() if self.learns else state
        present = False
        # Drivers before the last of these never started to train.
        begun = (place for place, event in enumerate(events[:started]) if isinstance(event, SearchBegan))
        for event in events[max(begun, default=0) :]:
            if self.learns:
                then.apply(event)  # the state when the sampler was asked
            if isinstance(event, SearchBegan):
                present = event.terms == self.terms
            elif isinstance(event, MemberEnded) and event.status == "done":
                # Results of later trials do not call back a trial that was worse than the median at its time.
                final = self.search.scheduler == "median" and is_out(event.reason)
                self.table.note_end(event, present=present or final)
            elif isinstance(event, Proposed):
                self._replay_proposal(event, then)
        self.table.catch_up(state)

    def _replay_proposal(self, event: Proposed, state: RunState) -> None:
        if event.trial < len(self.table.trials):
            trial = self.table.trials[event.trial]
            self.table.report_sections(trial, state)
            assert event.sections is not None
            self.table.begin_anew(trial, event.sections)
        else:
            if self.learns and any(event.trial == wave.start for wave in self.waves):
                self.table.catch_up(state)
            self.table.add(*self.sampling.again(event.parameters), sections=event.sections)

    def check_enqueued(self) -> None:
        """Raise StudyError if more enqueued parameters wait than trials are left."""
        waiting, room = len(self.sampling.waiting), max(self.total - len(self.table.trials), 0)
        if waiting > room:
            raise StudyError(
                f"enqueue has {waiting} trials that this directory has not started, but the search has room for {room} more. "
                "Raise n_trials, or remove the trials that would never run."
            )

    def begin(self, brought: Sequence[Newcomer], job: Job, journal: Journal, state: RunState, store: Store) -> None:
        """Journal the terms, the trials that begin, and constraint values; raises RunError if trials that have begun were changed."""
        # Check before anything is journaled: once a refused change is in the journal, undoing it would be refused too.
        # Only trials are checked here; members that the user adds come later.
        trials = {name: one for name, one in state.members.items() if name in job.study.names}
        Identity(job.directory, trials, job.process_state, of_search=True).check(job.study)
        findings = self.found(state)
        changes = self.show(job.directory, store)
        # A grid goes on with the points that it lacks; of a search that never started to train, no trial is left.
        if changes and self.sampling.points is None and state.started is not None:
            warn_caller(
                f"the space has changed: {'; '.join(changes)}. Earlier trials of this directory stay as they are, and further ones "
                "are drawn from the space as it is now."
            )
        for new in brought:
            if new.cloned is not None:
                link_checkpoint(job.directory, new.cloned)
        began = SearchBegan(terms=self.terms)
        over = (
            not brought and state.searches[-1:] == [began] and state.ended is not None and state.ended.status == "done"
        )
        # A finished search whose command is given again is not changed.
        for event in (*([] if over else [began]), *(event for new in brought for event in new.events), *findings):
            journal.append(event)
            state.apply(event)
        journal.commit()

    def show(self, directory: Path, store: Store) -> list[str]:
        """Copy the search to Optuna's storage, and keep the copy up to date from now on; returns how the space differs from that of the copy."""
        try:
            self.copy = StorageMirror(directory, store, modes=self.sampling.modes)
            changes = self.copy.settle(self.sampling.frozen_trials())
        except RuntimeError as error:
            raise refusal_behind(error) from None
        self.sampling.changed.clear()
        return changes

    def leave(self, state: RunState) -> None:
        """Write the last results of the run to the storage; raises RunError if that fails."""
        self.table.sweep(state)
        self._write()
        if self.copy is not None:
            self.copy.close()

    # ---- the judge

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """Implement `Judge.verdict` by asking the scheduler; members that are no trials continue."""
        trial = self.table.of_member(member)
        if trial is None or not any(one.name == member for one in trial.members):
            return GO_ON
        own_state = state.member(member)
        self.table.report_sections(trial, state)
        why = trial.shared_end_reason(own_state, state)
        if why is not None:
            return Verdict(Fate.END, why)
        if member in self.table.ended and own_state.status == "done":
            return Verdict(Fate.END, self.table.ended[member])
        if trial.sections is not None:
            # The member's stopping rule ends it at its rung; the trial may then continue as another member.
            return self._go_on_verdict(trial, max(trial.sections - len(own_state.history), 1))
        sections_left = self.scheduler.budget(trial.number) - len(own_state.history)
        if sections_left > 0:
            return self._go_on_verdict(trial, sections_left)
        reason = self.scheduler.out(trial.number)
        if reason is None:
            return Verdict(Fate.REST, f"waits for others after section {len(own_state.history)}")
        return Verdict(Fate.END, reason)

    def _go_on_verdict(self, trial: Trial, left: int) -> Verdict:
        """Return a verdict to continue for `left` sections; a trial of several members is judged after each section."""
        # A whole population rests at the end of a generation.
        longest = None if self.population is None else left
        return Verdict(Fate.GO_ON, certain=left if len(trial.members) == 1 else 1, longest=longest)

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Return the resting members that may now train further, or must end."""
        self.table.sweep(state)
        trials = ((name, self.table.of_member(name)) for name in resting)
        return [name for name, trial in trials if trial is not None and self._is_called(trial, name, state)]

    def _is_called(self, trial: Trial, name: str, state: RunState) -> bool:
        own_state = state.member(name)
        if self.scheduler.budget(trial.number) > len(own_state.history) or self.scheduler.out(trial.number) is not None:
            return True
        return trial.shared_end_reason(own_state, state) is not None

    def epochs_to_come(self, state: RunState) -> float:
        """Return the epochs that all trials together have left, as far as is known."""
        done = sum(len(state.member(member.name).own_sections) for member in self.table.members)
        several = len(self.table.trials[0].members) if self.table.trials else 1
        in_all = self.scheduler.expected_sections(again=not self.search.warm) * several
        return max(in_all - done, 0) / self.search.validations_per_epoch

    # ---- the bringer

    def found(self, state: RunState) -> Sequence[Constrained]:
        """Return the constraint values of trials that are not journaled yet."""
        if self.search.constraints is None:
            return ()
        return [
            Constrained(member=trial.name, values=trial.constrained)
            for trial in self.table.trials
            if trial.reached and state.constrained.get(trial.name) != trial.constrained
        ]

    def bring(self, state: RunState) -> Sequence[Newcomer]:
        """Propose trials that start from scratch at their next rung, and new trials."""
        self._write()
        again = [
            self._propose_again(trial) for trial in list(self.table.open.values()) if self._has_next_rung(trial, state)
        ]
        return [*again, *self._propose(self._count(state), state)]

    def _count(self, state: RunState) -> int:
        """Return how many new trials may be sampled now."""
        begun = len(self.table.trials)
        count = self.scheduler.wanted_trials(begun)
        wave = next((wave for wave in self.waves if begun in wave), None)
        if count and wave is not None:
            settled = all(
                self._is_settled(trial, state) for trial in self.table.open.values() if trial.number < wave.start
            )
            count = min(count, wave.stop - begun) if settled else 0
        if count and self.search.at_once is not None and not self.learns:
            count = min(count, max(self.search.at_once - self._training(state), 0))
        return count

    def _is_settled(self, trial: Trial, state: RunState) -> bool:
        """Return whether an open trial rests until other trials have reached its rung."""
        out = self.scheduler.out(trial.number) is not None
        if out or trial.reported_sections < self.scheduler.budget(trial.number):
            return False
        states = trial.here(state)
        if min(len(one.history) for one in states) < trial.reported_sections:
            return False  # it repeats sections that a killed driver had not saved, and may end in them
        return trial.is_between_rungs(states, self.search.most) or trial.first_ended(states) is None

    def has_more(self, state: RunState) -> bool:
        """Return whether trials may still be added, or start from scratch at a next rung."""
        self.table.sweep(state)
        begin_anew = any(self._has_next_rung(trial, state) for trial in self.table.open.values())
        return begin_anew or self.scheduler.wanted_trials(len(self.table.trials)) > 0

    def _training(self, state: RunState) -> int:
        """Return the number of trials that train or are about to, including those that have used their budget but are still leaving."""
        return sum(
            trial.reported_sections < self.scheduler.budget(trial.number)
            or any(one.status == "training" for one in trial.here(state))
            for trial in self.table.open.values()
        )

    def _has_next_rung(self, trial: Trial, state: RunState) -> bool:
        """Return whether a trial that starts from scratch at each rung has another rung to train."""
        if trial.sections is None or self.scheduler.budget(trial.number) <= trial.sections:
            return False
        return all(one.status == "done" for one in trial.here(state))

    def _propose(self, count: int, state: RunState) -> Iterator[Newcomer]:
        """Propose up to `count` more trials; stops at a clone whose source has not saved its state."""
        for _ in range(count):
            newcomer = self._propose_one(state)
            if newcomer is None:
                return
            yield newcomer

    def _propose_one(self, state: RunState) -> Newcomer | None:
        number = len(self.table.trials)
        source = None if self.population is None else self.population.source(number)
        if source is not None:
            return self._propose_clone(self.table.trials[source], state)
        parameters, built_from = self.sampling.ask()
        if self.population is not None:
            self.population.changeable_parameters(parameters)
        if number == 0 and not self.search.warm:
            # Later brackets may begin with a shorter budget, in which for example an average would not begin.
            shortest = min(map(self.scheduler.budget, range(self.total)))
            self.search.study(self.table.build(number, parameters, dict(built_from), shortest)[1])
        sections = None if self.search.warm else self.scheduler.budget(number)
        return self._newcomer(self.table.add(parameters, built_from, sections=sections))

    def _propose_clone(self, source: Trial, state: RunState) -> Newcomer | None:
        """Propose a clone; returns None while its source has not saved its current state."""
        assert self.population is not None
        source_state = state.member(source.member.name)
        if source_state.status not in FINAL_STATUSES and not self.population.is_saved(source, source_state):
            return None
        parameters = self.population.explored(source)
        trial = self.table.add(*self.sampling.again(parameters), sections=None)
        cloned = self.population.cloned(trial, source, newest_checkpoint(source_state))
        return replace(self._newcomer(trial), cloned=cloned)

    def _propose_again(self, trial: Trial) -> Newcomer:
        self.table.begin_anew(trial, self.scheduler.budget(trial.number))
        return self._newcomer(trial)

    def _newcomer(self, trial: Trial) -> Newcomer:
        proposed = Proposed(
            trial=trial.number,
            member=trial.name,
            members=trial.names if len(trial.members) > 1 else (),
            parameters=trial.parameters,
            sections=trial.sections,
            in_step=self.learns or self.search.in_step,
            own_epochs=trial.own_epochs,
        )
        return Newcomer(members=trial.members, proposed=proposed)

    def _write(self) -> None:
        """Write the changed trials to Optuna's storage."""
        if self.copy is not None and self.sampling.changed:
            trials = self.sampling.frozen_trials()
            self.copy.show([trials[number] for number in sorted(self.sampling.changed)])
            self.sampling.changed.clear()
