"""Networks that several members repeat, in words: for the text of a report and for its page."""

from collections.abc import Sequence
from dataclasses import dataclass

from argosy.results.report import Report

__all__ = ["Means"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """Table of the means of repeated networks."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The best network first."""
    text: str
    """What the figures mean."""

    @classmethod
    def of(cls, report: Report) -> "Means | None":
        """Build the table for a run; None if its members repeat nothing."""
        found = report.repetitions.configurations
        if not found:
            return None
        metrics = list(dict.fromkeys(metric for each in found for metric in each.metrics))
        less = {each.first: each.told for each in report.repetitions.comparisons}
        pairs = " Differences are taken pair by pair." if less else ""
        return cls(
            columns=[
                *("configuration", "done", *metrics),
                *([f"{report.objective} minus that of {found[0].name}"] if less else []),
            ],
            rows=[
                [
                    *(each.name, f"{each.counted} of {each.repetitions}"),
                    *(str(each.metrics.get(metric, "")) for metric in metrics),
                    *([less.get(each.name, "")] if less else []),
                ]
                for each in found
            ],
            text=f"Means over repetitions, ± half of their 95 % intervals, the best first.{pairs}",
        )
