"""Whether a new plan is worth its moves: the second question of every policy that plans for all live members at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from argosy.planning.homes import moving_seconds
from argosy.planning.outlook import EXPECTED, LONG, alone_seconds, horizon_seconds
from argosy.planning.policy import Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["gives_way", "keeps_unless_it_pays", "work_rate"]

LONGER = 0.9
"""A member makes room for another that has more left to train, once its own rest is below this part of the other's."""


def keeps_unless_it_pays(
    launch: Callable[[Situation], tuple[Flotilla, ...]],
    situation: Situation,
    started: Flotilla,
    live: tuple[Profile, ...],
) -> bool:
    """Keep the flotilla until others wait for their turn, or until a new plan saves more than moving costs.

    It saves time for all until the next member is expected to leave, or for a member that gets a pace of its own until it ends.
    """
    if situation.waiting:
        return False
    running = started.keeping(profile.member for profile in live)
    available = {*(device.name for device in situation.free), *running.devices}
    free = tuple(device for device in situation.devices if device.name in available)
    candidate = launch(replace(situation, waiting=live, free=free))
    gain = _head_start(candidate, running, situation)
    if sum(len(flotilla.members) for flotilla in candidate) == len(live):
        gain = max(gain, _seconds_saved(candidate, running, live, situation))
    elif len(candidate) == 1:
        return True  # What trains together is not torn apart by a fit that found room for less.
    cost = moving_seconds(candidate, situation.homes, live, situation.moving) + situation.moving.rebalance_seconds
    return gain <= cost


def _seconds_saved(
    candidate: Sequence[Flotilla], running: Flotilla, live: Sequence[Profile], situation: Situation
) -> float:
    """Return the time that all gain until the next one leaves: over certain epochs, or its part of those to the nearest limit."""
    least = min(situation.epochs_left.get(profile.member, 1) for profile in live)
    certain = min(situation.epochs_certain.get(profile.member, 0) for profile in live)
    epochs = max(1.0, least / (len(live) + 1), certain)
    work = math.fsum(profile.seconds_per_sample for profile in live)
    return (
        epochs * situation.samples_per_epoch * work * (1 / work_rate((running,), live) - 1 / work_rate(candidate, live))
    )


def _head_start(candidate: Sequence[Flotilla], running: Flotilla, situation: Situation) -> float:
    """Return how much sooner, at best, a member that leaves the shared pace for its own is expected to end."""
    shared = 1.0 / running.samples_per_second
    gains = (
        EXPECTED * situation.epochs_left.get(flotilla.members[0], 1) * (shared - 1.0 / flotilla.samples_per_second)
        for flotilla in candidate
        if len(flotilla.members) == 1
    )
    return max(gains, default=0.0) * situation.samples_per_epoch if len(candidate) > 1 else 0.0


def gives_way(situation: Situation, running: Flotilla, live: Sequence[Profile]) -> bool:
    """Return whether a waiting member may last so much longer than those of a device that it must not wait for them."""
    waiting = alone_seconds(situation.waiting, situation)
    device = next(device for device in situation.devices if device.name == running.devices[0])
    able = (s for s, p in zip(waiting, situation.waiting, strict=True) if p.memory_bytes <= device.memory_bytes)
    longest = max(able, default=0.0)
    moving = situation.moving
    cost = moving.rebalance_seconds + sum(profile.state_bytes for profile in live) / moving.bytes_per_second
    if sum(alone_seconds(live, situation)) + 2 * cost >= LONGER * longest:
        return False
    beside = replace(situation, running=(*situation.running, running))
    return longest > LONG * horizon_seconds(beside, waiting)


def work_rate(flotillas: Sequence[Flotilla], profiles: Sequence[Profile]) -> float:
    """Return the useful work done per second, in seconds of one device, which compares flotillas of unlike members."""
    work = {profile.member: profile.seconds_per_sample for profile in profiles}
    return math.fsum(f.samples_per_second * math.fsum(work[member] for member in f.members) for f in flotillas)
