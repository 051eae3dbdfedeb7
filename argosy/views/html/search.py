"""How a search went: its rungs by bracket, and how many trials came how far."""

from typing import Any

from argosy.results.fold import RunState
from argosy.tuning.report import SearchReport
from argosy.views.rungs import fill_brackets

__all__ = ["search_of"]


def search_of(search: SearchReport, state: RunState) -> dict[str, Any]:
    """Return what the page of a search has beside its rows; rungs are (epochs, trials that trained so far, trials that are to)."""
    terms = state.searches[-1].terms
    per_epoch = 1 if state.started is None else state.started.validations_per_epoch
    return {
        "scheduler": terms["scheduler"],
        "sampler": terms["sampler"].rpartition(":")[2],  # without its module
        "brackets": [
            {
                "trials": [one.trials.start, one.trials.stop],
                "rungs": [[rung.epochs, rung.reached, rung.of] for rung in one.rungs],
            }
            for one in fill_brackets(terms, per_epoch, search.rows, search.trials)
        ],
        "objectives": [[name, mode] for name, mode in search.objectives.items()],
        "pareto": [place for place, row in enumerate(search.rows) if row in search.pareto],
    }
