"""Where epoch limits are known: simulate the alternatives and take the best."""

from collections.abc import Mapping, Sequence

from argosy.cluster import Device
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Policy
from argosy.planning.simulate import simulate

__all__ = ["simulate_best"]


def simulate_best(
    policies: Mapping[str, Policy], workload: Workload, devices: Sequence[Device], *, charges: Charges
) -> Simulation:
    """The simulation of the policy with the least makespan, the first of equals; its name is in the result."""
    simulations = [simulate(policy, workload, devices, charges=charges, name=name) for name, policy in policies.items()]
    return min(simulations, key=lambda simulation: simulation.makespan_seconds)
