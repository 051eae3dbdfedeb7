"""The terms of a search, which must stay equal, or may only grow, from one driver to the next."""

import re
from collections.abc import Mapping
from typing import Any

from argosy.errors import RunError
from argosy.running.directory.study_json import format_factory
from argosy.tuning.hyperband import Brackets
from argosy.tuning.search import USED_BY, Search

__all__ = ["check_terms", "terms_of"]

TOTALS = ("max_epochs", "n_trials")
"""Terms that may grow."""
AT_ONCE = "at_once"
"""Term of searches whose sampler learns; directories of earlier versions lack it."""
ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
"""Address of a function or object that a sampler holds; it differs in every process."""


def terms_of(search: Search, trials: int, *, brackets: Brackets, in_waves: bool = False) -> dict[str, Any]:
    """Return the terms of a search of `trials` trials with brackets in this order; `in_waves` if its sampler learns."""
    objectives = search.objectives
    _, *others = objectives.modes
    # Settings that a search does not use are left out of its terms.
    more = {
        **({AT_ONCE: search.at_once} if in_waves else {}),
        **({"others": {name: objectives.modes[name] for name in others}} if others else {}),
        **({"constraints": _format_sampler(search.constraints)} if search.constraints is not None else {}),
    }
    return {
        "seed": search.seed,
        "scheduler": search.scheduler,
        "eta": search.eta,
        "brackets": brackets,
        "sampler": "random" if search.sampler is None else _format_sampler(search.sampler),
        "objective": objectives.first,
        "mode": objectives.mode,
        "max_epochs": search.max_epochs,
        "n_trials": trials,
        "warm": search.warm,
        "epochs_per_generation": search.epochs_per_generation,
        **more,
    }


def _format_sampler(factory: Any) -> str:
    return ADDRESS.sub("", format_factory(factory))


def check_terms(there: Mapping[str, Any] | None, here: Mapping[str, Any]) -> None:
    """Raise RunError if a search with the terms `here` cannot continue one with the terms `there`."""
    if there is None:
        raise RunError("the directory holds a run that is not a search of `argosy tune`; choose another directory.")
    there = {AT_ONCE: here.get(AT_ONCE), **there}
    for name, _, schedulers in USED_BY:
        if there["scheduler"] not in schedulers:  # earlier versions accepted some of these, without effect
            there[name] = here[name]
    # In a larger population, even the first clones would be different.
    totals = [name for name in TOTALS if name != "n_trials" or here["scheduler"] != "pbt"]
    differences = [
        f"{key}: was {there.get(key)!r}, is now {here.get(key)!r}"
        for key in {**there, **here}
        if (here[key] < there[key] if key in totals else here.get(key) != there.get(key))
    ]
    if differences:
        raise RunError(
            "the directory holds a different search:\n  " + "\n  ".join(differences) + "\n"
            f"Undo the change, choose another directory, or start over with fresh=True (--fresh), which keeps the old files. "
            f"Only {' and '.join(totals)} may grow."
        )
