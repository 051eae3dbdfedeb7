"""The timeline of a simulation as a page: which device trained which members when."""

from pathlib import Path
from typing import Any

from argosy.errors import PlanError
from argosy.planning.outcomes import Simulation

__all__ = ["write_timeline"]


def write_timeline(simulation: Simulation, path: Path) -> None:
    """One bar a device and pack, coloured by flotilla; needs the extra ``report``."""
    graph = _plotly()
    bars = [
        graph.Bar(
            orientation="h",
            y=[segment.device for segment in segments],
            base=[segment.start_seconds for segment in segments],
            x=[segment.end_seconds - segment.start_seconds for segment in segments],
            text=[_label(segment.members) for segment in segments],
            hovertext=["<br>".join(segment.members) for segment in segments],
            name=f"flotilla {number}",
        )
        for number in dict.fromkeys(segment.flotilla for segment in simulation.timeline)
        if (segments := [segment for segment in simulation.timeline if segment.flotilla == number])
    ]
    figure = graph.Figure(bars)
    figure.update_layout(
        barmode="overlay",
        title=f"{simulation.policy} on {simulation.devices} devices: {simulation.makespan_seconds:,.0f} s, "
        f"idle {simulation.idle_share:.0%}",
        xaxis_title="seconds",
        yaxis={"autorange": "reversed"},
    )
    figure.write_html(path, include_plotlyjs=True)


def _label(members: tuple[str, ...]) -> str:
    return members[0] if len(members) == 1 else f"{len(members)} members"


def _plotly() -> Any:
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise PlanError("the timeline needs plotly, which is not installed; pip install 'argosy[report]'.") from error
    return plotly.graph_objects
