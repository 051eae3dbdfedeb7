"""The trials of a search at one moment, best first, for its report, its page and the live view.

The best trial, here and in Optuna's study, is the one with the best objective in any of its sections. It is chosen among the complete trials,
which have trained to their end or, while there are none, among all trials that count. Trials that failed, diverged or were stopped do
not count. A trial that violates a constraint ranks behind all that violate none, and is never the best. Neither is a trial whose objective is
not a number. With several objectives, the best trial is the one in the Pareto set with the best first objective.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from argosy.protocol.events import Proposed
from argosy.results.fold import CUT_SHORT_STATUSES, FAILED_STATUSES, MemberState, RunState
from argosy.results.intervals import Interval
from argosy.results.repetitions import Leader
from argosy.stopping import is_better, sections_in
from argosy.tuning.objectives import TOTALS, Objectives, pareto_levels, reached_metrics
from argosy.tuning.scheduler import is_out

__all__ = ["PRUNED", "WORTHLESS", "TrialResult", "TrialsSoFar", "leader_of", "statuses"]

WORTHLESS = ("stopped", *FAILED_STATUSES)
"""Statuses of trials that do not count."""
PRUNED = "pruned"
"""Status of a trial that the scheduler has stopped early; its members are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """Result of one trial: of its member, or of the mean of several."""

    name: str
    members: tuple[str, ...]
    status: str
    """Status of its members, or pruned if the scheduler has stopped it after these epochs."""
    reason: str
    epochs: float
    """Epochs of each of its members."""
    metrics: Mapping[str, float]
    """Metrics of the section with the best objective, averaged over the members; empty if a member has failed."""
    totals: Mapping[str, float]
    """Other possible objectives, up to that section: `argosy.tuning.objectives.TOTALS`."""
    constraints: tuple[float, ...] = ()
    """Constraints of the search in that section; values above 0 are violations."""
    best_epochs: float | None = None
    """Finished epochs of each member at that section."""

    @classmethod
    def of(cls, member: MemberState) -> "TrialResult":
        """Return the trial that is one member."""
        best, own = member.best, member.own_sections
        until = [ended for ended in own if best and (ended.epoch, ended.section) <= (best.epoch, best.section)]
        return cls(
            name=member.name,
            members=(member.name,),
            status=member.status,
            reason=member.reason,
            epochs=member.epochs,
            metrics=dict(best.metrics) if best else {},
            totals=_totals(reached_metrics([(until, member.parameters)])) if best else {},
            best_epochs=best.epochs if best else None,
        )

    @classmethod
    def mean(cls, name: str, members: Sequence[MemberState], objectives: Objectives) -> "TrialResult":
        """Return the trial that is the mean of several members."""
        wrong = next((one for one in members if one.status in CUT_SHORT_STATUSES), None)
        last = wrong or next((one for one in members if one.status != "done"), members[0])
        # The sections that all members have ended.
        by_all = [*zip(*(one.sections for one in members), strict=False)]
        values = [sum(each.metrics[objectives.first] for each in ended) / len(members) for ended in by_all]
        best = None
        for number, value in enumerate(() if wrong else values):
            if best is None or is_better(value, values[best], objectives.mode):
                best = number
        metrics = {} if best is None else reached_metrics((one.sections[: best + 1], one.parameters) for one in members)
        return cls(
            name=name,
            members=tuple(one.name for one in members),
            status=last.status,
            reason=f"{last.name}: {last.reason}" if wrong else last.reason,
            epochs=min(one.epochs for one in members),
            metrics={name: value for name, value in metrics.items() if name not in TOTALS},
            totals=_totals(metrics),
            best_epochs=None if best is None else by_all[best][0].epochs,
        )

    @property
    def verdict(self) -> str:
        """Whether the trial violates constraints, in one word; empty without constraints."""
        return "" if not self.constraints else "violated" if max(self.constraints) > 0 else "met"

    @property
    def reached(self) -> dict[str, float]:
        """Everything that objectives and constraints may use."""
        return {**self.metrics, **self.totals}


def _totals(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in TOTALS if name in metrics}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialsSoFar:
    """Trials that have begun, and members that were added to the search."""

    rows: tuple[TrialResult, ...]
    """Trials, best first, ties by number; a trial that starts from scratch at each rung has one row per rung."""
    pareto: tuple[TrialResult, ...]
    """Among the trials from which the best is chosen, those that no other trial dominates, sorted by the first objective."""
    proposed: Mapping[str, Proposed]
    """Proposals by name of the row, in the order of the trials."""
    terms: Mapping[str, Any]
    """Terms of the search."""
    per_epoch: int
    """Sections of an epoch."""

    @classmethod
    def of(cls, state: RunState, members: Mapping[str, MemberState], *, over: bool = False) -> "TrialsSoFar":
        """Return the trials, given the folded state of a search and its members; if the search is `over`, no trial continues."""
        terms, per_epoch = state.searches[-1].terms, state.started.validations_per_epoch if state.started else 1
        objectives, ends = Objectives.of(terms), Ends.of(state, per_epoch)
        # An earlier driver that trained nothing may have proposed trials that the current one has not.
        proposed = {name: one for name, one in state.proposed.items() if members.keys() >= {*(one.members or (name,))}}
        parts = {name for one in proposed.values() for name in one.members}
        rows = [TrialResult.of(one) for name, one in members.items() if name not in parts]
        rows += [
            TrialResult.mean(name, [members[part] for part in one.members], objectives)
            for name, one in proposed.items()
            if one.members
        ]
        last = {one.trial: name for name, one in proposed.items()}

        def status(row: TrialResult) -> str:
            event = proposed.get(row.name)
            if event is None or row.status != "done" or ends.reached_by(row, event):
                return row.status
            return PRUNED if is_out(row.reason) or (over and last[event.trial] == row.name) else row.status

        constraints = state.constrained
        rows = [replace(row, status=status(row), constraints=constraints.get(row.name, ())) for row in rows]
        ordered, pareto = _order_rows(rows, proposed, ends, objectives)
        return cls(rows=ordered, pareto=pareto, proposed=proposed, terms=terms, per_epoch=per_epoch)

    @property
    def best(self) -> TrialResult | None:
        """The best trial; None before there is one."""
        return next(iter(self.pareto), None)

    @property
    def numbers(self) -> dict[str, int]:
        """Trial numbers by name of the row."""
        return {name: one.trial for name, one in self.proposed.items()}

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """Parameters by name of the row."""
        return {name: one.parameters for name, one in self.proposed.items()}


def leader_of(best: TrialResult | None, objective: str) -> Leader | None:
    """Return the headline about the best trial; None before there is one."""
    if best is None:
        return None
    return Leader(name=best.name, metric=objective, value=Interval.of([best.metrics[objective]]))


def statuses(rows: Iterable[TrialResult], trials: Mapping[str, int]) -> list[str]:
    """Return the status of each trial, given trial numbers by row name; with several rows per trial, that of the last row."""
    last = {*{number: name for name, number in trials.items()}.values()}
    return [row.status for row in rows if row.name in last]


def _order_rows(
    rows: Sequence[TrialResult], trials: Mapping[str, Proposed], ends: "Ends", objectives: Objectives
) -> tuple[tuple[TrialResult, ...], tuple[TrialResult, ...]]:
    """Return the rows, best first and ties by number, and the rows of the Pareto set."""
    costs = {row.name: objectives.cost(row.reached, row.constraints) for row in rows}

    def kind(row: TrialResult) -> tuple[bool, ...]:
        broken = costs[row.name].excess > 0
        return not row.metrics, row.status in WORTHLESS, broken, not ends.reached_by(row, trials.get(row.name))

    kinds = {row.name: kind(row) for row in rows}
    places: dict[str, tuple[Any, ...]] = {}
    for one in {*kinds.values()}:
        alike = [name for name, its in kinds.items() if its == one]
        for name, level in zip(alike, pareto_levels([costs[name] for name in alike]), strict=True):
            event, value = trials.get(name), costs[name].values[0]
            number = math.inf if event is None else event.trial
            places[name] = (one, level, math.inf if math.isnan(value) else value, number)
    ordered = sorted(rows, key=lambda row: places[row.name])
    compared = [row for row in ordered if row.name in trials and not any(kinds[row.name][:3])]
    compared = [row for row in compared if kinds[row.name] == kinds[compared[0].name] and costs[row.name].counts]
    level_of = pareto_levels([costs[row.name] for row in compared])
    return tuple(ordered), tuple(row for row, level in zip(compared, level_of, strict=True) if not level)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Decides whether a trial has trained to its end, rather than being out at a rung."""

    epochs: float
    per_epoch: int
    """Sections of an epoch."""
    earlier: frozenset[str]
    """Reasons with which members ended under earlier, smaller limits; such members may continue now."""

    @classmethod
    def of(cls, state: RunState, per_epoch: int) -> "Ends":
        """Return the ends of a search; its newest terms count."""
        limits = [begun.terms["max_epochs"] for begun in state.searches]
        earlier = frozenset(f"{limit:g} epochs" for limit in limits if limit < limits[-1])
        return cls(epochs=limits[-1], per_epoch=per_epoch, earlier=earlier)

    def reached_by(self, row: TrialResult, event: Proposed | None) -> bool:
        """Return whether a trial has trained to its end: to the search's last section, or until its own rule ended it."""
        if row.status != "done" or is_out(row.reason) or self._may_go_on(row, event):
            return False
        if event is None or event.sections is None or event.sections >= sections_in(self.epochs, self.per_epoch):
            return True
        # For a trial that starts from scratch at each rung, this may only be the end of a rung.
        return row.reason != f"{event.sections / self.per_epoch:g} epochs"

    def _may_go_on(self, row: TrialResult, event: Proposed | None) -> bool:
        """Return whether a trial ended at an earlier limit of the search, and its own rule had not ended it too."""
        own = None if event is None else event.own_epochs
        ended = own is not None and sections_in(own, self.per_epoch) <= sections_in(row.epochs, self.per_epoch)
        return row.epochs < self.epochs and row.reason in self.earlier and not ended
