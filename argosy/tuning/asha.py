"""Asynchronous successive halving (Li et al., MLSys 2020): nobody waits for a whole rung.

A trial goes on as soon as it is among the best ⌊k/η⌋ of the k that have reached its rung so far; others rest there until it is,
or until nothing can change any more. Then the best of the highest rung goes on to the end, so that somebody does.
"""

from argosy.tuning.hyperband import rungs
from argosy.tuning.scheduler import Looking, ranked, sections_of

__all__ = ["Asha"]


class Asha(Looking):
    """One bracket of so many trials."""

    def __init__(self, *, most: int, eta: int, trials: int) -> None:
        self.eta, self.trials = eta, trials
        self.budgets = rungs(most, eta)
        super().__init__()
        self.rung = [0] * trials
        """That each trial trains for, or rests at."""
        self.moving = set(range(trials))
        """Trials that have not reached their rung."""
        self._reached: list[list[int]] = [[] for _ in self.budgets]
        """Trials by rung, best first."""

    def wanted(self, begun: int) -> int:
        """See `Scheduler.wanted`: all that there are to be."""
        return max(self.trials - begun, 0)

    def tell(self, trial: int, sections: int, cost: float) -> None:
        """See `Scheduler.tell`; who has trained beyond a rung has been promoted from it, as an earlier driver knew."""
        self.results.tell(trial, sections, cost)
        while sections > self.budgets[self.rung[trial]]:
            self._promote(trial)
        self._look(trial)

    def budget(self, trial: int) -> int:
        """See `Scheduler.budget`."""
        return self.budgets[self.rung[trial]]

    def out(self, trial: int) -> str | None:
        """See `Scheduler.out`: nobody is before nothing moves any more."""
        if self.moving or self.rung[trial] == len(self.budgets) - 1:
            return None
        reached = self._reached[self.rung[trial]]
        place = reached.index(trial) + 1
        return f"number {place} of {len(reached)} after section {self.budget(trial)}"

    def foreseen(self, *, again: bool) -> int:
        """See `Scheduler.foreseen`: as if all were compared with all; who comes early goes on among few, so there may be more."""
        counts = ((max(self.trials // self.eta**rung, 1), budget) for rung, budget in enumerate(self.budgets))
        return sections_of(counts, again=again)

    def _look(self, trial: int) -> None:
        """Note that a trial has reached its rung, if it has, and let those go on who may."""
        rung = self.rung[trial]
        if trial in self.moving and self.results.at(trial, self.budgets[rung]) is not None:
            self.moving.discard(trial)
            self._note(trial, rung)
            self._let_go_on(rung)
        while not self.moving and (best := self._best_at_the_top()) is not None:
            self._promote(best)

    def _note(self, trial: int, rung: int) -> None:
        if trial not in self._reached[rung]:
            reached = [*self._reached[rung], trial]
            self._reached[rung] = ranked(self.results.all_at(reached, self.budgets[rung]))

    def _let_go_on(self, rung: int) -> None:
        if rung + 1 < len(self.budgets):
            for trial in self._reached[rung][: len(self._reached[rung]) // self.eta]:
                if self.rung[trial] == rung and trial not in self.results.failed:
                    self._promote(trial)

    def _promote(self, trial: int) -> None:
        """From its rung to the next, which it may have reached already."""
        self._note(trial, self.rung[trial])
        self.rung[trial] += 1
        self.moving.add(trial)
        self._look(trial)

    def _best_at_the_top(self) -> int | None:
        """The best of the highest rung that somebody reached, where that is not the last one."""
        reached = [[t for t in rung if t not in self.results.failed] for rung in self._reached]
        top = max((number for number, rung in enumerate(reached) if rung), default=len(reached))
        return reached[top][0] if top + 1 < len(reached) else None
