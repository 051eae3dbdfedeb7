"""Compute the results of a run's legs and workers, with their predictions, for the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.protocol.events import Passed
from argosy.results.fold import RunState

__all__ = ["LegResult", "gauges_of", "legs_of", "waiting_share"]

LEAST_SECONDS, LEAST_SHARE = 0.1, 0.1
"""Predicted seconds, and their share of the actual ones, below which a prediction is not reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LegResult:
    """One leg: for its sections the predictions at their starts, and the results.

    Sections cut short by a fault are not included.
    """

    leg: str
    """Its number, preceded by the driver's if several drivers worked on the run."""
    sections: int
    samples: int
    """Number of samples of the stream."""
    seconds: float
    predicted_seconds: float
    waiting_seconds: Mapping[str, float]
    """By device: seconds outside of its members' own steps and validation."""
    planning_seconds: float
    changing_seconds: float
    """Seconds until newly assigned members were ready."""
    saving_seconds: float
    """Seconds that its devices took for the files of members, added up."""

    @classmethod
    def of(cls, leg: str, passed: Sequence[Passed], saving_seconds: float) -> "LegResult":
        """Add up the sections of one leg."""
        devices = dict.fromkeys(device for section in passed for device in section.stepping)
        return cls(
            leg=leg,
            sections=len(passed),
            samples=sum(section.samples for section in passed),
            seconds=round(sum(section.seconds for section in passed), 3),
            predicted_seconds=round(sum(section.predicted_seconds for section in passed), 3),
            waiting_seconds={
                device: round(sum(max(s.seconds - s.stepping[device], 0.0) for s in passed if device in s.stepping), 3)
                for device in devices
            },
            planning_seconds=round(sum(section.planning_seconds for section in passed), 3),
            changing_seconds=round(sum(section.changing_seconds for section in passed), 3),
            saving_seconds=round(saving_seconds, 3),
        )

    @property
    def was_predicted(self) -> bool:
        """Whether the prediction is meaningful: a very short one is noise, for example if preparation takes nearly all the
        time."""
        return self.predicted_seconds >= max(LEAST_SECONDS, LEAST_SHARE * self.seconds)

    @property
    def samples_per_second(self) -> float:
        """Measured samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def predicted_samples_per_second(self) -> float:
        """Predicted samples per second."""
        return self.samples / self.predicted_seconds if self.predicted_seconds else 0.0


def legs_of(state: RunState) -> tuple[LegResult, ...]:
    """Return the legs by driver, in the order in which they began."""
    legs: dict[tuple[int, int], list[Passed]] = {}
    for driver, passed in enumerate(state.passed, start=1):
        for section in passed:
            legs.setdefault((driver, section.leg), []).append(section)
    return tuple(
        LegResult.of(_name_under_driver(driver, leg, state), sections, state.saving.get((driver, leg), 0.0))
        for (driver, leg), sections in legs.items()
    )


def gauges_of(state: RunState) -> dict[str, Mapping[str, Any]]:
    """Return the gauges by worker: counts of its stages, the fill of the queues between them, and its CPU seconds."""
    return {
        _name_under_driver(driver, one.worker, state): {**one.gauge, "cpu_seconds": one.cpu_seconds}
        for driver, used in enumerate(state.used, start=1)
        for one in used
    }


def waiting_share(gauges: Iterable[Mapping[str, Any]]) -> float:
    """Return the share of the trainers' time spent waiting for data, of these workers' gauges; 0.0 before they have any."""
    trainers = [gauge for gauge in gauges if "waiting_seconds" in gauge]
    waiting, busy = (sum(gauge[name] for gauge in trainers) for name in ("waiting_seconds", "busy_seconds"))
    return waiting / (waiting + busy) if waiting + busy else 0.0


def _name_under_driver(driver: int, what: int | str, state: RunState) -> str:
    """Return a name that drivers reuse, preceded by the driver's number if several worked on the run."""
    return f"{driver}.{what}" if len(state.passed) > 1 else str(what)
