"""The sampler for several objectives: what it proposes is in the space, follows the seed, and is better than chance."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from argosy.tuning import thompson
from argosy.tuning.sampling import Sampling
from argosy.tuning.thompson import CONSTRAINTS, ThompsonSampler

WAVE = 8
SPACE: dict[str, BaseDistribution] = {
    "x": FloatDistribution(1e-3, 1.0, log=True),
    "layers": IntDistribution(2, 8, step=2),
    "units": IntDistribution(4, 64, log=True),
    "rate": FloatDistribution(0.0, 0.5, step=0.1),
    "kind": CategoricalDistribution(["relu", None, 3]),
    "fixed": IntDistribution(7, 7),
}
Objectives = Callable[[Mapping[str, Any]], Sequence[float]]


def trade(parameters: Mapping[str, Any]) -> Sequence[float]:
    """Two objectives, less is better: the first wants a small x, the second a large one, and both the same of the rest."""
    rest = abs(parameters["layers"] - 6) + abs(parameters["rate"] - 0.3) + (parameters["kind"] is not None)
    return parameters["x"] + rest, 1.0 - parameters["x"] + rest


def searched(
    sampler: Callable[..., Any],
    objectives: Objectives = trade,
    *,
    waves: int = 5,
    seed: int = 0,
    bound: Callable[[Mapping[str, Any]], float] | None = None,
    pruned: Callable[[Mapping[str, Any]], bool] = lambda parameters: False,
) -> optuna.Study:
    """A search in waves, of which no trial has ended while the others are asked for."""
    study = optuna.create_study(directions=["minimize"] * len(objectives({**dict.fromkeys(SPACE, 1)})))
    for _ in range(waves):
        wave = []
        for _ in range(WAVE):
            study.sampler = sampler(seed=1000 * seed + len(study.trials))
            wave.append(study.ask(SPACE))
        for trial in wave:
            if bound is not None:
                study._storage.set_trial_system_attr(trial._trial_id, CONSTRAINTS, [bound(trial.params)])
            ended = (None, TrialState.PRUNED) if pruned(trial.params) else (objectives(trial.params), None)
            study.tell(trial, *ended)
    return study


def least_rest(study: optuna.Study) -> float:
    """The mean, over the last two waves, of what both objectives lose."""
    last = [trial for trial in study.trials[-2 * WAVE :] if trial.values]
    return sum(sum(trade(trial.params)) - 1.0 for trial in last) / len(last)


def test_proposals_are_values_of_the_space_and_follow_the_seed() -> None:
    study = searched(ThompsonSampler, waves=4)
    for trial in study.trials:
        assert all(SPACE[name]._contains(SPACE[name].to_internal_repr(value)) for name, value in trial.params.items())
        assert trial.params["layers"] in (2, 4, 6, 8) and trial.params["fixed"] == 7
        assert isinstance(trial.params["units"], int) and isinstance(trial.params["rate"], float)
    again = searched(ThompsonSampler, waves=4)
    assert [trial.params for trial in study.trials] == [trial.params for trial in again.trials]
    last = [tuple(trial.params.values()) for trial in study.trials[-WAVE:]]
    assert len(set(last)) == WAVE, "the trials of a wave must differ, although none of them has a result"


@pytest.mark.parametrize("seed", range(3))
def test_later_waves_are_better_than_chance(seed: int) -> None:
    chance = least_rest(searched(optuna.samplers.RandomSampler, seed=seed))
    assert least_rest(searched(ThompsonSampler, seed=seed)) < 0.5 * chance


def test_both_ends_of_the_front_are_reached() -> None:
    best = [trial.params["x"] for trial in searched(ThompsonSampler, waves=5).best_trials]
    assert min(best) < 0.05 and max(best) > 0.8


def test_three_objectives_and_one_that_never_differs() -> None:
    study = searched(ThompsonSampler, lambda parameters: (*trade(parameters), 1.0))
    assert least_rest(study) < 0.5 * least_rest(searched(optuna.samplers.RandomSampler))


def test_trials_that_break_a_constraint_are_avoided() -> None:
    def kept(study: optuna.Study) -> int:
        return sum(trial.params["units"] <= 10 for trial in study.trials[-2 * WAVE :])

    free, bound = (searched(ThompsonSampler, bound=bound, seed=2) for bound in (None, lambda one: one["units"] - 10.0))
    assert kept(free) + 4 <= kept(bound) >= 12


def test_trials_without_values_count_as_worse_than_all_others() -> None:
    study = searched(ThompsonSampler, pruned=lambda parameters: parameters["layers"] < 5)
    assert least_rest(study) < 0.7 * least_rest(searched(optuna.samplers.RandomSampler))


@pytest.mark.parametrize("seed", range(3))
def test_trials_stay_near_the_best_where_no_function_that_is_drawn_is_better(seed: int) -> None:
    """A smooth function is known after a few waves. Then the last wave must not be drawn at random, whose median is 0.35."""
    space = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}
    sampling, found = Sampling(space, modes=["min"], seed=seed, sampler=ThompsonSampler), list[float]()
    for _ in range(5):
        wave = [sampling.ask()[0] for _ in range(WAVE)]
        for parameters in wave:
            found.append((parameters["x"] - 0.2) ** 2 + (parameters["y"] - 0.9) ** 2)
            sampling.end(len(found) - 1, "complete", [found[-1]])
    assert median(found[-WAVE:]) < 0.05


def test_what_is_bad_stays_known_when_trials_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thompson, "CONDITIONED", 20)
    sampling = Sampling({"x": FloatDistribution(0.0, 1.0)}, modes=["min"], seed=0, sampler=ThompsonSampler)
    for number, x in enumerate([*(n / 50 for n in range(45)), *(0.9 + n / 200 for n in range(20))]):
        sampling.again({"x": x})
        sampling.end(number, "complete", [(x - 0.95) ** 2])
    assert sum(sampling.ask()[0]["x"] < 0.8 for _ in range(12)) <= 2


def test_a_parameter_that_only_some_trials_have_is_left_to_tpe() -> None:
    study = optuna.create_study(directions=["minimize", "minimize"])
    for number in range(30):
        study.sampler = ThompsonSampler(seed=number)
        trial = study.ask()
        x = trial.suggest_float("x", 0.0, 1.0)
        extra = trial.suggest_float("extra", 0.0, 1.0) if x < 0.5 else 0.0
        study.tell(trial, (x + extra, 1.0 - x + extra))
    assert any("extra" in trial.params for trial in study.trials[20:])
