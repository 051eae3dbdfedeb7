"""Pure functions from profiles and a cluster to a plan; they use no torch, clock, files or processes.

To add a policy, write one file with a class that implements ``policy.Policy``, and add a line to ``POLICIES``.
"""

import math
from collections.abc import Mapping, Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.spelling import did_you_mean
from argosy.planning.balanced import Balanced
from argosy.planning.choice import CLEAR_MARGIN, simulate_best
from argosy.planning.exact import Exact
from argosy.planning.fleet import Fleet
from argosy.planning.outcomes import Charges, Workload
from argosy.planning.policy import MOVING_BY_FILES, Moving, Policy, Situation
from argosy.planning.rounds import Rounds
from argosy.planning.solo import SoloPolicy
from argosy.plans import Plan
from argosy.profiles import Profile

__all__ = [
    "MOVING_BY_FILES",
    "POLICIES",
    "SKIPPING",
    "WITH_KNOWN_EPOCHS",
    "Moving",
    "Policy",
    "Situation",
    "best_with_known_epochs",
    "make_plan",
    "policy_by_name",
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
"""Policies by name; ``fleet-relative`` uses the published Δ as a fraction of the rate of the fastest published network."""

SKIPPING = ("fleet", "fleet-local", "fleet-relative")
"""Policies whose flotillas may contain members at different epochs. A member that is behind skips epochs of the stream, so that the
devices of the others do not wait. Under all other policies, every member trains every epoch of the stream."""

WITH_KNOWN_EPOCHS = {name: POLICIES[name] for name in ("balanced", "rounds", "solo")}
"""Policies that ``balanced`` compares if it knows the epochs of every member."""

MOST_EPOCHS = 400
"""Largest number of epochs per member that such a comparison simulates."""


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

    A member is split only if its profile allows it. `epochs_left` contains the members that have a limit.
    """
    situation = Situation(
        waiting=tuple(profiles),
        free=tuple(devices),
        devices=tuple(devices),
        preparation_samples_per_second=preparation_samples_per_second,
        epochs_left=epochs_left or {},
        samples_per_epoch=samples_per_epoch,
    )
    return Plan.of(policy, policy_by_name(policy).launch(situation), profiles, devices)


def policy_by_name(name: str) -> Policy:
    """Return the policy called `name`; raises PlanError if there is none."""
    if name not in POLICIES:
        raise PlanError(f"unknown policy {name!r}{did_you_mean(name, POLICIES)}; choose one of {', '.join(POLICIES)}.")
    return POLICIES[name]


def best_with_known_epochs(situation: Situation, charges: Charges) -> str:
    """Return ``balanced``, or the policy that finishes clearly sooner in a simulation on the whole cluster."""
    # The simulation asks the policy after each epoch, so if there are very many, several are simulated as one.
    # Members that only wait to be saved may have none left.
    as_one = max(math.ceil(max(situation.epochs_left.values(), default=1) / MOST_EPOCHS), 1)
    workload = Workload(
        profiles=situation.waiting,
        epochs={member: math.ceil(epochs / as_one) for member, epochs in situation.epochs_left.items()},
        samples_per_epoch=situation.samples_per_epoch * as_one,
    )
    return simulate_best(WITH_KNOWN_EPOCHS, workload, situation.devices, charges=charges, margin=CLEAR_MARGIN).policy
