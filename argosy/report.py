"""What came out: the fold of a run's events, as values a person or a program can ask."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from argosy.diagnosis import Diagnosis, diagnose
from argosy.errors import RunError
from argosy.events import Packed, SharingChosen
from argosy.fold import MemberState, RunState

__all__ = ["MemberResult", "Report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberResult:
    """What came out of one member."""

    name: str
    status: str
    reason: str
    epochs: float
    """Finished ones: a whole number, or with several validations an epoch a part more."""
    metrics: dict[str, float]
    """Of the section with the best objective; empty before the first one's end."""
    best_epoch: int | None
    hyperparameters: dict[str, Any]
    device: str
    seconds: float
    """Time in the member's own steps and validation."""
    folder: Path
    opener: Callable[["MemberResult"], Any] = field(repr=False)
    """Builds the network and loads its best weights; given by whoever knows torch."""

    def load(self) -> Any:
        """The member's network with its best weights, in ``eval()`` on the CPU."""
        return self.opener(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What came out of a run: its members, best first."""

    rows: tuple[MemberResult, ...]
    objective: str
    directory: Path
    status: str
    """running, done, paused, failed, or interrupted: its driver was killed."""
    reason: str
    seconds: float
    preparations: float
    """How often each training sample was prepared per epoch of the stream."""
    preparations_alone: float
    """How often it would have been with one script for each member, for the epochs that they took."""
    waiting_share: float
    """Share of the trainers' time that went into waiting for data."""
    cpu_seconds: float
    """User and system time of the whole tree of processes."""
    sharing: SharingChosen | None
    """How nodes shared the stream, and why."""
    packs: tuple[Packed, ...]
    """Which programs stepped members that may be one, and what was measured: every choice, first to last."""
    alone: Mapping[str, str]
    """Why members were no program with others, where that was tried."""
    diagnosis: Diagnosis | None
    """Which stage held up the run; None where nothing was trained."""
    gauges: Mapping[str, Mapping[str, Any]]
    """What stages did and how full the queues between them were, by worker."""

    def best(self) -> MemberResult:
        """The member with the best objective; raises RunError where no epoch was finished."""
        if not self.rows or not self.rows[0].metrics:
            raise RunError(
                f"no member of {self.directory} has finished an epoch; see `argosy status {self.directory}`."
            )
        return self.rows[0]

    def member(self, name: str) -> MemberResult:
        """The member of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise RunError(
            f"no member {name!r} in {self.directory}; choose one of {', '.join(row.name for row in self.rows)}."
        )

    def table(self) -> list[dict[str, Any]]:
        """One plain row per member, best first."""
        return [
            {
                "member": row.name,
                "status": row.status,
                "epochs": row.epochs,
                "best_epoch": row.best_epoch,
                **row.metrics,
                **row.hyperparameters,
                "device": row.device,
                "seconds": round(row.seconds, 3),
                "reason": row.reason.strip().splitlines()[-1] if row.reason else "",
            }
            for row in self.rows
        ]

    def to_json(self) -> dict[str, Any]:
        """A plain value with everything."""
        return {
            "directory": str(self.directory),
            "status": self.status,
            "objective": self.objective,
            "seconds": round(self.seconds, 3),
            "preparations_per_sample_and_epoch": self.preparations,
            "preparations_alone": self.preparations_alone,
            "waiting_share": round(self.waiting_share, 4),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "sharing": asdict(self.sharing) if self.sharing else None,
            "packs": [{**asdict(pack), "improvement": pack.improvement} for pack in self.packs],
            "alone": dict(self.alone),
            "diagnosis": asdict(self.diagnosis) if self.diagnosis else None,
            "gauges": {worker: dict(gauge) for worker, gauge in self.gauges.items()},
            "members": self.table(),
        }

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame (pandas is not a dependency of Argosy)."""
        import pandas  # the one optional package of this file

        return pandas.DataFrame(self.table())

    @classmethod
    def of(
        cls,
        state: RunState,
        *,
        directory: Path,
        summary: dict[str, Any],
        opener: Callable[[MemberResult], Any],
        at_work: bool = False,
    ) -> "Report":
        """From a run's fold and its ``study.json``; `at_work` says that it has a driver."""
        objective, mode = summary["objective"], summary["mode"]
        rows = []
        for name, described in summary["members"].items():
            member = state.members.get(name, MemberState(name))
            best = member.best
            rows.append(
                MemberResult(
                    name=name,
                    status=member.status,
                    reason=member.reason,
                    epochs=int(member.epochs) if member.epochs == int(member.epochs) else member.epochs,
                    metrics=dict(best.metrics) if best else {},
                    best_epoch=best.epoch if best else None,
                    hyperparameters=described["hyperparameters"],
                    device=member.device,
                    seconds=sum(ended.seconds for ended in member.sections),
                    folder=directory / "members" / name,
                    opener=opener,
                )
            )
        sign = 1.0 if mode == "min" else -1.0

        def rank(row: MemberResult) -> tuple[bool, bool, float]:
            value = row.metrics.get(objective, math.nan)
            # NaN comes last: nothing compares with it.
            return not row.metrics, math.isnan(value), sign * value

        rows.sort(key=rank)
        gauges = [used.gauge for used in state.used if "waiting_seconds" in used.gauge]
        waiting, busy = (sum(gauge[key] for gauge in gauges) for key in ("waiting_seconds", "busy_seconds"))
        return cls(
            rows=tuple(rows),
            objective=objective,
            directory=directory,
            status="running" if at_work else state.ended.status if state.ended else "interrupted",
            reason=state.ended.reason if state.ended and not at_work else "",
            seconds=state.seconds,
            preparations=state.preparations if state.started else 0.0,
            preparations_alone=state.preparations_alone,
            waiting_share=waiting / (waiting + busy) if waiting + busy else 0.0,
            cpu_seconds=state.cpu_seconds,
            sharing=state.sharing,
            packs=tuple(state.packed),
            alone=state.alone,
            diagnosis=diagnose((used.worker, used.gauge) for used in state.used),
            gauges={used.worker: {**used.gauge, "cpu_seconds": used.cpu_seconds} for used in state.used},
        )
