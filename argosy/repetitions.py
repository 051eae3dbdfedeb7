"""What came out of networks that several members repeat: their means, and whether one is better than another."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.errors import RunError
from argosy.intervals import Interval
from argosy.spelling import meant
from argosy.stopping import Mode
from argosy.study import Repetition

__all__ = ["Comparison", "Configuration", "Repetitions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One network that several members repeat."""

    name: str
    repetitions: int
    """Members that repeat it."""
    counted: int
    """Those of them that are done: figures are theirs."""
    metrics: Mapping[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """A plain row."""
        return {
            "configuration": self.name,
            "repetitions": self.repetitions,
            "counted": self.counted,
            **{metric: found.mean for metric, found in self.metrics.items()},
            "intervals": {metric: found.bounds for metric, found in self.metrics.items()},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two configurations, repetition by repetition."""

    first: str
    second: str
    metric: str
    difference: Interval
    """Of the second's value less the first's, over what is done of both."""

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves no room for a difference of zero."""
        return not self.difference.holds_zero

    def __str__(self) -> str:
        pairs = self.difference.count
        if pairs < 2:
            return f"{pairs} {'pair' if pairs == 1 else 'pairs'}, too few to tell"
        return str(self.difference) if self.distinguishable else f"not distinguishable ({self.difference})"

    def to_json(self) -> dict[str, Any]:
        """A plain row."""
        return {
            "first": self.first,
            "second": self.second,
            "metric": self.metric,
            "difference": self.difference.mean if self.difference.count else None,
            "interval": self.difference.bounds,
            "pairs": self.difference.count,
            "distinguishable": self.distinguishable,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetitions:
    """Of one run."""

    outcomes: Mapping[str, Mapping[str, Mapping[str, float]]]
    """Metrics by configuration and by what differs between its repetitions; empty for a member that is not done, since they
    would tell how far it came."""
    overlaps: Mapping[str, float]
    """By configuration, see `Repetition.overlap`."""
    objective: str
    mode: Mode

    @classmethod
    def of(
        cls, members: Iterable[tuple[Repetition, Mapping[str, float]]], *, objective: str, mode: Mode
    ) -> "Repetitions":
        """From each member's metrics, none of one that is not done."""
        outcomes: dict[str, dict[str, Mapping[str, float]]] = {}
        overlaps: dict[str, float] = {}
        for repetition, metrics in members:
            outcomes.setdefault(repetition.of, {})[repetition.under] = metrics
            overlaps[repetition.of] = max(overlaps.get(repetition.of, 0.0), repetition.overlap)
        return cls(outcomes=outcomes, overlaps=overlaps, objective=objective, mode=mode)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The best mean of the objective first, and last those of which nothing is known."""
        sign = 1.0 if self.mode == "min" else -1.0

        def rank(found: Configuration) -> tuple[bool, float]:
            value = found.metrics[self.objective].mean if found.metrics else math.nan
            return math.isnan(value), sign * value

        return tuple(sorted(map(self._configuration, self.outcomes), key=rank))

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Of the best configuration with each of the others, by the objective."""
        names = [found.name for found in self.configurations]
        return tuple(self.compare(names[0], other) for other in names[1:])

    def compare(self, first: str, second: str, metric: str | None = None) -> Comparison:
        """Two configurations by a metric, or by the objective, over the repetitions that both have."""
        metric = metric or self.objective
        before, after = self._values(first, metric), self._values(second, metric)
        differences = [after[under] - value for under, value in before.items() if under in after]
        difference = Interval.of(differences, overlap=max(self.overlaps[first], self.overlaps[second]))
        return Comparison(first=first, second=second, metric=metric, difference=difference)

    def _configuration(self, name: str) -> Configuration:
        overlap = self.overlaps[name]
        done = [metrics for metrics in self.outcomes[name].values() if metrics]
        shared = [metric for metric in (done[0] if done else ()) if all(metric in metrics for metrics in done)]
        return Configuration(
            name=name,
            repetitions=len(self.outcomes[name]),
            counted=len(done),
            metrics={metric: Interval.of([metrics[metric] for metrics in done], overlap=overlap) for metric in shared},
        )

    def _values(self, configuration: str, metric: str) -> dict[str, float]:
        """A metric of a configuration's repetitions, by what differs between them."""
        if configuration not in self.outcomes:
            known = ", ".join(map(repr, self.outcomes)) or "nothing"
            raise RunError(
                f"the run has no configuration {configuration!r}{meant(configuration, self.outcomes)}: its members of argosy.replicate and argosy.kfold repeat "
                f"{known}. Choose one of these."
            )
        done = {under: metrics for under, metrics in self.outcomes[configuration].items() if metrics}
        for metrics in done.values():
            if metric not in metrics:
                raise RunError(
                    f"configuration {configuration!r} does not report {metric!r}{meant(metric, metrics)}; choose one of "
                    f"{', '.join(metrics)}."
                )
        return {under: metrics[metric] for under, metrics in done.items()}
