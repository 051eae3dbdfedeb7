"""The table at the end of a run: its members, or the means of networks that several members repeat."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from argosy.errors.wording import differing_parameters
from argosy.results.member import MemberResult, format_best_epochs
from argosy.results.ranking import rank
from argosy.results.repetitions import Repetitions

__all__ = ["EndTable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndTable:
    """A table of members, or of the means of repeated networks."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """The best first."""
    note: str = ""
    """What the figures are, if they need an explanation."""

    @classmethod
    def of_members(cls, members: Sequence[MemberResult], objective: str) -> "EndTable":
        """Return the table of members in this order, without hyper-parameters that are equal in all."""
        names = dict.fromkeys(name for row in members for name in row.metrics if name not in (objective, "lr"))
        metrics = sorted(names, key=lambda name: not name.startswith("val_"))
        differ = differing_parameters({row.name: row.hyperparameters for row in members})
        rows = tuple(
            (
                *(row.name, row.metrics.get(objective, "")),
                format_best_epochs(row) if row.metrics else "",
                row.status,
                *(row.metrics.get(name, "") for name in metrics),
                *(row.hyperparameters.get(name, "") for name in differ),
                round(row.seconds, 1),
            )
            for row in members
        )
        return cls(columns=("member", objective, "best epoch", "status", *metrics, *differ, "seconds"), rows=rows)

    @classmethod
    def of_means(cls, repetitions: Repetitions, single: Sequence[MemberResult] = ()) -> "EndTable | None":
        """Return the table of means, with members that repeat no other in their places; None if nothing is repeated."""
        configurations, objective = repetitions.configurations, repetitions.objective
        if not configurations:
            return None
        others = [
            metric
            for metric in dict.fromkeys(m for each in configurations for m in each.metrics)
            if metric != objective
        ]
        less = {each.first: each.told for each in repetitions.comparisons}
        difference = [f"{objective} minus that of {configurations[0].name}"] if less else []
        pairs = " Differences are taken pair by pair." if less else ""
        if len(less) > 1:  # the best one is lucky, too
            pairs += f" Their intervals are not corrected for {len(less)} comparisons with the best."
        same = [
            each.name
            for each in configurations
            if each.metrics and all(value.half == 0 for value in each.metrics.values())
        ]
        alike = (
            f" Repetitions of {', '.join(same)} are equal in every figure, for example because a factory sets its own seed."
            if same
            else ""
        )
        columns = ("configuration", objective, *difference, "done", *others)
        rows: list[tuple[Any, ...]] = [
            (
                *(each.name, str(each.metrics.get(objective, ""))),
                *([less.get(each.name, "")] if less else []),
                f"{each.counted} of {each.repetitions}",
                *(str(each.metrics.get(metric, "")) for metric in others),
            )
            for each in configurations
        ]
        rows += [(row.name, *(row.metrics.get(name, "") for name in columns[1:])) for row in single]
        reached = [each.metrics[objective].mean if objective in each.metrics else None for each in configurations]
        reached += [row.metrics.get(objective) if row.counts else None for row in single]
        places = [rank(value, repetitions.mode) for value in reached]
        return cls(
            columns=columns,
            rows=tuple(row for _, row in sorted(zip(places, rows, strict=True), key=itemgetter(0))),
            note=f"Means over repetitions, each in its own best section, ± half of their 95 % intervals, the best first.{pairs}{alike}",
        )
