"""Tests that members of one architecture are placed together if this costs little pace."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from argosy.cluster import Device
from argosy.planning import POLICIES, Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile

GIB = 2**30


def profile(member: str, rate: float, alike: str = "", memory: int = GIB // 64) -> Profile:
    return Profile(
        member=member,
        device_kind="cpu",
        samples_per_second=(rate,),
        memory_bytes=memory,
        state_bytes=memory // 2,
        alike=alike,
    )


def placed(profiles: Sequence[Profile], devices: int) -> Flotilla:
    there = tuple(Device(name=f"cpu:{n}", kind="cpu", memory_bytes=GIB, node="here") for n in range(devices))
    (flotilla,) = POLICIES["balanced"].launch(Situation(waiting=tuple(profiles), free=there, devices=there))
    return flotilla


def scattered(flotilla: Flotilla, kinds: str) -> int:
    """Return the number of pairs of a kind and a device that holds members of it."""
    return len({(kind, p.devices[0]) for kind in kinds for p in flotilla.placements if p.member.startswith(kind)})


def mixed(alike: bool) -> list[Profile]:
    """Return the members of two kinds, whose measured rates alternate."""
    return [
        profile(f"{kind}{n}", 100 + n + shift, kind * alike)
        for n in range(12)
        for kind, shift in (("a", 0.3), ("b", 0.6))
    ]


def test_members_alike_are_not_scattered() -> None:
    apart, together = placed(mixed(alike=False), 2), placed(mixed(alike=True), 2)
    assert scattered(apart, "ab") == 4
    assert scattered(together, "ab") == 2
    assert together.samples_per_second >= 0.95 * apart.samples_per_second
    assert sorted(together.members) == sorted(apart.members)


def test_a_kind_that_is_alone_has_all_devices() -> None:
    flotilla = placed([profile(f"a{n}", 100, "a") for n in range(12)], 4)
    assert set(Counter(p.devices[0] for p in flotilla.placements).values()) == {3}


def test_those_that_are_like_no_other_are_placed_as_ever() -> None:
    profiles = [profile(kind, 100 + n, kind) for n, kind in enumerate("abc")]
    plain = [profile(p.member, p.samples_per_second[0]) for p in profiles]
    assert placed(profiles, 2) == placed(plain, 2)


def test_what_costs_too_much_pace_is_not_done() -> None:
    """Six members on two devices: gathering the five small ones beside the large one would cost too much pace."""
    profiles = [profile("large", 20), *(profile(f"a{n}", 100, "a") for n in range(5))]
    plain = [profile(p.member, p.samples_per_second[0]) for p in profiles]
    assert placed(profiles, 2).samples_per_second >= 0.95 * placed(plain, 2).samples_per_second


def test_memory_parts_those_that_do_not_fit() -> None:
    flotilla = placed([profile(f"a{n}", 100, "a", memory=GIB // 4) for n in range(7)], 2)
    assert max(Counter(p.devices[0] for p in flotilla.placements).values()) <= 4


def test_members_whose_program_takes_too_much_memory_are_not_gathered_on_one_device() -> None:
    """The twelve hold little memory, but a step of all of them at once takes more than a device has."""
    a = [replace(profile(f"a{n}", 100, "a"), program_bytes=GIB // 10) for n in range(12)]
    others = [profile(f"b{n}", 100) for n in range(12)]
    assert scattered(placed([replace(one, program_bytes=0) for one in a] + others, 2), "a") == 1
    assert scattered(placed([*a, *others], 2), "a") == 2
