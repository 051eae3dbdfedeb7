"""The interface of schedulers: how many trials begin, how far each one may train, and which ones are out.

A scheduler is a pure state machine. It receives results, in any order and again after a restart, and answers questions about
what follows. Trials are numbered from 0 in the order in which they begin; budgets count sections of a trial's own training. The
result of a trial is a *cost* for each objective.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from argosy.tuning.objectives import Cost

__all__ = ["Results", "Scheduler", "is_out", "sections_of"]

OUT_REASON = re.compile(r"(number \d+ of \d+|worse than the median of \d+ trials) after section \d+")
"""Matches the beginning of every reason that `Scheduler.out` returns."""
LOWEST = -(2.0**1000)
"""Stands for minus infinity, which has no mean with infinity."""
NO_NUMBER = Cost((math.nan,))
"""Cost of a trial after it has failed."""


class Results:
    """The results of trials, and how they ended."""

    def __init__(self) -> None:
        self.failed: set[int] = set()
        """Trials whose further costs are NaN."""
        self.closed: set[int] = set()
        """Trials that their own rules ended: the last cost of each stands for all further sections."""
        self._costs: dict[int, dict[int, Cost]] = {}

    def tell(self, trial: int, sections: int, cost: Cost) -> None:
        """Keep a cost, unless one for as many sections is known already."""
        self._costs.setdefault(trial, {}).setdefault(sections, cost)

    def sections(self, trial: int) -> int:
        """Return the largest number of sections for which a cost of the trial is known."""
        return max(self._costs.get(trial, ()), default=0)

    def at(self, trial: int, sections: int) -> Cost | None:
        """Return a trial's cost after `sections` sections; None if it is not known yet."""
        costs = self._costs.get(trial, {})
        if sections in costs:
            return costs[sections]
        if trial in self.failed:
            return NO_NUMBER
        return costs.get(max(costs, default=0), NO_NUMBER) if trial in self.closed else None

    def all_at(self, trials: Iterable[int], sections: int) -> list[tuple[Cost, int]]:
        """Return (cost, trial) for each of these trials that has reached `sections` sections."""
        costs = ((self.at(trial, sections), trial) for trial in trials)
        return [(cost, trial) for cost, trial in costs if cost is not None]

    def until(self, trial: int, sections: int) -> list[float]:
        """Return a trial's costs in the first objective up to `sections` sections, for means: NaN is infinity, and minus infinity a number."""
        costs = ((number, cost.values[0]) for number, cost in self._costs.get(trial, {}).items())
        known = (math.inf if math.isnan(cost) else cost for number, cost in costs if number <= sections)
        return [max(cost, LOWEST) for cost in known]


class Scheduler(ABC):
    """Decisions for one search, updated with every report. The answers depend only on what was reported."""

    def __init__(self, trials: int) -> None:
        self.trials = trials
        """Number of trials; for a population, without clones."""
        self.sources: dict[int, int] = {}
        """For a population: by clone, the trial whose weights it takes, as of the end of the previous generation."""
        self.results: Results = Results()

    def wanted_trials(self, begun: int) -> int:
        """Return how many more trials should begin after `begun` of them; clones count as soon as they are decided."""
        return max(self.trials + len(self.sources) - begun, 0)

    def tell(self, trial: int, sections: int, *costs: float, excess: float = 0.0, last: bool = False) -> None:
        """Record a trial's result after `sections` sections, with the fields of `Cost`; the first report counts.

        `last`: its own rule ends the trial there, which a population has to know before this result decides a generation.
        """
        self.results.tell(trial, sections, Cost(costs, excess))
        if last:
            self.results.closed.add(trial)
        self._reconsider(trial)

    def close(self, trial: int) -> None:
        """Record that a trial ended by its own rule: its last result stands for every longer budget."""
        self.results.closed.add(trial)
        self._reconsider(trial)

    def fail(self, trial: int) -> None:
        """Record that a trial failed, diverged or was stopped, so it has no further results."""
        self.results.failed.add(trial)
        self._reconsider(trial)

    @abstractmethod
    def budget(self, trial: int) -> int:
        """Return the section up to which a trial may train now; it never decreases."""

    @abstractmethod
    def out(self, trial: int) -> str | None:
        """Return why a trial ends after using its budget; None while it trains or waits for others."""

    @abstractmethod
    def expected_sections(self, *, again: bool) -> int:
        """Return the expected total of sections over all trials of the search, as far as it is known which ones continue.

        With `again`, a trial starts from scratch with each of its budgets.
        """

    @abstractmethod
    def _reconsider(self, trial: int) -> None:
        """Update the decisions after news of a trial."""


def is_out(reason: str) -> bool:
    """Return whether this reason comes from a scheduler, and not from the trial's own stopping rule."""
    return OUT_REASON.match(reason) is not None


def sections_of(counts: Iterable[tuple[int, int]], *, again: bool) -> int:
    """Return the total of sections, given (number of trials, budget) in ascending order of budgets; see `Scheduler.expected_sections`."""
    total, before = 0, 0
    for count, budget in counts:
        total += count * (budget if again else budget - before)
        before = budget
    return total
