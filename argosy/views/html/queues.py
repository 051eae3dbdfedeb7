"""How full the queues between the stages were, how each stage spent its time, and which one limited the run."""

from collections.abc import Iterator, Mapping
from typing import Any

from argosy.results.report import Report
from argosy.views.html.page import Bars, Block, Lines

__all__ = ["queues"]

BEFORE = {"to_prepare": "preparation", "to_exchange": "exchange", "to_train": "training"}


def queues(report: Report) -> Iterator[Block]:
    """Yield the fill over time of each feeder's queues, and busy and waiting time of each worker."""
    if not report.gauges:
        running = report.status == "running"
        yield "Workers report what they did when they end." if running else "No worker has reported.", None
        return
    if report.diagnosis is not None:
        yield f"Bottleneck: {report.diagnosis.verdict}.", None
    lines = [
        _line(f"{worker}, before {stage}", gauge[queue])
        for worker, gauge in report.gauges.items()
        for queue, stage in BEFORE.items()
        if queue in gauge and gauge[queue]["history"]
    ]
    if lines:
        caption = (
            "How full the queues were (1 is full): the stage between a full queue and an empty one is the bottleneck."
        )
        yield caption, Lines(across="seconds of feeding", series=lines)
    # A feeder is busy while it has a block in preparation.
    busy = {worker: gauge for worker, gauge in report.gauges.items() if "busy_seconds" in gauge}
    rows = [(worker, (float(gauge["busy_seconds"]), _idle(gauge))) for worker, gauge in busy.items()]
    yield "How workers spent their time.", Bars(unit="seconds", parts=["busy", "waiting"], rows=rows)


def _line(name: str, queue: Mapping[str, Any]) -> tuple[str, list[float], list[float]]:
    history, step = queue["history"], queue["step_seconds"]
    return name, [step * (number + 0.5) for number in range(len(history))], [*history]


def _idle(gauge: Mapping[str, Any]) -> float:
    if "waiting_seconds" in gauge:
        return float(gauge["waiting_seconds"])
    return max(float(gauge["seconds"] - gauge["busy_seconds"]), 0.0)
