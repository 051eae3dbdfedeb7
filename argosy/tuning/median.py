"""The median rule (Golovin et al., KDD 2017): a trial ends when it is worse than the median of all trials so far.

After each section, a trial's best cost is compared with the median over all trials of their mean cost up to that section. A trial with
fewer sections enters with the mean of those it has. The cost after a section is the best one so far. The first sections decide nothing.
"""

import statistics
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from argosy.tuning.scheduler import Scheduler

__all__ = ["Median"]

LEAST_TRIALS = 5
"""Number of trials with results before any trial may end."""


@dataclass(slots=True)
class RunningMeans:
    """Sorted mean costs of all trials up to one section, updated one by one, because sorting thousands with every report is slow."""

    ascending: list[float] = field(default_factory=list)
    _of_trial: dict[int, float] = field(default_factory=dict)

    def note(self, trial: int, costs: list[float]) -> None:
        """Replace the mean of a trial by that of its present costs."""
        if trial in self._of_trial:
            del self.ascending[bisect_left(self.ascending, self._of_trial.pop(trial))]
        if costs:
            self._of_trial[trial] = statistics.fmean(costs)
            insort(self.ascending, self._of_trial[trial])


class Median(Scheduler):
    """All trials at once, each judged after every section."""

    def __init__(self, *, most: int, trials: int, grace: int = 1) -> None:
        self.most = most
        self.grace = grace
        """No trial ends before more than `grace` sections."""
        super().__init__(trials)
        self._means: dict[int, RunningMeans] = {}
        """Means by section, computed on demand."""

    def budget(self, trial: int) -> int:
        """Return one more section than the trial has trained, unless it is out."""
        reached = self.results.sections(trial)
        # One section at a time, because each is judged.
        return reached if self.out(trial) else min(reached + 1, self.most)

    def out(self, trial: int) -> str | None:
        """Return the reason if the trial's best cost is worse than the median; None otherwise."""
        reached = self.results.sections(trial)
        if reached <= self.grace or reached >= self.most:
            return None
        best = min(self.results.until(trial, reached))
        means = self._means_until(reached).ascending
        if len(means) < LEAST_TRIALS or best <= statistics.median(means):
            return None
        return f"worse than the median of {len(means)} trials after section {reached}"

    def expected_sections(self, *, again: bool) -> int:
        """Return the sections as if no further trial will be out, because it is unknown which will."""
        return sum(self.results.sections(trial) if self.out(trial) else self.most for trial in range(self.trials))

    def _reconsider(self, trial: int) -> None:
        """Add the trial's newest section to the means up to it and to later sections; a failed trial's earlier results still count."""
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
