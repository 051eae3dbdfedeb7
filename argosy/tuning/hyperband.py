"""Hyperband (Li et al., JMLR 2018): brackets of successive halving, from many short trials to few long ones.

The best ⌊n/η⌋ of the n trials of a rung continue to the budget of the next rung. A rung is decided when the last of its
trials has reached its budget, so the outcome depends only on their results.

If all brackets share the stream, the bracket with many short trials comes first. Brackets in turn start with the longest trials:
a sampler that learns then knows the results of full trainings before it proposes many trials that are compared early.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from argosy.tuning.objectives import rank_costs
from argosy.tuning.scheduler import Scheduler, sections_of

__all__ = ["Brackets", "Hyperband", "brackets", "rungs"]

Brackets = Literal["together", "in-turn"]


@dataclass(slots=True)
class Bracket:
    """One bracket and its progress."""

    trials: range
    budgets: tuple[int, ...]
    """Budgets of its rungs in sections."""
    rung: int = 0
    """The first undecided rung; the number of rungs if all are decided."""
    racing: list[int] = field(default_factory=list)
    """Trials of that rung, or the survivors of the last rung."""
    missing: set[int] = field(default_factory=set)
    """Trials of that rung that have not reached its budget."""
    out: dict[int, str] = field(default_factory=dict)
    """Reasons of the trials that are out."""

    @property
    def over(self) -> bool:
        """Whether every rung is decided."""
        return self.rung == len(self.budgets)


class Hyperband(Scheduler):
    """Rounds of brackets, repeated until there are enough trials."""

    def __init__(self, *, most: int, eta: int, trials: int, order: Brackets = "together") -> None:
        self.eta = eta
        super().__init__(trials)
        table = brackets(most, eta)
        self.brackets: list[Bracket] = _deal_brackets(table if order == "together" else table[::-1], trials)
        self._ends = list(accumulate(len(bracket.trials) for bracket in self.brackets))
        for bracket in self.brackets:
            bracket.racing = list(bracket.trials)
            bracket.missing = set(bracket.trials)

    def budget(self, trial: int) -> int:
        """Return the budget of the bracket's current rung; for a trial that is out, the sections it has trained."""
        bracket = self._bracket(trial)
        if trial in bracket.out:
            return self.results.sections(trial)
        return bracket.budgets[min(bracket.rung, len(bracket.budgets) - 1)]

    def out(self, trial: int) -> str | None:
        """Return why the trial is out of its bracket; None if it is not."""
        return self._bracket(trial).out.get(trial)

    def expected_sections(self, *, again: bool) -> int:
        """Return the sections of all trials, including those that have not begun."""
        return sum(sections_of(self.counts(bracket), again=again) for bracket in self.brackets)

    def counts(self, bracket: Bracket) -> Iterator[tuple[int, int]]:
        """Yield (number of trials, budget) for each rung."""
        count = len(bracket.trials)
        for budget in bracket.budgets:
            yield count, budget
            count = max(count // self.eta, 1)

    def _bracket(self, trial: int) -> Bracket:
        return self.brackets[bisect_right(self._ends, trial)]

    def _reconsider(self, trial: int) -> None:
        """Decide the rungs of the trial's bracket that all their trials have reached."""
        bracket = self._bracket(trial)
        while not bracket.over:
            budget = bracket.budgets[bracket.rung]
            if self.results.at(trial, budget) is not None:
                bracket.missing.discard(trial)
            if bracket.missing:
                return
            self._decide(bracket, budget)

    def _decide(self, bracket: Bracket, budget: int) -> None:
        order = rank_costs(self.results.all_at(bracket.racing, budget))
        last = bracket.rung + 1 == len(bracket.budgets)
        # A bracket with fewer trials than planned, because the search has no more, still has a winner.
        count = len(order) if last else max(len(order) // self.eta, 1)
        for place, trial in enumerate(order[count:], start=count + 1):
            bracket.out[trial] = f"number {place} of {len(order)} after section {budget}"
        # A trial that fails afterwards counts as the worst of the next rung, whenever its failure becomes known.
        bracket.racing = order[:count]
        bracket.rung += 1
        if not bracket.over:
            next_budget = bracket.budgets[bracket.rung]
            bracket.missing = {trial for trial in bracket.racing if self.results.at(trial, next_budget) is None}


def brackets(most: int, eta: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return (number of trials, budgets) of each bracket for `most` sections per trial; the bracket with the most trials is first."""
    deepest = len(rungs(most, eta)) - 1
    # Integer form of n = ⌈(deepest + 1) η^s / (s + 1)⌉.
    sizes = [(s, -((deepest + 1) * eta**s // -(s + 1))) for s in range(deepest, -1, -1)]
    return [(size, rungs(most, eta)[deepest - s :]) for s, size in sizes]


def rungs(most: int, eta: int) -> tuple[int, ...]:
    """Return the budgets, from the smallest, of at least one section, up to `most`; each is η times the previous one, rounded."""
    deepest = 0
    while eta ** (deepest + 1) <= most:
        deepest += 1
    return tuple(most // eta**s for s in range(deepest, -1, -1))


def _deal_brackets(table: list[tuple[int, tuple[int, ...]]], trials: int) -> list[Bracket]:
    """Return brackets for `trials` trials; the last bracket may have fewer than planned."""
    dealt: list[Bracket] = []
    start = 0
    while start < trials:
        size, budgets = table[len(dealt) % len(table)]
        dealt.append(Bracket(trials=range(start, min(start + size, trials)), budgets=budgets))
        start += size
    return dealt
