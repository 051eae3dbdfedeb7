"""Asynchronous successive halving (Li et al., MLSys 2020): no trial waits for a whole rung.

A trial is promoted as soon as it is among the best ⌊k/η⌋ of the first k trials that entered its rung. Other trials rest there until
they are, or until nothing can change any more. Then the best trial of the highest rung is promoted to the end, so that one trial
trains to the end. Trials are compared in the order in which they entered the rung, not in which they finish it, so the outcome
depends only on their results.
"""

from functools import partial

from argosy.tuning.hyperband import rungs
from argosy.tuning.objectives import Cost, insert_ranked
from argosy.tuning.scheduler import Scheduler, sections_of

__all__ = ["Asha"]


class Asha(Scheduler):
    """One bracket of all trials."""

    def __init__(self, *, most: int, eta: int, trials: int) -> None:
        self.eta = eta
        self.budgets: tuple[int, ...] = rungs(most, eta)
        super().__init__(trials)
        self.rung: list[int] = [0] * trials
        """Rung that each trial trains for, or rests at."""
        self._came: list[list[int]] = [list(range(trials)), *([] for _ in self.budgets[1:])]
        """Trials by rung, in the order in which they entered it."""
        self._compared: list[list[int]] = [[] for _ in self.budgets]
        """By rung: the longest prefix of these trials that have all reached its end, best first."""

    def budget(self, trial: int) -> int:
        """Return the budget of the trial's rung."""
        return self.budgets[self.rung[trial]]

    def out(self, trial: int) -> str | None:
        """Return why the trial is out; None before all trials are compared."""
        if self.rung[trial] == len(self.budgets) - 1 or not self._all_are_compared:
            return None
        compared = self._compared[self.rung[trial]]
        place = compared.index(trial) + 1
        return f"number {place} of {len(compared)} after section {self.budget(trial)}"

    def expected_sections(self, *, again: bool) -> int:
        """Return the sections as if all trials were compared at once; early promotions, among few trials, may add some."""
        counts = ((max(self.trials // self.eta**rung, 1), budget) for rung, budget in enumerate(self.budgets))
        return sections_of(counts, again=again)

    @property
    def _all_are_compared(self) -> bool:
        return all(len(compared) == len(came) for compared, came in zip(self._compared, self._came, strict=True))

    def _reconsider(self, trial: int) -> None:
        """Compare the trials that can be compared, and promote those that may continue."""
        self._compare(self.rung[trial])
        while self._all_are_compared and (best := self._best_at_the_top()) is not None:
            self._promote(best)
            self._compare(self.rung[best])

    def _compare(self, lowest: int) -> None:
        """Compare the trials of this rung and of the rungs above, whose ends some may have reached already."""
        for rung, budget in list(enumerate(self.budgets))[lowest:]:
            came = self._came[rung]
            while (count := len(self._compared[rung])) < len(came) and self.results.at(came[count], budget) is not None:
                cost_of = partial(self._reached, budget=budget)
                self._compared[rung] = insert_ranked(came[count], self._compared[rung], cost_of)
                if rung + 1 < len(self.budgets):
                    self._promote_best(rung, budget)

    def _reached(self, trial: int, budget: int) -> Cost:
        cost = self.results.at(trial, budget)
        assert cost is not None
        return cost

    def _promote_best(self, rung: int, budget: int) -> None:
        """Promote the best of the compared trials; one that fails afterwards is the worst of the next rung, whenever its failure becomes known."""
        compared = self._compared[rung]
        for trial in compared[: len(compared) // self.eta]:
            if self.rung[trial] == rung and not self._failed_before(trial, budget):
                self._promote(trial)

    def _failed_before(self, trial: int, budget: int) -> bool:
        return trial in self.results.failed and self.results.sections(trial) < budget

    def _promote(self, trial: int) -> None:
        self.rung[trial] += 1
        self._came[self.rung[trial]].append(trial)

    def _best_at_the_top(self) -> int | None:
        """Return the best trial of the highest rung that any has reached; None if that is the last rung."""
        for rung, budget in reversed(list(enumerate(self.budgets))):
            for trial in self._compared[rung]:
                if self.rung[trial] == rung and not self._failed_before(trial, budget):
                    return trial if rung + 1 < len(self.budgets) else None
        return None
