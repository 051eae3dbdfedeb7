"""The default policy: packs and splits members so that all devices finish together; the longest members may get their own streams."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from argosy.cluster import Device
from argosy.planning.best_fit import best_flotilla
from argosy.planning.bins import Bin
from argosy.planning.homes import minimize_moves
from argosy.planning.memory import check_memory_fit
from argosy.planning.outlook import Outlook, preparation_left
from argosy.planning.policy import Situation
from argosy.planning.rebalancing import keeps_unless_it_pays, must_give_way
from argosy.planning.streams import members_with_own_stream
from argosy.planning.units import gather_alike
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Balanced"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Balanced:
    """Choose between one stream and several, bisect the pace of the shared one, and re-balance when the gain exceeds the cost."""

    even_shares: bool = False
    """Split members in equal shares only, as ``exact`` does."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Start separate streams for the longest members and one for all others, or one stream per device while other members wait."""
        check_memory_fit(situation.waiting, situation.devices)
        fitting = _members_that_fit(situation.waiting, situation.free)
        if not fitting:
            return ()
        outlook = Outlook.of(fitting, situation)
        apart = members_with_own_stream(outlook, situation)
        if apart is None:
            return _one_stream_each(outlook.longest_first, situation)
        free = list(situation.free)
        own = [Flotilla(placements=(Placement.whole(p, _take_device(p, free, situation)),)) for p in apart]
        others = [profile for profile in outlook.longest_first if profile not in apart]
        return (*own, *self._together(others, free, situation))

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return False when another plan for the live members is worth its moves, or when waiting members should have their turn."""
        running = started.keeping(profile.member for profile in live)
        if situation.waiting:
            return _takes_turns(situation, running, live) and not must_give_way(situation, running, live)
        if not situation.free and len(live) == len(started.members):
            return True  # nothing has changed
        if len(live) == 1 and not live[0].splittable:
            return True  # no other device would be faster
        return keeps_unless_it_pays(self.launch, situation, started, live)

    def _together(
        self, members: Sequence[Profile], free: Sequence[Device], situation: Situation
    ) -> tuple[Flotilla, ...]:
        """Return a flotilla of members that are at the same epoch and fit into the memory of these devices."""
        fitting = _members_that_fit(members, free)
        if not fitting:
            return ()
        # All members of a stream are at the same epoch; those furthest behind go first.
        epoch = min(situation.epochs_done.get(profile.member, 0) for profile in fitting)
        peers = [profile for profile in fitting if situation.epochs_done.get(profile.member, 0) == epoch]
        together = gather_alike(_first_flotilla(peers, free, self.even_shares), peers, free)
        return (minimize_moves(together, free, situation.homes, peers),)


def _members_that_fit(profiles: Sequence[Profile], devices: Sequence[Device]) -> list[Profile]:
    largest = max((device.memory_bytes for device in devices), default=0)
    return [profile for profile in profiles if profile.memory_bytes <= largest]


def _first_flotilla(profiles: Sequence[Profile], devices: Sequence[Device], even_shares: bool) -> Flotilla:
    """Deal the members into as few flotillas of about equal work as memory allows, and return the first one.

    The others wait; flotillas take turns after each epoch.
    """
    largest_first = sorted(profiles, key=lambda p: (-p.seconds_per_sample, p.member))
    for turns in range(1, len(profiles) + 1):
        # Every `turns`-th member, so that the flotillas have about equal work.
        flotilla = best_flotilla(largest_first[::turns], devices, even_shares=even_shares)
        if flotilla is not None:
            return flotilla
    raise AssertionError("a member that fits a device can be placed alone")


def _takes_turns(situation: Situation, running: Flotilla, live: Sequence[Profile]) -> bool:
    """Return whether waiting members wait for a whole device, one after another, rather than for a turn in a shared stream."""
    if situation.preparation_samples_per_second is None or len(running.devices) > 1:
        return False
    if len(live) == 1 and situation.running:
        return True
    free = situation.free_with(running)
    members = (*live, *_members_that_fit(situation.waiting, free))
    anew = replace(situation, waiting=members, free=free)
    return members_with_own_stream(Outlook.of(members, anew), anew) is None


def _one_stream_each(longest_first: Sequence[Profile], situation: Situation) -> tuple[Flotilla, ...]:
    """Return a stream for every free device, the longest members first; members without a device wait.

    If preparation cannot feed so many streams, several members share a device and its stream, which makes the stream slower.
    """
    available = situation.preparation_samples_per_second or math.inf
    # An equal part of what is left, but at least what each stream would get with one on every device.
    pace = max(preparation_left(situation) / len(situation.free), available / len(situation.devices))
    free, waiting, flotillas = list(situation.free), list(longest_first), []
    while free and waiting:
        first = waiting.pop(0)
        if all(device.memory_bytes < first.memory_bytes for device in free):
            continue
        name = _take_device(first, free, situation)
        pack = _members_within_pace(first, waiting, next(d for d in situation.free if d.name == name), pace, situation)
        waiting = [profile for profile in waiting if profile not in pack]
        flotillas.append(Flotilla(placements=tuple(Placement.whole(profile, name) for profile in pack)))
    return tuple(flotillas)


def _members_within_pace(
    first: Profile, waiting: Sequence[Profile], device: Device, pace: float, situation: Situation
) -> list[Profile]:
    """Return the first member, and as many others at its epoch as are needed to slow their common stream down to the pace."""
    # The room counts up, from minus the seconds per sample at the pace; once it reaches 0, the stream is slow enough.
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
    """Remove a device for one member from `free` and return its name: one that holds its weights, or else the smallest that fits."""
    homes = situation.homes.get(profile.member, ())
    able = [device for device in free if device.memory_bytes >= profile.memory_bytes]
    device = min(able, key=lambda d: (d.name not in homes, d.memory_bytes))
    free.remove(device)
    return device.name
