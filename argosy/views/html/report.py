"""The report of a run as one page, from its report and its journal."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from argosy.protocol.events import Event, SectionEnded
from argosy.results.end_table import EndTable
from argosy.results.report import Report
from argosy.tuning.report import SearchReport, packed_seconds
from argosy.views.html.cards import cards
from argosy.views.html.chronicle import Chronicle
from argosy.views.html.costs import costs
from argosy.views.html.devices import devices_of
from argosy.views.html.page import Sheet, live_script, page, section, write_page
from argosy.views.html.predictions import predictions
from argosy.views.html.queues import queues
from argosy.views.html.rows import bands_of, rows_of_members, rows_of_trials, table_of
from argosy.views.html.savings import savings
from argosy.views.html.search import search_of

__all__ = ["page_values", "write_news", "write_report"]


NEWS = "report.live.js"
"""File beside a live page that the page polls."""
SECTIONS = {
    "Stages and queues": queues,
    "Predicted and actual": predictions,
    "What was saved": savings,
    "What it took": costs,
}
"""Parts at the end of the page, by their titles."""


def write_report(report: Report, timeline: Iterable[tuple[float, Event]], *, live: bool = False) -> Path:
    """Write ``report.html`` in the run's directory; a live one shows what `write_news` writes."""
    path = report.directory / "report.html"
    values = page_values(report, timeline)
    if live:
        write_page(report.directory / NEWS, live_script(values))
    write_page(path, page(values, without_script=report.ending().html(), news=NEWS if live else ""))
    if not live:
        # Its absence tells an open page that the run is over, and to load the whole page.
        (report.directory / NEWS).unlink(missing_ok=True)
    return path


def write_news(report: Report, timeline: Iterable[tuple[float, Event]]) -> None:
    """Write the news for the live page of a run that goes on."""
    write_page(report.directory / NEWS, live_script(page_values(report, timeline)))


def page_values(report: Report, timeline: Iterable[tuple[float, Event]]) -> dict[str, Any]:
    """Return everything that the page shows, as one plain value."""
    events = [*timeline]
    chronicle = Chronicle.of(events)
    search = SearchReport.of(report, events, None) if report.is_search else None
    rows = rows_of_members(report) if search is None else rows_of_trials(search)
    places = {member.name: place for place, row in enumerate(rows) for member in row.members}
    moments = {(event.member, event.epochs): at for at, event in events if isinstance(event, SectionEnded)}
    table = table_of(rows, report.objective, moments)
    devices = devices_of(chronicle.spans, chronicle.marks, chronicle.seconds, places)
    idle = [lane["idle"] for lane in devices["lanes"]]
    means = EndTable.of_means(report.repetitions)
    return {
        "title": f"{report.directory.name}: {report.status}",
        "name": report.directory.name,
        "directory": str(report.directory),
        "status": report.status,
        "reason": report.reason,
        "noun": "member" if search is None else "trial",
        "objective": report.objective,
        "mode": report.repetitions.mode,
        "cards": cards(
            report,
            search,
            rows,
            chronicle,
            idle=sum(idle) / len(idle) if idle else 0.0,
            packed_seconds=packed_seconds(events),
        ),
        **table,
        "bands": bands_of(report, table["metrics"], moments) if search is None else [],
        "means": section("Repetitions", [(means.note, Sheet(columns=means.columns, rows=means.rows))])
        if means
        else None,
        "search": None if search is None else search_of(search, chronicle.state),
        "devices": devices,
        "sections": [section(title, blocks_of(report)) for title, blocks_of in SECTIONS.items()],
    }
