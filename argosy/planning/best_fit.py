"""Finds a flotilla with the best pace by bisection; at each pace, whole members are placed by best fit, and the rest are split."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from argosy.cluster import Device
from argosy.planning.bins import Bin, Bins
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["BestFit", "best_flotilla", "flotilla_at"]

PACE_TOLERANCE = 5e-4
"""Relative precision of the pace at which the bisection ends."""
FEW_MEMBERS = 8
"""With at most this many members, every number of members to split first is tried."""
SMALLEST_SHARE = 0.02
"""Smallest share of a batch for a device; smaller ones would round to zero samples."""
SPLIT_GAIN = 0.1
"""On CPUs, the relative gain in pace that splits must bring. Whole members are reproducible bit for bit, and split ones are not. Rates
are not known more precisely than this, and must not change the decision from run to run."""
NODES_TRIED = 8
"""Number of nodes that are tried for a group before it may span nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BestFit:
    """One variant of best fit; several are tried."""

    order: tuple[Profile, ...]
    split_first: int = 0
    """Number of members at the head of the order that are split before any member is placed whole."""
    even_shares: bool = False
    whole: bool = False
    """Whether splits are forbidden, so that packing fails if a member does not fit whole."""


def best_flotilla(
    profiles: Sequence[Profile], devices: Sequence[Device], *, even_shares: bool = False
) -> Flotilla | None:
    """Return a flotilla of all members with the highest pace found; None if they do not fit into the devices' memory together."""
    if sum(profile.resident_bytes for profile in profiles) > sum(device.memory_bytes for device in devices):
        return None
    largest_first = tuple(sorted(profiles, key=lambda p: (-p.seconds_per_sample, p.member)))
    spread = _place_whole(largest_first, devices)
    if spread is not None and 1.0 / spread.samples_per_second <= _least_seconds(profiles, devices) * (
        1 + PACE_TOLERANCE
    ):
        return spread
    # With many members, placing whole ones first leaves few fragments. With few members, each split matters, so try all counts.
    most_split = len(profiles) if len(profiles) <= FEW_MEMBERS else 0
    fits = [BestFit(order=largest_first, split_first=n, even_shares=even_shares) for n in range(most_split + 1)]
    flotillas = [flotilla for fit in fits if (flotilla := _bisect(fit, devices))]
    flotillas += [spread] if spread is not None else []
    if not flotillas:  # memory is the limit, so order by memory
        by_memory = tuple(sorted(profiles, key=lambda p: (-p.memory_bytes, p.member)))
        return _bisect(BestFit(order=by_memory, even_shares=even_shares), devices)
    best = max(flotillas, key=lambda flotilla: flotilla.samples_per_second)
    return _drop_vain_splits(best, spread, largest_first, devices)


def _drop_vain_splits(
    best: Flotilla, spread: Flotilla | None, largest_first: tuple[Profile, ...], devices: Sequence[Device]
) -> Flotilla:
    """Return the best flotilla or, on CPUs, the best one without splits if splits gain too little."""
    if devices[0].kind != "cpu" or not any(placement.is_split for placement in best.placements):
        return best
    whole = (spread, _bisect(BestFit(order=largest_first, whole=True), devices))
    good = [f for f in whole if f is not None and best.samples_per_second < (1 + SPLIT_GAIN) * f.samples_per_second]
    return max(good, key=lambda flotilla: flotilla.samples_per_second, default=best)


def _least_seconds(profiles: Sequence[Profile], devices: Sequence[Device]) -> float:
    """Return a lower bound on seconds per sample for whole members: evenly divided work, or the slowest member that cannot be split."""
    slowest = max((profile.seconds_per_sample for profile in profiles if not profile.splittable), default=0.0)
    return max(sum(profile.seconds_per_sample for profile in profiles) / len(devices), slowest)


def _place_whole(largest_first: Sequence[Profile], devices: Sequence[Device]) -> Flotilla | None:
    """Place each member whole on the least loaded device that has the memory for it (LPT, Graham 1969).

    This spreads many small members almost evenly in both time and memory. Best fit would fill most of the memory of the last devices.
    """
    bins = [Bin(device=device, room=0.0) for device in devices]
    least_loaded = [(0.0, position) for position in range(len(devices))]
    placements = []
    for profile in largest_first:
        full = []
        while least_loaded and not bins[least_loaded[0][1]].holds(profile):
            full.append(heapq.heappop(least_loaded))
        if not least_loaded:
            return None
        load, position = heapq.heappop(least_loaded)
        bins[position].take(profile, 0.0)
        placements.append(Placement.whole(profile, devices[position].name))
        for entry in (*full, (load + profile.seconds_per_sample, position)):
            heapq.heappush(least_loaded, entry)
    return Flotilla(placements=tuple(placements))


def _bisect(fit: BestFit, devices: Sequence[Device]) -> Flotilla | None:
    """Return the flotilla with the fewest seconds per sample at which this fit succeeds."""
    total, high = sum(profile.seconds_per_sample for profile in fit.order), _least_seconds(fit.order, devices)
    # Splits may beat the work divided by the number of devices, but nothing can be faster than a member that cannot be split.
    low = max(0.5 * total / len(devices), high * (1 - 1e-9) if high > total / len(devices) else 0.0)
    best = flotilla_at(high, fit, devices)
    # At `total` one device has the time for everything: if nothing fits then either, memory is what is missing.
    while best is None and high < 2 * total:
        low, high = high, 1.25 * high
        best = flotilla_at(high, fit, devices)
    while best is not None and high > low * (1 + PACE_TOLERANCE):
        middle = (low + high) / 2
        flotilla = flotilla_at(middle, fit, devices)
        if flotilla is None:
            low = middle
        else:
            best, high = flotilla, middle
    return best


def flotilla_at(seconds: float, fit: BestFit, devices: Sequence[Device]) -> Flotilla | None:
    """Return a flotilla in which no device needs more than ``seconds`` per sample; None if this fit finds none."""
    bins = Bins(devices, seconds)
    placed: dict[str, Placement] = {}
    head, tail = fit.order[: fit.split_first], fit.order[fit.split_first :]
    if not _split_all(head, bins, placed, fit.even_shares):
        return None
    too_large = []
    for profile in tail:
        bin_ = bins.tightest(profile, profile.seconds_per_sample)
        if bin_ is None:
            too_large.append(profile)
            if fit.whole:
                return None
        else:
            placed[profile.member] = Placement.whole(profile, bin_.device.name)
            bins.take(placed[profile.member], profile)
    if not _split_all(too_large, bins, placed, fit.even_shares):
        return None
    return Flotilla(placements=tuple(placed[profile.member] for profile in fit.order))


def _split_all(profiles: Iterable[Profile], bins: Bins, placed: dict[str, Placement], even_shares: bool) -> bool:
    """Add a group for each of these members to ``placed``; return False as soon as one does not fit."""
    split = _split_evenly if even_shares else _split_unevenly
    for profile in profiles:
        placement = split(profile, bins)
        if placement is None:
            return False
        placed[profile.member] = placement
        bins.take(placement, profile)
    return True


def _split_evenly(profile: Profile, bins: Bins) -> Placement | None:
    """Split a member over the fewest possible devices with room for an even share each, the tightest first; None if there are none."""
    for count in range(2, profile.largest_group(len(bins)) + 1):
        group = list(islice(bins.at_least(profile, 1.0 / profile.rate(count)), count))
        if len(group) == count:
            return Placement.even(profile, (bin_.device.name for bin_ in group))
    return None


def _split_unevenly(profile: Profile, bins: Bins) -> Placement | None:
    """Split a member: all devices of its group except the last take as much as they have room for, and the last takes the rest."""
    group = _uneven_group(profile, bins)
    if group is None:
        return None
    overhead = profile.shard_overhead(len(group))
    possible = [(bin_.room - overhead) / profile.shard.proportional_seconds for bin_ in group]
    last = max(1.0 - sum(possible[:-1]), SMALLEST_SHARE)
    # If the others have room for more than the rest, scale their shares down.
    scale = (1.0 - last) / sum(possible[:-1])
    shares = [*(scale * share for share in possible[:-1]), last]
    return Placement.uneven(profile, {bin_.device.name: share for bin_, share in zip(group, shares, strict=True)})


def _uneven_group(profile: Profile, bins: Bins) -> list[Bin] | None:
    """Return the smallest group with room for the whole batch, inside one node if possible."""
    roomiest = list(islice(bins.roomiest(profile), profile.largest_group(len(bins))))
    count = _count_needed(profile, roomiest)
    if count is None:
        return None
    for node in list(dict.fromkeys(bin_.device.node for bin_ in roomiest))[:NODES_TRIED]:
        local = list(bins.roomiest(profile, node))
        if _count_needed(profile, local[:count]) is not None:
            return _tighten(profile, local[: count - 1], count, reversed(local))
    remainder = _remainder_for_last(profile, roomiest[: count - 1], count)
    return _tighten(profile, roomiest[: count - 1], count, bins.at_least(profile, remainder))


def _count_needed(profile: Profile, roomiest: Sequence[Bin]) -> int | None:
    """Return the smallest number of these devices that can share one batch; a group has its overhead on every device."""
    batch = profile.shard.proportional_seconds
    for count in range(2, len(roomiest) + 1):
        overhead = profile.shard_overhead(count)
        if roomiest[count - 1].room < overhead + SMALLEST_SHARE * batch:
            continue
        # Require slightly more than the batch, so that rounding cannot leave the last device without enough room.
        if sum(bin_.room - overhead for bin_ in roomiest[:count]) >= batch * (1 + 1e-9):
            return count
    return None


def _tighten(profile: Profile, roomiest: Sequence[Bin], count: int, tightest_first: Iterable[Bin]) -> list[Bin]:
    """Return a group in which all but the last device are filled, and the last is the tightest one with room for the rest."""
    remainder = _remainder_for_last(profile, roomiest, count)
    return [*roomiest, next(b for b in tightest_first if b.room >= remainder and b not in roomiest)]


def _remainder_for_last(profile: Profile, full: Sequence[Bin], count: int) -> float:
    """Return the work of the last device of a group when all others are full."""
    overhead = profile.shard_overhead(count)
    remainder = profile.shard.proportional_seconds - sum(bin_.room - overhead for bin_ in full)
    return overhead + max(remainder, SMALLEST_SHARE * profile.shard.proportional_seconds)
