"""Rounds of random members on one shared stream, as in SC'18; FLEET calls this *Homogeneous*."""

from dataclasses import dataclass
from random import Random

from argosy.planning.memory import check_memory_fit
from argosy.planning.policy import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Rounds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Random sets of at most M members, one per device; the next set starts when the whole set is done."""

    seed: int = 0

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Return the next set once all devices are free; the largest members go to the largest devices."""
        check_memory_fit(situation.waiting, situation.devices)
        if not situation.waiting or len(situation.free) < len(situation.devices):
            return ()
        # The seed depends on the members left, so the same question has the same answer.
        draw = Random(f"{self.seed}/{'/'.join(profile.member for profile in situation.waiting)}")
        chosen = draw.sample(situation.waiting, min(len(situation.free), len(situation.waiting)))
        devices = sorted(situation.free, key=lambda device: -device.memory_bytes)
        placements = []
        for profile in sorted(chosen, key=lambda profile: -profile.memory_bytes):
            if devices[0].memory_bytes >= profile.memory_bytes:
                placements.append(Placement.whole(profile, devices.pop(0).name))
        return (
            Flotilla(placements=tuple(placements)),
        )  # never empty: `check_memory_fit` has checked the largest device

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return True: a round ends when its last member has converged."""
        return True
