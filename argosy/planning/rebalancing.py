"""Decides whether a new plan is worth its moves, for policies that plan for all live members at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from argosy.planning.homes import moving_seconds
from argosy.planning.outlook import EXPECTED, LONG, alone_seconds, horizon_seconds
from argosy.planning.policy import Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["must_give_way", "keeps_unless_it_pays", "work_rate"]

LONGER = 0.9
"""A member gives way to one that has more left to train, once its own remaining time is below this fraction of the other's."""


def keeps_unless_it_pays(
    launch: Callable[[Situation], tuple[Flotilla, ...]],
    situation: Situation,
    started: Flotilla,
    live: tuple[Profile, ...],
) -> bool:
    """Return False when others wait for their turn, or when a new plan saves more time than moving costs.

    A new plan can save time for all members until the next one is expected to leave, or for a member that gets its own pace, until it ends.
    """
    if situation.waiting:
        return False
    running = started.keeping(profile.member for profile in live)
    candidate = launch(replace(situation, waiting=live, free=situation.free_with(running)))
    # If best fit has found room for fewer members in one flotilla, there is no gain, and the present one is not broken up.
    gain = _head_start(candidate, running, situation)
    if sum(len(flotilla.members) for flotilla in candidate) == len(live):
        gain = max(gain, _seconds_saved(candidate, running, live, situation))
    cost = moving_seconds(candidate, situation.homes, live, situation.moving) + situation.moving.rebalance_seconds
    return gain <= cost


def _seconds_saved(
    candidate: Sequence[Flotilla], running: Flotilla, live: Sequence[Profile], situation: Situation
) -> float:
    """Return the time that all members gain until the next one is expected to leave.

    This is after the epochs that are certain, or after 1 / (members + 1) of those to the nearest limit, whichever is later.
    """
    least = min(situation.epochs_left.get(profile.member, 1) for profile in live)
    certain = min(situation.epochs_certain.get(profile.member, 0) for profile in live)
    epochs = max(1.0, least / (len(live) + 1), certain)
    work = math.fsum(profile.seconds_per_sample for profile in live)
    return (
        epochs * situation.samples_per_epoch * work * (1 / work_rate((running,), live) - 1 / work_rate(candidate, live))
    )


def _head_start(candidate: Sequence[Flotilla], running: Flotilla, situation: Situation) -> float:
    """Return how much sooner, at best, a member is expected to end if it leaves the shared pace for its own."""
    shared = 1.0 / running.samples_per_second
    gains = (
        EXPECTED * situation.epochs_left.get(flotilla.members[0], 1) * (shared - 1.0 / flotilla.samples_per_second)
        for flotilla in candidate
        if len(flotilla.members) == 1
    )
    return max(gains, default=0.0) * situation.samples_per_epoch if len(candidate) > 1 else 0.0


def must_give_way(situation: Situation, running: Flotilla, live: Sequence[Profile]) -> bool:
    """Return whether a waiting member may last so much longer than the members of a device that it should not wait for them."""
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
    """Return the useful work per second, in seconds of one device, which makes flotillas of different members comparable."""
    work = {profile.member: profile.seconds_per_sample for profile in profiles}
    return math.fsum(f.samples_per_second * math.fsum(work[member] for member in f.members) for f in flotillas)
