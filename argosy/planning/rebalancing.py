"""Whether a new plan is worth its moves: the second question of every policy that plans for all live members at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from argosy.planning.homes import moving_seconds
from argosy.planning.policy import Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["keeps_unless_it_pays", "work_rate"]


def keeps_unless_it_pays(
    launch: Callable[[Situation], tuple[Flotilla, ...]],
    situation: Situation,
    started: Flotilla,
    live: tuple[Profile, ...],
) -> bool:
    """Keep the flotilla until others wait for their turn, or until a new plan saves more than moving costs.

    Gains count until the next member may leave: one epoch, or the least number of epochs known to be left.
    """
    if situation.waiting:
        return False
    running = started.keeping(profile.member for profile in live)
    available = {*(device.name for device in situation.free), *running.devices}
    free = tuple(device for device in situation.devices if device.name in available)
    candidate = launch(replace(situation, waiting=live, free=free))
    if sum(len(flotilla.members) for flotilla in candidate) < len(live):
        return True  # What trains together is not torn apart by a packing that found room for less.
    epochs = min(situation.epochs_left.get(profile.member, 1) for profile in live)
    work = math.fsum(profile.seconds_per_sample for profile in live)
    gain = work / work_rate((running,), live) - work / work_rate(candidate, live)
    cost = moving_seconds(candidate, situation.homes, live, situation.moving) + situation.moving.rebalance_seconds
    return epochs * situation.samples_per_epoch * gain <= cost


def work_rate(flotillas: Sequence[Flotilla], profiles: Sequence[Profile]) -> float:
    """Useful work done per second, in seconds of one device: what flotillas of unlike members can be compared by."""
    work = {profile.member: profile.seconds_per_sample for profile in profiles}
    return math.fsum(f.samples_per_second * math.fsum(work[member] for member in f.members) for f in flotillas)
