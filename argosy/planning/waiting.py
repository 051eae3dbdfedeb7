"""What a static order of steps costs: the time of one cycle when split members wait for one another."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from argosy.plans import Flotilla, Half, Step
from argosy.profiles import Profile

__all__ = ["TimedOrder", "cycle_seconds", "cycle_seconds_of"]

TimedOrder = Sequence[tuple[Step, float]]
"""The order of one device with the seconds of every entry."""

CYCLES = 16
"""Cycles that are run; the second half of them is taken for the steady state."""


def cycle_seconds(flotilla: Flotilla, profiles: Mapping[str, Profile]) -> float:
    """Return the seconds per stream sample when every device runs ``Flotilla.steps`` over and over.

    A begin is charged the share and the all-reduce, a finish the part that every rank repeats, so an order adds up to the
    load of its device, and what a neighbour's step hides of the all-reduce is not counted as gained.
    """
    busiest = max(flotilla.loads.values())
    if not any(placement.is_split for placement in flotilla.placements):
        return busiest
    return max(busiest, cycle_seconds_of({d: _timed(flotilla, d, profiles) for d in flotilla.devices}))


def cycle_seconds_of(orders: Mapping[str, TimedOrder]) -> float:
    """Return the seconds of one cycle of any orders, in the steady state.

    The event graph is a max-plus system: a step starts when the one before it on its device has ended, a finish also not
    before every rank has ended its begin; its growth per cycle is the pace. Where all begins of a device come before its
    finishes, a path gains at most one load per cycle, so such orders cost no more than the largest load; where a finish
    follows its begin at once, devices can wait for one another in every cycle.
    """
    clock = dict.fromkeys(orders, 0.0)
    halfway = 0.0
    for cycle in range(CYCLES):
        if cycle == CYCLES // 2:
            halfway = max(clock.values())
        clock = _run_cycle(orders, clock)
    return (max(clock.values()) - halfway) / (CYCLES - CYCLES // 2)


def _timed(flotilla: Flotilla, device: str, profiles: Mapping[str, Profile]) -> TimedOrder:
    seconds = {placement.member: placement.seconds_on(device) for placement in flotilla.pack(device)}
    timed = []
    for step in flotilla.steps(device):
        finish = min(profiles[step.member].shard.fixed_seconds, seconds[step.member])
        parts = {Half.STEP: seconds[step.member], Half.FINISH: finish, Half.BEGIN: seconds[step.member] - finish}
        timed.append((step, parts[step.half]))
    return timed


def _run_cycle(orders: Mapping[str, TimedOrder], start: Mapping[str, float]) -> dict[str, float]:
    """Return when each device ends its cycle."""
    clock, position = dict(start), dict.fromkeys(orders, 0)
    ranks_left = Counter(step.member for order in orders.values() for step, _ in order if step.half is Half.BEGIN)
    begun_at: dict[str, float] = defaultdict(float)
    blocked: dict[str, list[str]] = defaultdict(list)
    ready = list(orders)
    while ready:
        device = ready.pop()
        for step, seconds in orders[device][position[device] :]:
            if step.half is Half.FINISH:
                if ranks_left[step.member]:
                    blocked[step.member].append(device)
                    break
                clock[device] = max(clock[device], begun_at[step.member])
            clock[device] += seconds
            position[device] += 1
            if step.half is Half.BEGIN:
                begun_at[step.member] = max(begun_at[step.member], clock[device])
                ranks_left[step.member] -= 1
                if not ranks_left[step.member]:
                    ready += blocked.pop(step.member, [])
    assert not any(blocked.values()), "the orders wait for one another in a circle"
    return clock
