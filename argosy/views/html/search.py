"""How a search went: its rungs by bracket, and how many trials came how far."""

from collections.abc import Iterable
from typing import Any

from argosy.protocol.events import Event, RunStarted, SearchBegan
from argosy.stopping import sections_in
from argosy.tuning.hyperband import Brackets, Hyperband
from argosy.tuning.hyperband import rungs as rungs_of
from argosy.tuning.report import SearchReport

__all__ = ["search_of"]


def search_of(search: SearchReport, events: Iterable[Event]) -> dict[str, Any]:
    """Return what the page of a search has beside its rows."""
    terms, per_epoch = dict[str, Any](), 1
    for event in events:
        if isinstance(event, SearchBegan):
            terms = dict(event.terms)
        elif isinstance(event, RunStarted):
            per_epoch = event.validations_per_epoch
    return {
        "scheduler": terms["scheduler"],
        "sampler": terms["sampler"].rpartition(":")[2],  # without its module
        "brackets": _brackets(search, terms, per_epoch),
        "objectives": [[name, mode] for name, mode in search.objectives.items()],
        "pareto": [place for place, row in enumerate(search.rows) if row in search.pareto],
    }


def _brackets(search: SearchReport, terms: dict[str, Any], per_epoch: int) -> list[dict[str, Any]]:
    """Return (epochs, trials that were to train so far, trials that did) for the rungs of each bracket."""
    reached: dict[int, float] = {}
    for row in search.rows:
        if row.name in search.trials:
            trial = search.trials[row.name]
            reached[trial] = max(reached.get(trial, 0.0), row.epochs)
    most = sections_in(terms["max_epochs"], per_epoch)
    scheduler, eta, count = terms["scheduler"], terms["eta"], terms["n_trials"]
    if scheduler == "hyperband":
        order: Brackets = terms["brackets"]
        found = [(one.trials, one.budgets) for one in Hyperband(most=most, eta=eta, trials=count, order=order).brackets]
    else:
        # Without rungs it is told at as many epochs how many trials have come as far.
        found = [(range(max(reached, default=-1) + 1), rungs_of(most, eta if scheduler == "asha" else 2))]
    return [
        {
            "trials": [trials.start, trials.stop],
            "rungs": [
                [budget / per_epoch, sum(reached.get(trial, 0.0) >= budget / per_epoch for trial in trials)]
                for budget in budgets
            ],
        }
        for trials, budgets in found
    ]
