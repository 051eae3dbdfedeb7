"""The report of a run as one page, from its report and its journal."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from argosy.errors.wording import lasting
from argosy.protocol.events import Event
from argosy.results.means import Means
from argosy.results.report import Report
from argosy.views.html.chronicle import Chronicle
from argosy.views.html.costs import costs
from argosy.views.html.curves import curves
from argosy.views.html.gantt import gantt
from argosy.views.html.leaderboard import leaderboard
from argosy.views.html.page import Section, news_of, page, write_page
from argosy.views.html.predictions import predictions
from argosy.views.html.queues import queues
from argosy.views.html.repetitions import repetitions
from argosy.views.html.savings import savings

__all__ = ["write_news", "write_report"]


NEWS = "report.live.js"
"""File beside a live page that the page polls."""


def write_report(report: Report, timeline: Iterable[tuple[float, Event]], *, live: bool = False) -> Path:
    """Write ``report.html`` in the run's directory; a live one shows what `write_news` writes."""
    path = report.directory / "report.html"
    title, sections = _contents(report, Chronicle.of(timeline))
    if live:
        write_page(report.directory / NEWS, news_of(title, sections))
    write_page(path, page(title, sections, news=NEWS if live else ""))
    if not live:
        # Its absence tells an open page that the run is over, and to load the whole page.
        (report.directory / NEWS).unlink(missing_ok=True)
    return path


def write_news(report: Report, timeline: Iterable[tuple[float, Event]]) -> None:
    """Write the news for the live page of a run that goes on."""
    write_page(report.directory / NEWS, news_of(*_contents(report, Chronicle.of(timeline))))


def _contents(report: Report, chronicle: Chronicle) -> tuple[str, list[Section]]:
    """Return the title, and every section for which the run has data."""
    means = Means.of(report.repetitions)
    sections = [
        _overview(report, chronicle),
        leaderboard(report),
        *([repetitions(means)] if means else []),
        curves(report, chronicle),
        gantt(chronicle),
        queues(report),
        predictions(report),
        savings(report),
        costs(report),
    ]
    return f"{report.directory.name}: {report.status}", sections


def _overview(report: Report, chronicle: Chronicle) -> Section:
    counts = Counter(row.status for row in report.rows)
    members = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    epochs = sum(row.epochs for row in report.rows)
    # A driver that was killed has not reported how long it worked.
    seconds = chronicle.seconds if report.killed_drivers else report.seconds
    took = f" after {lasting(seconds)}" if seconds else ""
    text = [f"{report.status}{took}: {len(report.rows)} members ({members}), {epochs:,g} epochs in all."]
    if report.leader is not None:
        text.append(f"Best: {report.leader}.")
    if report.reason:
        text.append(report.reason)
    if report.diagnosis is not None:
        text.append(f"Bottleneck: {report.diagnosis.verdict}.")
    return Section(title=str(report.directory), text=text)
