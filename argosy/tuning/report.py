"""What came out of a search: its trials, the best of them, and how soon that was known."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.events import Cloned, Event, MemberEnded, Packed, Proposed, RunStarted, SectionEnded
from argosy.fold import OVER
from argosy.report import MemberResult, Report

__all__ = ["SearchReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchReport:
    """What came out of a search."""

    run: Report
    """Of its members: one for each trial, named after it."""
    parameters: Mapping[str, Mapping[str, Any]]
    """By member."""
    trials: Mapping[str, int]
    """Their numbers, by member: a trial that begins anew at each rung has one for each."""
    sources: Mapping[str, str]
    """Whose weights members went on from, by member; most began with none."""
    seconds: float
    """That drivers worked on it, up to what was journaled last."""
    epochs: float
    """That were trained, of all members together."""
    packed_seconds: float
    """What steps of several members at once would have taken more one by one, at the seconds of a sample measured for both."""
    first_comparison_seconds: float | None
    """Until every trial that began with the search had ended its first section; None before."""
    best_seconds: float | None
    """Until the best trial had ended its best section; None before there is one."""
    study: Any = field(repr=False)
    """The search as an Optuna study, for Optuna's own tools."""

    def best(self) -> MemberResult:
        """The trial with the best objective; its ``load()`` is its network with its best weights."""
        return self.run.best()

    @property
    def best_parameters(self) -> Mapping[str, Any]:
        """What the best trial was built from."""
        return self.parameters[self.best().name]

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
        prepared = sum(gauge.get("preparation_cpu_seconds", 0.0) for gauge in self.run.gauges.values())
        alone = prepared * self.run.preparations_alone / max(self.run.preparations, 1.0)
        return max(alone - prepared, 0.0) / (self._trained + alone) if alone else 0.0

    @property
    def saved_by_packing(self) -> float:
        """Part of the trainers' time that went without: `packed_seconds`, of what the same steps would have taken one by one."""
        return self.packed_seconds / (self._trained + self.packed_seconds) if self.packed_seconds else 0.0

    @property
    def _trained(self) -> float:
        gauges = (gauge for gauge in self.run.gauges.values() if "training_seconds" in gauge)
        return sum(float(gauge.get("busy_seconds", 0.0)) for gauge in gauges)

    def table(self) -> list[dict[str, Any]]:
        """One plain row per trial, best first."""
        return [
            {
                "trial": row.name,
                "status": row.status,
                "epochs": row.epochs,
                **({"source": self.sources[row.name]} if row.name in self.sources else {}),
                **self.parameters.get(row.name, {}),
                **row.metrics,
                "reason": row.reason.strip().splitlines()[-1] if row.reason else "",
            }
            for row in self.run.rows
        ]

    def write_plots(self, path: str | Path) -> None:
        """One page with the history of the search and its parallel coordinates, as Optuna draws them; needs the extra ``report``.

        Raises StudyError where that is not there.
        """
        from argosy.tuning.sampling import write_plots  # imports Optuna

        write_plots(self.study, Path(path))

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
            "saved_by_packing": round(self.saved_by_packing, 4),
            "trials": self.table(),
        }

    @classmethod
    def of(cls, run: Report, timeline: Iterable[tuple[float, Event]], study: Any) -> "SearchReport":
        """From a run's report, what was journaled when, in seconds of the search, and Optuna's study of it."""
        told = list(timeline)
        cloned = {
            event.member: event for _, event in told if isinstance(event, Cloned) and event.checkpoint is not None
        }
        proposed: dict[str, Proposed] = {}
        best = run.rows[0] if run.rows and run.rows[0].metrics else None
        line = [] if best is None else _line(best.name, cloned)
        until = -1 if best is None or best.best_epoch is None else best.best_epoch
        seconds, first, found = 0.0, None, None
        began, waiting = False, set[str]()
        packs, saved = Packs(), 0.0
        for seconds, event in told:
            began = began or isinstance(event, RunStarted)
            saved += packs.saved_by(event)
            if isinstance(event, Proposed):
                proposed[event.member] = event
                waiting |= set() if began else {event.member}
            elif isinstance(event, SectionEnded | MemberEnded) and event.member in waiting:
                waiting.discard(event.member)
                first = seconds if first is None and not waiting else first
            if isinstance(event, SectionEnded) and event.best and event.member in line and event.epoch <= until:
                found = seconds
        return cls(
            run=run,
            parameters={name: event.parameters for name, event in proposed.items()},
            trials={name: event.trial for name, event in proposed.items()},
            sources={name: event.source for name, event in cloned.items()},
            seconds=seconds,
            epochs=sum(row.epochs - _inherited(cloned.get(row.name)) for row in run.rows),
            packed_seconds=saved,
            first_comparison_seconds=first,
            best_seconds=found,
            study=study,
        )


def _line(name: str, cloned: Mapping[str, Cloned]) -> list[str]:
    """A member, whose weights it went on from, and so on: the best section of one may be that of another."""
    found = [name]
    while found[-1] in cloned:
        found.append(cloned[found[-1]].source)
    return found


def _inherited(cloned: Cloned | None) -> int:
    """Epochs that a member has not trained itself."""
    return 0 if cloned is None or cloned.checkpoint is None else cloned.checkpoint.epoch


class Packs:
    """Which programs step members, as a journal tells it, and what that saves."""

    def __init__(self) -> None:
        self._gains: dict[str, float] = {}
        """Seconds of a sample, by member."""

    def saved_by(self, event: Event) -> float:
        """In a member's section, by what was measured of a sample alone and together when its program was chosen."""
        if isinstance(event, Packed):
            seconds = dict(event.seconds_per_sample)
            for program in event.programs:
                near = min((size for size in seconds if size > 1), key=lambda size: abs(size - len(program)), default=1)
                known = event.settled and len(program) > 1 and near > 1 and 1 in seconds
                self._gains.update(dict.fromkeys(program, seconds[1] - seconds[near] if known else 0.0))
        return self._gains.get(event.member, 0.0) * event.samples if isinstance(event, SectionEnded) else 0.0
