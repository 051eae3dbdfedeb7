"""Population based training (Jaderberg et al., 2017): the worst of a population take over weights of the best, with other parameters.

After each generation the last ⌊n/η⌋ end, and as many trials take their places: each a clone of one of the first ⌊n/η⌋, with
parameters near those of its source. A generation is decided when the last of its trials has reached its end, and the next one
begins when all clones are there, so that the outcome depends on nothing but what trials reached.
"""

from random import Random

from argosy.tuning.objectives import ranked
from argosy.tuning.scheduler import Scheduler

__all__ = ["Pbt"]


class Pbt(Scheduler):
    """One population of so many trials; clones reached what their sources had, and take the places of those that failed."""

    def __init__(self, *, most: int, every: int, eta: int, trials: int, seed: int) -> None:
        self.most = most
        self.every = every
        self.seed = seed
        """A generation trains for `every` sections."""
        self.replaced: int = max(trials // eta, 1) if trials > 1 else 0
        super().__init__(trials)
        self.racing: list[int] = list(range(trials))
        """The population."""
        self._mark = min(every, most)
        """Sections that the whole population has to reach next."""
        self._missing = set(self.racing)
        """Trials of the population that have not reached them."""
        self._whole = True
        """Whether all clones have begun, so that the mark is the end of the generation, and not its beginning."""
        self._out: dict[int, str] = {}

    def budget(self, trial: int) -> int:
        """Return the sections that the population reaches next; of a trial that is out, what it has trained."""
        return self.results.sections(trial) if trial in self._out else self._mark

    def out(self, trial: int) -> str | None:
        """Return why the trial is out, and which clone takes its place; None where it is not."""
        return self._out.get(trial)

    def foreseen(self, *, again: bool) -> int:
        """Return the sections of the population: a clone goes on in the place of the trial that has ended."""
        del again  # no trial begins anew
        return self.trials * self.most

    def _reconsider(self, trial: int) -> None:
        """Decide the generations that all trials have finished."""
        if trial in self._missing and self.results.at(trial, self._mark) is not None:
            self._missing.discard(trial)
        while self.racing and not self._missing and not (self._whole and self._mark == self.most):
            if self._whole:
                self._decide()
            else:
                self._mark = min(self._mark + self.every, self.most)
            self._whole = not self._whole
            self._missing = {one for one in self.racing if self.results.at(one, self._mark) is None}

    def _decide(self) -> None:
        found = ranked(self.results.all_at(self.racing, self._mark))
        # Whenever a failure becomes known, it counts in the generation that the trial did not end.
        dead = [t for t in found if t in self.results.failed and self.results.sections(t) < self._mark]
        alive = [t for t in found if t not in dead]
        order = [*alive, *dead]
        losers = {*dead, *order[len(order) - self.replaced :]}
        best = [trial for trial in alive[: max(self.replaced, 1)] if trial not in losers]
        self.racing = [trial for trial in self.racing if trial not in losers]
        for place, loser in enumerate(order, start=1) if best else ():
            if loser in losers:
                clone = self.trials + len(self.sources)
                self.sources[clone] = Random(f"{self.seed}/{clone}").choice(best)
                self._out[loser] = f"number {place} of {len(order)} after section {self._mark}: {clone} takes its place"
                self.racing.append(clone)
