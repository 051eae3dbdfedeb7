"""Which trials are asked together: a wave begins when everything before it is settled, so that its sampler knows all of that.

A trial is settled when it is over, or rests until more trials have come. What a sampler is told is then a function of what trials
reached, and of nothing else: not of when they reached it, nor of the devices.
"""

import math
from collections.abc import Sequence

from argosy.tuning.hyperband import Brackets, Hyperband
from argosy.tuning.scheduler import Scheduler
from argosy.tuning.search import Search

__all__ = ["groups", "part", "waves", "why_nothing_is_learnt"]

PARTS = 5
"""Waves of a search without brackets, where the sampler learns: as many as Hyperband has brackets from 1 to 81 epochs."""


def groups(scheduler: Scheduler, *, order: Brackets) -> list[range]:
    """Return trials, by number, that begin together whatever the sampler: all, or where brackets come in turn those of each."""
    if isinstance(scheduler, Hyperband) and order == "in-turn":
        return [bracket.trials for bracket in scheduler.brackets]
    return [range(scheduler.trials)]


def waves(groups: Sequence[range], *, most: int | None) -> tuple[range, ...]:
    """Return the waves: one for each group, or several of at most so many trials."""
    found: list[range] = []
    for group in groups:
        size = most or len(group)
        found += [range(start, min(start + size, group.stop)) for start in range(group.start, group.stop, size)]
    return tuple(found)


def part(trials: int) -> int:
    """Return the trials of a wave where nothing else says how many."""
    return math.ceil(trials / PARTS)


def why_nothing_is_learnt(search: Search, waves: Sequence[range], *, startup: int) -> str | None:
    """Return why a sampler that could learn, after so many trials drawn at random, does not, and what to change; None if it does."""
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
