"""Where epoch limits are known: simulate the alternatives and take the best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from argosy.cluster import Device
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Policy
from argosy.planning.simulate import simulate

__all__ = ["CLEARLY", "simulate_best"]

CLEARLY = 0.05
"""Part of the first alternative's makespan that another must save to be taken: rates are not known better, and the memory of
several streams is in no figure."""


def simulate_best(
    policies: Mapping[str, Policy],
    workload: Workload,
    devices: Sequence[Device],
    *,
    charges: Charges,
    clock: Callable[[], float] = lambda: 0.0,
    margin: float = 0.0,
) -> Simulation:
    """Return the simulation of the policy with the least makespan, the first of equals; its name is in the result.

    Another than the first is taken only if it saves more than this margin, a part of the first one's makespan.
    Trying the others is planning, too: the planner's seconds are those of all.
    """
    before = clock()
    simulations = [simulate(policy, workload, devices, charges=charges, name=name) for name, policy in policies.items()]
    first, best = simulations[0], min(simulations, key=lambda simulation: simulation.makespan_seconds)
    if best.makespan_seconds >= (1 - margin) * first.makespan_seconds:
        best = first
    return replace(best, planner_seconds=clock() - before)
