"""One member per device, each with its own pipeline, and the next one when a device is free: today's usual practice."""

from dataclasses import dataclass

from argosy.planning.memory import check_memory_fit
from argosy.planning.policy import Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["SoloPolicy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SoloPolicy:
    """List scheduling (Graham 1969) in the order of the study; with random order, this is FLEET's *Baseline*."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Return the next members, each on the first free device with enough memory."""
        check_memory_fit(situation.waiting, situation.devices)
        flotillas, devices = [], list(situation.free)
        for profile in situation.waiting:
            device = next((d for d in devices if d.memory_bytes >= profile.memory_bytes), None)
            if device is None:
                continue
            devices.remove(device)
            flotillas.append(Flotilla(placements=(Placement.whole(profile, device.name),)))
        return tuple(flotillas)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return True: a member stays until it has converged."""
        return True
