"""Devices as bins of time and memory, with what is left of each while members are placed at one pace."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from argosy.cluster import Device
from argosy.plans import Placement
from argosy.profiles import Profile

__all__ = ["Bin", "Bins"]


@dataclass(eq=False, slots=True)
class Bin:
    """One device during placement."""

    device: Device
    room: float
    """Seconds per sample that are still free at the pace."""
    resident_bytes: int = 0
    activation_bytes: int = 0

    def holds(self, profile: Profile) -> bool:
        """Return whether there is enough memory for one more member."""
        activation = max(self.activation_bytes, profile.activation_bytes)
        return self.resident_bytes + profile.resident_bytes + activation <= self.device.memory_bytes

    def take(self, profile: Profile, seconds: float) -> None:
        """Reserve memory and seconds per sample for the member."""
        self.room -= seconds
        self.resident_bytes += profile.resident_bytes
        self.activation_bytes = max(self.activation_bytes, profile.activation_bytes)


class Bins:
    """All devices, sorted by the room left, so that best fit is a binary search."""

    def __init__(self, devices: Sequence[Device], seconds: float) -> None:
        self._bins = [Bin(device=device, room=seconds) for device in devices]
        # The position breaks ties, so that equal devices are always taken in the order of the cluster.
        self._sorted = [(seconds, position) for position in range(len(devices))]
        self._position = {bin_.device.name: position for position, bin_ in enumerate(self._bins)}
        self._nodes: dict[str, list[int]] = {}
        for position, device in enumerate(devices):
            self._nodes.setdefault(device.node, []).append(position)

    def __len__(self) -> int:
        return len(self._bins)

    def tightest(self, profile: Profile, seconds: float) -> Bin | None:
        """Return the bin with the least room that still has ``seconds`` and enough memory (best fit)."""
        return next(self.at_least(profile, seconds), None)

    def at_least(self, profile: Profile, seconds: float) -> Iterator[Bin]:
        """Yield the bins with ``seconds`` of room and memory for the member, the tightest first."""
        for place in range(bisect_left(self._sorted, (seconds, -1)), len(self._sorted)):
            bin_ = self._bins[self._sorted[place][1]]
            if bin_.holds(profile):
                yield bin_

    def roomiest(self, profile: Profile, node: str | None = None) -> Iterator[Bin]:
        """Return the bins with memory for the member, those with the most room first; if `node` is given, only its bins."""
        if node is None:
            ordered: Iterable[int] = (position for _, position in reversed(self._sorted))
        else:
            ordered = sorted(self._nodes[node], key=lambda p: (-self._bins[p].room, p))
        return (self._bins[position] for position in ordered if self._bins[position].holds(profile))

    def take(self, placement: Placement, profile: Profile) -> None:
        """Reserve a member's work and memory on every device of its placement."""
        for name in placement.devices:
            position = self._position[name]
            bin_ = self._bins[position]
            del self._sorted[bisect_left(self._sorted, (bin_.room, position))]
            bin_.take(profile, placement.seconds_on(name))
            insort(self._sorted, (bin_.room, position))
