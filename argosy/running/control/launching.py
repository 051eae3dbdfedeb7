"""What a policy is asked, and what its answer means for members that train already: which stay, move, leave and join.

Pure but for the policy, which is pure itself. The policy is asked once for each change, with everything that a run knows.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.planning import FILES, POLICIES, Policy, Situation, best_with_known_epochs
from argosy.planning.outcomes import Charges
from argosy.plans import Flotilla, Placement, Plan
from argosy.profiles import Profile
from argosy.protocol.events import Split
from argosy.running.control.legs import LiveLeg

__all__ = ["Launching", "as_before"]


@dataclass(slots=True)
class Launching:
    """The questions of one run."""

    cluster: Cluster
    policy_name: str
    policy: Policy
    """The planner."""
    preparation_seconds: float = 0.0
    """Seconds of one core for one sample."""
    samples_per_epoch: int = 1
    opening_seconds: float = 0.0
    """That a feeder takes to open the data, as each further one does."""
    repeating: Callable[[Policy], Policy] = lambda policy: policy
    """Makes a policy answer as before where it was asked before."""

    @property
    def preparation_rate(self) -> float | None:
        """What the cluster can prepare; None where its cores train as well, and where one stream must do for all."""
        if not self.preparation_seconds or any(device.kind == "cpu" for device in self.cluster.devices):
            return None
        return sum(node.cores for node in self.cluster.nodes) / self.preparation_seconds

    def foresee(self, situation: Situation) -> None:
        """The epochs of all members are known: go by the policy with which all are through first."""
        self.policy_name = best_with_known_epochs(situation, self.charges)
        self.policy = self.repeating(POLICIES[self.policy_name])

    @property
    def charges(self) -> Charges:
        """What a run costs besides training."""
        cores = sum(node.cores for node in self.cluster.nodes)
        return Charges(
            moving=FILES,
            flotilla_seconds=FILES.rebalance_seconds,
            preparation_samples_per_second=cores / self.preparation_seconds if self.preparation_seconds else None,
            preparation_known=self.preparation_rate is not None,
            training_share=1 / cores if self.cluster.devices[0].kind == "cpu" else 0.0,
            opening_seconds=self.opening_seconds,
        )

    def sample_seconds(self, paces: Sequence[float]) -> float:
        """Seconds that all members lose by each sample of the last of these streams, which go on at once."""
        if self.preparation_rate is not None:
            return max(sum(paces) / self.preparation_rate - 1.0, 0.0) / paces[-1]
        return self.preparation_seconds / sum(node.cores for node in self.cluster.nodes)

    def restart_seconds(self, assignments: Iterable[Iterable[Profile]]) -> float:
        """To save these assignments, each on its device, and to load them again."""
        heaviest = max(sum(profile.state_bytes for profile in assignment) for assignment in assignments)
        return FILES.rebalance_seconds + 2 * heaviest / FILES.bytes_per_second

    def launch(self, situation: Situation, splits: Sequence[Split] = ()) -> Plan:
        """What to start on the free devices; members go on split as they were, where these still are possible."""
        if not situation.waiting or not situation.free:
            return self._plan(situation, ())
        flotillas = self.policy.launch(situation)
        if splits:
            with contextlib.suppress(PlanError):  # the memory that it needs may not be there any more
                return self._plan(situation, [as_before(flotilla, situation.waiting, splits) for flotilla in flotillas])
        return self._plan(situation, flotillas)

    def _plan(self, situation: Situation, flotillas: Sequence[Flotilla]) -> Plan:
        return Plan.of(self.policy_name, flotillas, situation.waiting, situation.free)

    def goes_on(self, leg: LiveLeg, live: Sequence[Profile], peers: Sequence[str], anew: Situation) -> Flotilla | None:
        """The flotilla that goes on with a leg whose members the policy does not keep as they are; None where they make room.

        `peers` are waiting members that could go on with it; in `anew` all of them wait.
        """
        if not live and not peers:
            return None
        here = {*(profile.member for profile in live), *peers}
        found = [flotilla for flotilla in self.launch(anew).flotillas if set(flotilla.members) <= here]
        members = set(leg.members)
        return max(found, key=lambda flotilla: len(members & set(flotilla.members)), default=None)


def as_before(flotilla: Flotilla, profiles: Sequence[Profile], splits: Sequence[Split]) -> Flotilla:
    """The flotilla with members split as they were, where it has all the devices of that and they may be split."""
    before = {split.member: split for split in splits if set(split.devices) <= set(flotilla.devices)}
    known = {profile.member: profile for profile in profiles if profile.splittable}
    placements = [
        Placement.uneven(known[p.member], dict(zip(before[p.member].devices, before[p.member].shares, strict=True)))
        if p.member in before and p.member in known
        else p
        for p in flotilla.placements
    ]
    return Flotilla(placements=tuple(placements))
