"""A policy that places members anew at most barriers, so that they move often; other policies move members only if it pays."""

import random
from dataclasses import dataclass

from argosy.planning import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile, pack_memory_bytes

__all__ = ["Restless"]

KEEPS = 0.3
"""The share of barriers at which all members stay where they are."""


@dataclass(slots=True)
class Restless:
    """Places members at random."""

    chance: random.Random
    splits: float = 0.3
    """The probability that a member that may be split is split."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`. All members of a leg have trained the same number of epochs; members for which memory is short wait."""
        least = min(situation.epochs_done.get(profile.member, 0) for profile in situation.waiting)
        packs: dict[str, list[Profile]] = {device.name: [] for device in situation.free}
        placements = []
        for profile in situation.waiting:
            room = [
                device.name
                for device in situation.free
                if pack_memory_bytes([*packs[device.name], profile]) <= device.memory_bytes
            ]
            if room and situation.epochs_done.get(profile.member, 0) == least:
                placements.append(placement := self._placed(profile, room))
                for name in placement.devices:
                    packs[name].append(profile)
        return (Flotilla(placements=tuple(placements)),) if placements else ()

    def _placed(self, profile: Profile, room: list[str]) -> Placement:
        chance = self.chance
        if not profile.splittable or len(room) < 2 or chance.random() > self.splits:
            return Placement.whole(profile, chance.choice(room))
        parts = {name: chance.choice([0.2, 0.5, 1.0]) for name in chance.sample(room, 2)}
        return Placement.uneven(profile, {name: part / sum(parts.values()) for name, part in parts.items()})

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, started, live
        return self.chance.random() < KEEPS
