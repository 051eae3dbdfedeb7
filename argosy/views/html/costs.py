"""The costs of the run: CPU time by worker, and energy if the machine reports it."""

from argosy.results.report import Report
from argosy.views.html.page import Bars, Passage, Section

__all__ = ["costs"]


def costs(report: Report) -> Section:
    """Return CPU seconds of every worker, and joules of the whole machine."""
    blocks = []
    workers = [(worker, gauge["cpu_seconds"]) for worker, gauge in report.gauges.items() if "cpu_seconds" in gauge]
    if report.cpu_seconds:
        text = f"{report.cpu_seconds:,.1f} CPU seconds of all processes in {report.seconds:,.1f} s."
        rows = [(worker, [seconds]) for worker, seconds in workers]
        blocks.append(
            Passage(text=text, shown=Bars(unit="CPU seconds", parts=["CPU seconds"], rows=rows) if rows else None)
        )
    if report.joules:
        told = ", ".join(f"{name} {joules:,.0f} J" for name, joules in report.joules.items())
        blocks.append(Passage(text=f"Energy of the whole machine while it went on: {told}."))
    elif report.status != "running":
        blocks.append(
            Passage(text="The machine does not tell what energy it takes (neither RAPL nor NVML can be read).")
        )
    return Section(title="What it took", blocks=blocks)
