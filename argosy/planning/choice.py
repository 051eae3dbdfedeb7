"""Choice between policies by simulation, for members whose epochs are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from argosy.cluster import Device
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Policy
from argosy.planning.simulate import simulate

__all__ = ["CLEAR_MARGIN", "simulate_best"]

CLEAR_MARGIN = 0.05
"""Fraction of the first policy's makespan that another one must save to be chosen: rates are not known more precisely, and the
simulation does not count the memory of several streams."""


def simulate_best(
    policies: Mapping[str, Policy],
    workload: Workload,
    devices: Sequence[Device],
    *,
    charges: Charges,
    clock: Callable[[], float] = lambda: 0.0,
    margin: float = 0.0,
) -> Simulation:
    """Return the simulation of the policy with the shortest makespan, the first of equals; it contains the policy's name.

    A policy other than the first is chosen only if it saves more than `margin`, a fraction of the first one's makespan.
    ``planner_seconds`` in the result covers all simulations, because trying alternatives is part of planning.
    """
    before = clock()
    simulations = [simulate(policy, workload, devices, charges=charges, name=name) for name, policy in policies.items()]
    first, best = simulations[0], min(simulations, key=lambda simulation: simulation.makespan_seconds)
    if best.makespan_seconds >= (1 - margin) * first.makespan_seconds:
        best = first
    return replace(best, planner_seconds=clock() - before)
