"""Places members that may form one program together, because a device steps them at once faster than one by one."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from argosy.cluster import Device
from argosy.planning.best_fit import best_flotilla
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile, pack_memory_bytes

__all__ = ["gather_alike"]

SLACK = 0.05
"""Fraction of the predicted pace that may be lost; a program gains more than that, but this is only known when it runs."""


def gather_alike(flotilla: Flotilla, profiles: Sequence[Profile], devices: Sequence[Device]) -> Flotilla:
    """Return a flotilla with similar members on as few devices as the pace allows; the given one if every alternative is too slow.

    Similar members are dealt into units, which are placed instead of members; few units are tried first.
    """
    by_name = {profile.member: profile for profile in profiles}
    members = [by_name[name] for name in flotilla.members]
    split = any(placement.is_split for placement in flotilla.placements)
    # Units are placed whole, and on a single device all members are together anyway.
    most = 0 if split or len(devices) == 1 else min(len(devices), max(map(len, _group_by_kind(members))) // 2)
    parts = 1
    while parts <= most:
        units = _make_units(members, parts)
        joint = best_flotilla([_joint_profile(unit) for unit in units.values()], devices)
        if joint is not None and joint.samples_per_second >= (1 - SLACK) * flotilla.samples_per_second:
            whole = [(profile, placement) for placement in joint.placements for profile in units[placement.member]]
            return Flotilla(placements=tuple(Placement.whole(profile, unit.devices[0]) for profile, unit in whole))
        parts *= 2
    return flotilla


def _group_by_kind(profiles: Sequence[Profile]) -> Sequence[Sequence[Profile]]:
    """Group the members by `Profile.alike`; a member without it forms its own group."""
    kinds: dict[str, list[Profile]] = defaultdict(list)
    for profile in profiles:
        kinds[profile.alike or f"only {profile.member}"].append(profile)
    return list(kinds.values())


def _make_units(profiles: Sequence[Profile], most: int) -> Mapping[str, Sequence[Profile]]:
    """Return the members to place together, by the name of the first; each kind forms at most `most` units, of two members or more."""
    units = {}
    for kind in _group_by_kind(profiles):
        parts = max(min(most, len(kind) // 2), 1)
        for part in range(parts):
            unit = kind[part::parts]
            units[unit[0].member] = unit
    return units


def _joint_profile(unit: Sequence[Profile]) -> Profile:
    """Return the joint profile of a unit's members; its memory is that of their program, if measured, or of stepping them one by one."""
    seconds = sum(profile.seconds_per_sample for profile in unit)
    one_by_one = max(profile.activation_bytes for profile in unit)
    activation = max(one_by_one, sum(profile.program_bytes for profile in unit))
    return replace(
        unit[0],
        samples_per_second=(1.0 / seconds,),
        memory_bytes=pack_memory_bytes(unit) + activation - one_by_one,
        activation_bytes=activation,
        state_bytes=sum(profile.state_bytes for profile in unit),
        splittable=False,
        shard_cost=None,
    )
