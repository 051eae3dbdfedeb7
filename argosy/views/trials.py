"""The trials of a search at one moment, best first by the rule of its report, for the live view."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from argosy.protocol.events import Proposed
from argosy.results.fold import MemberState, RunState
from argosy.study import Study
from argosy.tuning.objectives import Objectives
from argosy.tuning.report import PRUNED, Ends, TrialResult, ordered, statuses, totals_of
from argosy.tuning.scheduler import is_out
from argosy.tuning.search import RUNGS
from argosy.views.rungs import Rung, filled

__all__ = ["TrialsSoFar"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialsSoFar:
    """Those that have begun, and how far they are."""

    rows: tuple[TrialResult, ...]
    """Trials, and members that were added to the search; a trial that begins anew at each rung has a row for each."""
    proposed: Mapping[str, Proposed]
    """By the name of a row, in the order of the trials."""
    best: TrialResult | None
    in_all: int | None
    """Number of trials of the search; None for a population, which begins clones as long as it lasts."""
    rungs: tuple[Rung, ...]
    """Those of all brackets together; none where the scheduler has no rungs."""

    @classmethod
    def of(cls, study: Study, state: RunState, states: Mapping[str, MemberState]) -> "TrialsSoFar":
        """Build it from the fold of a search, and the states of the study's members."""
        terms = state.searches[-1].terms
        objectives = Objectives.of(terms)
        # A driver that trained nothing may have proposed trials that this one has not.
        proposed = {name: one for name, one in state.proposed.items() if states.keys() >= {*_members(one)}}
        parts = {member for one in proposed.values() for member in one.members}
        found = [_single(one) for name, one in states.items() if name not in parts]
        for name, one in proposed.items():
            if one.members:
                found.append(TrialResult.mean(name, [*map(states.__getitem__, one.members)], objectives))
        found = [replace(row, constraints=state.constrained.get(row.name, ())) for row in found]
        began = [] if state.started is None else [state.started]
        rows, pareto = ordered(found, proposed, Ends.of([*state.searches, *began]), objectives)
        reached = [(proposed[row.name].trial, row.epochs) for row in rows if row.name in proposed]
        per_epoch = began[0].validations_per_epoch if began else 1
        return cls(
            rows=tuple(replace(row, status=PRUNED) if is_out(row.reason) else row for row in rows),
            proposed=proposed,
            best=next(iter(pareto), None),
            in_all=None if terms["scheduler"] == "pbt" else terms["n_trials"],
            rungs=_together([rung for one in filled(terms, per_epoch, reached) for rung in one.rungs])
            if terms["scheduler"] in RUNGS
            else (),
        )

    @property
    def counts(self) -> Counter[str]:
        """Trials by status."""
        return Counter(statuses(self.rows, {name: one.trial for name, one in self.proposed.items()}))


def _members(proposed: Proposed) -> tuple[str, ...]:
    return proposed.members or (proposed.member,)


def _single(state: MemberState) -> TrialResult:
    metrics = {} if state.best is None else dict(state.best.metrics)
    name, status, reason, epochs = state.name, state.status, state.reason, state.epochs
    totals = totals_of(state.own_sections, state.parameters)
    return TrialResult(
        name=name, members=(name,), status=status, reason=reason, epochs=epochs, metrics=metrics, totals=totals
    )


def _together(rungs: list[Rung]) -> tuple[Rung, ...]:
    """Return one rung for those of equal epochs."""
    alike = {epochs: [rung for rung in rungs if rung.epochs == epochs] for epochs in sorted({r.epochs for r in rungs})}
    return tuple(
        Rung(
            epochs=epochs,
            reached=sum(rung.reached for rung in its),
            of=None if its[0].of is None else sum(rung.of or 0 for rung in its),
        )
        for epochs, its in alike.items()
    )
