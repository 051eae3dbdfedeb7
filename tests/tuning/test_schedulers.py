"""Tests schedulers as state machines: against reference tables, and for results that come in any order."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.tuning.asha import Asha
from argosy.tuning.hyperband import Hyperband, brackets, rungs
from argosy.tuning.in_full import FullBudget
from argosy.tuning.median import Median
from argosy.tuning.scheduler import Results, Scheduler

MOST = 27


class World:
    """Trials with fixed costs, some of which fail; they train in any order, as far as the scheduler lets them."""

    def __init__(self, scheduler: Scheduler, costs: dict[int, list[float]], fails: dict[int, int]) -> None:
        self.scheduler, self.costs, self.fails = scheduler, costs, fails
        self.reached: dict[int, int] = {}
        self.failed: set[int] = set()

    def begin(self) -> int:
        """Begin as many trials as are wanted, and return how many."""
        count = self.scheduler.wanted_trials(len(self.reached))
        for trial in range(len(self.reached), len(self.reached) + count):
            self.reached[trial] = 0
        return count

    def step(self, trial: int) -> None:
        """Train a trial for one more section, unless it is to fail there."""
        if self.fails.get(trial) == self.reached[trial]:
            self.failed.add(trial)
            self.scheduler.fail(trial)
            return
        self.reached[trial] += 1
        self.scheduler.tell(trial, self.reached[trial], self.costs[trial][self.reached[trial]])

    def movable(self) -> list[int]:
        return [t for t, reached in self.reached.items() if t not in self.failed and reached < self.scheduler.budget(t)]

    def play(self, draw: Random) -> None:
        """Train all trials to their end in a random order."""
        while self.begin() or self.movable():
            movable = self.movable()
            for trial in draw.sample(movable, draw.randint(1, len(movable))):
                if self.reached[trial] < self.scheduler.budget(trial):
                    self.step(trial)

    @property
    def outcome(self) -> dict[int, tuple[int, str | None]]:
        return {t: (reached, self.scheduler.out(t)) for t, reached in self.reached.items() if t not in self.failed}


def fleet(draw: Random, trials: int) -> tuple[dict[int, list[float]], dict[int, int]]:
    """Return costs, with ties and NaN, and after how many sections which trials fail."""
    values = [0.0, 0.25, 0.5, 0.75, 1.0, math.nan]
    costs = {t: [draw.choice(values) for _ in range(MOST + 1)] for t in range(trials)}
    return costs, {t: draw.randint(0, MOST) for t in range(trials) if draw.random() < 0.2}


def test_the_table_of_the_paper() -> None:
    table = brackets(81, 3)
    assert [size for size, _ in table] == [81, 34, 15, 8, 5]
    assert [budgets for _, budgets in table] == [(1, 3, 9, 27, 81), (3, 9, 27, 81), (9, 27, 81), (27, 81), (81,)]
    sizes = [[size // 3**rung for rung in range(len(budgets))] for size, budgets in table]
    assert sizes == [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1], [8, 2], [5]]
    assert sum(map(sum, sizes)) == 206
    from_scratch = [sum(n * r for n, r in zip(s, b, strict=True)) for s, (_, b) in zip(sizes, table, strict=True)]
    assert sum(from_scratch) == 1902
    world = World(Hyperband(most=81, eta=3, trials=143), {t: [float(t)] * 82 for t in range(143)}, {})
    world.play(Random(0))
    assert len(world.reached) == 143
    assert sum(world.reached.values()) == 1581, "promoted trials do not train their first sections again"
    assert [t for t, reached in world.reached.items() if reached == 81] == [0, 81, 115, 130, 131, *range(138, 143)]


def test_budgets_are_whole_sections_and_one_round_follows_the_other() -> None:
    assert rungs(100, 3) == (1, 3, 11, 33, 100)
    assert rungs(1, 3) == (1,)
    assert rungs(16, 2) == (1, 2, 4, 8, 16)
    assert [len(b.trials) for b in Hyperband(most=9, eta=3, trials=40).brackets] == [9, 5, 3, 9, 5, 3, 6]


@given(st.integers(0, 2**32), st.sampled_from(["together", "in-turn"]))
@settings(max_examples=50)
def test_hyperband_decides_the_same_whatever_the_order(seed: int, order: str) -> None:
    draw = Random(seed)
    trials, eta = draw.randint(1, 60), draw.choice([2, 3, 4])
    costs, fails = fleet(draw, trials)
    worlds = [World(Hyperband(most=MOST, eta=eta, trials=trials, order=order), costs, fails) for _ in range(2)]
    for world in worlds:
        world.play(draw)
    assert worlds[0].outcome == worlds[1].outcome == by_definition(trials, eta, costs, fails, order)
    assert worlds[0].failed == worlds[1].failed
    assert len(worlds[0].reached) == trials


def by_definition(
    trials: int, eta: int, costs: dict[int, list[float]], fails: dict[int, int], order: str
) -> dict[int, tuple[int, str | None]]:
    """Follow algorithm 1 of Li et al. with trials in a row; brackets one after another begin with the longest trials."""
    found: dict[int, tuple[int, str | None]] = {}
    start = 0
    table = brackets(MOST, eta)[:: 1 if order == "together" else -1]
    while start < trials:
        for size, budgets in table:
            racing = list(range(start, min(start + size, trials)))
            start += size
            for number, budget in enumerate(budgets):
                at = {t: costs[t][budget] if fails.get(t, MOST + 1) >= budget else math.nan for t in racing}
                best = sorted(racing, key=lambda t: (math.isnan(at[t]), 0 if math.isnan(at[t]) else at[t], t))
                count = max(len(best) // eta, 1) if number + 1 < len(budgets) else len(best)
                for place, trial in enumerate(best, start=1):
                    out = None if place <= count else f"number {place} of {len(best)} after section {budget}"
                    found[trial] = budget, out
                racing = best[:count]
    return {t: result for t, result in found.items() if t not in fails or fails[t] >= result[0]}


@given(st.integers(0, 2**32))
@settings(max_examples=50)
def test_asha_decides_the_same_whatever_the_order(seed: int) -> None:
    draw = Random(seed)
    trials, eta = draw.randint(1, 40), draw.choice([2, 3])
    costs, fails = fleet(draw, trials)
    worlds = [World(Asha(most=MOST, eta=eta, trials=trials), costs, fails) for _ in range(2)]
    for world in worlds:
        world.play(draw)
    assert worlds[0].outcome == worlds[1].outcome == halved_by_definition(trials, eta, costs, fails)
    assert worlds[0].failed == worlds[1].failed
    if len(worlds[0].failed) < trials:
        assert max(reached for reached, _ in worlds[0].outcome.values()) == MOST


def halved_by_definition(
    trials: int, eta: int, costs: dict[int, list[float]], fails: dict[int, int]
) -> dict[int, tuple[int, str | None]]:
    """Follow Li et al. with trials that reach a rung one after another; in the end the best of the highest rung continues alone."""
    budgets = rungs(MOST, eta)
    came: list[list[int]] = [list(range(trials)), *([] for _ in budgets[1:])]

    def lives(trial: int, rung: int) -> bool:
        return fails.get(trial, MOST) >= budgets[rung]

    def ordered(racing: list[int], rung: int) -> list[int]:
        at = {t: costs[t][budgets[rung]] if lives(t, rung) else math.nan for t in racing}
        return sorted(racing, key=lambda t: (math.isnan(at[t]), 0 if math.isnan(at[t]) else at[t], t))

    def halve() -> None:
        for rung, after in enumerate(came[1:]):
            for count in range(1, len(came[rung]) + 1):
                best = ordered(came[rung][:count], rung)[: count // eta]
                after += [t for t in best if t not in after and lives(t, rung)]

    def alive() -> list[list[int]]:
        last = {trial: rung for rung, racing in enumerate(came) for trial in racing}
        return [[t for t in racing if lives(t, last[t])] for racing in came]

    halve()
    while (top := max((rung for rung, found in enumerate(alive()) if found), default=len(budgets))) + 1 < len(budgets):
        came[top + 1].append(ordered(alive()[top], top)[0])
        halve()
    found = {}
    for rung, racing in enumerate(came):
        for place, trial in enumerate(ordered(racing, rung), start=1):
            out = None if budgets[rung] == MOST else f"number {place} of {len(racing)} after section {budgets[rung]}"
            found[trial] = budgets[rung], out, lives(trial, rung)
    return {trial: (budget, out) for trial, (budget, out, living) in found.items() if living}


@given(st.integers(0, 2**32), st.integers(0, 400))
@settings(max_examples=50)
def test_a_restart_restores_promotions(seed: int, steps: int) -> None:
    draw = Random(seed)
    costs, fails = fleet(draw, 20)
    world = World(Asha(most=MOST, eta=3, trials=20), costs, fails)
    world.begin()
    for _ in range(steps):
        if movable := world.movable():
            world.step(draw.choice(movable))
    again = Asha(most=MOST, eta=3, trials=20)
    for trial, sections in told(world):
        again.tell(trial, sections, costs[trial][sections])
    for trial in world.failed:
        again.fail(trial)
    assert [again.budget(trial) for trial in range(20)] == [world.scheduler.budget(trial) for trial in range(20)]
    world.scheduler = again
    world.play(draw)
    assert world.outcome == halved_by_definition(20, 3, costs, fails)


def told(world: World) -> Iterator[tuple[int, int]]:
    for trial, reached in world.reached.items():
        yield from ((trial, sections) for sections in range(1, reached + 1))


@given(st.integers(0, 2**32))
@settings(max_examples=50)
def test_the_median_rule_ends_the_trials_that_it_should(seed: int) -> None:
    draw = Random(seed)
    costs, fails = fleet(draw, 12)
    median = Median(most=MOST, trials=12, grace=2)
    world = World(median, costs, fails)
    world.begin()
    for _ in range(draw.randint(0, 200)):
        if movable := world.movable():
            world.step(draw.choice(movable))
    for trial, reached in world.reached.items():
        known = {t: [worst(c) for c in costs[t][1 : min(reached, r) + 1]] for t, r in world.reached.items() if r}
        means = sorted(sum(row) / len(row) for row in known.values() if row)
        if reached <= 2 or reached == MOST or len(means) < 5:
            assert median.out(trial) is None
            continue
        middle = (means[(len(means) - 1) // 2] + means[len(means) // 2]) / 2
        assert (median.out(trial) is not None) == (min(known[trial]) > middle + 1e-12)


def worst(cost: float) -> float:
    return math.inf if math.isnan(cost) else cost


def test_a_trial_that_ended_by_its_own_rule_keeps_its_rank() -> None:
    hyperband = Hyperband(most=9, eta=3, trials=3)
    for trial, cost in enumerate([0.3, 0.1, 0.2]):
        hyperband.tell(trial, 1, cost)
    assert [hyperband.budget(trial) for trial in range(3)] == [1, 3, 1]
    hyperband.tell(1, 2, 0.05)
    hyperband.close(1)
    assert hyperband.brackets[0].over
    assert hyperband.out(1) is None


@pytest.mark.parametrize(
    "scheduler", [FullBudget(most=4, trials=3), Median(most=4, trials=3), Asha(most=1, eta=2, trials=3)]
)
def test_all_trials_begin_at_once(scheduler: Scheduler) -> None:
    assert [scheduler.wanted_trials(begun) for begun in range(5)] == [3, 2, 1, 0, 0]
    assert scheduler.out(0) is None


class Asked(Results):
    """Results that count how often one is looked up."""

    count = 0

    def at(self, trial: int, sections: int) -> Any:
        self.count += 1
        return super().at(trial, sections)

    def until(self, trial: int, sections: int) -> list[float]:
        self.count += 1
        return super().until(trial, sections)


@pytest.mark.parametrize("scheduler", [partial(Asha, eta=3), Median])
def test_what_thousands_of_trials_ask_for_grows_as_their_number_does(scheduler: Callable[..., Scheduler]) -> None:
    counts = []
    for trials in (100, 400):
        world = World(scheduler(most=MOST, trials=trials), {t: [Random(t).random()] * 28 for t in range(trials)}, {})
        world.scheduler.results = asked = Asked()
        world.play(Random(0))
        counts.append(asked.count)
    assert counts[1] < 8 * counts[0], "it would be 16 times as many if each report compared all trials anew"


def test_what_is_foreseen_is_what_the_table_says() -> None:
    hyperband = Hyperband(most=81, eta=3, trials=143)
    assert (hyperband.expected_sections(again=False), hyperband.expected_sections(again=True)) == (1581, 1902)
    asha = Asha(most=9, eta=3, trials=9)
    assert (asha.expected_sections(again=False), asha.expected_sections(again=True)) == (9 + 3 * 2 + 6, 9 + 9 + 9)
    assert FullBudget(most=4, trials=3).expected_sections(again=False) == 12
    median = Median(most=4, trials=6)
    assert median.expected_sections(again=False) == 24
    for trial in range(6):
        for sections in (1, 2):
            median.tell(trial, sections, float(trial))
    assert median.expected_sections(again=False) == sum(2 if median.out(trial) else 4 for trial in range(6)) < 24


def test_the_median_of_infinite_results_is_one() -> None:
    """A signal-to-noise ratio may be NaN first, and infinite later; the mean of infinity and minus infinity is an error or NaN."""
    median = Median(most=4, trials=6)
    for sections in (1, 2):
        for trial, first in enumerate([math.nan, math.inf, -math.inf, -math.inf, 3.0, 4.0]):
            median.tell(trial, sections, first if sections == 1 else min(first, 3.5) if trial > 1 else -math.inf)
    assert [trial for trial in range(6) if median.out(trial)] == [5]
