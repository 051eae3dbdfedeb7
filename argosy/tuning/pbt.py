"""Population based training (Jaderberg et al., 2017): clones of the best trials, with changed parameters, replace the worst.

After each generation, the worst ⌊n/η⌋ trials end and as many clones take their places. Each is a clone of another one of the best ⌊n/η⌋
(failures may leave fewer sources than clones), with parameters near those of its source. A generation is decided when its last trial has
reached its end, and the next one begins when all clones have begun, so the outcome depends only on the results of trials. A trial that
its own rule has ended by then counts no longer.
"""

import itertools
from random import Random

from argosy.tuning.objectives import rank_costs
from argosy.tuning.scheduler import Scheduler

__all__ = ["Pbt"]


class Pbt(Scheduler):
    """One population; clones inherit the results of their sources, and also replace trials that failed."""

    def __init__(self, *, most: int, every: int, eta: int, trials: int, seed: int) -> None:
        self.most = most
        self.every = every
        """Sections of a generation."""
        self.seed = seed
        self.eta = eta
        super().__init__(trials)
        self.racing: list[int] = list(range(trials))
        """The population."""
        self._mark = min(every, most)
        """Section that the whole population has to reach next."""
        self._missing = set(self.racing)
        """Trials of the population that have not reached it."""
        self._whole = True
        """Whether all clones have begun, so that `_mark` is the end of the generation and not its beginning."""
        self._out: dict[int, str] = {}

    def budget(self, trial: int) -> int:
        """Return the section that the population reaches next; for a trial that is out, the sections it has trained."""
        return self.results.sections(trial) if trial in self._out else self._mark

    def out(self, trial: int) -> str | None:
        """Return why the trial is out, and which clone takes its place; None if it is not out."""
        return self._out.get(trial)

    def expected_sections(self, *, again: bool) -> int:
        """Return the sections of the population; a clone continues in the place of a trial that ended."""
        del again  # no trial starts from scratch
        return self.trials * self.most

    def _reconsider(self, trial: int) -> None:
        """Decide the generations that all trials have finished."""
        if self.results.at(trial, self._mark) is not None:
            self._missing.discard(trial)
        while self.racing and not self._missing and not (self._whole and self._mark == self.most):
            if self._whole:
                self._decide()
            else:
                self._mark = min(self._mark + self.every, self.most)
            self._whole = not self._whole
            self._missing = {one for one in self.racing if self.results.at(one, self._mark) is None}

    def _decide(self) -> None:
        ranked = rank_costs(self.results.all_at(self.racing, self._mark))
        # A failure counts in the generation that the trial did not finish, whenever it becomes known.
        early = [t for t in ranked if self.results.sections(t) < self._mark]
        dead = [t for t in early if t in self.results.failed]
        # A trial that its own rule has ended leaves the population: this rule would end its clones too, at once.
        ended = {t for t in self.results.closed if self.results.sections(t) <= self._mark}
        alive = [t for t in ranked if t not in early and t not in ended]
        order = [*alive, *dead]
        replaced = max(len(order) // self.eta, 1) if len(order) > 1 else 0
        losers = {*dead, *order[len(order) - replaced :]}
        # If many trials have failed, the best of the others may have to end too, and are no sources then.
        best = [trial for trial in alive[: max(replaced, 1)] if trial not in losers]
        self.racing = [trial for trial in self.racing if trial in order and trial not in losers]
        # Two clones of one source are often twins: with one parameter that changes, there are two values beside the source's.
        drawn = itertools.cycle(Random(f"{self.seed}/{len(self.sources)}").sample(best, len(best)))
        for place, loser in enumerate(order, start=1) if best else ():
            if loser in losers:
                clone = self.trials + len(self.sources)
                self.sources[clone] = next(drawn)
                self._out[loser] = f"number {place} of {len(order)} after section {self._mark}: {clone} takes its place"
                self.racing.append(clone)
