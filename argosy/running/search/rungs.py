"""A search's policy for packing a rung: one pack after another, each on its own device and stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from argosy.cluster import Device
from argosy.planning import Situation
from argosy.planning.memory import check_memory_fit
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile, pack_memory_bytes
from argosy.tuning.packing import Candidate, Packing

__all__ = ["PackPolicy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackPolicy:
    """A policy (`planning.policy.Policy`) that trains in packs; a pack trains until its last member leaves, and none joins it."""

    name: str
    packing: Packing
    candidate: Callable[[str], tuple[int, Candidate] | None]
    """Function from a member to its rung's budget and its candidate; None for a member that is no trial, which is packed alone."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Return a pack for each free device while trials wait; the shortest rung comes first, and in it the first trials."""
        check_memory_fit(situation.waiting, situation.devices)
        waiting = {profile.member: profile for profile in situation.waiting}
        flotillas = []
        for device in situation.free:
            pack = self._next(waiting, device, situation.epochs_done)
            for profile in pack:
                del waiting[profile.member]
            if pack:
                placements = tuple(Placement.whole(profile, device.name) for profile in pack)
                flotillas.append(Flotilla(placements=placements))
        return tuple(flotillas)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return True: a pack trains on until its last member leaves."""
        return True

    def _next(self, left: Mapping[str, Profile], device: Device, epochs_done: Mapping[str, int]) -> list[Profile]:
        """Return the part of the next pack that fits on the device; members that do not fit wait for a later one."""
        rungs: dict[tuple[int, int], list[Candidate]] = {}
        for name, profile in left.items():
            chosen = self.candidate(name)
            if chosen is None:
                if profile.memory_bytes <= device.memory_bytes:
                    return [profile]
                continue
            budget, candidate = chosen
            rungs.setdefault((budget, epochs_done.get(name, 0)), []).append(candidate)
        pack: list[Profile] = []
        for _, waiting in sorted(rungs.items(), key=lambda rung: rung[0]):
            for candidate in self.packing(waiting):
                if pack_memory_bytes([*pack, left[candidate.name]]) <= device.memory_bytes:
                    pack.append(left[candidate.name])
            if pack:
                break
        return pack
