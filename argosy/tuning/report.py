"""What came out of a search: its trials, the best of them, and how soon that was known."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.events import Event, MemberEnded, Proposed, RunStarted, SectionEnded
from argosy.report import MemberResult, Report

__all__ = ["SearchReport"]

OVER = ("done", "failed", "diverged", "stopped")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchReport:
    """What came out of a search."""

    run: Report
    """Of its members: one for each trial, named after it."""
    parameters: Mapping[str, Mapping[str, Any]]
    """By member."""
    trials: Mapping[str, int]
    """Their numbers, by member: a trial that begins anew at each rung has one for each."""
    seconds: float
    """That drivers worked on it, up to what was journaled last."""
    first_comparison_seconds: float | None
    """Until every trial that began with the search had ended its first section; None before."""
    best_seconds: float | None
    """Until the best trial had ended its best section; None before there is one."""

    def best(self) -> MemberResult:
        """The trial with the best objective; its ``load()`` is its network with its best weights."""
        return self.run.best()

    @property
    def best_parameters(self) -> Mapping[str, Any]:
        """What the best trial was built from."""
        return self.parameters[self.best().name]

    @property
    def epochs(self) -> float:
        """Of all trials."""
        return sum(row.epochs for row in self.run.rows)

    @property
    def trials_per_hour(self) -> float:
        """Trials of which no member trains or waits any more, in the time that the search took."""
        open_ = {self.trials[row.name] for row in self.run.rows if row.name in self.trials and row.status not in OVER}
        over = len({*self.trials.values()} - open_)
        return over / self.seconds * 3600 if self.seconds else 0.0

    @property
    def saved_by_sharing(self) -> float:
        """Part of the CPU time of trainers and preparation that went without: what preparing each trial's samples apart would take
        more, at the measured cost of a sample."""
        gauges = self.run.gauges.values()
        prepared = sum(gauge.get("preparation_cpu_seconds", 0.0) for gauge in gauges)
        trained = sum(gauge.get("busy_seconds", 0.0) for gauge in gauges if "training_seconds" in gauge)
        alone = prepared * self.run.preparations_alone / max(self.run.preparations, 1.0)
        return max(alone - prepared, 0.0) / (trained + alone) if alone else 0.0

    def table(self) -> list[dict[str, Any]]:
        """One plain row per trial, best first."""
        return [
            {
                "trial": row.name,
                "status": row.status,
                "epochs": row.epochs,
                **self.parameters.get(row.name, {}),
                **row.metrics,
                "reason": row.reason.strip().splitlines()[-1] if row.reason else "",
            }
            for row in self.run.rows
        ]

    def to_json(self) -> dict[str, Any]:
        """A plain value with everything."""
        known = bool(self.run.rows and self.run.rows[0].metrics)
        return {
            "directory": str(self.run.directory),
            "status": self.run.status,
            "objective": self.run.objective,
            "best": self.best().name if known else None,
            "best_weights": str(self.best().folder / "best.pt") if known else None,
            "best_parameters": dict(self.best_parameters) if known else None,
            "seconds": round(self.seconds, 3),
            "first_comparison_seconds": self.first_comparison_seconds,
            "best_seconds": self.best_seconds,
            "epochs": self.epochs,
            "trials_per_hour": round(self.trials_per_hour, 1),
            "saved_by_sharing": round(self.saved_by_sharing, 4),
            "trials": self.table(),
        }

    @classmethod
    def of(cls, run: Report, timeline: Iterable[tuple[float, Event]]) -> "SearchReport":
        """From a run's report, and what was journaled when, in seconds of the search."""
        proposed: dict[str, Proposed] = {}
        best = run.rows[0] if run.rows and run.rows[0].metrics else None
        seconds, first, found = 0.0, None, None
        began, waiting = False, set[str]()
        for seconds, event in timeline:
            began = began or isinstance(event, RunStarted)
            if isinstance(event, Proposed):
                proposed[event.member] = event
                waiting |= set() if began else {event.member}
            elif isinstance(event, SectionEnded | MemberEnded) and event.member in waiting:
                waiting.discard(event.member)
                first = seconds if first is None and not waiting else first
            if isinstance(event, SectionEnded) and best is not None and event.member == best.name and event.best:
                found = seconds
        return cls(
            run=run,
            parameters={name: event.parameters for name, event in proposed.items()},
            trials={name: event.trial for name, event in proposed.items()},
            seconds=seconds,
            first_comparison_seconds=first,
            best_seconds=found,
        )
