"""Predicted and actual times of each stretch of the run."""

from collections.abc import Iterator

from argosy.results.report import Report
from argosy.views.html.page import Bars, Block, Sheet

__all__ = ["predictions"]

COLUMNS = (
    "sections",
    "samples",
    "seconds",
    "predicted seconds",
    "samples/s",
    "predicted samples/s",
    "planning s",
    "changing s",
)


def predictions(report: Report) -> Iterator[Block]:
    """Yield actual beside predicted seconds of every leg."""
    legs = report.legs
    if not legs:
        yield "No section has been finished by all of its members.", None
        return
    # A run with a single leg need not explain the word.
    several = len(legs) > 1
    bars = [(f"leg {leg.leg}" if several else "training", (leg.seconds, leg.predicted_seconds)) for leg in legs]
    actual, predicted = (sum(getattr(leg, name) for leg in legs) for name in ("seconds", "predicted_seconds"))
    off = (
        f"; it took {actual / predicted:.2f} times as long as predicted"
        if all(leg.was_predicted for leg in legs)
        else ""
    )
    yield (
        f"Predictions are made when a section of the data begins, and cover training only{off}.",
        Bars(unit="seconds", parts=["actual", "predicted"], rows=bars, stacked=False),
    )
    rows = [
        [
            *([leg.leg] if several else []),
            *(leg.sections, leg.samples, leg.seconds, leg.predicted_seconds),
            *(leg.samples_per_second, leg.predicted_samples_per_second, leg.planning_seconds, leg.changing_seconds),
        ]
        for leg in legs
    ]
    word = "A leg is a stretch of the data that some members read together." if several else "The same in numbers."
    yield word, Sheet(columns=[*(["leg"] if several else []), *COLUMNS], rows=rows)
