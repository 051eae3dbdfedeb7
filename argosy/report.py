"""What came out: the fold of a run's events, as values a person or a program can ask."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from argosy.diagnosis import Diagnosis, diagnose
from argosy.errors import RunError
from argosy.events import (
    Answered,
    Checkpoint,
    EpochEnded,
    Event,
    Fed,
    MemberEnded,
    MemberStarted,
    RunEnded,
    RunStarted,
    Saved,
    SharingChosen,
    Skipped,
    Used,
    WorkerLost,
)
from argosy.stopping import Mode, better

__all__ = ["MemberResult", "MemberState", "Report", "RunState"]


@dataclass(slots=True)
class MemberState:
    """What the journal says about one member; the last record wins."""

    name: str
    status: str = "waiting"
    """waiting, training, done, failed, diverged, stopped, or paused."""
    reason: str = ""
    device: str = ""
    epochs: dict[int, EpochEnded] = field(default_factory=dict)
    saved: list[tuple[int, Checkpoint]] = field(default_factory=list)
    """(stream epoch that it continues in, checkpoint), oldest first."""

    @property
    def history(self) -> list[dict[str, float]]:
        """One row per finished epoch: its metrics and its seconds."""
        return [{**self.epochs[k].metrics, "seconds": self.epochs[k].seconds} for k in sorted(self.epochs)]

    def best(self, objective: str, mode: Mode) -> EpochEnded | None:
        """The epoch with the best objective; the earliest of equals."""
        best: EpochEnded | None = None
        for _, ended in sorted(self.epochs.items()):
            value = ended.metrics[objective]
            if best is None or better(value, best.metrics[objective], mode):
                best = ended
        return best


@dataclass(slots=True)
class RunState:
    """The fold of a journal."""

    members: dict[str, MemberState] = field(default_factory=dict)
    started: RunStarted | None = None
    ended: RunEnded | None = None
    fed: list[Fed] = field(default_factory=list)
    holes: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    """Indices of broken samples, by split and stream epoch."""
    used: list[Used] = field(default_factory=list)
    lost: list[WorkerLost] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    sharing: SharingChosen | None = None
    seconds: float = 0.0
    """Of all drivers that worked on the run and ended in order; so are the CPU seconds."""
    cpu_seconds: float = 0.0

    @classmethod
    def of(cls, events: Iterable[Event]) -> "RunState":
        """Fold events, first to last."""
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def member(self, name: str) -> MemberState:
        """The member of that name; it is made where it is unknown."""
        return self.members.setdefault(name, MemberState(name))

    def apply(self, event: Event) -> None:
        """Take one more event into account."""
        if isinstance(event, EpochEnded):
            member = self.member(event.member)
            # An epoch that is trained again after a fault replaces the first time.
            member.epochs[event.epoch] = event
            member.saved.append((event.stream_epoch + 1, event.checkpoint))
        elif isinstance(event, Saved):
            self.member(event.member).saved.append((event.stream_epoch, event.checkpoint))
        elif isinstance(event, MemberStarted):
            member = self.member(event.member)
            member.status, member.reason, member.device = "training", "", event.device
            member.epochs = {k: ended for k, ended in member.epochs.items() if k < event.epoch}
            member.saved = [(t, c) for t, c in member.saved if (c.epoch, c.position) <= (event.epoch, event.position)]
        elif isinstance(event, MemberEnded):
            self.member(event.member).status, self.member(event.member).reason = event.status, event.reason
        elif isinstance(event, RunStarted):
            self.started, self.ended = event, None
        elif isinstance(event, RunEnded):
            self.ended = event
            self.seconds += event.seconds
            self.cpu_seconds += event.cpu_seconds
        elif isinstance(event, SharingChosen):
            self.sharing = event
        elif isinstance(event, Fed):
            self.fed.append(event)
        elif isinstance(event, Skipped):
            self.holes.setdefault((event.split, event.epoch), set()).add(event.index)
        elif isinstance(event, Used):
            self.used.append(event)
        elif isinstance(event, WorkerLost):
            self.lost.append(event)
        elif isinstance(event, Answered):
            self.answered.append(event)

    @property
    def preparations(self) -> float:
        """How often each training sample was prepared per stream epoch: 1.0 where everybody shares one stream."""
        assert self.started is not None
        fed = [event for event in self.fed if event.split == "train"]
        epochs = {event.epoch for event in fed}
        return sum(event.samples for event in fed) / max(self.started.lengths["train"] * len(epochs), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberResult:
    """What came out of one member."""

    name: str
    status: str
    reason: str
    epochs: int
    metrics: dict[str, float]
    """Of the epoch with the best objective; empty before the first epoch's end."""
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
    """done, paused, failed, or interrupted (or still running)."""
    reason: str
    seconds: float
    preparations: float
    """How often each training sample was prepared per epoch of the stream."""
    waiting_share: float
    """Share of the trainers' time that went into waiting for data."""
    cpu_seconds: float
    """User and system time of the whole tree of processes."""
    sharing: SharingChosen | None
    """How nodes shared the stream, and why."""
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
        raise RunError(f"no member {name!r} in {self.directory}; it has {', '.join(row.name for row in self.rows)}.")

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
            "waiting_share": round(self.waiting_share, 4),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "sharing": asdict(self.sharing) if self.sharing else None,
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
    ) -> "Report":
        """From a run's fold and its ``study.json``."""
        objective, mode = summary["objective"], summary["mode"]
        rows = []
        for name, described in summary["members"].items():
            member = state.members.get(name, MemberState(name))
            best = member.best(objective, mode)
            rows.append(
                MemberResult(
                    name=name,
                    status=member.status,
                    reason=member.reason,
                    epochs=len(member.epochs),
                    metrics=dict(best.metrics) if best else {},
                    best_epoch=best.epoch if best else None,
                    hyperparameters=described["hyperparameters"],
                    device=member.device,
                    seconds=sum(ended.seconds for ended in member.epochs.values()),
                    folder=directory / "members" / name,
                    opener=opener,
                )
            )
        sign = 1.0 if mode == "min" else -1.0
        rows.sort(key=lambda row: (not row.metrics, sign * row.metrics.get(objective, 0.0)))
        gauges = [used.gauge for used in state.used if "waiting_seconds" in used.gauge]
        waiting, busy = (sum(gauge[key] for gauge in gauges) for key in ("waiting_seconds", "busy_seconds"))
        return cls(
            rows=tuple(rows),
            objective=objective,
            directory=directory,
            status=state.ended.status if state.ended else "interrupted",
            reason=state.ended.reason if state.ended else "",
            seconds=state.seconds,
            preparations=state.preparations if state.started else 0.0,
            waiting_share=waiting / (waiting + busy) if waiting + busy else 0.0,
            cpu_seconds=state.cpu_seconds,
            sharing=state.sharing,
            diagnosis=diagnose((used.worker, used.gauge) for used in state.used),
            gauges={used.worker: {**used.gauge, "cpu_seconds": used.cpu_seconds} for used in state.used},
        )
