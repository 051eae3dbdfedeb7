"""FLEET (MLSys 2020), global and local: greedy flotillas of members that get different numbers of devices to reach similar rates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.wording import format_bytes
from argosy.planning.memory import check_memory_fit
from argosy.planning.placement import place_contiguously
from argosy.planning.policy import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Fleet", "create_flotilla", "find_next", "similar_rates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """FLEET-G, Algorithm 1: choose a flotilla, place it, train it "for some epochs", and repeat with all members that are left."""

    delta: float = 20.0
    """Largest difference from the fastest member's rate that counts as similar, in samples per second as published."""
    relative: bool = False
    """Whether ``delta`` is a fraction of the fastest member's rate; at 10,000 samples per second, rates are rarely within 20."""
    local: bool = False
    """Whether this is FLEET-L (§4.3.3), which starts later flotillas only on devices that converged members release."""
    alpha: float = 0.8
    """A flotilla stops when fewer than this fraction of its initial devices are busy."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Run steps 1 and 2 of Algorithm 1 (Algorithms 2 to 4) when all devices are free; FLEET-L uses those that are free."""
        free = situation.free
        if not situation.waiting or (len(free) < len(situation.devices) and not self.local):
            return ()
        check_memory_fit(situation.waiting, free)
        _check_equal_devices(free)
        fastest = max(profile.rate(1) for profile in situation.waiting)
        counts = create_flotilla(situation.waiting, len(free), self.delta * fastest if self.relative else self.delta)
        node_devices = max(Counter(device.node for device in situation.devices).values())
        positions = place_contiguously(counts, node_devices)
        by_member = {profile.member: profile for profile in situation.waiting}
        placements = (Placement.even(by_member[m], (free[p].name for p in group)) for m, group in positions.items())
        return (Flotilla(placements=tuple(placements)),)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return True until fewer than α · M devices are busy (Algorithm 1, ``train``).

        M is the number of devices of the flotilla: all devices in the paper, but fewer if every member has
        reached the peak of its rate. FLEET-L never stops a flotilla.
        """
        busy = started.keeping(profile.member for profile in live).devices
        return self.local or len(busy) >= self.alpha * len(started.devices)


def create_flotilla(candidates: Sequence[Profile], devices: int, delta: float) -> dict[str, int]:
    """Return how many devices each member of the next flotilla gets (FLEET Algorithm 2).

    The fastest member on one device sets the rate. Members join as long as one can come within ``delta`` of it with the
    remaining devices. Devices left over go one at a time to the slowest member that another device makes faster. (The paper
    lacks this check; past the peak of r_i, its loop slows the member down.)
    """
    rates = {
        profile.member: [profile.rate(count) for count in range(1, profile.largest_group(devices) + 1)]
        for profile in candidates
    }
    fastest = max(rates, key=lambda member: rates[member][0])
    counts, unused = {fastest: 1}, devices - 1
    similar = similar_rates(rates, rates[fastest][0], delta)
    while choice := find_next(similar, counts, unused):
        member, count = choice
        counts[member] = count
        unused -= count
    while unused and (rising := [member for member in counts if counts[member] < len(rates[member])]):
        slowest = min(rising, key=lambda member: rates[member][counts[member] - 1])
        counts[slowest] += 1
        unused -= 1
    return counts


def similar_rates(
    rates: Mapping[str, Sequence[float]], reference: float, delta: float
) -> dict[str, list[tuple[float, int]]]:
    """Return the feasible set of FLEET's Equation 3: (distance to the reference rate, m) of every member, nearest first.

    m is at most the peak of r_i, because beyond it the same rate needs more devices.
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
    """Return argmin of |r_i(m) - r_fast| over members not taken and m up to the number of devices left (FLEET Equation 3)."""
    options = (
        (*next(option for option in row if option[1] <= devices), member)
        for member, row in similar.items()
        if member not in taken and any(count <= devices for _, count in row)
    )
    best = min(options, default=None, key=lambda option: option[:2])
    return best and (best[2], best[1])


def _check_equal_devices(devices: Sequence[Device]) -> None:
    kinds = sorted({f"{device.kind} with {format_bytes(device.memory_bytes)}" for device in devices})
    if len(kinds) > 1:
        raise PlanError(f"FLEET's policies assume equal devices; found {', '.join(kinds)}. Use policy 'balanced'.")
