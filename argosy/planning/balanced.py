"""The default policy: members packed and split so that all devices finish together, the longest ones at a pace of their own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from argosy.cluster import Device
from argosy.planning.best_fit import best_flotilla
from argosy.planning.bins import Bin
from argosy.planning.homes import settle
from argosy.planning.memory import require_fit
from argosy.planning.outlook import Outlook, preparation_left
from argosy.planning.policy import Situation
from argosy.planning.rebalancing import gives_way, keeps_unless_it_pays
from argosy.planning.streams import members_apart
from argosy.planning.units import gathered
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Balanced"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Balanced:
    """Weigh one stream against several; bisect the pace of the shared one; re-balance when the gain pays for the move."""

    even_shares: bool = False
    """Split members in equal shares only, as ``exact`` does."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Start streams of their own for the longest members, one for the others; or a stream for each device, while others wait."""
        require_fit(situation.waiting, situation.devices)
        fitting = _fitting(situation.waiting, situation.free)
        if not fitting:
            return ()
        outlook = Outlook.of(fitting, situation)
        apart = members_apart(outlook, situation)
        if apart is None:
            return _a_stream_each(outlook.longest_first, situation)
        free = list(situation.free)
        own = [Flotilla(placements=(Placement.whole(p, _take_device(p, free, situation)),)) for p in apart]
        others = [profile for profile in outlook.longest_first if profile not in apart]
        return (*own, *self._together(others, free, situation))

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Keep the flotilla until another plan for the live members pays for its moves, or others wait for their turn."""
        running = started.keeping(profile.member for profile in live)
        if situation.waiting:
            return _takes_turns(situation, running, live) and not gives_way(situation, running, live)
        if not situation.free and len(live) == len(started.members):
            return True  # Nothing has changed.
        if len(live) == 1 and not live[0].splittable:
            return True  # No other device would be faster.
        return keeps_unless_it_pays(self.launch, situation, started, live)

    def _together(
        self, members: Sequence[Profile], free: Sequence[Device], situation: Situation
    ) -> tuple[Flotilla, ...]:
        """Return a flotilla of the members at the same epoch that the memory of these devices holds."""
        fitting = _fitting(members, free)
        if not fitting:
            return ()
        # One stream is at one epoch: those furthest behind go first.
        epoch = min(situation.epochs_done.get(profile.member, 0) for profile in fitting)
        peers = [profile for profile in fitting if situation.epochs_done.get(profile.member, 0) == epoch]
        together = gathered(_largest_fitting(peers, free, self.even_shares), peers, free)
        return (settle(together, free, situation.homes, peers),)


def _fitting(profiles: Sequence[Profile], devices: Sequence[Device]) -> list[Profile]:
    largest = max((device.memory_bytes for device in devices), default=0)
    return [profile for profile in profiles if profile.memory_bytes <= largest]


def _largest_fitting(profiles: Sequence[Profile], devices: Sequence[Device], even_shares: bool) -> Flotilla:
    """Deal the members into as few flotillas of about equal work as memory allows; return the first one.

    The others wait; flotillas rotate once an epoch.
    """
    largest_first = sorted(profiles, key=lambda p: (-p.seconds_per_sample, p.member))
    for turns in range(1, len(profiles) + 1):
        flotilla = best_flotilla(largest_first[::turns], devices, even_shares=even_shares)
        if flotilla is not None:
            return flotilla
    raise AssertionError("a member that fits a device can be placed alone")


def _takes_turns(situation: Situation, running: Flotilla, live: Sequence[Profile]) -> bool:
    """Return whether the others wait for a device, one after another, and not for their part of a shared stream."""
    if situation.preparation_samples_per_second is None or len(running.devices) > 1:
        return False
    if len(live) == 1 and situation.running:
        return True
    here = {*running.devices, *(device.name for device in situation.free)}
    free = tuple(device for device in situation.devices if device.name in here)
    members = (*live, *_fitting(situation.waiting, free))
    anew = replace(situation, waiting=members, free=free)
    return members_apart(Outlook.of(members, anew), anew) is None


def _a_stream_each(longest_first: Sequence[Profile], situation: Situation) -> tuple[Flotilla, ...]:
    """Return a stream for every free device, the longest members first; those that find no device wait.

    Where preparation cannot feed so many, members share a device and its stream until it is slow enough.
    """
    available = situation.preparation_samples_per_second or math.inf
    pace = max(preparation_left(situation) / len(situation.free), available / len(situation.devices))
    free, waiting, flotillas = list(situation.free), list(longest_first), []
    while free and waiting:
        first = waiting.pop(0)
        if all(device.memory_bytes < first.memory_bytes for device in free):
            continue
        name = _take_device(first, free, situation)
        pack = _slow_enough(first, waiting, next(d for d in situation.free if d.name == name), pace, situation)
        waiting = [profile for profile in waiting if profile not in pack[1:]] if len(pack) > 1 else waiting
        flotillas.append(Flotilla(placements=tuple(Placement.whole(profile, name) for profile in pack)))
    return tuple(flotillas)


def _slow_enough(
    first: Profile, waiting: Sequence[Profile], device: Device, pace: float, situation: Situation
) -> list[Profile]:
    """Return the first member, and as many after it at the same epoch as keep one stream for all of them to the pace."""
    pack, bin_, done = [first], Bin(device=device, room=-(1 - 1e-9) / pace), situation.epochs_done
    bin_.take(first, -first.seconds_per_sample)
    for profile in waiting:
        if bin_.room >= 0:
            break
        if done.get(profile.member, 0) == done.get(first.member, 0) and bin_.holds(profile):
            bin_.take(profile, -profile.seconds_per_sample)
            pack.append(profile)
    return pack


def _take_device(profile: Profile, free: list[Device], situation: Situation) -> str:
    """Take a device for one member out of those that are free: where its weights are, or the smallest that holds it."""
    homes = situation.homes.get(profile.member, ())
    able = [device for device in free if device.memory_bytes >= profile.memory_bytes]
    device = min(able, key=lambda d: (d.name not in homes, d.memory_bytes))
    free.remove(device)
    return device.name
