"""The timeline of a simulation as a page: which device trained which members when."""

from pathlib import Path

from argosy.planning.outcomes import Simulation
from argosy.views.html.chronicle import Span
from argosy.views.html.devices import devices_of
from argosy.views.html.page import page, write_page

__all__ = ["write_timeline"]


def write_timeline(simulation: Simulation, path: Path) -> None:
    """Write a page with one lane a device, coloured by flotilla."""
    spans = [
        Span(
            member=member,
            device=segment.device,
            flotilla=segment.flotilla,
            begin_seconds=segment.start_seconds,
            end_seconds=segment.end_seconds,
            came_from="",
        )
        for segment in simulation.timeline
        for member in segment.members
    ]
    names = dict.fromkeys(span.member for span in spans)
    title = (
        f"{simulation.policy} on {simulation.devices} devices: {simulation.makespan_seconds:,.0f} s, "
        f"idle {simulation.idle_share:.0%}"
    )
    rows = [{"name": name, "label": name} for name in names]
    devices = devices_of(spans, [], simulation.makespan_seconds, {name: n for n, name in enumerate(names)})
    write_page(path, page({"title": title, "name": title, "rows": rows, "devices": devices}))
