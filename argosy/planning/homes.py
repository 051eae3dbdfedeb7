"""Places a new flotilla where its weights already are, as far as possible, and computes the cost of the remaining moves."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from argosy.cluster import Device
from argosy.planning.policy import Moving
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["receiving_devices", "moving_seconds", "minimize_moves"]

Slot = TypeVar("Slot", bound=Hashable)
Homes = Mapping[str, tuple[str, ...]]


def minimize_moves(
    flotilla: Flotilla, devices: Sequence[Device], homes: Homes, profiles: Iterable[Profile]
) -> Flotilla:
    """Return the flotilla with equal nodes, and equal devices within a node, exchanged so that members stay where their weights are."""
    state = {profile.member: profile.state_bytes for profile in profiles}
    by_name = {device.name: device for device in devices}
    pairs: dict[tuple[str, str], int] = defaultdict(int)
    for placement in flotilla.placements:
        for planned in placement.devices:
            for home in homes.get(placement.member, ()):
                if home in by_name:
                    pairs[planned, home] += state[placement.member]
    renamed = _exchange_devices(pairs, by_name)
    return Flotilla(placements=tuple(placement.moved_to(renamed) for placement in flotilla.placements))


def _exchange_devices(pairs: Mapping[tuple[str, str], int], devices: Mapping[str, Device]) -> dict[str, str]:
    """Exchange whole nodes first, so that groups stay inside a node, then the devices of each pair of nodes."""
    in_node: dict[str, list[str]] = defaultdict(list)
    for device in devices.values():
        in_node[device.node].append(device.name)
    shape = {node: tuple(_equivalence_key(devices[name]) for name in names) for node, names in in_node.items()}
    between_nodes: dict[tuple[str, str], int] = defaultdict(int)
    for (planned, home), size in pairs.items():
        between_nodes[devices[planned].node, devices[home].node] += size
    renamed: dict[str, str] = {}
    for node, target in _match(between_nodes, shape, shape).items():
        likeness = {name: _equivalence_key(devices[name]) for name in in_node[node]}
        target_likeness = {name: _equivalence_key(devices[name]) for name in in_node[target]}
        renamed |= _match(pairs, likeness, target_likeness)
    return renamed


def _equivalence_key(device: Device) -> tuple[str, int]:
    return device.kind, device.memory_bytes


def _match(
    weights: Mapping[tuple[Slot, Slot], int], left: Mapping[Slot, object], right: Mapping[Slot, object]
) -> dict[Slot, Slot]:
    """Match equal nodes or devices greedily by decreasing weight; the others keep their own place if it is not taken."""
    matched: dict[Slot, Slot] = {}
    taken: set[Slot] = set()
    order = {slot: place for place, slot in enumerate([*left, *right])}
    usable = [pair for pair in weights if pair[0] in left and pair[1] in right and left[pair[0]] == right[pair[1]]]
    heaviest_first = sorted(usable, key=lambda pair: (-weights[pair], order[pair[0]], order[pair[1]]))
    for a, b in (*heaviest_first, *((slot, slot) for slot in left if slot in right)):
        if a not in matched and b not in taken:
            matched[a] = b
            taken.add(b)
    for a in left:
        if a not in matched:
            matched[a] = next(b for b in right if b not in taken and right[b] == left[a])
            taken.add(matched[a])
    return matched


def receiving_devices(placement: Placement, homes: Homes) -> tuple[str, ...]:
    """Return the devices of a placement that must receive the member's state; none for a member that never trained."""
    if placement.member not in homes:
        return ()
    return tuple(device for device in placement.devices if device not in homes[placement.member])


def moving_seconds(flotillas: Iterable[Flotilla], homes: Homes, profiles: Iterable[Profile], moving: Moving) -> float:
    """Return the time to move states to the flotillas' devices, which is that of the device with the most to receive or send.

    If the whole cluster shares one link, all received bytes add up. A state is sent once by one of its homes, whatever the
    number of receivers (a broadcast).
    """
    state = {profile.member: profile.state_bytes for profile in profiles}
    received: dict[str, int] = defaultdict(int)
    sent: dict[str, int] = defaultdict(int)
    for flotilla in flotillas:
        for placement in flotilla.placements:
            targets = receiving_devices(placement, homes)
            for device in targets:
                received[device] += state[placement.member]
            if targets and homes[placement.member]:
                sent[homes[placement.member][0]] += state[placement.member]
    busiest = sum(received.values()) if moving.one_link else max([0, *received.values(), *sent.values()])
    return busiest / moving.bytes_per_second
