"""How each stretch of the run kept to what was predicted of it."""

from argosy.report import Report
from argosy.views.html.page import Section, figure
from argosy.wording import html_table

__all__ = ["predictions"]

COLUMNS = (
    "leg",
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
    """Actual beside predicted seconds of every leg."""
    title = "Predicted and actual"
    if not report.legs:
        return Section(title=title, text=["No section has been passed by all of its members."])
    names = [f"leg {leg.leg}" for leg in report.legs]
    drawn = [
        {"type": "bar", "name": "actual", "x": names, "y": [leg.seconds for leg in report.legs]},
        {"type": "bar", "name": "predicted", "x": names, "y": [leg.predicted_seconds for leg in report.legs]},
    ]
    actual, predicted = (sum(getattr(leg, name) for leg in report.legs) for name in ("seconds", "predicted_seconds"))
    off = f": {actual / predicted:.2f} times as long as predicted" if predicted else ""
    text = [
        "A leg is a stretch of the data that some members read together; predictions are made when a section begins, of "
        f"training alone{off}."
    ]
    rows = [
        [
            *(leg.leg, leg.sections, leg.samples, leg.seconds, leg.predicted_seconds),
            *(leg.samples_per_second, leg.predicted_samples_per_second, leg.planning_seconds, leg.changing_seconds),
        ]
        for leg in report.legs
    ]
    layout = {"barmode": "group", "yaxis": {"title": {"text": "seconds"}}}
    return Section(
        title=title, text=text, figures=[figure(drawn, height=300, **layout)], table=html_table(COLUMNS, rows)
    )
