"""The rows of a page: members or trials, best first, with their cells and curves, and the columns that the cells are in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.errors.wording import cause_of, shorten_names
from argosy.errors.wording import format_value as spelled
from argosy.results.bands import Band, Spread
from argosy.results.member import MemberResult, band_of, best_epochs
from argosy.results.report import Report
from argosy.tuning.objectives import TOTALS
from argosy.tuning.report import SearchReport
from argosy.tuning.trials import PRUNED, WORTHLESS, TrialResult
from argosy.views.html.importance import chance, importance

__all__ = ["Moments", "PageRow", "bands_of", "rows_of_members", "rows_of_trials", "table_of"]

MOST_CURVES = 200
"""Most rows that have curves; the best."""
MOST_POINTS = 400
"""Most points of a curve; of longer ones every n-th section is drawn."""
LABEL = 30
"""Letters of a name in a figure."""
RATE = "lr"
"""What a section tells beside its metrics."""

Moments = Mapping[tuple[str, float], float]
"""Seconds of the run at the end of each section, by member and finished epochs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRow:
    """A member or a trial."""

    name: str
    status: str
    reason: str
    """Why it ended, where that is not its regular end."""
    counts: bool
    """Whether its result counts."""
    load: str
    """What loads its network, of a report."""
    metrics: Mapping[str, float]
    parameters: Mapping[str, Any]
    facts: Mapping[str, Any]
    """What else is known of it, by the title of its column."""
    members: Sequence[MemberResult]
    """Its members, of whose means it has the curves."""
    number: int | None = None
    """Of a trial."""


def rows_of_members(report: Report) -> list[PageRow]:
    """Return the members of a run."""
    return [
        PageRow(
            name=row.name,
            status=row.status,
            reason=cause_of(row.reason) if row.failed else "",
            counts=row.counts,
            load=f"report.member({row.name!r}).load()",
            metrics=row.metrics,
            parameters=row.hyperparameters,
            facts={
                "best epoch": best_epochs(row),
                "epochs": row.epochs,
                "seconds": row.seconds,
                "device": row.device,
                **({} if row.repetition is None else {"configuration": row.repeats, "fold": row.repetition.fold}),
                "seed": row.seed,
            },
            members=[row],
        )
        for row in report.rows
    ]


def rows_of_trials(search: SearchReport) -> list[PageRow]:
    """Return the trials of a search; members that were added to it are rows as well."""
    return [
        PageRow(
            name=row.name,
            status=row.status,
            reason=cause_of(row.reason) if row.status in (PRUNED, *WORTHLESS) else "",
            counts=bool(row.metrics)
            and row.status not in WORTHLESS
            and row.name in search.trials
            and row.verdict != "violated",
            load=_load_expression(row),
            metrics=row.metrics,
            parameters=search.parameters.get(row.name, {}),
            facts={
                "best epoch": row.best_epochs,
                "epochs": row.epochs,
                **{name: row.totals.get(name) for name in search.objectives if name in TOTALS},
                **({"pareto": row in search.pareto} if search.has_several else {}),
                **({"constraints": row.verdict} if row.constraints else {}),
                "source": search.sources.get(row.name),
            },
            members=[search.run.member(name) for name in row.members],
            number=search.trials.get(row.name),
        )
        for row in search.rows
    ]


def table_of(rows: Sequence[PageRow], objective: str, moments: Moments) -> dict[str, Any]:
    """Return rows, best first, with their cells in the order of the columns, the most important columns first."""
    names = dict.fromkeys(name for row in rows for name in row.metrics if name not in (objective, RATE))
    metrics = [objective, *sorted(names, key=lambda name: not name.startswith("val_"))]
    parameters = dict.fromkeys(name for row in rows for name in row.parameters)
    facts = dict.fromkeys(name for row in rows for name in row.facts)
    columns = [
        *(("metric", name) for name in metrics[:1]),
        *(("fact", name) for name in facts if name == "best epoch"),
        *(("parameter", name) for name in parameters),
        *(("metric", name) for name in metrics[1:]),
        *(("fact", name) for name in facts if name != "best epoch"),
    ]
    cells = [[_cell(_values_of_kind(row, kind).get(name)) for kind, name in columns] for row in rows]
    equal = [len(rows) > 1 and len({repr(names[at]) for names in cells}) == 1 for at in range(len(columns))]
    labels = shorten_names({row.name for row in rows}, LABEL)
    counted = [row for row in rows if row.counts and objective in row.metrics]
    # A trial that starts from scratch at each rung has several rows, and is one result: its best row.
    of_trials = {row.name if row.number is None else row.number: row for row in reversed(counted)}
    results = [(row.parameters, row.metrics[objective]) for row in of_trials.values()]
    weights = importance(results)
    return {
        "metrics": metrics,
        "chance": chance(len(results)) if weights else None,
        "columns": [
            {"kind": kind, "name": name, "equal": same, "weight": weights.get(name) if kind == "parameter" else None}
            for (kind, name), same in zip(columns, equal, strict=True)
        ],
        "rows": [
            {
                "name": row.name,
                "label": labels[row.name],
                "status": row.status,
                "reason": row.reason,
                "counts": row.counts,
                "number": row.number,
                "load": row.load,
                "cells": its,
                **(_curves(row.members, metrics, moments) if place < MOST_CURVES else {"curves": {}}),
            }
            for place, (row, its) in enumerate(zip(rows, cells, strict=True))
        ],
    }


def bands_of(report: Report, metrics: Sequence[str], moments: Moments) -> list[dict[str, Any]]:
    """Return the mean and its 95 % interval over the epochs, by metric, of each configuration with several members that count."""
    names = [one.name for one in report.repetitions.configurations]
    labels = shorten_names(names, LABEL)
    members = {name: [at for at, row in enumerate(report.rows) if row.repeats == name and row.counts] for name in names}
    return [
        {"label": labels[name], "members": places, **_curves([report.rows[at] for at in places], metrics, moments)}
        for name, places in members.items()
        if len(places) > 1
    ]


def _values_of_kind(row: PageRow, kind: str) -> Mapping[str, Any]:
    return {"metric": row.metrics, "parameter": row.parameters, "fact": row.facts}[kind]


def _cell(value: Any) -> Any:
    """Return a number, a switch or nothing as it is, and anything else in words."""
    return value if value is None or isinstance(value, bool | int | float) else spelled(value)


def _curves(members: Sequence[MemberResult], metrics: Sequence[str], moments: Moments) -> dict[str, Any]:
    """Return what is drawn of one member, or of the means of several.

    ``across`` has epochs, steps and seconds of the sections that all members have ended; ``curves`` has by metric the means there
    and, of several members, the lower and upper edges of their band.
    """
    spread: Spread | None = "ci" if len(members) > 1 else None
    steps = Band.of("", [{ended.epochs: ended.steps for ended in one.sections} for one in members], None)
    times = [{ended.epochs: moments[one.name, ended.epochs] for ended in one.sections} for one in members]
    kept = range(len(steps.epochs))[:: -max(-(-len(steps.epochs) // MOST_POINTS), 1)][::-1]
    curves = {}
    for name in metrics:
        band = band_of("", members, name, spread)
        if band.epochs:
            at = {epoch: place for place, epoch in enumerate(band.epochs)}
            drawn = [at.get(steps.epochs[place]) for place in kept]
            edges = zip(*band.bounds, strict=True) if band.bounds else ()
            curves[name] = [[None if one is None else line[one] for one in drawn] for line in (band.means, *edges)]
    axes = (steps.epochs, steps.means, Band.of("", times, None).means)
    return {"across": [[axis[place] for place in kept] for axis in axes], "curves": curves}


def _load_expression(row: TrialResult) -> str:
    one = len(row.members) == 1
    return f"report.run.member({row.name!r}).load()" if one else f"report.run.ensemble(members={list(row.members)!r})"
