"""Compare networks that several members repeat: compute their means and whether one is better than another."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.errors import RunError
from argosy.errors.spelling import did_you_mean
from argosy.results.intervals import Interval
from argosy.results.ranking import NOTHING, NUMBER, rank
from argosy.stopping import Mode
from argosy.study import Repetition

__all__ = ["Comparison", "Configuration", "Leader", "Repetitions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One network that several members repeat."""

    name: str
    repetitions: int
    """Number of members that repeat it."""
    counted: int
    """Number of members that are done; metrics are from these."""
    metrics: Mapping[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Return a plain row."""
        return {
            "configuration": self.name,
            "repetitions": self.repetitions,
            "counted": self.counted,
            **{metric: interval.mean for metric, interval in self.metrics.items()},
            "intervals": {metric: interval.bounds for metric, interval in self.metrics.items()},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two configurations, compared repetition by repetition."""

    first: str
    second: str
    metric: str
    first_minus_second: Interval
    """Mean of the first's value minus the second's, over the repetitions that are done in both."""

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes a difference of zero."""
        return not self.first_minus_second.holds_zero

    @property
    def told(self) -> str:
        """The difference as text."""
        interval, pairs = self.first_minus_second, self.first_minus_second.count
        if interval.half is None:
            return f"{pairs} {'pair' if pairs == 1 else 'pairs'}, {'some not finite' if self._some_not_finite else 'too few to tell'}"
        return str(interval) if self.distinguishable else f"not distinguishable ({interval})"

    @property
    def _some_not_finite(self) -> bool:
        """Whether a value is NaN or infinite, so that there is no interval."""
        return self.first_minus_second.count > 0 and not math.isfinite(self.first_minus_second.mean)

    def __str__(self) -> str:
        interval, pairs = self.first_minus_second, self.first_minus_second.count
        taken = f"{self.first} minus {self.second}, {pairs} pair{'s' * (pairs != 1)}"
        if self._some_not_finite:
            return f"{self.metric}: {self.first} and {self.second} cannot be compared, because some values are not finite ({taken})."
        if interval.half is None:
            return (
                f"{self.metric}: too few repetitions under the same seed or fold are done in both to tell "
                f"{self.first} from {self.second} ({taken})."
            )
        if not self.distinguishable:
            return f"{self.metric}: {self.first} and {self.second} are not distinguishable ({taken}: {interval})."
        less = "lower" if interval.mean < 0 else "higher"
        return f"{self.metric} is {less} by {abs(interval.mean):.4g} with {self.first} than with {self.second} ({taken}: {interval})."

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Return a plain row."""
        return {
            "first": self.first,
            "second": self.second,
            "metric": self.metric,
            "first_minus_second": self.first_minus_second.mean if self.first_minus_second.count else None,
            "interval": self.first_minus_second.bounds,
            "pairs": self.first_minus_second.count,
            "distinguishable": self.distinguishable,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """The best of a run: the member with the best objective, or the repeated configuration with the best mean."""

    name: str
    metric: str
    """The objective."""
    value: Interval
    """The configuration's mean; for a single member its value, without an interval."""
    repetitions: int | None = None
    """Number of members that repeat the configuration; None for a single member."""

    @property
    def told(self) -> str:
        """Its value as text, with the number of members averaged."""
        if self.repetitions is None:
            return f"{self.value}"
        of = "" if self.value.count == self.repetitions else f" of {self.repetitions}"
        return f"{self.value}, mean of {self.value.count}{of}"

    def __str__(self) -> str:
        return f"{self.name}, {self.metric} {self.told}"

    def to_json(self) -> dict[str, Any]:
        """Return a plain row."""
        counted = None if self.repetitions is None else self.value.count
        values = {"value": self.value.mean, "interval": self.value.bounds}
        return {"name": self.name, "metric": self.metric, **values, "repetitions": self.repetitions, "counted": counted}


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetitions:
    """The repeated networks of one run."""

    outcomes: Mapping[str, Mapping[str, Mapping[str, float]]]
    """Metrics by configuration, then by `Repetition.under`; empty for a member that is not done."""
    overlaps: Mapping[str, float]
    """The largest `Repetition.overlap` of each configuration."""
    objective: str
    mode: Mode
    held_out: Mapping[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    """By configuration and `Repetition.under`: the member's `val_subset`. Equally named folds of different splits are not compared as pairs."""

    @classmethod
    def of(
        cls,
        members: Iterable[tuple[Repetition, Mapping[str, float]]],
        *,
        objective: str,
        mode: Mode,
        held_out: Mapping[tuple[str, str], Any] | None = None,
    ) -> "Repetitions":
        """Collect each member's metrics, which are empty for one that is not done."""
        outcomes: dict[str, dict[str, Mapping[str, float]]] = {}
        overlaps: dict[str, float] = {}
        for repetition, metrics in members:
            outcomes.setdefault(repetition.of, {})[repetition.under] = metrics
            overlaps[repetition.of] = max(overlaps.get(repetition.of, 0.0), repetition.overlap)
        return cls(outcomes=outcomes, overlaps=overlaps, objective=objective, mode=mode, held_out=held_out or {})

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """Configurations by the mean of the objective, best first; those without any result last."""

        def place(configuration: Configuration) -> tuple[int, float]:
            return rank(
                configuration.metrics[self.objective].mean if self.objective in configuration.metrics else None,
                self.mode,
            )

        return tuple(sorted(map(self._configuration, self.outcomes), key=place))

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Comparison of each other configuration with the best one, by the objective."""
        best, *others = [configuration.name for configuration in self.configurations] or [""]
        return tuple(self.compare(other, best) for other in others)

    def __str__(self) -> str:
        means = [
            f"{one.name}: {self.objective} {one.metrics.get(self.objective, 'unknown')}, {one.counted} of "
            f"{one.repetitions} done"
            for one in self.configurations
        ]
        return "\n".join([*means, *map(str, self.comparisons)])

    __repr__ = __str__

    def leader(self, others: Mapping[str, float]) -> Leader | None:
        """Return the best of these configurations and `others`, the single members' objectives; None if none has a
        number."""
        leaders = [
            Leader(name=name, metric=self.objective, value=Interval(mean=value, half=None, count=1))
            for name, value in others.items()
        ]
        leaders += [
            Leader(name=one.name, metric=self.objective, value=one.metrics[self.objective], repetitions=one.repetitions)
            for one in self.configurations
            if self.objective in one.metrics
        ]
        ranked = [(rank(one.value.mean, self.mode), one) for one in leaders]
        (kind, _), best = min(ranked, key=lambda each: each[0], default=((NOTHING, 0.0), None))
        return best if kind == NUMBER else None

    def compare(self, first: str, second: str, metric: str | None = None) -> Comparison:
        """Compare two configurations by a metric, or by the objective, over the repetitions that both have, on the same validation samples."""
        metric = metric or self.objective
        of_first, of_second = self._values(first, metric), self._values(second, metric)
        differences = {
            under: value - of_second[under]
            for under, value in of_first.items()
            if under in of_second and self.held_out.get((first, under)) == self.held_out.get((second, under))
        }
        difference = _interval(differences, overlap=max(self.overlaps[first], self.overlaps[second]))
        return Comparison(first=first, second=second, metric=metric, first_minus_second=difference)

    def _configuration(self, name: str) -> Configuration:
        overlap = self.overlaps[name]
        done = {under: metrics for under, metrics in self.outcomes[name].items() if metrics}
        first = next(iter(done.values()), {})
        shared = [metric for metric in first if all(metric in metrics for metrics in done.values())]
        values = {metric: {under: metrics[metric] for under, metrics in done.items()} for metric in shared}
        return Configuration(
            name=name,
            repetitions=len(self.outcomes[name]),
            counted=len(done),
            metrics={metric: _interval(sample, overlap=overlap) for metric, sample in values.items()},
        )

    def _values(self, configuration: str, metric: str) -> dict[str, float]:
        """Return a metric of a configuration's repetitions, by `Repetition.under`."""
        if configuration not in self.outcomes:
            known = f"choose one of {', '.join(map(repr, self.outcomes))}"
            none = "its members repeat no network. Compare them in the report, or repeat them with argosy.replicate"
            raise RunError(
                f"the run has no configuration {configuration!r}{did_you_mean(configuration, self.outcomes)}; "
                f"{known if self.outcomes else none}."
            )
        done = {under: metrics for under, metrics in self.outcomes[configuration].items() if metrics}
        for metrics in done.values():
            if metric not in metrics:
                raise RunError(
                    f"configuration {configuration!r} does not report {metric!r}{did_you_mean(metric, metrics)}; choose one of "
                    f"{', '.join(metrics)}."
                )
        return {under: metrics[metric] for under, metrics in done.items()}


def _interval(values: Mapping[str, float], *, overlap: float) -> Interval:
    """Return the interval of values that are given by `Repetition.under`."""
    draws = [Repetition(of="", under=under, overlap=overlap).draw for under in values]
    return Interval.of([*values.values()], overlap=overlap, draws=draws)
