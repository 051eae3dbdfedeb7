"""The trials of a search, from a proposal to their results: the only owner of which exist, what they have reached, and how they ended."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.errors import StudyError
from argosy.protocol.events import MemberEnded
from argosy.results.fold import CUT_SHORT_STATUSES, FINAL_STATUSES, MemberState, RunState
from argosy.running.search.trials import Trial, build_members
from argosy.stopping import MaxEpochs
from argosy.study import Member
from argosy.tuning.objectives import Objectives
from argosy.tuning.pbt import Pbt
from argosy.tuning.sampling import Outcome, Sampling
from argosy.tuning.scheduler import Scheduler, is_out
from argosy.tuning.search import Search

__all__ = ["TrialTable"]


class TrialTable:
    """The trials of one search, by number, and all members that have trained for them; it reports results to the scheduler and to Optuna."""

    def __init__(self, search: Search, scheduler: Scheduler, sampling: Sampling) -> None:
        self.search = search
        self.scheduler = scheduler
        self.sampling = sampling
        self.objectives: Objectives = search.objectives
        self.trials: list[Trial] = []
        self.members: list[Member] = []
        self.open: dict[int, Trial] = {}
        """Trials that may still improve."""
        self.ended: dict[str, str] = {}
        """Why the search ended members under its present terms, by member; these decisions are final."""
        self._of_member: dict[str, Trial] = {}
        self._older: set[str] = set()
        """Members that ended under earlier terms, and may continue under the present ones."""

    def of_member(self, name: str) -> Trial | None:
        """Return the trial for which a member trains or has trained; None for a member that is no trial."""
        return self._of_member.get(name)

    def add(self, parameters: Mapping[str, Any], built_from: dict[str, Any], *, sections: int | None) -> Trial:
        """Add the next trial, whose members train for `sections` sections if the scheduler may not extend that."""
        number = len(self.trials)
        name, members = self.build(number, parameters, built_from, sections)
        trial = Trial(
            number=number, parameters=parameters, built_from=built_from, name=name, members=members, sections=sections
        )
        self.trials.append(trial)
        self.open[number] = trial
        self._enter(trial)
        return trial

    def begin_anew(self, trial: Trial, sections: int) -> None:
        """Continue a trial as another member, which trains for `sections` sections."""
        suffix = f"{trial.number}-s{sections}"
        trial.begin_anew(*self.build(suffix, trial.parameters, trial.built_from, sections), sections)
        self._enter(trial)

    def _enter(self, trial: Trial) -> None:
        self.members += trial.members
        self._of_member.update(dict.fromkeys(trial.names, trial))

    def build(
        self, suffix: object, parameters: Mapping[str, Any], built_from: dict[str, Any], sections: int | None
    ) -> tuple[str, tuple[Member, ...]]:
        """Return the name and members of a trial; raises StudyError if they cannot be trained in this search."""
        built = self.search.member(dict(built_from), sections or self.search.most)
        epochs = self.search.max_epochs if sections is None else sections / self.search.validations_per_epoch
        name, members = build_members(built, parameters, f"{suffix}", MaxEpochs(epochs))
        if len(members) > 1 and self.search.scheduler == "pbt":
            raise StudyError(
                f"build({dict(parameters)}) returned {len(members)} members, but scheduler 'pbt' clones trials of "
                "one member. Return one member, or choose another scheduler."
            )
        for one in members:
            self.search.check_reported(one)
        return name, members

    # ---- results

    def report_sections(self, trial: Trial, state: RunState) -> None:
        """Report a trial's best result so far to the scheduler and Optuna, for each new section.

        The scheduler of a population gets the current value instead.
        """
        if trial.number not in self.open:
            return  # its last report was made when it ended
        states = trial.here(state)
        population = isinstance(self.scheduler, Pbt)
        ended = population and trial.first_ended(states) is not None
        for sections, value in trial.new_sections(states, self.objectives):
            reached = {self.objectives.first: value} if population else trial.reached
            cost = self.objectives.cost(reached, trial.constrained)
            last = ended and sections == len(states[0].sections)
            self.scheduler.tell(trial.number, sections, *cost.values, excess=cost.excess, last=last)
            values = self.objectives.values(trial.reached)
            self.sampling.report(trial.number, sections, *values, constrained=trial.constrained)

    def note_end(self, event: MemberEnded, *, present: bool) -> None:
        """Record whether a member ended under the present terms."""
        if present:
            self.ended[event.member] = event.reason
            self._older.discard(event.member)
        else:
            self._older.add(event.member)

    def sweep(self, state: RunState) -> None:
        """Check which trials have ended since the last time."""
        # This needs the current state: in an earlier one, members that had ended when the terms changed may still be training.
        self._older = {name for name in self._older if state.member(name).status in FINAL_STATUSES}
        self._handle_over(state)

    def catch_up(self, state: RunState) -> None:
        """Report all new sections of a state, the current one or the one when the sampler was asked, and end the trials that are over in it."""
        for trial in self.trials:
            self.report_sections(trial, state)
        self._handle_over(state)

    def _handle_over(self, state: RunState) -> None:
        for trial in list(self.open.values()):
            states = trial.here(state)
            under_way = [one for one in states if one.status not in FINAL_STATUSES]
            wrong = next((one for one in states if one.status in CUT_SHORT_STATUSES), None)
            if wrong is not None or not under_way:
                self._handle_ended(trial, states, wrong, state)
            elif states[0].inherited is not None and not trial.reported_sections:
                self.report_sections(trial, state)

    def _handle_ended(
        self, trial: Trial, here: Sequence[MemberState], wrong: MemberState | None, state: RunState
    ) -> None:
        """End a trial whose members have all ended, or one of which has failed, unless the trial may continue."""
        out = self.scheduler.out(trial.number) is not None
        older = wrong is None and any(one.name in self._older for one in here)
        # A trial that ended by its own rule does not continue under new terms either.
        if trial.sections is not None or out or not (older and trial.first_ended(here) is None):
            self.report_sections(trial, state)
            if out or wrong is not None or not trial.is_between_rungs(here, self.search.most):
                self._end(trial, here, wrong)

    def _end(self, trial: Trial, here: Sequence[MemberState], wrong: MemberState | None) -> None:
        outcome: Outcome = "failed"
        if wrong is None:
            self.ended.update((one.name, one.reason) for one in here)
            over = trial.first_ended(here) is not None
            # If neither the scheduler nor its present rule explains the end, an earlier version of the rule ended it.
            out = self.scheduler.out(trial.number) is not None or is_out(here[0].reason)
            # If a trial starts from scratch at each rung, the rule of its last member is that of the rung.
            outcome = "pruned" if out and (trial.sections is not None or not over) else "complete"
        elif len(here) > 1:
            trial.failed = f"{wrong.name} {wrong.status}"
        if outcome == "complete":
            self.scheduler.close(trial.number)
        elif outcome == "failed":
            self.scheduler.fail(trial.number)
        values = self.objectives.values(trial.reached)
        self.sampling.end(trial.number, "failed" if any(map(math.isnan, values)) else outcome, values)
        del self.open[trial.number]
