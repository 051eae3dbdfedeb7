"""What the static order of steps costs: the time of one cycle when split members wait for one another."""

from collections.abc import Mapping

from argosy.plans import Flotilla, Half, Step
from argosy.profiles import Profile

__all__ = ["cycle_seconds"]

CYCLES = 16
"""Cycles that are run; the second half of them is taken for the steady state."""


def cycle_seconds(flotilla: Flotilla, profiles: Mapping[str, Profile]) -> float:
    """Seconds per stream sample when every device runs ``Flotilla.steps`` over and over; at least the largest load.

    The event graph of the orders is a max-plus system: a step starts when the one before it on its device has ended, a
    finish also not before every rank has ended its begin. Its growth per cycle is the pace. A begin carries the share and
    the all-reduce, a finish the part that every rank repeats.
    """
    if not any(placement.is_split for placement in flotilla.placements):
        return max(flotilla.loads.values())
    work = {device: _timed_steps(flotilla, device, profiles) for device in flotilla.devices}
    clock = dict.fromkeys(work, 0.0)
    halfway = 0.0
    for cycle in range(CYCLES):
        if cycle == CYCLES // 2:
            halfway = max(clock.values())
        clock = _run_cycle(work, clock)
    return max((max(clock.values()) - halfway) / (CYCLES - CYCLES // 2), *flotilla.loads.values())


def _timed_steps(flotilla: Flotilla, device: str, profiles: Mapping[str, Profile]) -> list[tuple[Step, float]]:
    """The order of one device with the seconds per sample of every entry; they add up to its load."""
    seconds = {placement.member: placement.seconds_on(device) for placement in flotilla.pack(device)}
    timed = []
    for step in flotilla.steps(device):
        finish = min(profiles[step.member].shard.fixed_seconds, seconds[step.member])
        parts = {Half.STEP: seconds[step.member], Half.FINISH: finish, Half.BEGIN: seconds[step.member] - finish}
        timed.append((step, parts[step.half]))
    return timed


def _run_cycle(work: Mapping[str, list[tuple[Step, float]]], start: Mapping[str, float]) -> dict[str, float]:
    """When each device ends its cycle; as all begins come first, one pass finds when every all-reduce can be complete."""
    clock = dict(start)
    complete: dict[str, float] = {}
    for device, steps in work.items():
        for step, seconds in steps:
            if step.half is Half.FINISH:
                break
            clock[device] += seconds
            if step.half is Half.BEGIN:
                complete[step.member] = max(complete.get(step.member, 0.0), clock[device])
    for device, steps in work.items():
        for step, seconds in steps:
            if step.half is Half.FINISH:
                clock[device] = max(clock[device], complete[step.member]) + seconds
    return clock
