"""Count the trials of a search that have reached each rung, for its page and the live view."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.stopping import sections_in
from argosy.tuning.hyperband import Brackets, Hyperband
from argosy.tuning.hyperband import rungs as rungs_of
from argosy.tuning.search import RUNGS
from argosy.tuning.trials import TrialResult, TrialsSoFar

__all__ = ["FilledBracket", "Rung", "fill_brackets", "rungs_of_all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One rung of a bracket."""

    epochs: float
    reached: int
    """Trials that have trained so far."""
    of: int | None
    """Number of trials that will train; None if the scheduler sets no such number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledBracket:
    """One bracket, and how full its rungs are."""

    trials: range
    rungs: tuple[Rung, ...]


def fill_brackets(
    terms: Mapping[str, Any], per_epoch: int, rows: Iterable[TrialResult], numbers: Mapping[str, int]
) -> list[FilledBracket]:
    """Return the brackets of a search under these terms; `numbers` are those of the trials by the name of a row.

    Of schedulers without rungs, the page tells how many trials have come as far as twice the epochs before.
    """
    sections: dict[int, int] = {}  # 5/3 of an epoch and 1 + 2/3 differ as floating-point numbers
    for row in rows:
        if row.name in numbers:
            trial = numbers[row.name]
            sections[trial] = max(sections.get(trial, 0), sections_in(row.epochs, per_epoch))
    most = sections_in(terms["max_epochs"], per_epoch)
    scheduler, eta, count = terms["scheduler"], terms["eta"], terms["n_trials"]
    counted: list[tuple[range, Iterable[tuple[int | None, int]]]]
    if scheduler == "hyperband":
        order: Brackets = terms["brackets"]
        brackets = Hyperband(most=most, eta=eta, trials=count, order=order)
        counted = [(one.trials, brackets.counts(one)) for one in brackets.brackets]
    else:
        budgets = rungs_of(most, eta if scheduler == "asha" else 2)
        counted = [(range(max(sections, default=-1) + 1), [(None, budget) for budget in budgets])]
    return [
        FilledBracket(
            trials=trials,
            rungs=tuple(
                Rung(
                    epochs=budget / per_epoch, reached=sum(sections.get(trial, 0) >= budget for trial in trials), of=of
                )
                for of, budget in counts
            ),
        )
        for trials, counts in counted
    ]


def rungs_of_all(trials: TrialsSoFar) -> tuple[Rung, ...]:
    """Return the rungs of all brackets together, one for those of equal epochs; none where the scheduler has no rungs."""
    if trials.terms["scheduler"] not in RUNGS:
        return ()
    brackets = fill_brackets(trials.terms, trials.per_epoch, trials.rows, trials.numbers)
    alike: dict[float, list[Rung]] = {}
    for rung in sorted((rung for one in brackets for rung in one.rungs), key=lambda rung: rung.epochs):
        alike.setdefault(rung.epochs, []).append(rung)
    return tuple(
        Rung(
            epochs=epochs,
            reached=sum(rung.reached for rung in its),
            of=None if its[0].of is None else sum(rung.of or 0 for rung in its),
        )
        for epochs, its in alike.items()
    )
