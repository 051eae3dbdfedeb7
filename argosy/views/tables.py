"""Tables for ``--verbose``: all rows of a run or a search, and its cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Column, Table

from argosy.errors.wording import cause_of, format_bytes, format_value
from argosy.protocol.packs import Packed
from argosy.results.legs import LegResult
from argosy.results.report import Report
from argosy.tuning.report import SearchReport
from argosy.views.output import as_text

__all__ = ["kept_table", "report_table", "search_table"]

LEAST_SAVED = 0.005
"""Share of a time below which no saving is reported."""


def search_table(report: SearchReport) -> Group:
    """Return all trials of a search, best first, what was saved, and how soon the best was found."""
    ending = report.ending()
    table = _table(*ending.columns, "reason")
    for cells, row in zip(ending.rows, report.rows, strict=True):
        table.add_row(*(as_text(format_value(cell)) for cell in (*cells, cause_of(row.reason))))
    text = (
        f"{report.run.status} after {report.seconds:.1f} s: {len(set(report.trials.values()))} trials, "
        f"{report.epochs:g} epochs, {report.trials_per_hour:,.0f} trials an hour."
    )
    if report.first_comparison_seconds is not None:
        text += f" All could be compared after {report.first_comparison_seconds:.1f} s."
    if report.saved_by_sharing >= LEAST_SAVED:
        text += (
            f" Preparing samples once for all trials saved {report.saved_by_sharing:.0%} of the CPU time, "
            "computed from the cost per sample."
        )
    if report.saved_by_packing >= LEAST_SAVED:
        text += (
            f" Stepping similar trials as one program saved {report.saved_by_packing:.0%} of the trainers' time, "
            "computed from the time per sample alone and together."
        )
    if report.best_seconds is not None:
        text += f" The best trial was found after {report.best_seconds:.1f} s."
    return Group(table, as_text(text))


def _pack_words(pack: Packed) -> str:
    """Describe what a device did with several members that can share a program."""
    count, programs = sum(map(len, pack.programs)), len(pack.programs)
    how = "one after another" if pack.size == 1 else f"in {programs} program{'s' * (programs > 1)}"
    if pack.size > 1 and pack.exact:
        how += ", with the same bits as each alone,"
    if pack.kind not in ("plain", "grouped"):
        how += f", {pack.kind},"
    measured = _pack_measured(pack)
    need = dict(pack.step_bytes).get(pack.size)
    memory = "" if need is None else f"; a step takes {format_bytes(need * pack.size)}"
    reason = f"; {pack.reason}" if pack.reason else ""
    reason += "".join(f"; not {kind}: {why}" for kind, why in pack.refused.items())
    return (
        f"{count} {'different members' if pack.unlike else 'similar members'} were stepped {how} on "
        f"{pack.device}{measured}{memory}{reason}."
    )


def _pack_measured(pack: Packed) -> str:
    """Describe the chosen programs' time relative to single steps; for members stepped in turn, that of one program."""
    if pack.size == 1:
        return "" if pack.improvement is None else f"; as one program they took {1 - pack.improvement:.0%} of the time"
    alone, chosen = pack.seconds.get(("plain", 1)), pack.seconds.get((pack.kind, pack.size))
    return "" if alone is None or chosen is None else f"; together they take {chosen / alone:.0%} of the time"


def report_table(report: Report) -> Group:
    """Return all members of a report with all metrics, and what the run cost and why."""
    metrics = list(dict.fromkeys(name for row in report.rows for name in row.metrics))
    table = _table("member", "status", "epochs", *metrics, "seconds")
    for row in report.rows:
        values = [f"{row.metrics[name]:.4g}" if name in row.metrics else "" for name in metrics]
        table.add_row(*map(as_text, (row.name, row.status, f"{row.epochs:g}", *values, f"{row.seconds:.1f}")))
    text = f"{report.status}{_after(report)}."
    if report.preparations_alone:
        text += f" Each training sample was prepared {report.preparations:.1f} times per epoch"
        text += f" (one script per member: {report.preparations_alone:.1f})."
    if report.gauges:
        text += f" Trainers waited for data {report.waiting_share:.0%} of their time."
    if report.sharing is not None and report.sharing.reason != "one node":
        text += f"\nNodes shared the stream: {report.sharing.sharing} ({report.sharing.reason})."
    text += "".join(f"\nSamples ({split}): {words}." for split, words in report.keeping.items())
    for pack in report.last_packs:
        if sum(map(len, pack.programs)) > 1:
            text += f"\n{_pack_words(pack)}"
    if report.diagnosis is not None:
        text += f"\nBottleneck: {report.diagnosis.verdict}."
    if len(report.legs) == 1:
        (leg,) = report.legs
        predicted = f" ({leg.predicted_seconds:.1f} s predicted)" if leg.was_predicted else ""
        text += f"\nTraining took {leg.seconds:.1f} s of this{predicted}."
    return Group(table, as_text(text), *([_legs_table(report.legs)] if len(report.legs) > 1 else []))


def _after(report: Report) -> str:
    """Describe how long drivers worked on a run that is over, as far as known."""
    if report.status == "running" or not report.seconds:
        return ""
    killed = report.killed_drivers
    others = f" and the time of {killed} driver{'s' * (killed > 1)} that {'were' if killed > 1 else 'was'} killed"
    return f" after {report.seconds:.1f} s{others if killed else ''}"


def _legs_table(legs: Sequence[LegResult]) -> Table:
    """Return a table of predicted and actual times."""
    columns = ("leg", "sections", "samples/s", "predicted", "seconds", "predicted", "waiting")
    table = _table(*columns, "planning", "changing", "saving")
    for leg in legs:
        waiting = ", ".join(f"{device} {seconds:.1f}" for device, seconds in leg.waiting_seconds.items())
        cells = (
            *(leg.leg, str(leg.sections)),
            *(f"{pace:,.0f}" for pace in (leg.samples_per_second, leg.predicted_samples_per_second)),
            *(f"{leg.seconds:.1f}", f"{leg.predicted_seconds:.1f}", waiting),
            *(f"{seconds:.2f}" for seconds in (leg.planning_seconds, leg.changing_seconds, leg.saving_seconds)),
        )
        table.add_row(*map(as_text, cells))
    return table


def kept_table(rows: Sequence[Mapping[str, Any]], title: str) -> Group:
    """Return the kept samples of this machine, the least recently used first."""
    table = _table("dataset", "samples", "of", "MB", "used", "name")
    for row in rows:
        values = (row["dataset"], row["samples"], row["of"], f"{row['bytes'] / 1e6:,.1f}", row["used"], row["folder"])
        table.add_row(*map(as_text, values))
    return Group(table, as_text(f"{title}: {sum(row['bytes'] for row in rows) / 1e6:,.1f} MB."))


def _table(*columns: str) -> Table:
    return Table(*(Column(as_text(name)) for name in columns), box=None, pad_edge=False)
