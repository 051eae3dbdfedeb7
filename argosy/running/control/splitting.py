"""Whether members may be split over devices, and what an all-reduce costs: measured once, before the first plan."""

import math
from collections.abc import Callable, Sequence

from argosy.cluster import Cluster
from argosy.protocol.trainer import SumsTimed, TimeSums
from argosy.running.control.costs import Link
from argosy.running.control.measuring import CostTable
from argosy.settings import Settings

__all__ = ["AllReduceTiming", "make_cost_table"]

MOST_RANKS = 4
"""Largest number of devices that is measured; costs of larger groups are extrapolated (FLEET's Equation 5)."""


def make_cost_table(settings: Settings, cluster: Cluster, *, side_by_side: bool) -> CostTable:
    """Return what a run measures of its members: shards too, if there are devices to split them over."""
    devices = len(cluster.devices)
    unsplit = _why_unsplit(settings, side_by_side=side_by_side) if devices > 1 else ""
    groups = 1 if unsplit else min(devices, MOST_RANKS)
    exact = settings.numerics == "exact"
    return CostTable(device_kind=cluster.devices[0].kind, groups=groups, unsplit=unsplit, exact=exact)


def _why_unsplit(settings: Settings, *, side_by_side: bool) -> str:
    """Return why no member is split, whatever the number of devices; empty if members may be split."""
    if settings.numerics == "exact":
        return "numerics is 'exact', and sums over devices round differently"
    if not side_by_side:
        return "this launcher steps its devices one after another"
    return ""


class AllReduceTiming:
    """Lets trainers time all-reduces over their group."""

    def __init__(self) -> None:
        self._asked: tuple[str, ...] = ()
        self._found: dict[str, SumsTimed] = {}
        self.over: bool = False
        """Whether timing is finished."""

    def commands(self, devices: Sequence[str], rendezvous: Callable[[], str]) -> dict[str, TimeSums]:
        """Return commands for the first of these devices; none while an earlier request is pending."""
        if self._asked:
            return {}
        self._asked, self._found = tuple(devices)[:MOST_RANKS], {}
        size, where = len(self._asked), rendezvous()
        return {device: TimeSums(rendezvous=where, rank=rank, size=size) for rank, device in enumerate(self._asked)}

    def forget(self) -> None:
        """Discard a request, because a trainer that was asked is lost."""
        self._asked, self._found = (), {}

    def handle(self, device: str, timed: SumsTimed) -> Link | None:
        """Handle an answer; return the result if it was the last one, else None. None also if timing failed."""
        if device not in self._asked:
            return None
        self._found[device] = timed
        if len(self._found) < len(self._asked):
            return None
        self.over = True
        short = max(answer.short_seconds for answer in self._found.values())
        long = max(answer.long_seconds for answer in self._found.values())
        return Link.measured(len(self._asked), short, long) if long < math.inf else None
