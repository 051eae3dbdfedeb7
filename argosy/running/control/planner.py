"""Questions to the policy: what it knows of a run's costs, and what it starts on free devices.

Pure functions, like the policy itself. The policy is asked once for each change, with everything that the run knows.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.planning import MOVING_BY_FILES, POLICIES, Policy, Situation, best_with_known_epochs
from argosy.planning.outcomes import Charges
from argosy.planning.policy import NamedPolicy
from argosy.plans import Flotilla, Placement, Plan
from argosy.profiles import Profile
from argosy.protocol.events import Split
from argosy.settings import Settings

__all__ = ["Planner", "restore_shares"]


@dataclass(slots=True)
class Planner:
    """Asks the policy of one run."""

    cluster: Cluster
    policy_name: str
    policy: Policy
    """The policy that plans."""
    preparation_seconds: float = 0.0
    """Seconds that one core needs for one sample."""
    opening_seconds: float = 0.0
    """Seconds that each feeder needs to open the data."""
    wrap_policy: Callable[[Policy], Policy] = lambda policy: policy
    """Wraps a policy so that it repeats earlier answers to the same questions."""

    @classmethod
    def of(
        cls, cluster: Cluster, settings: Settings, wrap_policy: Callable[[Policy], Policy], packs: NamedPolicy | None
    ) -> "Planner":
        """Return the planner of a run: `packs`, the policy of a search, replaces that of the settings."""
        if packs is not None:  # its answers follow from the proposals of the search
            return cls(cluster=cluster, policy_name=packs.name, policy=packs)
        policy = POLICIES[settings.policy]
        # With one device there is only one plan, and with exact numerics plans do not affect bits.
        if len(cluster.devices) == 1 or settings.numerics == "exact":
            return cls(cluster=cluster, policy_name=settings.policy, policy=policy)
        return cls(cluster=cluster, policy_name=settings.policy, policy=wrap_policy(policy), wrap_policy=wrap_policy)

    @property
    def preparation_rate(self) -> float | None:
        """Samples per second that the cluster can prepare; None if its cores also train, or if all must share one stream."""
        if not self.preparation_seconds or any(device.kind == "cpu" for device in self.cluster.devices):
            return None
        return sum(node.cores for node in self.cluster.nodes) / self.preparation_seconds

    def switch_policy(self, situation: Situation) -> None:
        """Switch to the policy that finishes first, given that the epochs of all members are known."""
        self.policy_name = best_with_known_epochs(situation, self.charges)
        self.policy = self.wrap_policy(POLICIES[self.policy_name])

    @property
    def charges(self) -> Charges:
        """Costs of a run besides training."""
        cores = sum(node.cores for node in self.cluster.nodes)
        return Charges(
            moving=MOVING_BY_FILES,
            flotilla_seconds=MOVING_BY_FILES.rebalance_seconds,
            preparation_samples_per_second=cores / self.preparation_seconds if self.preparation_seconds else None,
            preparation_known=self.preparation_rate is not None,
            training_share=1 / cores if self.cluster.devices[0].kind == "cpu" else 0.0,
            opening_seconds=self.opening_seconds,
        )

    def sample_seconds(self, paces: Sequence[float]) -> float:
        """Return the seconds that all members lose per sample of the last of these concurrent streams."""
        if self.preparation_rate is not None:
            return max(sum(paces) / self.preparation_rate - 1.0, 0.0) / paces[-1]
        return self.preparation_seconds / sum(node.cores for node in self.cluster.nodes)

    def restart_seconds(self, assignments: Iterable[Iterable[Profile]]) -> float:
        """Return the seconds to save these assignments, each on its device, and to load them again."""
        heaviest = max(sum(profile.state_bytes for profile in assignment) for assignment in assignments)
        return MOVING_BY_FILES.rebalance_seconds + 2 * heaviest / MOVING_BY_FILES.bytes_per_second

    def launch(self, situation: Situation, splits: Sequence[Split] = ()) -> Plan:
        """Return what to start on the free devices; split members keep their shares if possible."""
        if not situation.waiting or not situation.free:
            return self._plan(situation, ())
        flotillas = self.policy.launch(situation)
        if splits:
            with contextlib.suppress(PlanError):  # its memory may no longer be available
                return self._plan(
                    situation, [restore_shares(flotilla, situation.waiting, splits) for flotilla in flotillas]
                )
        return self._plan(situation, flotillas)

    def _plan(self, situation: Situation, flotillas: Sequence[Flotilla]) -> Plan:
        return Plan.of(self.policy_name, flotillas, situation.waiting, situation.free)


def restore_shares(flotilla: Flotilla, profiles: Sequence[Profile], splits: Sequence[Split]) -> Flotilla:
    """Return the flotilla with the earlier shares of split members, if it has their devices and they may still be split."""
    before = {split.member: split for split in splits if set(split.devices) <= set(flotilla.devices)}
    known = {profile.member: profile for profile in profiles if profile.splittable}
    placements = [
        Placement.uneven(known[p.member], dict(zip(before[p.member].devices, before[p.member].shares, strict=True)))
        if p.member in before and p.member in known
        else p
        for p in flotilla.placements
    ]
    return Flotilla(placements=tuple(placements))
