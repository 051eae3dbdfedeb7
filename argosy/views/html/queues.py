"""How full the queues between the stages were, how each stage spent its time, and which one limited the run."""

from collections.abc import Mapping
from typing import Any

from argosy.results.report import Report
from argosy.views.html.page import Bars, Lines, Passage, Section

__all__ = ["queues"]

BEFORE = {"to_prepare": "preparation", "to_exchange": "exchange", "to_train": "training"}


def queues(report: Report) -> Section:
    """Return the fill over time of each feeder's queues, and busy and waiting time of each worker."""
    title = "Stages and queues"
    if not report.gauges:
        said = "Workers tell at their end what they did." if report.status == "running" else "No worker has told."
        return Section(title=title, blocks=[Passage(text=said)])
    lines = [
        _line(f"{worker}, before {stage}", gauge[queue])
        for worker, gauge in report.gauges.items()
        for queue, stage in BEFORE.items()
        if queue in gauge and gauge[queue]["history"]
    ]
    verdict = [] if report.diagnosis is None else [Passage(text=f"Bottleneck: {report.diagnosis.verdict}.")]
    said = "How full the queues were (1 is full): the stage between a full queue and an empty one is the bottleneck."
    fill = [Passage(text=said, shown=Lines(across="seconds of feeding", series=lines))] if lines else []
    stages = Passage(text="How workers spent their time.", shown=_stages(report.gauges))
    return Section(title=title, blocks=[*verdict, *fill, stages])


def _line(name: str, queue: Mapping[str, Any]) -> tuple[str, list[float], list[float]]:
    history, step = queue["history"], queue["step_seconds"]
    return name, [step * (number + 0.5) for number in range(len(history))], [*history]


def _stages(gauges: Mapping[str, Mapping[str, Any]]) -> Bars:
    """Return the bars of workers' time; a feeder is busy while it has a block in preparation."""
    rows = [
        (worker, (float(gauge["busy_seconds"]), _idle(gauge)))
        for worker, gauge in gauges.items()
        if "busy_seconds" in gauge
    ]
    return Bars(unit="seconds", parts=["busy", "waiting"], rows=rows)


def _idle(gauge: Mapping[str, Any]) -> float:
    if "waiting_seconds" in gauge:
        return float(gauge["waiting_seconds"])
    return max(float(gauge["seconds"] - gauge["busy_seconds"]), 0.0)
