"""Waves: the trials whose parameters are sampled together, once all earlier trials are settled, so that the sampler knows their results.

A trial is settled when it is over, or rests until more trials have come. What the sampler knows then depends only on the results of
trials, not on when they were reached or on the devices.
"""

import math
from collections.abc import Sequence

from argosy.tuning.hyperband import Brackets, Hyperband
from argosy.tuning.scheduler import Scheduler
from argosy.tuning.search import Search

__all__ = ["groups", "default_wave_size", "waves", "explain_no_learning"]

PARTS = 5
"""Number of waves of a search without brackets whose sampler learns: the number of Hyperband's brackets from 1 to 81 epochs."""


def groups(scheduler: Scheduler, *, order: Brackets) -> list[range]:
    """Return the trial numbers that begin together with any sampler: all of them, or those of each bracket if brackets come in turn."""
    if isinstance(scheduler, Hyperband) and order == "in-turn":
        return [bracket.trials for bracket in scheduler.brackets]
    return [range(scheduler.trials)]


def waves(groups: Sequence[range], *, most: int | None) -> tuple[range, ...]:
    """Return the waves: one per group, or several of at most `most` trials each."""
    ranges: list[range] = []
    for group in groups:
        size = most or len(group)
        ranges += [range(start, min(start + size, group.stop)) for start in range(group.start, group.stop, size)]
    return tuple(ranges)


def default_wave_size(trials: int) -> int:
    """Return the default number of trials in a wave, given the number of trials of the search."""
    return math.ceil(trials / PARTS)


def explain_no_learning(search: Search, waves: Sequence[range], *, startup: int) -> str | None:
    """Return why a sampler that could learn, after `startup` random trials, does not, and what to change; None if it does."""
    more = f"increase n_trials above {waves[-1].stop}"
    if search.scheduler == "grid":
        return "scheduler 'grid' trains every point of the space; remove the sampler, or choose scheduler 'random'"
    if search.scheduler == "pbt":
        return "scheduler 'pbt' uses it only for the first population; choose scheduler 'hyperband'"
    if len(waves) == 1 and search.brackets == "together":
        return "brackets='together' samples all trials first; remove brackets, or set at_once to a part of the trials"
    if len(waves) == 1:
        return f"all trials are sampled before any has a result; {more}, or reduce at_once"
    if startup > waves[-1].start:
        return (
            f"it draws {startup} trials at random first, and the last are sampled when {waves[-1].start} are "
            f"known; {more}, reduce at_once, or set a smaller n_startup_trials on the sampler"
        )
    return None
