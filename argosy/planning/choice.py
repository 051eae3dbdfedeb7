"""Where epoch limits are known: simulate the alternatives and take the best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from argosy.cluster import Device
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Policy
from argosy.planning.simulate import simulate

__all__ = ["simulate_best"]


def simulate_best(
    policies: Mapping[str, Policy],
    workload: Workload,
    devices: Sequence[Device],
    *,
    charges: Charges,
    clock: Callable[[], float] = lambda: 0.0,
) -> Simulation:
    """The simulation of the policy with the least makespan, the first of equals; its name is in the result.

    Trying the others is planning, too: the planner's seconds are those of all.
    """
    before = clock()
    simulations = [simulate(policy, workload, devices, charges=charges, name=name) for name, policy in policies.items()]
    best = min(simulations, key=lambda simulation: simulation.makespan_seconds)
    return replace(best, planner_seconds=clock() - before)
