"""Which devices trained which members when, in which flotilla, and where something happened."""

from collections.abc import Mapping, Sequence
from typing import Any

from argosy.errors.wording import html_table, lasting, shortened
from argosy.views.html.chronicle import Chronicle, Mark, Span
from argosy.views.html.page import COLOURS, Section, figure

__all__ = ["gantt"]

MOST_ROWS = 400
"""Most pairs of device and member, each a row."""
ROW_PIXELS = 13
LABEL = 24


def gantt(chronicle: Chronicle) -> Section:
    """Return a row for each device and member assigned to it, bars coloured by flotilla, signs for moves and faults."""
    rows = list(dict.fromkeys((span.device, span.member) for span in sorted(chronicle.spans, key=_order)))
    shown = rows[:MOST_ROWS]
    labels = shortened({member for _, member in shown}, LABEL)
    places = {row: f"{row[0]} · {labels[row[1]]}" for row in shown}
    spans = [span for span in chronicle.spans if (span.device, span.member) in places]
    if not spans:
        return Section(title="Devices and members", text=["Nobody has trained."])
    several = chronicle.flotillas > 1
    traces = [*_bars(spans, places, several=several), *_moves(spans, places), *_signs(chronicle.marks, places)]
    layout = {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "seconds"}, "range": [0, chronicle.seconds * 1.01]},
        "yaxis": {
            "range": [len(shown) - 0.5, -0.5],
            "categoryarray": list(places.values()),
            "automargin": True,
            "dtick": 1,
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    }
    height = 140 + max(ROW_PIXELS * len(shown), 60)
    faults = [mark for mark in chronicle.marks if mark.kind == "fault"]
    moves = sum(bool(span.came_from) for span in chronicle.spans)
    more = f" The first {len(shown)} of {len(rows)} rows are drawn." if len(rows) > len(shown) else ""
    flotillas = f"Flotillas: {chronicle.flotillas}, moves" if several else "Moves"
    text = [f"{flotillas}: {moves}, signs of faults: {len(faults)}.{more}"]
    told = [[lasting(mark.seconds), mark.kind, mark.text] for mark in chronicle.marks]
    table = html_table(["after", "what", "told"], told) if told else ""
    return Section(
        title="Devices and members", text=text, figures=[figure(traces, height=height, **layout)], table=table
    )


def _order(span: Span) -> tuple[str, float, str]:
    return span.device, span.begin_seconds, span.member


def _bars(spans: Sequence[Span], places: Mapping[tuple[str, str], str], *, several: bool) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for number in sorted({span.flotilla for span in spans}):
        mine = [span for span in spans if span.flotilla == number]
        # A run with a single flotilla need not explain the word.
        name = f"flotilla {number}" if several else "training"
        found.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [places[span.device, span.member] for span in mine],
                "base": [round(span.begin_seconds, 2) for span in mine],
                "x": [round(span.end_seconds - span.begin_seconds, 2) for span in mine],
                "marker": {"color": COLOURS[number % len(COLOURS)]},
                "customdata": [[span.member, span.device, round(span.end_seconds, 1)] for span in mine],
                "hovertemplate": f"%{{customdata[0]}} on %{{customdata[1]}}<br>{name}, %{{base:.1f}} to "
                "%{customdata[2]} s<extra></extra>",
            }
        )
    return found


def _moves(spans: Sequence[Span], places: Mapping[tuple[str, str], str]) -> list[Mapping[str, Any]]:
    moved = [span for span in spans if span.came_from]
    points = [
        (span.begin_seconds, places[span.device, span.member], f"{span.member} came from {span.came_from}")
        for span in moved
    ]
    return [_points("moves", points, {"symbol": "triangle-right", "color": "#222", "size": 8})] if moved else []


def _signs(marks: Sequence[Mark], places: Mapping[tuple[str, str], str]) -> list[Mapping[str, Any]]:
    """Draw faults on the rows of the members assigned there; those of a worker without members on the first row."""
    first = next(iter(places.values()))
    points = []
    for mark in marks:
        if mark.kind == "fault":
            rows = [places[mark.device, name] for name in mark.members if (mark.device, name) in places]
            points += [(mark.seconds, row, mark.text) for row in rows or [first]]
    return [_points("faults", points, {"symbol": "x", "color": "#d62728", "size": 9})] if points else []


def _points(name: str, points: Sequence[tuple[float, str, str]], marker: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [round(seconds, 2) for seconds, _, _ in points],
        "y": [row for _, row, _ in points],
        "text": [text for _, _, text in points],
        "marker": marker,
        "hovertemplate": "%{text}<br>after %{x:.1f} s<extra></extra>",
    }
