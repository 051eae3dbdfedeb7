"""How many trials of a search have come to each rung, for its page and for the live view."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.stopping import sections_in
from argosy.tuning.hyperband import Brackets, Hyperband
from argosy.tuning.hyperband import rungs as rungs_of

__all__ = ["FilledBracket", "Rung", "filled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One rung of a bracket."""

    epochs: float
    reached: int
    """Trials that have trained so far."""
    of: int | None
    """Trials that are to; None where the scheduler has no such number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledBracket:
    """One bracket, and how full its rungs are."""

    trials: range
    rungs: tuple[Rung, ...]


def filled(terms: Mapping[str, Any], per_epoch: int, reached: Iterable[tuple[int, float]]) -> list[FilledBracket]:
    """Return the brackets of a search under these terms; `reached` has (trial's number, epochs), several of one that begins anew.

    Of schedulers without rungs, the page tells how many trials have come as far as twice the epochs before.
    """
    epochs: dict[int, float] = {}
    for trial, so_far in reached:
        epochs[trial] = max(epochs.get(trial, 0.0), so_far)
    most = sections_in(terms["max_epochs"], per_epoch)
    scheduler, eta, count = terms["scheduler"], terms["eta"], terms["n_trials"]
    found: list[tuple[range, Iterable[tuple[int | None, int]]]]
    if scheduler == "hyperband":
        order: Brackets = terms["brackets"]
        brackets = Hyperband(most=most, eta=eta, trials=count, order=order)
        found = [(one.trials, brackets.counts(one)) for one in brackets.brackets]
    else:
        budgets = rungs_of(most, eta if scheduler == "asha" else 2)
        found = [(range(max(epochs, default=-1) + 1), [(None, budget) for budget in budgets])]
    return [
        FilledBracket(
            trials=trials,
            rungs=tuple(
                Rung(
                    epochs=budget / per_epoch,
                    reached=sum(epochs.get(trial, 0.0) >= budget / per_epoch for trial in trials),
                    of=of,
                )
                for of, budget in counts
            ),
        )
        for trials, counts in found
    ]
