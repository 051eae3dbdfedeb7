"""Assignment of devices to members, given their numbers: FLEET's Algorithms 3 and 4, with the misprints of the paper corrected."""

from collections.abc import Mapping, Sequence
from itertools import islice, permutations

__all__ = ["assign_devices", "node_spread", "place_contiguously"]

MOST_PERMUTATIONS = 1024
"""Most orders that are tried, as in the paper."""


def place_contiguously(counts: Mapping[str, int], node_devices: int) -> dict[str, range]:
    """Return contiguous positions in the cluster for every member (FLEET Algorithm 3).

    Members that fill whole nodes come first, then pairs that fill nodes together, then the best of at most 1024
    orders of the rest by Equation 4. Corrections: the first loop runs over the members of the flotilla, and a partner
    is deleted under the key by which it was found.
    """
    order = [member for member, count in counts.items() if count % node_devices == 0]
    partners: dict[int, str] = {}
    for member, count in counts.items():
        if count % node_devices == 0:
            continue
        partner = partners.pop(-count % node_devices, None)
        if partner is not None:
            order += [partner, member]
        else:  # of two members with the same remainder, the later one is remembered, and the other belongs to the rest
            partners[count % node_devices] = member
    rest = [member for member in counts if member not in set(order)]
    start = sum(counts[member] for member in order)
    best = min(
        islice(permutations(rest), MOST_PERMUTATIONS),
        key=lambda tail: node_spread(assign_devices(tail, counts, start), node_devices),
    )
    return assign_devices([*order, *best], counts, 0)


def assign_devices(order: Sequence[str], counts: Mapping[str, int], start: int) -> dict[str, range]:
    """Return consecutive positions for each member in turn, beginning at ``start`` (FLEET Algorithm 4)."""
    positions: dict[str, range] = {}
    for member in order:
        positions[member] = range(start, start + counts[member])
        start += counts[member]
    return positions


def node_spread(positions: Mapping[str, range], node_devices: int) -> float:
    """Return the sum over members of nodes used divided by devices used, c(a_i) / m_i (FLEET Equation 4)."""
    return sum(
        ((group[-1] // node_devices) - (group[0] // node_devices) + 1) / len(group) for group in positions.values()
    )
