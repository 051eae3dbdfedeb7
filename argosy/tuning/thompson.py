"""Sampling by Thompson sampling from Gaussian processes, the default of searches that learn, for one or several objectives.

For each trial, one function per objective is drawn from a posterior, and the trial takes the candidate whose drawn values would enlarge
the dominated hypervolume most (Bradford, Schweidtmann and Lapkin, Efficient multiobjective optimization employing Gaussian processes,
spectral sampling and a genetic algorithm, 2018); with one objective, that is the candidate with the best value (Thompson, 1933). Trials
of one wave, which are proposed before any of them has ended, follow different draws, so that they differ without a penalty. Lengthscales
are drawn too, by their likelihood. Volumes are means over random directions, for any number of objectives (Golovin and Zhang, Random
hypervolume scalarizations, 2020). `benchmarks/samplers.py` and `benchmarks/pareto.py` compare this with Optuna's samplers.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from argosy.tuning.optuna_package import CONSTRAINTS, optuna, threadpool_limits

__all__ = ["REACHED", "ThompsonSampler"]

Array = NDArray[np.float64]
ENDED = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
REACHED = "argosy:reached"
"""Attribute of a trial with several objectives: its newest number of sections, and a value of each objective."""
UNIFORM, NEARBY = 256, 128
"""Numbers of candidates that are drawn uniformly, and near the best trials."""
MOVED, DISTANCE = 0.3, 0.3
"""Of a candidate near a trial: the fraction of parameters that differ, and the standard deviation of the difference, in parts of a range."""
FITS, FITTED = 100, 64
"""Number of lengthscales of which one is drawn by its likelihood, and the most trials that decide on that."""
CONDITIONED = 400
"""The most trials that a posterior is conditioned on, because its time grows with their third power."""
DIRECTIONS = 128
"""Number of random directions over which volumes are means."""
MARGIN = 0.4
"""How far below the worst scores the corner lies from which volumes count; scores have a standard deviation of 1."""


class ThompsonSampler(optuna.samplers.TPESampler):
    """Thompson sampling of the parameters that all trials have. The first trials, and other parameters, are left to TPE."""

    # `Sampling.startup` reads the default of `n_startup_trials`.
    def __init__(self, *, n_startup_trials: int = 10, seed: int | None = None) -> None:
        super().__init__(n_startup_trials=n_startup_trials, seed=seed)
        self._startup = n_startup_trials
        self._draw = np.random.default_rng(seed)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, optuna.distributions.BaseDistribution]:
        """Return the parameters that all ended trials have and that have more than one value."""
        known = [past.distributions for past in study.get_trials(deepcopy=False) if _has_results(past)]
        last = sorted(known[-1].items()) if known else []
        # `count` compares most distributions by identity; Optuna's intersection takes as long as the rest of a proposal.
        common = {name: one for name, one in last if [each.get(name) for each in known].count(one) == len(known)}
        return {name: distribution for name, distribution in common.items() if not distribution.single()}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        search_space: dict[str, optuna.distributions.BaseDistribution],
    ) -> dict[str, Any]:
        """Return these parameters of the next trial; none while the first trials are drawn at random."""
        trials = study.get_trials(deepcopy=False)
        ended = [past for past in trials if _has_results(past)]
        if len(ended) < self._startup or not search_space:
            return {}
        axes = {name: _Axis(distribution) for name, distribution in search_space.items()}
        values = np.stack([_scores(ended, number, way) for number, way in enumerate(study.directions)], axis=1)
        # The best trials, and others from the whole search: the last ones would not show what is bad elsewhere.
        best, order = _undominated(values), self._draw.permutation(len(ended))
        kept = order[np.argsort(~best[order], kind="stable")][:CONDITIONED]
        values, best, taken = values[kept], best[kept], [ended[number].params for number in kept]
        known = np.array([[axis.place(params[name]) for name, axis in axes.items()] for params in taken])
        tried = {tuple(map(past.params.get, axes)) for past in trials}
        drawn = self._candidates(known[best], axes)
        candidates = [row for row in drawn if tuple(row.values()) not in tried] or drawn
        places = np.array([[axes[name].place(row[name]) for name in axes] for row in candidates])
        points, offered = _points(known, axes), _points(places, axes)
        widths = [axis.width for axis in axes.values()]
        # Beside trainers, threads of BLAS that wait for each other take 100 times as long.
        with threadpool_limits(1, user_api="blas"):
            guesses = np.stack([self._function(points, offered, widths, column) for column in values.T], axis=1)
        return candidates[int(np.argmax(self._gains(values, guesses)))]

    def _candidates(self, best: Array, axes: Mapping[str, "_Axis"]) -> list[dict[str, Any]]:
        """Return candidates, some anywhere in the space and some near the best trials, which are given by their places."""
        anywhere = self._draw.random((UNIFORM + NEARBY, len(axes)))
        near = best[self._draw.integers(len(best), size=NEARBY)]
        step = np.clip(near + self._draw.normal(0.0, DISTANCE, near.shape), 0.0, 1.0)
        other = np.where([axis.choices is not None for axis in axes.values()], anywhere[UNIFORM:], step)
        rows = np.vstack([anywhere[:UNIFORM], np.where(self._draw.random(near.shape) < MOVED, other, near)])
        return [
            {name: axis.value(place) for (name, axis), place in zip(axes.items(), row, strict=True)} for row in rows
        ]

    def _function(self, known: Array, offered: Array, widths: Sequence[int], scores: Array) -> Array:
        """Return the values at the candidates of a function that is drawn from the posterior, given the trials' scores.

        Trials and candidates are points, of which each axis has as many columns as `widths` says.
        """
        lengths, noise, variance = self._model(known, widths, scores)
        known, offered = known / lengths, offered / lengths
        factor = np.linalg.cholesky(_matern(known, known) + noise * np.eye(len(scores)))
        white = np.linalg.solve(factor, np.column_stack([scores, _matern(known, offered)]))
        mean = white[:, 1:].T @ white[:, 0]
        covariance = _matern(offered, offered) - white[:, 1:].T @ white[:, 1:]
        spread = np.linalg.cholesky(variance * (covariance + 1e-6 * np.eye(len(mean))))
        return mean + spread @ self._draw.normal(size=len(mean))

    def _model(self, known: Array, widths: Sequence[int], scores: Array) -> tuple[Array, float, float]:
        """Return a lengthscale per column, a noise and a variance, drawn by their likelihood.

        The variance is the likeliest for the other two.
        """
        subset = self._draw.permutation(len(scores))[:FITTED]
        known, scores = known[subset], scores[subset]
        typical = 0.5 * math.sqrt(len(widths))
        lengths = np.repeat(typical * np.exp(self._draw.normal(size=(FITS, len(widths)))), widths, axis=1)
        noises = np.exp(self._draw.uniform(math.log(1e-4), math.log(0.3), FITS))
        scaled = known / lengths[:, None]
        factors = np.linalg.cholesky(_matern(scaled, scaled) + noises[:, None, None] * np.eye(len(scores)))
        variances = np.mean(np.linalg.solve(factors, scores[:, None])[:, :, 0] ** 2, axis=1) + 1e-12
        half_log_determinants = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        likelihoods = -0.5 * len(scores) * np.log(variances) - half_log_determinants
        weights = np.exp(likelihoods - likelihoods.max())
        taken = self._draw.choice(FITS, p=weights / weights.sum())
        return lengths[taken], noises[taken], variances[taken]

    def _gains(self, values: Array, guesses: Array) -> Array:
        """Return by how much each row of `guesses` would enlarge the hypervolume that the rows of `values` dominate, up to a factor.

        If none would, return how near each one comes.
        """
        corner = values.min(axis=0) - MARGIN
        directions = np.abs(self._draw.normal(size=(DIRECTIONS, values.shape[1])))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)

        def reach(rows: Array) -> Array:
            reached: Array = np.min(np.maximum(rows - corner, 0.0)[:, None] / directions, axis=2) ** values.shape[1]
            return reached

        further = reach(guesses) - reach(values).max(axis=0)
        gains: Array = np.maximum(further, 0.0).mean(axis=1) if further.max() > 0.0 else further.max(axis=1)
        return gains


class _Axis:
    """The values of one parameter as places from 0 to 1."""

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution
        self.choices: Sequence[Any] | None = (
            distribution.choices if isinstance(distribution, optuna.distributions.CategoricalDistribution) else None
        )
        self.width: int = 1 if self.choices is None else len(self.choices)
        """Number of columns of a point."""
        logarithmic = self.choices is None and distribution.log
        self._bend: Callable[[float], float] = math.log if logarithmic else float
        self._unbend: Callable[[float], float] = math.exp if logarithmic else float

    def place(self, value: Any) -> float:
        """Return the place of a value; that of a choice is the middle of its part."""
        if self.choices is not None:
            return (self.choices.index(value) + 0.5) / len(self.choices)
        low, high = self._bend(self.distribution.low), self._bend(self.distribution.high)
        return (self._bend(value) - low) / (high - low)

    def columns(self, places: Array) -> Array:
        """Return the columns of points at these places; different choices are 1 apart."""
        if self.choices is None:
            return places[:, None]
        chosen: Array = (np.floor(places * self.width)[:, None] == np.arange(self.width)) * math.sqrt(0.5)
        return chosen

    def value(self, place: float) -> Any:
        """Return the value nearest to a place."""
        if self.choices is not None:
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        least, most, step = self.distribution.low, self.distribution.high, self.distribution.step
        low, high = self._bend(least), self._bend(most)
        value = self._unbend(low + place * (high - low))
        if step is not None:
            value = least + round((value - least) / step) * step
        return type(least)(min(max(value, least), most))


def _has_results(trial: optuna.trial.FrozenTrial) -> bool:
    """Return whether a trial has ended, also if it has failed, or rests with results."""
    return trial.state in ENDED or REACHED in trial.system_attrs


def _scores(
    trials: Sequence[optuna.trial.FrozenTrial], objective: int, direction: optuna.study.StudyDirection
) -> Array:
    """Return each trial's rank by an objective as a quantile of the normal distribution, so that no value is an outlier; more is better.

    Complete trials come first, then others, by their last value among those that came as far, then trials that break a
    constraint, by how much, and trials without values.
    """
    sign = 1.0 if direction == optuna.study.StudyDirection.MAXIMIZE else -1.0

    def key(trial: optuna.trial.FrozenTrial) -> tuple[int, int, float]:
        complete = trial.state == optuna.trial.TrialState.COMPLETE
        if not (complete or trial.intermediate_values or REACHED in trial.system_attrs):
            return 0, 0, 0.0  # it has failed, whether or not it meets the constraints
        if excess := sum(max(0.0, bound) for bound in trial.system_attrs.get(CONSTRAINTS, ())):
            return 1, 0, -excess
        if complete:
            return 3, 0, sign * trial.values[objective]
        if REACHED in trial.system_attrs:
            step, values = trial.system_attrs[REACHED]
            value = values[objective]
        else:
            step, value = max(trial.intermediate_values.items())
        return 2, step, -math.inf if math.isnan(value) else sign * value

    keys = [key(trial) for trial in trials]
    order, quantile = sorted(keys), NormalDist().inv_cdf
    return np.array([quantile((bisect_left(order, one) + bisect_right(order, one)) / (2 * len(keys))) for one in keys])


def _undominated(values: Array) -> NDArray[np.bool_]:
    """Return which rows no other row is at least as good as in each column and better in one."""
    # What the row with the largest sum dominates is left out first, because the time grows with the square of the number of rows.
    largest = values[values.sum(axis=1).argmax()]
    left: NDArray[np.bool_] = np.logical_not((values <= largest).all(axis=1) & (values < largest).any(axis=1))
    least = np.all([np.greater_equal.outer(column, column) for column in values[left].T], axis=0)
    left[left] = np.logical_not((least & ~least.T).any(axis=0))
    return left


def _points(places: Array, axes: Mapping[str, _Axis]) -> Array:
    """Return places, shape (n, axes), as points, shape (n, columns)."""
    return np.hstack([axis.columns(column) for axis, column in zip(axes.values(), places.T, strict=True)])


def _matern(some: Array, others: Array) -> Array:
    """Return the Matérn 5/2 kernel of points, (..., n, columns) and (..., m, columns), divided by the lengthscales."""
    squares = -2.0 * some @ others.swapaxes(-1, -2)
    squares += (some**2).sum(axis=-1)[..., None]
    squares += (others**2).sum(axis=-1)[..., None, :]
    scaled = np.sqrt(5.0 * np.maximum(squares, 0.0))
    kernel: Array = np.exp(-scaled) * (1.0 + scaled * (1.0 + scaled / 3.0))
    return kernel
