"""The median rule (Golovin et al., KDD 2017): a trial that is worse than the usual one was so far ends.

A trial ends after a section where its best cost is worse than the median of what all trials had on the mean over the same
sections, those with fewer over the ones that they have. What a trial had after a section is its best so far. The first sections decide nothing.
"""

import statistics
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from argosy.tuning.scheduler import Scheduler

__all__ = ["Median"]

LEAST_TRIALS = 5
"""Trials that must have been seen before any ends."""


@dataclass(slots=True)
class RunningMeans:
    """The means of trials over the same sections, of which one changes with each report: thousands are not to be sorted each time."""

    ascending: list[float] = field(default_factory=list)
    _of_trial: dict[int, float] = field(default_factory=dict)

    def note(self, trial: int, costs: list[float]) -> None:
        """Note what a trial has reached by now."""
        if trial in self._of_trial:
            del self.ascending[bisect_left(self.ascending, self._of_trial.pop(trial))]
        if costs:
            self._of_trial[trial] = statistics.fmean(costs)
            insort(self.ascending, self._of_trial[trial])


class Median(Scheduler):
    """All trials at once, each watched after every section."""

    def __init__(self, *, most: int, trials: int, grace: int = 1) -> None:
        self.most = most
        self.grace = grace
        """No trial ends before more than `grace` sections."""
        super().__init__(trials)
        self._means: dict[int, RunningMeans] = {}
        """By section, as far as it was asked for."""

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
        means = self._means_until(reached).ascending
        if len(means) < LEAST_TRIALS or best <= statistics.median(means):
            return None
        return f"worse than the median of {len(means)} trials after section {reached}"

    def foreseen(self, *, again: bool) -> int:
        """Return the sections as if no more trials went out, as it is not known which will."""
        return sum(self.results.sections(trial) if self.out(trial) else self.most for trial in range(self.trials))

    def _reconsider(self, trial: int) -> None:
        """Note its newest section, which counts in the means up to that and later ones; what a failed trial had reached still does."""
        newest = self.results.sections(trial)
        for sections, means in self._means.items():
            if sections >= newest:
                means.note(trial, self.results.until(trial, sections))

    def _means_until(self, sections: int) -> RunningMeans:
        if sections not in self._means:
            means = self._means[sections] = RunningMeans()
            for trial in range(self.trials):
                means.note(trial, self.results.until(trial, sections))
        return self._means[sections]
