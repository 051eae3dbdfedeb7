"""The four cards at the top of a page: the best, members by state, time and devices, what sharing and packing saved."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.errors.wording import format_duration
from argosy.results.report import Report
from argosy.tuning.report import SearchReport
from argosy.tuning.trials import statuses
from argosy.views.html.chronicle import Chronicle
from argosy.views.html.rows import PageRow

__all__ = ["cards"]

MOST_FAILURES = 3
"""Failures that are told with their reasons."""


def cards(
    report: Report,
    search: SearchReport | None,
    rows: Sequence[PageRow],
    chronicle: Chronicle,
    *,
    idle: float,
    packed_seconds: float,
) -> list[dict[str, Any]]:
    """Return the cards; `idle` is the share of their time that devices carried no member."""
    return [
        _best(report, search),
        _members(report, "Members", [row.status for row in rows])
        if search is None
        else _members(report, "Trials", statuses(search.rows, search.trials)),
        _time(report, chronicle, idle),
        _saved(report, packed_seconds),
    ]


def _card(title: str, value: str, name: str = "", pairs: Sequence[tuple[str, str]] = (), **more: Any) -> dict[str, Any]:
    return {"title": title, "value": value, "name": name, "pairs": [list(pair) for pair in pairs], **more}


def _best(report: Report, search: SearchReport | None) -> dict[str, Any]:
    headline, *others = (search or report).ending().best
    # "Load it: report.best().load()"
    pairs = [(label, text) for label, _, text in (line.partition(": ") for line in others)]
    leader = (search or report).leader
    value = "none yet" if leader is None else str(leader.value)
    return _card(f"Best {report.objective}", value, headline.removeprefix("Best: "), pairs)


def _members(report: Report, title: str, members: Sequence[str]) -> dict[str, Any]:
    counts = Counter(members)
    failures = [("", line) for line in report.ending().failures]
    more = len(failures) - MOST_FAILURES
    pairs = [*failures[:MOST_FAILURES], *([("", f"and {more} more failed or diverged")] if more > 0 else [])]
    epochs = f"{report.epochs:,g} epochs in total"
    return _card(title, f"{len(members)}", epochs, pairs, counts=[[status, n] for status, n in counts.most_common()])


def _time(report: Report, chronicle: Chronicle, idle: float) -> dict[str, Any]:
    devices = len({span.device for span in chronicle.spans})
    # A driver that was killed has not reported how long it worked, nor has one that works on.
    known = report.seconds and not report.killed_drivers and report.status != "running"
    seconds = report.seconds if known else chronicle.seconds
    faults = sum(mark.kind == "fault" for mark in chronicle.marks)
    moves = sum(bool(span.came_from) for span in chronicle.spans)
    facts: Mapping[str, str] = {
        "Idle": f"{idle:.0%} of the devices' time" if devices else "",
        "Waiting for data": f"{report.waiting_share:.0%} of the trainers' time" if report.gauges else "",
        "Faults and moves": f"{faults} and {moves}" if faults or moves else "",
        "CPU time": format_duration(report.cpu_seconds) if report.cpu_seconds else "",
        "Energy": ", ".join(f"{joules:,.0f} J ({name})" for name, joules in report.joules.items()),
        "Bottleneck": report.diagnosis.stage if report.diagnosis is not None else "",
    }
    name = f"on {devices} device{'s' * (devices != 1)}"
    return _card("Time", format_duration(seconds), name, [(label, text) for label, text in facts.items() if text])


def _saved(report: Report, packed_seconds: float) -> dict[str, Any]:
    title = "Saved by sharing and packing"
    once, alone = report.preparations, report.preparations_alone
    prepared = sum(gauge.get("preparation_cpu_seconds", 0.0) for gauge in report.gauges.values())
    pairs = []
    if alone:
        pairs.append(("Each sample prepared", f"{once:.2f} times per epoch; {alone:.2f} with one script per member"))
    shared = max(prepared * alone / once - prepared, 0.0) if once else 0.0
    if prepared and once:
        pairs.append(("Preparation", f"{prepared:,.3g} CPU s; {prepared + shared:,.3g} with one script per member"))
    if packed_seconds:
        pairs.append(("Programs of several members", f"{format_duration(packed_seconds)} of the trainers' time"))
    saved = shared + packed_seconds
    if not saved and alone <= once:
        return _card(title, "nothing", "no sample is shared by several members", pairs)
    if saved:
        return _card(title, format_duration(saved), "of CPU time", pairs)
    return _card(
        title, f"{alone / once:.3g} ×" if once else "all", "fewer preparations" if once else "preparations", pairs
    )
