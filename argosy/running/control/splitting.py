"""Whether members of a run may be split over devices, and what that costs there: found out once, before the first plan."""

import math
from collections.abc import Callable, Sequence

from argosy.cluster import Cluster
from argosy.protocol.trainer import SumsTimed, TimeSums
from argosy.running.control.costs import Link
from argosy.running.control.measuring import Measuring
from argosy.settings import Settings

__all__ = ["Timing", "measuring_of_run"]

MOST_RANKS = 4
"""Devices of the largest group that is measured; what larger ones cost follows from it (FLEET's Equation 5)."""


def measuring_of_run(settings: Settings, cluster: Cluster, *, side_by_side: bool) -> Measuring:
    """What a run finds out of its members: of shares as well, where it has devices to split them over."""
    devices = len(cluster.devices)
    unsplit = _why_unsplit(settings, side_by_side=side_by_side) if devices > 1 else ""
    groups = 1 if unsplit else min(devices, MOST_RANKS)
    exact = settings.numerics == "exact"
    return Measuring(device_kind=cluster.devices[0].kind, groups=groups, unsplit=unsplit, exact=exact)


def _why_unsplit(settings: Settings, *, side_by_side: bool) -> str:
    """Why no member is split, however many devices there are; empty where some may be."""
    if settings.numerics == "exact":
        return "numerics is 'exact', and sums over devices round otherwise"
    if not side_by_side:
        return "this launcher steps its devices one after another"
    return ""


class Timing:
    """Lets some trainers time sums over their group."""

    def __init__(self) -> None:
        self._asked: tuple[str, ...] = ()
        self._found: dict[str, SumsTimed] = {}
        self.over: bool = False
        """Whether all that can be known is known."""

    def commands(self, devices: Sequence[str], rendezvous: Callable[[], str]) -> dict[str, TimeSums]:
        """What the first of these devices are asked; none is asked before those that were have answered."""
        if self._asked:
            return {}
        self._asked, self._found = tuple(devices)[:MOST_RANKS], {}
        size, where = len(self._asked), rendezvous()
        return {device: TimeSums(rendezvous=where, rank=rank, size=size) for rank, device in enumerate(self._asked)}

    def forget(self) -> None:
        """A trainer that was asked is gone."""
        self._asked, self._found = (), {}

    def handle(self, device: str, timed: SumsTimed) -> Link | None:
        """An answer; what is known when it was the last one. None while others are to come, or where nothing came of it."""
        if device not in self._asked:
            return None
        self._found[device] = timed
        if len(self._found) < len(self._asked):
            return None
        self.over = True
        short = max(answer.short_seconds for answer in self._found.values())
        long = max(answer.long_seconds for answer in self._found.values())
        return Link.measured(len(self._asked), short, long) if long < math.inf else None
