"""(profiles, cluster) -> Plan. Pure decisions: no torch, no clock, no files, no processes.

A policy is one file with one function ``launch`` and one line in ``POLICIES``.
"""

from collections.abc import Callable, Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.planning import balanced, solo
from argosy.plans import Flotilla, Plan
from argosy.profiles import Profile

__all__ = ["POLICIES", "Launch", "make_plan"]

Launch = Callable[[Sequence[Profile], Sequence[Device]], tuple[Flotilla, ...]]
"""(waiting members, free devices) -> flotillas to start; asked at the start and whenever devices become free."""

POLICIES: dict[str, Launch] = {"balanced": balanced.launch, "solo": solo.launch}


def make_plan(profiles: Sequence[Profile], devices: Sequence[Device], *, policy: str = "balanced") -> Plan:
    """What to start on these free devices; members that found no place are in ``Plan.waiting``."""
    if policy not in POLICIES:
        raise PlanError(f"unknown policy {policy!r}; choose one of {', '.join(POLICIES)}.")
    flotillas = POLICIES[policy](profiles, devices)
    started = {member for flotilla in flotillas for member in flotilla.members}
    waiting = tuple(p.member for p in profiles if p.member not in started)
    return Plan(policy=policy, flotillas=flotillas, waiting=waiting)
