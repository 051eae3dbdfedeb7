"""Learning curves: every metric of every member over its epochs."""

from collections.abc import Mapping
from typing import Any

from argosy.results.fold import MemberState
from argosy.results.report import Report
from argosy.views.html.chronicle import Chronicle
from argosy.views.html.page import COLOURS, Section, figure

__all__ = ["curves"]

MOST_CURVES = 200
"""Most members that are drawn; the best."""
MOST_POINTS = 400
"""Most points of a curve; of longer ones every n-th section is drawn."""
FEW = 20
"""Most curves with names in a legend and points that can be distinguished."""
COUNTED = ("seconds", "epochs", "steps", "samples")
"""Columns of a history that are not metrics."""


def curves(report: Report, chronicle: Chronicle) -> Section:
    """Return one line a member, best first; the metric is chosen above the figure."""
    members = chronicle.state.members
    found = [members[row.name] for row in report.rows if row.name in members and members[row.name].history]
    drawn = found[:MOST_CURVES]
    names = dict.fromkeys(name for state in drawn for name in state.history[0] if name not in COUNTED)
    metrics = [report.objective, *(name for name in names if name != report.objective)] if names else []
    if not metrics:
        return Section(title="Learning curves", text=["No section has ended."])
    few = len(drawn) <= FEW
    traces = [_trace(state, metrics[0], COLOURS[n % len(COLOURS)], dots=few) for n, state in enumerate(drawn)]
    menu = {"type": "dropdown", "x": 0, "xanchor": "left", "y": 1.12, "buttons": [_button(drawn, m) for m in metrics]}
    layout = {
        "xaxis": {"title": {"text": "epochs"}},
        "yaxis": {"title": {"text": metrics[0]}},
        "updatemenus": [menu],
        "showlegend": few,
    }
    more = f" The {len(drawn)} best of {len(found)} members are drawn." if len(found) > len(drawn) else ""
    text = [f"Point at a line to see whose it is; click into the legend to hide one, drag to look closer.{more}"]
    return Section(title="Learning curves", text=text, figures=[figure(traces, height=520, **layout)])


def _trace(state: MemberState, metric: str, colour: str, *, dots: bool) -> Mapping[str, Any]:
    return {
        "type": "scatter",
        # A single point gives no line.
        "mode": "lines+markers" if (dots and len(state.history) < 30) or len(state.history) == 1 else "lines",
        "name": state.name,
        "uid": state.name,
        "x": [row["epochs"] for row in _thinned(state)],
        "y": _values(state, metric),
        "line": {"color": colour, "width": 1.5},
        "marker": {"size": 4},
        "hovertemplate": "%{fullData.name}<br>epoch %{x}: %{y:.5g}<extra></extra>",
    }


def _button(drawn: list[MemberState], metric: str) -> Mapping[str, Any]:
    axis = {"yaxis.title.text": metric}
    return {"label": metric, "method": "update", "args": [{"y": [_values(state, metric) for state in drawn]}, axis]}


def _values(state: MemberState, metric: str) -> list[float | None]:
    return [None if (value := row.get(metric)) is None else float(f"{value:.6g}") for row in _thinned(state)]


def _thinned(state: MemberState) -> list[dict[str, float]]:
    every = -(-len(state.history) // MOST_POINTS)
    return state.history[::-1][:: max(every, 1)][::-1]
