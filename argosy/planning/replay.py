"""Simulates a table of networks (rate, epochs, size) under any policy, to compare with FLEET's published workload."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.checks import check_whole
from argosy.errors.wording import format_bytes
from argosy.planning import POLICIES, WITH_KNOWN_EPOCHS
from argosy.planning.choice import simulate_best
from argosy.planning.outcomes import Charges, Simulation, Workload
from argosy.planning.policy import Moving
from argosy.planning.simulate import simulate
from argosy.profiles import Profile

__all__ = ["Network", "charges_of", "replay", "workload_of"]

DRAWN_AT_RANDOM = ("rounds", "solo")
"""Policies for which the published runs took the members in random order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """One row of a table."""

    name: str
    samples_per_second: float
    epochs: int
    model_bytes: int


def charges_of(policy: str, charges: Charges) -> Charges:
    """Return the costs that apply to a policy, as its authors or this package define them.

    Only FLEET's policies stop, save, load and start again for each flotilla. Other policies that move members pay for the moves. With
    `one_pace`, members of published policies wait for the slowest of their flotilla as well; the published figures show that they did not.
    """
    published = policy.startswith("fleet") or policy in DRAWN_AT_RANDOM
    return replace(
        charges,
        flotilla_seconds=charges.flotilla_seconds if policy.startswith("fleet") else 0.0,
        moving=Moving() if published else charges.moving,
        one_pace=charges.one_pace or not published,
    )


def workload_of(
    networks: Sequence[Network],
    *,
    scaling: Sequence[Sequence[float]] = (),
    samples_per_epoch: int,
    device_memory_bytes: int,
    activation_bytes: int,
    node_devices: int = 4,
    epochs_known: bool = False,
) -> Workload:
    """Return the workload of networks for which only rate and size are known.

    On several devices, a network scales like the curve of ``scaling`` (rates on 1, 2, … devices) whose rate on one device is
    nearest; without curves, no network is split. Weights, gradients and momentum take three times the size of the model; of these,
    weights and momentum move. Activations take ``activation_bytes``, or what is left of the device.
    """

    def profile(network: Network) -> Profile:
        resident = 3 * network.model_bytes
        activation = min(activation_bytes, device_memory_bytes - resident)
        if resident >= device_memory_bytes:
            raise PlanError(
                f"network {network.name!r} needs {format_bytes(resident)} without activations; the device has "
                f"{format_bytes(device_memory_bytes)}. Use devices with more memory, or remove the network."
            )
        curve = min(scaling, key=lambda rates: abs(rates[0] - network.samples_per_second), default=[1.0])
        return Profile(
            member=network.name,
            device_kind="gpu",
            samples_per_second=tuple(network.samples_per_second * rate / curve[0] for rate in curve),
            memory_bytes=resident + activation,
            state_bytes=2 * network.model_bytes,
            activation_bytes=activation,
            splittable=bool(scaling),
            node_devices=node_devices,
        )

    return Workload(
        profiles=tuple(profile(network) for network in networks),
        epochs={network.name: network.epochs for network in networks},
        samples_per_epoch=samples_per_epoch,
        epochs_known=epochs_known,
    )


def replay(
    policy: str,
    workload: Workload,
    devices: Sequence[Device],
    *,
    charges: Charges,
    draws: int = 21,
    clock: Callable[[], float] = lambda: 0.0,
) -> Simulation:
    """Simulate one policy on one cluster; for a policy with random order, return the run with the median makespan of `draws`.

    If ``balanced`` may see the epochs of all members, it simulates the alternatives and takes the best, as it does in plans.
    """
    check_whole("draws", draws, least=1)
    if policy == "balanced" and workload.epochs_known:
        best = simulate_best(WITH_KNOWN_EPOCHS, workload, devices, charges=charges_of(policy, charges), clock=clock)
        return replace(best, policy=policy)
    orders = [workload] if policy not in DRAWN_AT_RANDOM else [_shuffle(workload, seed) for seed in range(draws)]
    runs = [
        simulate(POLICIES[policy], order, devices, charges=charges_of(policy, charges), name=policy, clock=clock)
        for order in orders
    ]
    return sorted(runs, key=lambda run: run.makespan_seconds)[len(runs) // 2]


def _shuffle(workload: Workload, seed: int) -> Workload:
    profiles = list(workload.profiles)
    Random(seed).shuffle(profiles)
    return replace(workload, profiles=tuple(profiles))
