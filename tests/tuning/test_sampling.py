"""Proposals are Optuna's, each under a seed of its own number: a later driver proposes what this one would have."""

from functools import partial

import optuna
from optuna.distributions import FloatDistribution

from argosy.tuning.sampling import Sampling


def made() -> Sampling:
    sampler = partial(optuna.samplers.TPESampler, n_startup_trials=5)
    return Sampling({"x": FloatDistribution(0.0, 1.0)}, mode="min", seed=3, sampler=sampler)


def end(sampling: Sampling, number: int, x: float) -> None:
    sampling.report(number, 1, (x - 0.3) ** 2)
    sampling.end(number, "complete", (x - 0.3) ** 2)


def test_a_sampler_that_learns_does_so_and_goes_on_after_a_restart_as_it_would_have() -> None:
    sampling, found = made(), list[float]()
    for number in range(30):
        found.append(sampling.ask()[0]["x"])
        end(sampling, number, found[-1])
    apart = [abs(x - 0.3) for x in found]
    assert sum(apart[15:]) < sum(apart[:15]) * 0.7
    later = made()
    for number, x in enumerate(found[:20]):
        assert later.again({"x": x}) == ({"x": x}, {"x": x})
        end(later, number, x)
    for number, x in enumerate(found[20:], start=20):
        assert later.ask()[0]["x"] == x
        end(later, number, x)
