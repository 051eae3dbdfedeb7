"""The median rule (Golovin et al., KDD 2017): a trial that is worse than the usual one was so far ends.

A trial ends after a section where its best cost is worse than the median of what all trials had on the mean over the same
sections, those with fewer over the ones that they have. What a trial had after a section is its best so far. The first sections decide nothing.
"""

import statistics

from argosy.tuning.scheduler import EventDriven

__all__ = ["Median"]

LEAST_TRIALS = 5
"""Trials that must have been seen before any ends."""


class Median(EventDriven):
    """All trials at once, each watched after every section."""

    def __init__(self, *, most: int, trials: int, grace: int = 1) -> None:
        self.most = most
        self.trials = trials
        self.grace = grace
        """No trial ends before more than `grace` sections."""
        super().__init__()
        self._medians: dict[int, tuple[int, float]] = {}
        """(trials, median of their means) by section, until the next result."""

    def wanted(self, begun: int) -> int:
        """Return the number of trials that have not begun."""
        return max(self.trials - begun, 0)

    def budget(self, trial: int) -> int:
        """Return one more section than the trial has trained, where it is not out."""
        reached = self.results.sections(trial)
        return reached if self.out(trial) else min(reached + 1, self.most)

    def out(self, trial: int) -> str | None:
        """Return why the trial is out: its best cost is worse than the median."""
        reached = self.results.sections(trial)
        if reached <= self.grace or reached >= self.most:
            return None
        best = min(self.results.until(trial, reached))
        count, median = self._median(reached)
        if count < LEAST_TRIALS or best <= median:
            return None
        return f"worse than the median of {count} trials after section {reached}"

    def foreseen(self, *, again: bool) -> int:
        """Return the sections as if no more trials went out, as it is not known which will."""
        return sum(self.results.sections(trial) if self.out(trial) else self.most for trial in range(self.trials))

    def _reconsider(self, trial: int) -> None:
        """Let medians be computed again; what a failed trial had reached still counts in them."""
        self._medians.clear()

    def _median(self, sections: int) -> tuple[int, float]:
        if sections not in self._medians:
            costs = (self.results.until(trial, sections) for trial in range(self.trials))
            means = [statistics.fmean(of_one) for of_one in costs if of_one]
            self._medians[sections] = len(means), statistics.median(means)
        return self._medians[sections]
