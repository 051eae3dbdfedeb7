"""Results of a search: its trials, the best of them by the rule of `argosy.tuning.trials`, and how soon it was known."""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from argosy.disk.files import user_path
from argosy.errors import RunError
from argosy.errors.wording import cause_of, format_duration, format_value
from argosy.protocol.events import Event, MemberEnded, Proposed, RunStarted, SectionEnded
from argosy.protocol.packs import Packed
from argosy.results.bands import Spread
from argosy.results.ending import Ending, format_counts, output_size
from argosy.results.fold import FINAL_STATUSES, RunState
from argosy.results.frames import to_frame
from argosy.results.member import MemberResult
from argosy.results.repetitions import Leader
from argosy.results.report import Format, Report
from argosy.stopping import Mode
from argosy.tuning.objectives import Objectives
from argosy.tuning.trials import PRUNED, WORTHLESS, TrialResult, TrialsSoFar, leader_of, statuses

__all__ = ["SearchReport", "packed_seconds"]

COLUMNS = ("trial", "status", "epochs", "source", "pareto", "constraints", "reason")
"""Columns of the table, beside parameters and metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchReport:
    """Result of a search."""

    run: Report
    """Report of its members: one per trial, named after it, or several whose mean is the trial's result."""
    rows: tuple[TrialResult, ...]
    """Trials, best first; a trial that starts from scratch at each rung has one row per rung."""
    parameters: Mapping[str, Mapping[str, Any]]
    """Parameters by name of the row."""
    trials: Mapping[str, int]
    """Trial numbers by name of the row."""
    sources: Mapping[str, str]
    """For each member that started from another member's weights, that other member."""
    seconds: float
    """Time that drivers worked on the search, up to the last journaled event."""
    epochs: float
    """Epochs trained by all members together."""
    packed_seconds: float
    """Time saved by stepping several members at once, from the seconds per sample measured alone and together."""
    first_comparison_seconds: float | None
    """Time until all initial trials had ended their first section; None before."""
    best_seconds: float | None
    """Time until the best trial had ended its best section; None before there is one."""
    scheduler: str
    """Name of the scheduler."""
    objectives: Mapping[str, Mode]
    """Modes of the objectives by name, the first one first."""
    pareto: tuple[TrialResult, ...]
    """The Pareto set, sorted by the first objective: among the trials from which the best is chosen, those that no other trial dominates. With one
    objective, the best trial and its equals."""
    study: Any = field(repr=False)
    """The search as an Optuna study, for Optuna's own tools; None if the report was read from a directory alone."""

    @property
    def best_trial(self) -> TrialResult:
        """The best trial by the rule of `argosy.tuning.trials`; raises RunError if no trial has a result that counts."""
        trial = self._best
        if trial is None:
            folder = self.run.directory
            raise RunError(
                f"no trial of {folder} has a {self.run.objective} that counts: each has finished no epoch, has "
                "failed, diverged or been stopped, violates a constraint, or has no finite value. See `argosy "
                f"status {shlex.quote(str(folder))}`."
            )
        return trial

    @property
    def _best(self) -> TrialResult | None:
        """The best trial, or None; members that the user added are not trials."""
        return next(iter(self.pareto), None)

    @property
    def leader(self) -> Leader | None:
        """The best trial, for headlines; None before there is one."""
        return leader_of(self._best, self.run.objective)

    @property
    def has_several(self) -> bool:
        """Whether the search has several objectives."""
        return len(self.objectives) > 1

    def shown(self, row: TrialResult) -> dict[str, float]:
        """Return a trial's results for a table: the objectives first, then the other metrics."""
        return {**{name: row.reached[name] for name in self.objectives if name in row.reached}, **row.metrics}

    @property
    def best_parameters(self) -> Mapping[str, Any]:
        """Parameters of the best trial; if the space is a function that returns others, those that it suggested."""
        return self.parameters[self.best_trial.name]

    def best(self) -> MemberResult:
        """Return the member of the best trial; its ``load()`` returns the network with its best weights.

        Raises RunError if no trial has ended a section, or if the best trial is the mean of several members.
        """
        name, members = self.best_trial.name, self.best_trial.members
        if len(members) > 1:
            raise RunError(
                f"the best trial, {name!r}, is the mean of {len(members)} members, so it has no single network. "
                f"Use report.run.member({members[0]!r}), or report.run.ensemble(members=report.best_trial.members), which "
                f"`argosy export {self.run.directory} {name} --ensemble` writes."
            )
        return self.run.member(members[0])

    def predict(self, samples: Any = None, network: Any = None) -> Any:
        """Return a network's output for each sample, by default that of the best trial; see `Report.predict`."""
        return self.run.predict(samples, self.best().load() if network is None else network)

    def export(
        self,
        to: str | Path,
        network: Any = None,
        *,
        format: Format = "safetensors",
        preprocess: bool = False,
        push_to_hub: str | None = None,
    ) -> Path:
        """Export a network, by default that of the best trial, or of a trial given by name; see `Report.export`."""
        network = self.best().name if network is None else network
        return self.run.export(to, network, format=format, preprocess=preprocess, push_to_hub=push_to_hub)

    @property
    def trials_per_hour(self) -> float:
        """Finished trials per hour of the search."""
        open_ = {
            self.trials[row.name]
            for row in self.rows
            if row.name in self.trials and row.status not in (PRUNED, *FINAL_STATUSES)
        }
        over = len({*self.trials.values()} - open_)
        return over / self.seconds * 3600 if self.seconds else 0.0

    @property
    def saved_by_sharing(self) -> float:
        """Fraction of the CPU time of training and preparation that sharing saved, compared with preparing each trial's samples separately at
        the measured cost."""
        prepared = sum(gauge.get("preparation_cpu_seconds", 0.0) for gauge in self.run.gauges.values())
        alone = prepared * self.run.preparations_alone / self.run.preparations if self.run.preparations else 0.0
        return max(alone - prepared, 0.0) / (self._trained + alone) if alone else 0.0

    @property
    def saved_by_packing(self) -> float:
        """Fraction of the trainers' time that packing saved: `packed_seconds` over the time of the same steps one by one."""
        return self.packed_seconds / (self._trained + self.packed_seconds) if self.packed_seconds else 0.0

    @property
    def _trained(self) -> float:
        gauges = (gauge for gauge in self.run.gauges.values() if "rows" in gauge)
        return sum(float(gauge.get("busy_seconds", 0.0)) for gauge in gauges)

    def table(self) -> list[dict[str, Any]]:
        """Return one plain row per trial, best first.

        A parameter with the name of a column is called ``parameter.epochs``, and a metric with the name of a parameter ``metric.lr``.
        """
        searched = {name for parameters in self.parameters.values() for name in parameters}
        return [
            {
                "trial": row.name,
                "status": row.status,
                "epochs": row.epochs,
                **({"source": self.sources[row.name]} if row.name in self.sources else {}),
                **({"pareto": row in self.pareto} if self.has_several else {}),
                **({"constraints": [*row.constraints]} if row.constraints else {}),
                **_distinct_columns(COLUMNS, "parameter", self.parameters.get(row.name, {})),
                **_distinct_columns(searched, "metric", self.shown(row)),
                "reason": cause_of(row.reason),
            }
            for row in self.rows
        ]

    def ending(self, *, again: str = "the same call again") -> Ending:
        """Return the text at the end of a search: the best trial, failures with reasons, the trials, and next steps.

        `again` describes how to resume the search. ``print(report)`` shows this text.
        """
        run, best, folder = self.run, self._best, shlex.quote(str(self.run.directory))
        lines: tuple[str, ...] = (f"Best: none yet, because no trial has a {run.objective} that counts.",)
        if best is not None:
            lines = self._best_lines(best)
        columns, rows = self._columns_and_rows()
        of = f"{len(set(self.trials.values()))} trials, {format_counts(statuses(self.rows, self.trials))}; {self.epochs:g} epochs"
        more = "max_epochs" if self.scheduler == "pbt" else "n_trials or max_epochs"
        state, page = run.status, f"argosy report {folder} --open"
        further = "Search further", f"with a larger {more}, {again}"
        stop = f"argosy stop {folder} NAME; without a name it stops all"
        actions = {
            "running": (("Watch it", f"{page} --live"), ("Stop a trial", stop)),
            "done": (further, ("Curves, devices", page)),
        }
        return replace(
            run.ending(),
            best=lines,
            columns=columns,
            rows=rows,
            note="",
            state=f"{state} after {format_duration(self.seconds)}: {of}. Everything is in {run.directory}",
            actions=actions.get(state, (("Resume", again), ("Curves, devices", page))),
        )

    def _best_lines(self, best: TrialResult) -> tuple[str, ...]:
        """Return the best trial's results and parameters, and how to load it."""
        one = len(best.members) == 1
        parameters = ", ".join(f"{name} = {format_value(value)}" for name, value in self.parameters[best.name].items())
        load = "best().load()" if one else f"run.ensemble(members=[{best.name!r}])"
        values = ", ".join(f"{name} {format_value(best.reached[name])}" for name in self.objectives)
        values += "" if one else f", mean of {len(best.members)},"
        lines = [
            f"Best: {best.name}, {values} at epoch {best.best_epochs:g} of {best.epochs:g}",
            f"With: {parameters}",
            f"Load it: argosy.load({str(self.run.directory)!r}, study=search).{load}",
        ]
        if self.has_several:
            lines.append(
                f"Pareto set: {len(self.pareto)} trials, report.pareto; this is the one with the best {self.run.objective}"
            )
        return (*lines, *([f"Weights: {self.best().folder / 'best.pt'}"] if one else []))

    def _columns_and_rows(self) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
        names = dict.fromkeys(name for row in self.rows for name in self.parameters.get(row.name, ()))
        sources = ["source"] if self.sources else []
        pareto = ["pareto"] if self.has_several else []
        constraints = ["constraints"] if any(row.constraints for row in self.rows) else []
        rows = tuple(
            (
                *(row.name, *(row.reached.get(name, "") for name in self.objectives)),
                *(["yes" if row in self.pareto else ""] if pareto else []),
                *(self.parameters.get(row.name, {}).get(name, "") for name in names),
                *(f"{row.epochs:g}", row.status),
                *([row.verdict] if constraints else []),
                *([self.sources.get(row.name, "")] if sources else []),
            )
            for row in self.rows
        )
        return ("trial", *self.objectives, *pareto, *names, "epochs", "status", *constraints, *sources), rows

    def __str__(self) -> str:
        return self.ending().text(*output_size())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the text at the end of a search as HTML, for notebooks."""
        return self.ending().html()

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame; see `Report.to_pandas`."""
        return to_frame(self.table(), ["trial", "status", "epochs"])

    def curves(self) -> Any:
        """Return the learning curves of the trials' members; see `Report.curves`."""
        return self.run.curves()

    def plot(
        self, metric: str | None = None, *, by: str | None = None, band: Spread | None = "ci", axes: Any = None
    ) -> Any:
        """Draw a metric of the trials' members over the epochs; see `Report.plot`."""
        return self.run.plot(metric, by=by, band=band, axes=axes)

    def plot_parameters(self) -> list[Any]:
        """Draw the objective against each parameter, one point per trial, and return the matplotlib axes, one per parameter.

        The best trial is coloured; trials that do not count are left out.
        """
        from argosy.results import figures  # imports matplotlib

        points = [
            (self.parameters[row.name], row.metrics[self.run.objective])
            for row in self.rows
            if row.name in self.parameters and row.metrics and row.status not in WORTHLESS
        ]
        names = [*dict.fromkeys(name for parameters, _ in points for name in parameters)]
        return figures.draw_parameters(names, points, self.run.objective)

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write the objective over the epochs and against the parameters as figures for a paper; see `Report.write_figures`."""
        from argosy.results import figures  # imports matplotlib

        with figures.paper_style():
            drawn = {"objective": self.plot()}
            if against := self.plot_parameters():
                drawn["parameters"] = against[0]
            return figures.save_figures(user_path(folder), drawn)

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value with everything."""
        best = self._best
        return {
            "directory": str(self.run.directory),
            "status": self.run.status,
            "objective": self.run.objective,
            **(
                {"objectives": dict(self.objectives), "pareto": [row.name for row in self.pareto]}
                if self.has_several
                else {}
            ),
            "best": best.name if best else None,
            "best_members": list(best.members) if best else [],
            "best_weights": str(self.best().folder / "best.pt") if best and len(best.members) == 1 else None,
            "best_parameters": dict(self.parameters[best.name]) if best else None,
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
        """Build the report from a run's report, all journaled events as (seconds of the search, event), and Optuna's study."""
        events = list(timeline)
        state = RunState.of(event for _, event in events)
        # Only the rows know which members the study has left out.
        members = {row.name: replace(state.member(row.name), status=row.status) for row in run.rows}
        trials = TrialsSoFar.of(state, members, over=run.status == "done")
        return cls(
            run=run,
            rows=trials.rows,
            parameters=trials.parameters,
            trials=trials.numbers,
            sources={name: one.source for name, one in state.members.items() if one.source and one.inherited},
            seconds=events[-1][0] if events else 0.0,
            epochs=run.epochs,
            packed_seconds=packed_seconds(events),
            first_comparison_seconds=_first_comparison(events),
            best_seconds=None if trials.best is None else _time_of_best(trials.best, events),
            scheduler=trials.terms["scheduler"],
            objectives=Objectives.of(trials.terms).modes,
            pareto=trials.pareto,
            study=study,
        )


def _distinct_columns(taken: Collection[str], kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name; a name that another column has taken is prefixed with the kind."""
    return {f"{kind}.{name}" if name in taken else name: value for name, value in values.items()}


TimedEvents = Sequence[tuple[float, Event]]


def _first_comparison(events: TimedEvents) -> float | None:
    """Return when all members that began with the search had ended their first section, or were over; None before."""
    began, waiting = False, set[str]()
    for seconds, event in events:
        began = began or isinstance(event, RunStarted)
        if isinstance(event, Proposed) and not began:
            waiting.update(event.members or (event.member,))
        elif isinstance(event, SectionEnded | MemberEnded) and event.member in waiting:
            waiting.discard(event.member)
            if not waiting:
                return seconds
    return None


def _time_of_best(best: TrialResult, events: TimedEvents) -> float:
    """Return when all members of the best trial had ended its best section."""
    first: dict[str, float] = {}
    for seconds, event in events:
        if isinstance(event, SectionEnded) and event.member in best.members and event.epochs == best.best_epochs:
            first.setdefault(event.member, seconds)  # after a fault, a section may have been trained again
    return max(first.values())


def packed_seconds(events: TimedEvents) -> float:
    """Return the time saved by stepping several members at once, from the seconds per sample measured when their programs were chosen."""
    saved = 0.0
    gains: dict[str, float] = {}  # seconds per sample, by member
    for _, event in events:
        if isinstance(event, SectionEnded):
            saved += gains.get(event.member, 0.0) * event.samples
        elif isinstance(event, Packed):
            alone = event.seconds.get(("plain", 1))
            sizes = [size for kind, size in event.seconds if kind == event.kind and size > 1]
            for program in event.programs:
                gain = 0.0
                if event.settled and alone is not None and len(program) > 1 and sizes:
                    near = min(sizes, key=lambda size: abs(size - len(program)))
                    gain = alone - event.seconds[event.kind, near]
                gains.update(dict.fromkeys(program, gain))
    return saved
