"""The seam of the schedulers: how many trials begin, how far each may train, and which of them are out.

A scheduler is a pure state machine: it receives what trials reached, in any order and again after a restart, and is asked
what follows. Trials are numbered from 0 as they begin; budgets are sections of a trial's own training. What a trial reached is a
*cost* for each objective.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from argosy.tuning.objectives import Cost

__all__ = ["Results", "Scheduler", "is_out", "sections_of"]

OUT = re.compile(r"(number \d+ of \d+|worse than the median of \d+ trials) after section \d+")
"""Beginning of what schedulers answer to `Scheduler.out`."""
NO_NUMBER = Cost((math.nan,))


class Results:
    """What trials reached, and how they ended."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        self._costs: dict[int, dict[int, Cost]] = {}
        self._closed: set[int] = set()

    def tell(self, trial: int, sections: int, cost: Cost) -> None:
        """Keep a cost; the first one for so many sections counts."""
        self._costs.setdefault(trial, {}).setdefault(sections, cost)

    def close(self, trial: int) -> None:
        """Let a trial's last cost stand for all further sections."""
        self._closed.add(trial)

    def fail(self, trial: int) -> None:
        """Let a trial's further costs be NaN."""
        self.failed.add(trial)

    def sections(self, trial: int) -> int:
        """Return the most sections that a cost of the trial is known for."""
        return max(self._costs.get(trial, ()), default=0)

    def at(self, trial: int, sections: int) -> Cost | None:
        """Return a trial's cost after so many sections; None where that is not known yet."""
        costs = self._costs.get(trial, {})
        if sections in costs:
            return costs[sections]
        if trial in self.failed:
            return NO_NUMBER
        return costs.get(max(costs, default=0), NO_NUMBER) if trial in self._closed else None

    def all_at(self, trials: Iterable[int], sections: int) -> list[tuple[Cost, int]]:
        """Return (cost, trial) of these that have reached so many sections."""
        found = ((self.at(trial, sections), trial) for trial in trials)
        return [(cost, trial) for cost, trial in found if cost is not None]

    def until(self, trial: int, sections: int) -> list[float]:
        """Return a trial's costs in the first objective up to so many sections; what is not a number is worse than any."""
        costs = ((number, cost.values[0]) for number, cost in self._costs.get(trial, {}).items())
        return [math.inf if math.isnan(cost) else cost for number, cost in costs if number <= sections]


class Scheduler(ABC):
    """Decisions for one search, which it may make with every report. Its answers are functions of what it was told, and of nothing else."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        """Number of trials; of a population, without clones."""
        self.sources: dict[int, int] = {}
        """Of a population, by clone: the trial that it takes its weights from, as it was at the end of the generation before."""
        self.results: Results = Results()

    def wanted(self, begun: int) -> int:
        """Return how many trials are to begin beside so many that have; clones, as they are decided."""
        return max(self.trials + len(self.sources) - begun, 0)

    def tell(self, trial: int, sections: int, *costs: float, excess: float = 0.0) -> None:
        """Note what a trial reached in so many sections, as `Cost` has it; the first report counts."""
        self.results.tell(trial, sections, Cost(costs, excess))
        self._reconsider(trial)

    def close(self, trial: int) -> None:
        """Note that a trial ended by its own rule: what it reached stands for every longer budget."""
        self.results.close(trial)
        self._reconsider(trial)

    def fail(self, trial: int) -> None:
        """Note that a trial ended without being worth anything: it failed, diverged, or was stopped."""
        self.results.fail(trial)
        self._reconsider(trial)

    @abstractmethod
    def budget(self, trial: int) -> int:
        """Return the sections up to which a trial may train now; never fewer than before."""

    @abstractmethod
    def out(self, trial: int) -> str | None:
        """Return why a trial that has used its budget ends there; None while it has not, or waits for others."""

    @abstractmethod
    def foreseen(self, *, again: bool) -> int:
        """Return the sections of all trials together, from the first to the last, as far as it is known which will go on.

        With `again`, a trial begins anew with each of its budgets.
        """

    @abstractmethod
    def _reconsider(self, trial: int) -> None:
        """Decide what follows from what is known of a trial."""


def is_out(reason: str) -> bool:
    """Return whether a scheduler ended a trial for this reason, and not a rule of the trial's own."""
    return OUT.match(reason) is not None


def sections_of(counts: Iterable[tuple[int, int]], *, again: bool) -> int:
    """Return the sections of trials of which so many train up to each of these budgets, ascending."""
    total, before = 0, 0
    for count, budget in counts:
        total += count * (budget if again else budget - before)
        before = budget
    return total
