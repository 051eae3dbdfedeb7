"""One member per device with a pipeline of its own, the next one when a device is free: what everybody does today."""

from collections.abc import Sequence

from argosy.cluster import Device
from argosy.planning.memory import require_fit
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["launch"]


def launch(waiting: Sequence[Profile], free: Sequence[Device]) -> tuple[Flotilla, ...]:
    """The next members, in the order of the study, each on the first free device that holds it (FLEET's Baseline)."""
    require_fit(waiting, free)
    flotillas, devices = [], list(free)
    for profile in waiting:
        device = next((d for d in devices if d.memory_bytes >= profile.memory_bytes), None)
        if device is None:
            continue
        devices.remove(device)
        place = Placement(member=profile.member, devices=(device.name,), seconds_per_sample=profile.seconds_per_sample)
        flotillas.append(Flotilla(placements=(place,)))
    return tuple(flotillas)
