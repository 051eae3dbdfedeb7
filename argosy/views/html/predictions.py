"""Predicted and actual times of each stretch of the run."""

from argosy.results.report import Report
from argosy.views.html.page import Bars, Passage, Section, Sheet

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


def predictions(report: Report) -> Section:
    """Return actual beside predicted seconds of every leg."""
    title, legs = "Predicted and actual", report.legs
    if not legs:
        return Section(title=title, blocks=[Passage(text="No section has been passed by all of its members.")])
    # A run with a single leg need not explain the word.
    several = len(legs) > 1
    bars = [(f"leg {leg.leg}" if several else "training", (leg.seconds, leg.predicted_seconds)) for leg in legs]
    actual, predicted = (sum(getattr(leg, name) for leg in legs) for name in ("seconds", "predicted_seconds"))
    off = f": {actual / predicted:.2f} times as long as predicted" if all(leg.was_predicted for leg in legs) else ""
    said = f"Predictions are made when a section of the data begins, of training alone{off}."
    rows = [
        [
            *([leg.leg] if several else []),
            *(leg.sections, leg.samples, leg.seconds, leg.predicted_seconds),
            *(leg.samples_per_second, leg.predicted_samples_per_second, leg.planning_seconds, leg.changing_seconds),
        ]
        for leg in legs
    ]
    drawn = Bars(unit="seconds", parts=["actual", "predicted"], rows=bars, stacked=False)
    word = "A leg is a stretch of the data that some members read together." if several else "The same in figures."
    table = Sheet(columns=[*(["leg"] if several else []), *COLUMNS], rows=rows)
    return Section(title=title, blocks=[Passage(text=said, shown=drawn), Passage(text=word, shown=table)])
