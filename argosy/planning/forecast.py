"""Forecast for a study on a cluster that need not exist: plan, makespan, bottleneck, and the effect of more devices."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.planning import POLICIES, WITH_KNOWN_EPOCHS, make_plan
from argosy.planning.choice import CLEAR_MARGIN, simulate_best
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Moving
from argosy.planning.simulate import simulate
from argosy.plans import Plan
from argosy.profiles import PreparationRates, Profile

__all__ = ["Forecast", "forecast"]

MORE_DEVICES = (2, 4)
"""Factors by which larger clusters are simulated, besides the requested one."""
NEARLY_FULL = 0.99
"""Devices with at least this fraction of the largest load are bottlenecks like the busiest one."""
TYPICAL_MOVING = Moving(rebalance_seconds=2.0, bytes_per_second=1e9)
"""Assumed costs of moving, because no run has measured them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A plan and its predicted outcome."""

    plan: Plan
    simulation: Simulation
    bottleneck: str
    growth: Mapping[int, float]
    """Makespan of the same study in seconds, by larger numbers of devices."""
    profiles_from: str
    """Where the costs were measured."""

    def explain(self) -> str:
        """Return a text about shared devices, split members, pace, makespan, bottleneck, and the effect of more devices."""
        split = [p.member for flotilla in self.plan.flotillas for p in flotilla.placements if p.is_split]
        run = self.simulation
        lines = [
            f"profiles: {self.profiles_from}",
            self.plan.explain(),
            f"split over several devices: {', '.join(split) or 'none'}",
            f"waiting for memory or a device: {', '.join(self.plan.waiting) or 'none'}",
            f"predicted makespan {_duration(run.makespan_seconds)} without validation (lower bound of any plan: {_duration(run.bound_seconds)}), "
            f"{run.flotillas} flotilla(s), {run.moves} move(s), devices idle {run.idle_share:.0%}",
            f"bottleneck: {self.bottleneck}",
        ]
        for devices, seconds in self.growth.items():
            gain = run.makespan_seconds / seconds if seconds else 1.0
            lines.append(f"with {devices} devices: {_duration(seconds)}, {gain:.2f} times as fast")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as a plain JSON value."""
        return {
            "profiles_from": self.profiles_from,
            "plan": self.plan.to_json(),
            "simulation": self.simulation.to_json(),
            "bottleneck": self.bottleneck,
            "growth": [{"devices": count, "makespan_seconds": seconds} for count, seconds in self.growth.items()],
        }


def forecast(
    profiles: Sequence[Profile],
    cluster: str,
    *,
    epochs: Mapping[str, int],
    samples_per_epoch: int,
    epochs_known: bool = True,
    policy: str = "balanced",
    preparation: PreparationRates | None = None,
    profiles_from: str = "measured here",
) -> Forecast:
    """Plan and simulate a study on a cluster, given for example as ``2x4x80GB``, and on larger clusters of the same nodes.

    Devices are of the kind on which the profiles were measured, and every node prepares with all its cores. All members train to their
    limits in ``epochs``; without ``epochs_known``, policies see these only as limits. A member without a limit counts with one epoch, which
    a note of the plan says. Larger clusters for which the policy finds no plan are left out, because ``exact`` solves only small cases.
    """
    kinds = sorted({profile.device_kind for profile in profiles})
    if len(kinds) != 1:
        listed = ", ".join(map(repr, kinds)) or "none"
        raise PlanError(
            f"the profiles must be of one kind of device; found {listed}. Measure all members on the same kind."
        )
    wanted_cluster = Cluster.parse(cluster, kind=kinds[0])
    unlimited = [profile.member for profile in profiles if profile.member not in epochs]
    known = epochs_known and not unlimited
    workload = Workload(
        profiles=tuple(profiles),
        epochs={**dict.fromkeys(unlimited, 1), **epochs},
        samples_per_epoch=samples_per_epoch,
        epochs_known=known,
        limits=epochs,
    )

    def simulated(times: int) -> Simulation:
        grown = wanted_cluster.times(times)
        charges = Charges(moving=TYPICAL_MOVING, preparation_samples_per_second=_preparation_rate(grown, preparation))
        if policy == "balanced" and known:
            return simulate_best(WITH_KNOWN_EPOCHS, workload, grown.devices, charges=charges, margin=CLEAR_MARGIN)
        return simulate(POLICIES[policy], workload, grown.devices, charges=charges, name=policy)

    simulation, prepared = simulated(1), _preparation_rate(wanted_cluster, preparation)
    plan = make_plan(
        profiles,
        wanted_cluster.devices,
        policy=simulation.policy,
        # None would mean to policies that it is not measured, and they would share one stream.
        preparation_samples_per_second=prepared or math.inf,
        epochs_left=epochs,
        samples_per_epoch=samples_per_epoch,
    )
    if unlimited:
        plan = replace(
            plan, notes=(f"{', '.join(unlimited)}: no rule limits their epochs, so one epoch of each is counted",)
        )
    growth: dict[int, float] = {}
    for times in MORE_DEVICES:
        with contextlib.suppress(PlanError):
            growth[times * len(wanted_cluster.devices)] = simulated(times).makespan_seconds
    return Forecast(
        plan=plan,
        simulation=simulation,
        bottleneck=_bottleneck(plan, profiles, prepared),
        growth=growth,
        profiles_from=f"{profiles_from}, on one {kinds[0]}",
    )


def _preparation_rate(cluster: Cluster, preparation: PreparationRates | None) -> float | None:
    """Return the samples per second that all nodes prepare together; None if this was not measured."""
    if preparation is None:
        return None
    return sum(preparation.rate(node.cores) for node in cluster.nodes)


def _bottleneck(plan: Plan, profiles: Sequence[Profile], prepared: float | None) -> str:
    """Return the stage that sets the pace, and what would change it."""
    pace = sum(flotilla.samples_per_second for flotilla in plan.flotillas)
    if prepared is not None and prepared < pace:
        return (
            f"preparation: {prepared:,.0f} samples/s, but the devices could train {pace:,.0f}; more cores would help."
        )
    if plan.waiting:
        return f"memory or devices: {len(plan.waiting)} member(s) wait; reduce batch sizes or add devices."
    slowest = min(plan.flotillas, key=lambda flotilla: flotilla.samples_per_second)
    loads, splittable = slowest.loads, {profile.member: profile.splittable for profile in profiles}
    busiest = max(loads, key=lambda device: loads[device])
    # Bisection fills other devices up to the load of the one whose member cannot be split.
    full = [device for device, load in loads.items() if load >= NEARLY_FULL * loads[busiest]]
    for device, pack in ((device, slowest.pack(device)) for device in full):
        if len(pack) == 1 and not splittable[pack[0].member]:
            return f"member {pack[0].member!r}, alone on {device}: it cannot be split; only a faster device would help."
    members = ", ".join(placement.member for placement in slowest.pack(busiest))
    return f"training on {busiest}: {members}; more devices would help."


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:,.1f} s"
