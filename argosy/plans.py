"""What will be done: flotillas and their placements, as a frozen value that validates, explains, saves and loads itself."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from argosy.errors import PlanError

__all__ = ["Flotilla", "Placement", "Plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Which devices carry one member."""

    member: str
    devices: tuple[str, ...]
    """Names of devices: one, or the data-parallel group in rank order."""
    seconds_per_sample: float
    """Predicted work on each of those devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flotilla:
    """Members that train at the same time on one stream."""

    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        members = [placement.member for placement in self.placements]
        if not members or len(set(members)) != len(members):
            raise PlanError(f"a flotilla needs members, each once; found {members}.")

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members, in the order of their steps."""
        return tuple(placement.member for placement in self.placements)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices in use, each once."""
        return tuple(dict.fromkeys(device for placement in self.placements for device in placement.devices))

    def load(self, device: str) -> float:
        """Predicted seconds of work per stream sample on one device."""
        return sum(p.seconds_per_sample for p in self.placements if device in p.devices)

    @property
    def samples_per_second(self) -> float:
        """Predicted pace: one over the load of the busiest device (DESIGN.md §3.2)."""
        return 1.0 / max(self.load(device) for device in self.devices)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A policy's decision for the devices that are free."""

    policy: str
    flotillas: tuple[Flotilla, ...]
    """Run at the same time, on disjoint devices."""
    waiting: tuple[str, ...]
    """Members without a device yet; the policy is asked again when devices become free."""

    def __post_init__(self) -> None:
        devices = [device for flotilla in self.flotillas for device in flotilla.devices]
        if len(set(devices)) != len(devices):
            raise PlanError(f"concurrent flotillas need disjoint devices; found {devices}.")

    def to_json(self) -> dict[str, Any]:
        """A plain value for ``plan.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Plan":
        """The plan that ``to_json`` wrote."""
        flotillas = tuple(
            Flotilla(
                placements=tuple(
                    Placement(
                        member=p["member"], devices=tuple(p["devices"]), seconds_per_sample=p["seconds_per_sample"]
                    )
                    for p in flotilla["placements"]
                )
            )
            for flotilla in value["flotillas"]
        )
        return cls(policy=value["policy"], flotillas=flotillas, waiting=tuple(value["waiting"]))

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=2)

    def explain(self) -> str:
        """Who shares which device, and the predicted pace, in a few lines."""
        lines = [
            f"policy {self.policy}: {len(self.flotillas)} flotilla(s) at once, {len(self.waiting)} member(s) waiting"
        ]
        for number, flotilla in enumerate(self.flotillas):
            lines.append(f"flotilla {number}: predicted pace {flotilla.samples_per_second:,.0f} samples/s")
            for device in flotilla.devices:
                pack = [p.member for p in flotilla.placements if device in p.devices]
                busy = flotilla.load(device) * flotilla.samples_per_second
                lines.append(f"  {device}: {', '.join(pack)}  ({busy:.0%} of the pace)")
        return "\n".join(lines)
