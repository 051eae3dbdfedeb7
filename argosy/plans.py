"""Plans: flotillas and their placements, as frozen values that validate, explain, save and load themselves."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from argosy.cluster import Device
from argosy.disk.json_values import convert
from argosy.errors import PlanError
from argosy.errors.wording import format_bytes
from argosy.profiles import Profile, pack_memory_bytes

__all__ = ["Flotilla", "Placement", "Plan"]

_TOLERANCE = 1e-9
"""Seconds per sample by which a placement may differ from its profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The devices that carry one member."""

    member: str
    devices: tuple[str, ...]
    """Names of devices: one, or the data-parallel group in rank order."""
    seconds_per_sample: float
    """Predicted work per sample on the busiest device of the group."""
    shares: tuple[float, ...] = ()
    """Fraction of every batch that each device takes, in the order of ``devices``; empty for equal shares."""
    device_seconds: tuple[float, ...] = ()
    """Predicted work per sample on each device, in the order of ``devices``; empty if it is ``seconds_per_sample`` on all."""

    def __post_init__(self) -> None:
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise PlanError(
                f"member {self.member!r} is placed on the devices {self.devices}. Give it at least one, and each only once."
            )
        if self.shares and (
            len(self.shares) != len(self.devices)
            or min(self.shares) <= 0
            or not math.isclose(sum(self.shares), 1.0, abs_tol=1e-6)
        ):
            raise PlanError(
                f"member {self.member!r} is placed with shares {self.shares}. Give one share greater than 0 per device, with a sum of 1."
            )
        if self.device_seconds and len(self.device_seconds) != len(self.devices):
            raise PlanError(
                f"member {self.member!r} is placed on {len(self.devices)} device(s) with device_seconds "
                f"{self.device_seconds}. Give one number per device."
            )
        if not all(seconds > 0 for seconds in (self.seconds_per_sample, *self.device_seconds)):
            raise PlanError(
                f"member {self.member!r} is placed with {self.seconds_per_sample} s per sample ({self.device_seconds} by device); times "
                "must be greater than 0."
            )

    @classmethod
    def whole(cls, profile: Profile, device: str) -> "Placement":
        """Place the member on one device."""
        return cls(member=profile.member, devices=(device,), seconds_per_sample=profile.seconds_per_sample)

    @classmethod
    def even(cls, profile: Profile, devices: Iterable[str]) -> "Placement":
        """Place the member data-parallel in equal shares: 1 / r(m) on each device."""
        group = tuple(devices)
        return cls(member=profile.member, devices=group, seconds_per_sample=1.0 / profile.rate(len(group)))

    @classmethod
    def uneven(cls, profile: Profile, shares: Mapping[str, float]) -> "Placement":
        """Place the member data-parallel, each device with its own share of every batch."""
        seconds = tuple(profile.shard_seconds(len(shares), share) for share in shares.values())
        return cls(
            member=profile.member,
            devices=tuple(shares),
            seconds_per_sample=max(seconds),
            shares=tuple(shares.values()),
            device_seconds=seconds,
        )

    @property
    def is_split(self) -> bool:
        """Whether several devices carry the member."""
        return len(self.devices) > 1

    def share(self, device: str) -> float:
        """Return the fraction of every batch that this device takes."""
        return self.all_shares[self.devices.index(device)]

    @property
    def all_shares(self) -> tuple[float, ...]:
        """Fraction of every batch for each device."""
        return self.shares or (1.0 / len(self.devices),) * len(self.devices)

    def seconds_on(self, device: str) -> float:
        """Return the predicted work per sample on one device; zero if it does not carry the member."""
        if device not in self.devices:
            return 0.0
        return self.device_seconds[self.devices.index(device)] if self.device_seconds else self.seconds_per_sample

    def priced(self, profile: Profile) -> "Placement":
        """Return the same placement at the costs of another profile."""
        if not self.shares:
            return Placement.even(profile, self.devices)
        return Placement.uneven(profile, dict(zip(self.devices, self.shares, strict=True)))

    def moved_to(self, devices: Mapping[str, str]) -> "Placement":
        """Return the same placement on other devices, by a mapping of names."""
        return replace(self, devices=tuple(devices[name] for name in self.devices))


@dataclass(frozen=True, kw_only=True, slots=True)
class Flotilla:
    """Members that train at the same time on one stream."""

    placements: tuple[Placement, ...]
    """One placement for each member."""

    def __post_init__(self) -> None:
        members = [placement.member for placement in self.placements]
        if not members or len(set(members)) != len(members):
            raise PlanError(f"a flotilla has the members {members}. Give it at least one, and each only once.")

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members, in the order of the placements."""
        return tuple(placement.member for placement in self.placements)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices in use, each once."""
        return tuple(dict.fromkeys(device for placement in self.placements for device in placement.devices))

    def of(self, member: str) -> Placement:
        """Return the placement of one member."""
        return next(placement for placement in self.placements if placement.member == member)

    def pack(self, device: str) -> tuple[Placement, ...]:
        """Return the placements that share one device."""
        return tuple(placement for placement in self.placements if device in placement.devices)

    @property
    def loads(self) -> dict[str, float]:
        """Predicted seconds of work per stream sample, by device."""
        loads = dict.fromkeys(self.devices, 0.0)
        for placement in self.placements:
            for device in placement.devices:
                loads[device] += placement.seconds_on(device)
        return loads

    @property
    def samples_per_second(self) -> float:
        """Predicted pace: one over the load of the busiest device."""
        return 1.0 / max(self.loads.values())

    def keeping(self, members: Iterable[str]) -> "Flotilla":
        """Return the flotilla after the others have left; their devices stay as they are."""
        kept = set(members)
        return Flotilla(placements=tuple(p for p in self.placements if p.member in kept))

    def priced(self, profiles: Mapping[str, Profile]) -> "Flotilla":
        """Return the same placements at the costs of these profiles; members without one stay as they are."""
        placements = [p.priced(profiles[p.member]) if p.member in profiles else p for p in self.placements]
        return Flotilla(placements=tuple(placements))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A policy's decision for the devices that are free."""

    policy: str
    flotillas: tuple[Flotilla, ...]
    """Flotillas that run at the same time, on disjoint devices."""
    waiting: tuple[str, ...]
    """Members without a device yet; the policy is asked again when devices become free."""
    notes: tuple[str, ...] = ()
    """Unusual facts about members."""

    def __post_init__(self) -> None:
        devices = [device for flotilla in self.flotillas for device in flotilla.devices]
        if len(set(devices)) != len(devices):
            raise PlanError(f"concurrent flotillas have the devices {devices}. Give each device to only one flotilla.")
        members = [*self.waiting, *(member for flotilla in self.flotillas for member in flotilla.members)]
        if len(set(members)) != len(members):
            raise PlanError(f"a plan has the members {sorted(members)}. Put each in one flotilla, or let it wait.")

    @classmethod
    def of(
        cls, policy: str, flotillas: Iterable[Flotilla], profiles: Collection[Profile], devices: Iterable[Device]
    ) -> "Plan":
        """Return the plan that starts these flotillas while the other members wait; raises what `check` raises."""
        flotillas = tuple(flotillas)
        started = {member for flotilla in flotillas for member in flotilla.members}
        waiting = tuple(profile.member for profile in profiles if profile.member not in started)
        plan = cls(policy=policy, flotillas=flotillas, waiting=waiting)
        plan.check(profiles, devices)
        return plan

    def check(self, profiles: Iterable[Profile], devices: Iterable[Device]) -> None:
        """Raise PlanError unless these devices can do what the plan says at the cost it predicts."""
        by_member = {profile.member: profile for profile in profiles}
        by_name = {device.name: device for device in devices}
        for flotilla in self.flotillas:
            for placement in flotilla.placements:
                _check_placement(placement, by_member, by_name)
            for name in flotilla.devices:
                pack = [by_member[placement.member] for placement in flotilla.pack(name)]
                needed, available = pack_memory_bytes(pack), by_name[name].memory_bytes
                if needed > available:
                    raise PlanError(
                        f"device {name!r} has {format_bytes(available)} of memory; its pack ({', '.join(p.member for p in pack)}) "
                        f"needs {format_bytes(needed)}. Plan again with these profiles."
                    )

    def to_json(self) -> dict[str, Any]:
        """Return a plain value for ``plan.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Plan":
        """Return the plan that ``to_json`` wrote; raises PlanError for anything else."""
        try:
            plan: Plan = convert(value, cls, "it")
        except ValueError as error:
            raise PlanError(f"{str(value)[:40]!r} is not a plan: {error}. Plan again.") from error
        return plan

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=2)

    def explain(self) -> str:
        """Explain in a few lines which members share a device or are split, and the predicted pace."""
        lines = [
            f"policy {self.policy}: {len(self.flotillas)} flotilla(s) at once, {len(self.waiting)} member(s) waiting"
        ]
        for number, flotilla in enumerate(self.flotillas):
            pace, loads = flotilla.samples_per_second, flotilla.loads
            lines.append(f"flotilla {number}: predicted pace {pace:,.0f} samples/s")
            for device in flotilla.devices:
                pack = ", ".join(_name_with_share(placement, device) for placement in flotilla.pack(device))
                lines.append(f"  {device}: {pack}  ({loads[device] * pace:.0%} of the pace)")
        return "\n".join([*lines, *self.notes])


def _name_with_share(placement: Placement, device: str) -> str:
    return f"{placement.member} ({placement.share(device):.0%})" if placement.is_split else placement.member


def _check_placement(placement: Placement, profiles: Mapping[str, Profile], devices: Mapping[str, Device]) -> None:
    profile = profiles.get(placement.member)
    unknown = [name for name in placement.devices if name not in devices]
    if profile is None or unknown:
        missing = f"unknown devices {', '.join(unknown)}" if unknown else "it has no profile"
        raise PlanError(f"member {placement.member!r} cannot be placed: {missing}. Plan again.")
    if placement.is_split and not profile.splittable:
        raise PlanError(
            f"member {placement.member!r} is split over {', '.join(placement.devices)}; its profile does not "
            "allow that. Plan again with these profiles."
        )
    for name in placement.devices:
        wanted = profile.shard_seconds(len(placement.devices), placement.share(name))
        if not math.isclose(placement.seconds_on(name), wanted, rel_tol=1e-6, abs_tol=_TOLERANCE):
            raise PlanError(
                f"member {placement.member!r} is placed on {name!r} for {placement.seconds_on(name):.3g} s per sample; its "
                f"profile says {wanted:.3g} s. Plan again with these profiles."
            )
