"""How full the queues between the stages were, how each stage spent its time, and which one limited the run."""

from collections.abc import Mapping
from typing import Any

from argosy.results.report import Report
from argosy.views.html.page import Section, bars, figure

__all__ = ["queues"]

BEFORE = {"to_prepare": "preparation", "to_exchange": "exchange", "to_train": "training"}


def queues(report: Report) -> Section:
    """Return the fill over time of each feeder's queues, and busy and waiting time of each worker."""
    if not report.gauges:
        said = "Workers tell at their end what they did." if report.status == "running" else "No worker has told."
        return Section(title="Stages and queues", text=[said])
    text = [] if report.diagnosis is None else [f"Bottleneck: {report.diagnosis.verdict}."]
    text.append("The stage between a full queue and an empty one is the bottleneck (1 is full).")
    lines = [
        _line(f"{worker}, before {stage}", gauge[queue])
        for worker, gauge in report.gauges.items()
        for queue, stage in BEFORE.items()
        if queue in gauge and gauge[queue]["history"]
    ]
    axes = {
        "xaxis": {"title": {"text": "seconds of feeding"}},
        "yaxis": {"title": {"text": "fill"}, "range": [0, 1.02]},
    }
    fill = [figure(lines, height=300, **axes)] if lines else []
    return Section(title="Stages and queues", text=text, figures=[*fill, _stages(report.gauges)])


def _line(name: str, queue: Mapping[str, Any]) -> Mapping[str, Any]:
    history, step = queue["history"], queue["step_seconds"]
    seconds = [round(step * (number + 0.5), 2) for number in range(len(history))]
    return {"type": "scatter", "mode": "lines", "name": name, "x": seconds, "y": list(history)}


def _stages(gauges: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the bars of workers' time; a feeder is busy while it has a block in preparation."""
    workers = [worker for worker, gauge in gauges.items() if "busy_seconds" in gauge]
    busy = [round(gauges[worker]["busy_seconds"], 2) for worker in workers]
    idle = [round(_idle(gauges[worker]), 2) for worker in workers]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"autorange": "reversed", "automargin": True},
    }
    drawn = [bars("busy", workers, busy), bars("waiting", workers, idle)]
    return figure(drawn, height=120 + 24 * len(workers), **layout)


def _idle(gauge: Mapping[str, Any]) -> float:
    if "waiting_seconds" in gauge:
        return float(gauge["waiting_seconds"])
    return max(float(gauge["seconds"] - gauge["busy_seconds"]), 0.0)
