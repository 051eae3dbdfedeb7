"""(profiles, cluster) -> Plan. Pure decisions: no torch, no clock, no files, no processes.

A policy is one file with one class that answers the two questions of ``policy.Policy``, and one line in ``POLICIES``.
"""

import math
from collections.abc import Mapping, Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.spelling import meant
from argosy.planning.balanced import Balanced
from argosy.planning.choice import CLEARLY, simulate_best
from argosy.planning.exact import Exact
from argosy.planning.fleet import Fleet
from argosy.planning.outcomes import Charges, Workload
from argosy.planning.policy import FILES, Moving, Policy, Situation
from argosy.planning.rounds import Rounds
from argosy.planning.solo import SoloPolicy
from argosy.plans import Plan
from argosy.profiles import Profile

__all__ = [
    "FILES",
    "POLICIES",
    "SKIPPING",
    "WITH_KNOWN_EPOCHS",
    "Moving",
    "Policy",
    "Situation",
    "best_with_known_epochs",
    "make_plan",
    "policy_called",
]

POLICIES: dict[str, Policy] = {
    "balanced": Balanced(),
    "exact": Exact(),
    "fleet": Fleet(),
    "fleet-local": Fleet(local=True),
    "fleet-relative": Fleet(delta=20 / 176, relative=True),
    "rounds": Rounds(),
    "solo": SoloPolicy(),
}
"""``fleet-relative`` has the published Δ as a part of the rate of the fastest published network."""

SKIPPING = ("fleet", "fleet-local", "fleet-relative")
"""Policies with flotillas of members at unlike epochs: a member that is behind skips epochs of the stream, so that the devices of
the others do not wait. Under the other policies every member trains every epoch of the stream."""

WITH_KNOWN_EPOCHS = {name: POLICIES[name] for name in ("balanced", "rounds", "solo")}
"""Policies that ``balanced`` compares where it knows the epochs of every member."""

MOST_EPOCHS = 400
"""Most epochs of a member in such a comparison."""


def make_plan(
    profiles: Sequence[Profile],
    devices: Sequence[Device],
    *,
    policy: str = "balanced",
    preparation_samples_per_second: float | None = None,
    epochs_left: Mapping[str, int] | None = None,
    samples_per_epoch: int = 1,
) -> Plan:
    """Decide what to start on these devices, all of which are free; members without a place are in ``Plan.waiting``.

    A member is split only if its profile says that it may be. `epochs_left` has those of members with a limit.
    """
    situation = Situation(
        waiting=tuple(profiles),
        free=tuple(devices),
        devices=tuple(devices),
        preparation_samples_per_second=preparation_samples_per_second,
        epochs_left=epochs_left or {},
        samples_per_epoch=samples_per_epoch,
    )
    return Plan.of(policy, policy_called(policy).launch(situation), profiles, devices)


def policy_called(name: str) -> Policy:
    """Return the policy of that name; raises PlanError where there is none."""
    if name not in POLICIES:
        raise PlanError(f"unknown policy {name!r}{meant(name, POLICIES)}; choose one of {', '.join(POLICIES)}.")
    return POLICIES[name]


def best_with_known_epochs(situation: Situation, charges: Charges) -> str:
    """Return ``balanced``, or the policy that ends clearly sooner in a simulation on the whole cluster."""
    # A simulation asks the policy at each end of an epoch: where there are very many, several of them count as one.
    # Members that wait only to be saved may have none left.
    as_one = max(math.ceil(max(situation.epochs_left.values(), default=1) / MOST_EPOCHS), 1)
    workload = Workload(
        profiles=situation.waiting,
        epochs={member: math.ceil(epochs / as_one) for member, epochs in situation.epochs_left.items()},
        samples_per_epoch=situation.samples_per_epoch * as_one,
    )
    return simulate_best(WITH_KNOWN_EPOCHS, workload, situation.devices, charges=charges, margin=CLEARLY).policy
