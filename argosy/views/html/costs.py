"""The costs of the run: CPU time by worker, and energy if the machine reports it."""

from collections.abc import Iterator

from argosy.results.report import Report
from argosy.views.html.page import Bars, Block

__all__ = ["costs"]


def costs(report: Report) -> Iterator[Block]:
    """Yield CPU seconds of every worker, and joules of the whole machine."""
    if report.cpu_seconds:
        rows = [(name, [gauge["cpu_seconds"]]) for name, gauge in report.gauges.items()]
        bars = Bars(unit="CPU seconds", parts=["CPU seconds"], rows=rows) if rows else None
        yield f"All processes used {report.cpu_seconds:,.1f} CPU seconds in {report.seconds:,.1f} s.", bars
    if report.joules:
        listed = ", ".join(f"{name} {joules:,.0f} J" for name, joules in report.joules.items())
        yield f"Energy of the whole machine during the run: {listed}.", None
    elif report.status != "running":
        yield "The machine does not report its energy use (neither RAPL nor NVML can be read).", None
