"""The costs of the run: CPU time by worker, and energy if the machine reports it."""

from argosy.results.report import Report
from argosy.views.html.page import Section, bars, figure

__all__ = ["costs"]


def costs(report: Report) -> Section:
    """Return CPU seconds of every worker, and joules of the whole machine."""
    text = []
    if report.cpu_seconds:
        text.append(f"{report.cpu_seconds:,.1f} CPU seconds of all processes in {report.seconds:,.1f} s.")
    if report.joules:
        told = ", ".join(f"{name} {joules:,.0f} J" for name, joules in report.joules.items())
        text.append(f"Energy of the whole machine while it went on: {told}.")
    elif report.status != "running":
        text.append("The machine does not tell what energy it takes (neither RAPL nor NVML can be read).")
    workers = [worker for worker, gauge in report.gauges.items() if "cpu_seconds" in gauge]
    values = [round(report.gauges[worker]["cpu_seconds"], 2) for worker in workers]
    layout = {"xaxis": {"title": {"text": "CPU seconds"}}, "yaxis": {"autorange": "reversed", "automargin": True}}
    drawn = (
        [figure([bars("CPU seconds", workers, values)], height=120 + 24 * len(workers), **layout)] if workers else []
    )
    return Section(title="What it took", text=text, figures=drawn)
