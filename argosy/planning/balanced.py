"""The default policy: every member in one flotilla, bin-packed by measured load."""

from collections.abc import Sequence

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.planning.memory import require_fit
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["launch"]


def launch(waiting: Sequence[Profile], free: Sequence[Device]) -> tuple[Flotilla, ...]:
    """Whole members, largest load first, each to the least loaded device that still holds it (LPT, Graham 1969)."""
    if not waiting or not free:
        return ()
    require_fit(waiting, free)
    load = {device.name: 0.0 for device in free}
    room = {device.name: device.memory_bytes for device in free}
    placed: dict[str, Placement] = {}
    for profile in sorted(waiting, key=lambda p: (-p.seconds_per_sample, p.member)):
        fitting = [device.name for device in free if room[device.name] >= profile.memory_bytes]
        if not fitting:
            raise PlanError(
                f"the members need more memory at once than the devices have: no room for {profile.member!r}. "
                "Use more devices, or policy 'solo'."
            )
        device = min(fitting, key=lambda name: load[name])
        load[device] += profile.seconds_per_sample
        room[device] -= profile.memory_bytes
        placed[profile.member] = Placement(
            member=profile.member, devices=(device,), seconds_per_sample=profile.seconds_per_sample
        )
    return (Flotilla(placements=tuple(placed[p.member] for p in waiting)),)
