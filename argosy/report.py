"""What came out: the fold of a run's events, as values a person or a program can ask."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal, Protocol

from argosy.diagnosis import Diagnosis, diagnose
from argosy.errors import RunError
from argosy.events import SharingChosen
from argosy.fold import MemberState, RunState
from argosy.leg_results import LegResult, gauges_of, legs_of
from argosy.packs import Packed
from argosy.repetitions import Comparison, Repetitions
from argosy.requirements import check_choice, check_whole
from argosy.spelling import meant
from argosy.study import Repetition
from argosy.wording import differing, html_table, last_line

__all__ = ["LEFT_OUT", "MemberResult", "Networks", "Report"]

LEFT_OUT = "left out"
"""Status of a member that has trained, and is not in the study any more."""


class Networks(Protocol):
    """The trained networks of a run; given by whoever knows torch and may have its study."""

    def load(self, name: str) -> Any:
        """A member's network with its best weights, in ``eval()`` on the CPU."""

    def predict(self, network: Any, samples: Any) -> Any:
        """What a network answers to each sample; None are the validation samples."""

    def out_of_fold(self, names: Sequence[str]) -> Any:
        """What these answer to the validation samples of their own."""

    def ensemble(self, names: Sequence[str], *, combine: Any, select: Any, calibrate: bool) -> Any:
        """One network made of those of several members."""


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
    repetition: Repetition | None
    """Of a network that several members repeat, which one it is."""
    device: str
    seconds: float
    """Time in the member's own steps and validation."""
    folder: Path
    networks: Callable[[], Networks] = field(repr=False)

    @classmethod
    def of(
        cls, state: MemberState, described: Mapping[str, Any], *, directory: Path, networks: Callable[[], Networks]
    ) -> "MemberResult":
        """From a member's fold and what ``study.json`` says of it."""
        best = state.best
        return cls(
            name=state.name,
            status=LEFT_OUT if described.get("left_out") else state.status,
            reason=state.reason,
            epochs=int(state.epochs) if state.epochs == int(state.epochs) else state.epochs,
            metrics=dict(best.metrics) if best else {},
            best_epoch=best.epoch if best else None,
            hyperparameters=described["hyperparameters"],
            repetition=_repetition(described),
            device=state.device,
            seconds=sum(ended.seconds for ended in state.sections),
            folder=directory / "members" / state.name,
            networks=networks,
        )

    def load(self) -> Any:
        """The member's network with its best weights, in ``eval()`` on the CPU."""
        return self.networks().load(self.name)


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
    """Of drivers that came to their end; so are the CPU seconds and joules."""
    killed_drivers: int
    """Those that did not: how long they worked the journal's times alone tell."""
    preparations: float
    """How often each training sample was prepared per epoch of the stream."""
    preparations_alone: float
    """How often it would have been with one script for each member, for the epochs that they took."""
    waiting_share: float
    """Share of the trainers' time that went into waiting for data."""
    cpu_seconds: float
    """User and system time of the whole tree of processes."""
    joules: Mapping[str, float]
    """That the whole machine took meanwhile, by what counts them."""
    sharing: SharingChosen | None
    """How nodes shared the stream, and why."""
    packs: tuple[Packed, ...]
    """Which programs stepped members that may be one, and what was measured: every choice, first to last."""
    alone: Mapping[str, str]
    """Why members were no program with others, where that was tried."""
    diagnosis: Diagnosis | None
    """Which stage held up the run; None where nothing was trained."""
    repetitions: Repetitions
    """Networks that several members repeat, with the means of their metrics."""
    legs: tuple[LegResult, ...]
    """What was predicted, and what came."""
    gauges: Mapping[str, Mapping[str, Any]]
    """What stages did and how full the queues between them were, by worker; where several drivers worked on the run, its name is
    behind the number of the driver."""
    networks: Callable[[], Networks] = field(repr=False)

    @property
    def last_packs(self) -> tuple[Packed, ...]:
        """The last choice for each device and the members of it that may be one program."""
        return tuple({(pack.device, frozenset(itertools.chain(*pack.programs))): pack for pack in self.packs}.values())

    def best(self) -> MemberResult:
        """The member with the best objective; raises RunError where no epoch was finished."""
        if not self.rows or not self.rows[0].metrics or self.rows[0].status == LEFT_OUT:
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
            f"no member {name!r}{meant(name, [row.name for row in self.rows])} in {self.directory}; choose one of "
            f"{', '.join(row.name for row in self.rows)}."
        )

    def ensemble(
        self,
        *,
        top: int | None = None,
        members: Sequence[str] | None = None,
        select: Literal["greedy"] | None = None,
        combine: Literal["probabilities", "logits", "votes", "mean"] | None = None,
        calibrate: bool = False,
    ) -> Any:
        """One ``nn.Module`` of the best weights of the `top` members, of those named, or of all; see `argosy.ensembling.ensemble`.

        With ``select="greedy"`` only those are taken, and weighted, that make the ensemble better on the validation samples
        (Caruana et al. 2004); with `calibrate` each member's logits are divided by a temperature that is fitted there. Its
        ``scores`` say what it and each member are worth on them. `combine` follows from the members' losses where these tell it.
        Raises RunError and StudyError.
        """
        if select is not None:
            check_choice("report.ensemble: select", select, ("greedy",))
        if combine is not None:
            check_choice("report.ensemble: combine", combine, ("probabilities", "logits", "votes", "mean"))
        names = [row.name for row in self._candidates(top, members)]
        return self.networks().ensemble(names, combine=combine, select=select, calibrate=calibrate)

    def predict(self, samples: Any = None, network: Any = None) -> Any:
        """What a network, by default the best member's, answers to each sample, ``[N, …]`` on the host.

        Samples are prepared as validation samples of the study are, which they are by default: arrays, alone or in a tuple, or a
        Dataset. The network may be any, such as an ensemble; it runs where it is.
        """
        return self.networks().predict(self.best().load() if network is None else network, samples)

    def out_of_fold(self, configuration: str) -> Any:
        """What networks of a cross-validation answer to the samples that they did not train on, ``[N, …]`` on the host.

        Row n is of validation sample n, by the best weights of the member that holds it out: the mean where several do, as
        bootstraps may, and NaN where none does.
        """
        found = [row.name for row in self.rows if row.repetition is not None and row.repetition.of == configuration]
        if not found:
            known = [found.name for found in self.repetitions.configurations]
            raise RunError(
                f"{self.directory} has no configuration {configuration!r}{meant(configuration, known)}; ask for a member that argosy.kfold was given."
            )
        return self.networks().out_of_fold(found)

    def _candidates(self, top: int | None, members: Sequence[str] | None) -> Sequence[MemberResult]:
        """Best first."""
        if top is not None and members is not None:
            raise RunError(
                f"report.ensemble was given top={top} and members=; give one of them, or neither for all members."
            )
        if top is not None:
            check_whole("report.ensemble: top", top, least=1)
        known = [row for row in self.rows if row.metrics and row.status != LEFT_OUT]
        if members is not None:
            wanted = {self.member(name).name for name in members}
            known = [row for row in self.rows if row.name in wanted]
        if len(known) < (top or 1):
            raise RunError(
                f"report.ensemble was to be made of {top or 'one or more'} members, and {len(known)} of {self.directory} have "
                "finished an epoch or were named. Choose fewer, or train them further."
            )
        return known[:top]

    def compare(self, first: str, second: str, metric: str | None = None) -> Comparison:
        """How far the second of two replicated networks lies above the first, pair by pair; by default in the objective."""
        return self.repetitions.compare(first, second, metric)

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
                "reason": last_line(row.reason),
            }
            for row in self.rows
        ]

    def _repr_html_(self) -> str:
        """What a notebook shows: the table, without what is the same in all members."""
        rows, same = self.table(), {row.name: row.hyperparameters for row in self.rows}
        metrics = dict.fromkeys(name for row in self.rows for name in row.metrics)
        columns = ["member", "status", "epochs", *metrics, *differing(same), "seconds", "reason"]
        table = html_table(columns, [[row.get(column, "") for column in columns] for row in rows])
        return f"<p>{escape(self.status)}; {escape(str(self.directory))}</p>{table}"

    def to_json(self) -> dict[str, Any]:
        """A plain value with everything."""
        return {
            "directory": str(self.directory),
            "status": self.status,
            "objective": self.objective,
            "seconds": round(self.seconds, 3),
            "killed_drivers": self.killed_drivers,
            "preparations_per_sample_and_epoch": self.preparations,
            "preparations_alone": self.preparations_alone,
            "waiting_share": round(self.waiting_share, 4),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "joules": dict(self.joules),
            "sharing": asdict(self.sharing) if self.sharing else None,
            "packs": [{**asdict(pack), "improvement": pack.improvement} for pack in self.packs],
            "alone": dict(self.alone),
            "diagnosis": asdict(self.diagnosis) if self.diagnosis else None,
            "legs": [asdict(leg) for leg in self.legs],
            "gauges": {worker: dict(gauge) for worker, gauge in self.gauges.items()},
            "members": self.table(),
            "configurations": [found.to_json() for found in self.repetitions.configurations],
            "comparisons": [found.to_json() for found in self.repetitions.comparisons],
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
        networks: Callable[[], Networks],
        at_work: bool = False,
    ) -> "Report":
        """From a run's fold and its ``study.json``; `at_work` says that it has a driver."""
        objective, mode = summary["objective"], summary["mode"]
        rows = [
            MemberResult.of(
                state.members.get(name, MemberState(name)), described, directory=directory, networks=networks
            )
            for name, described in summary["members"].items()
        ]
        sign = 1.0 if mode == "min" else -1.0

        def rank(row: MemberResult) -> tuple[bool, bool, bool, float]:
            value = row.metrics.get(objective, math.nan)
            # NaN comes last: nothing compares with it.
            return row.status == LEFT_OUT, not row.metrics, math.isnan(value), sign * value

        rows.sort(key=rank)
        used = list(itertools.chain.from_iterable(state.used))
        gauges = [one.gauge for one in used if "waiting_seconds" in one.gauge]
        waiting, busy = (sum(gauge[key] for gauge in gauges) for key in ("waiting_seconds", "busy_seconds"))
        return cls(
            rows=tuple(rows),
            objective=objective,
            directory=directory,
            status="running" if at_work else state.ended.status if state.ended else "interrupted",
            reason=state.ended.reason if state.ended and not at_work else "",
            seconds=state.seconds,
            killed_drivers=state.killed + (state.started is not None and state.ended is None and not at_work),
            preparations=state.preparations if state.started else 0.0,
            preparations_alone=state.preparations_alone,
            waiting_share=waiting / (waiting + busy) if waiting + busy else 0.0,
            cpu_seconds=state.cpu_seconds,
            joules=state.joules,
            sharing=state.sharing,
            legs=legs_of(state),
            packs=tuple(state.packed),
            alone=state.alone,
            diagnosis=diagnose((one.worker, one.gauge) for one in used),
            repetitions=Repetitions.of(
                [(row.repetition, _outcome(row)) for row in rows if row.repetition is not None],
                objective=objective,
                mode=mode,
            ),
            networks=networks,
            gauges=gauges_of(state),
        )


def _repetition(described: Mapping[str, Any]) -> Repetition | None:
    """Of a member in ``study.json``; earlier versions wrote none."""
    found = described.get("repetition")
    return None if found is None else Repetition(**found)


def _outcome(row: MemberResult) -> dict[str, float]:
    """Metrics of a member that is done. A learning rate is none."""
    return {name: value for name, value in row.metrics.items() if name != "lr" and row.status == "done"}
