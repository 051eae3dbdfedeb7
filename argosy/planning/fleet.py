"""FLEET (MLSys 2020): greedy flotillas of members that reach a similar rate with unequal numbers of devices; global and local."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.wording import sized
from argosy.planning.memory import require_fit
from argosy.planning.placement import place_contiguously
from argosy.planning.policy import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Fleet", "create_flotilla", "find_next", "similar_rates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """FLEET-G, Algorithm 1: a flotilla, its placement, train "for some epochs", again with all that are left."""

    delta: float = 20.0
    """Rates further than this from the fastest member's are not similar; samples per second, as published."""
    relative: bool = False
    """Whether ``delta`` is a part of the fastest member's rate: at 10,000 samples per second no rate is within 20 of another."""
    local: bool = False
    """Whether it is FLEET-L (§4.3.3): after the first flotilla the same rule over devices that converged members release, and no others."""
    alpha: float = 0.8
    """A flotilla stops when its busy devices are fewer than this part of those it started with."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Run Algorithm 1, steps 1 and 2, by Algorithms 2 to 4, once every device is free; FLEET-L over those that are."""
        free = situation.free
        if not situation.waiting or not free or (len(free) < len(situation.devices) and not self.local):
            return ()
        require_fit(situation.waiting, free)
        _require_equal(free)
        fastest = max(profile.rate(1) for profile in situation.waiting)
        counts = create_flotilla(situation.waiting, len(free), self.delta * fastest if self.relative else self.delta)
        node_devices = max(Counter(device.node for device in situation.devices).values())
        positions = place_contiguously(counts, node_devices)
        by_member = {profile.member: profile for profile in situation.waiting}
        placements = (Placement.even(by_member[m], (free[p].name for p in group)) for m, group in positions.items())
        return (Flotilla(placements=tuple(placements)),)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Go on until the devices not released are fewer than α · M (Algorithm 1, ``train``).

        M is the number of devices that the flotilla was given: all there are in the paper, fewer where every member has
        reached the peak of its rate. Under FLEET-L the others train on undisturbed.
        """
        busy = started.keeping(profile.member for profile in live).devices
        return self.local or len(busy) >= self.alpha * len(started.devices)


def create_flotilla(candidates: Sequence[Profile], devices: int, delta: float) -> dict[str, int]:
    """Return how many devices each member of the next flotilla gets (FLEET Algorithm 2).

    The fastest member on one device sets the rate; members join as long as one comes within ``delta`` of it with the
    devices left; devices left over go one at a time to the slowest member that another device makes faster (the paper
    does not check whether it does: past the peak of r_i its loop slows the member down).
    """
    rates = {
        profile.member: [profile.rate(count) for count in range(1, profile.largest_group(devices) + 1)]
        for profile in candidates
    }
    fastest = max(rates, key=lambda member: rates[member][0])
    counts, left = {fastest: 1}, devices - 1
    similar = similar_rates(rates, rates[fastest][0], delta)
    while left and (found := find_next(similar, counts, left)):
        member, count = found
        counts[member] = count
        left -= count
    while left and (rising := [member for member in counts if counts[member] < len(rates[member])]):
        slowest = min(rising, key=lambda member: rates[member][counts[member] - 1])
        counts[slowest] += 1
        left -= 1
    return counts


def similar_rates(
    rates: Mapping[str, Sequence[float]], reference: float, delta: float
) -> dict[str, list[tuple[float, int]]]:
    """Return the feasible set of FLEET's Equation 3: (distance to the reference rate, m) of every member, nearest first.

    m ends at the peak of r_i: past it the same rate costs more devices.
    """
    return {
        member: sorted(
            (abs(rate - reference), count) for count, rate in enumerate(row, start=1) if abs(rate - reference) <= delta
        )
        for member, row in rates.items()
    }


def find_next(
    similar: Mapping[str, Sequence[tuple[float, int]]], taken: Mapping[str, int], devices: int
) -> tuple[str, int] | None:
    """Return argmin over (member outside, m) of |r_i(m) - r_fast|, m at most the devices left (FLEET Equation 3)."""
    options = (
        (*next(option for option in row if option[1] <= devices), member)
        for member, row in similar.items()
        if member not in taken and any(count <= devices for _, count in row)
    )
    best = min(options, default=None, key=lambda option: option[:2])
    return best and (best[2], best[1])


def _require_equal(devices: Sequence[Device]) -> None:
    found = sorted({f"{device.kind} with {sized(device.memory_bytes)}" for device in devices})
    if len(found) > 1:
        raise PlanError(f"FLEET's policies assume equal devices; found {', '.join(found)}. Use policy 'balanced'.")
