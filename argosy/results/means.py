"""Tables of the means of repeated networks, for the summary at the end of a run and for its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from argosy.results.member import MemberResult
from argosy.results.ranking import rank
from argosy.results.repetitions import Repetitions

__all__ = ["Means"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """Table of the means of repeated networks."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """The best network first."""
    text: str
    """What the figures mean."""

    @classmethod
    def of(cls, repetitions: Repetitions, single: Sequence[MemberResult] = ()) -> "Means | None":
        """Build the table, with members that repeat no other in their places; None if nothing is repeated."""
        found, objective = repetitions.configurations, repetitions.objective
        if not found:
            return None
        others = [metric for metric in dict.fromkeys(m for each in found for m in each.metrics) if metric != objective]
        less = {each.first: each.told for each in repetitions.comparisons}
        difference = [f"{objective} minus that of {found[0].name}"] if less else []
        pairs = " Differences are taken pair by pair." if less else ""
        same = [each.name for each in found if each.metrics and all(value.half == 0 for value in each.metrics.values())]
        alike = (
            f" Repetitions of {', '.join(same)} are equal in every figure, for example because a factory sets its own seed."
            if same
            else ""
        )
        columns = ["configuration", objective, *difference, "done", *others]
        rows: list[list[Any]] = [
            [
                *(each.name, str(each.metrics.get(objective, ""))),
                *([less.get(each.name, "")] if less else []),
                f"{each.counted} of {each.repetitions}",
                *(str(each.metrics.get(metric, "")) for metric in others),
            ]
            for each in found
        ]
        rows += [[row.name, *(row.metrics.get(name, "") for name in columns[1:])] for row in single]
        reached = [each.metrics[objective].mean if objective in each.metrics else None for each in found]
        reached += [row.metrics.get(objective) if row.counts else None for row in single]
        places = [rank(value, repetitions.mode) for value in reached]
        return cls(
            columns=columns,
            rows=[row for _, row in sorted(zip(places, rows, strict=True), key=itemgetter(0))],
            text=f"Means over repetitions, ± half of their 95 % intervals, the best first.{pairs}{alike}",
        )
