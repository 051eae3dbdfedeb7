"""The timeline of a simulation as a page: which device trained which members when."""

from pathlib import Path

from argosy.planning.outcomes import Simulation
from argosy.views.html.page import Section, bars, figure, page, write_page

__all__ = ["write_timeline"]


def write_timeline(simulation: Simulation, path: Path) -> None:
    """Write a page with one bar a device and pack, coloured by flotilla."""
    drawn = []
    for number in dict.fromkeys(segment.flotilla for segment in simulation.timeline):
        segments = [segment for segment in simulation.timeline if segment.flotilla == number]
        lengths = [segment.end_seconds - segment.start_seconds for segment in segments]
        drawn.append(
            {
                **bars(f"flotilla {number}", [segment.device for segment in segments], lengths),
                "base": [segment.start_seconds for segment in segments],
                "text": [_label(segment.members) for segment in segments],
                "hovertext": ["<br>".join(segment.members) for segment in segments],
            }
        )
    title = (
        f"{simulation.policy} on {simulation.devices} devices: {simulation.makespan_seconds:,.0f} s, "
        f"idle {simulation.idle_share:.0%}"
    )
    layout = {"barmode": "overlay", "xaxis": {"title": {"text": "seconds"}}, "yaxis": {"autorange": "reversed"}}
    height = 200 + 24 * simulation.devices
    write_page(path, page(title, [Section(title=title, figures=[figure(drawn, height=height, **layout)])]))


def _label(members: tuple[str, ...]) -> str:
    return members[0] if len(members) == 1 else f"{len(members)} members"
