"""What a member costs on a kind of device, and what preparation costs: all that planners know about networks."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

from argosy.disk.files import replacing
from argosy.disk.json_values import convert, parse_json
from argosy.errors import PlanError

__all__ = [
    "PROFILE_BATCHES",
    "TIMED_BATCHES",
    "PreparationRates",
    "Profile",
    "ShardCost",
    "fit_shard_cost",
    "largest_measured_group",
    "load_profiles",
    "pack_memory_bytes",
    "save_profiles",
]

PROFILE_BATCHES = 48
"""Batches that one measurement of a rate trains at most (FLEET §6.1)."""
TIMED_BATCHES = 20
"""Batches of these that are timed, the last ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardCost:
    """Work of one shard of a split member per stream sample, apart from the all-reduce."""

    fixed_seconds: float
    """Work that every rank repeats whatever its share: launching the step, the optimizer."""
    proportional_seconds: float
    """Work of the whole batch, of which a rank does its share."""

    def __post_init__(self) -> None:
        if self.fixed_seconds < 0 or self.proportional_seconds <= 0:
            raise PlanError(
                f"a shard has fixed_seconds {self.fixed_seconds} and proportional_seconds {self.proportional_seconds}; the first "
                "must be at least 0, the second greater than 0."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Costs of training one member."""

    member: str
    device_kind: str
    samples_per_second: tuple[float, ...]
    """Training rate r(m) on m = 1, 2, … devices of that kind; at least r(1)."""
    memory_bytes: int
    """Peak memory on a device that carries the whole member."""
    state_bytes: int
    """Weights and optimizer state, which are moved with the member."""
    activation_bytes: int = 0
    """The part of ``memory_bytes`` that lives only during a step: the members of a pack take turns in it."""
    splittable: bool = False
    """Whether the member may train data-parallel on several devices (its admission test passed)."""
    node_devices: int = 4
    """Devices of one node where the rates were measured; fixes the anchor of Equation 5."""
    shard_cost: ShardCost | None = None
    """Cost of a shard, if it was measured; otherwise it is fitted to the rates."""
    alike: str = ""
    """Key that members have in common if they may form one program; empty if no other member is alike."""
    program_bytes: int = 0
    """Its part of the memory of a step of a program with several members; 0 without such a program, or if memory is not counted."""

    def __post_init__(self) -> None:
        if not self.samples_per_second or not all(0 < rate < math.inf for rate in self.samples_per_second):
            raise PlanError(
                f"profile of {self.member!r}: rates must be positive; found {self.samples_per_second}. Measure it again."
            )
        if not 0 <= self.activation_bytes <= self.memory_bytes or self.state_bytes < 0 or self.node_devices < 1:
            raise PlanError(
                f"profile of {self.member!r} has impossible sizes: {self.activation_bytes} bytes of activations in a memory of "
                f"{self.memory_bytes}, {self.state_bytes} of state, nodes of {self.node_devices} devices. Measure it again."
            )

    @property
    def seconds_per_sample(self) -> float:
        """Work of one sample on one device: c = 1 / r(1)."""
        return 1.0 / self.samples_per_second[0]

    @property
    def resident_bytes(self) -> int:
        """Memory that the member holds between its steps."""
        return self.memory_bytes - self.activation_bytes

    def rate(self, devices: int) -> float:
        """Return r(m): as measured, and for larger groups by FLEET's Equation 5.

        r(m) = m · r(M_b)/M_b · (r(M_b)/r(M_b-1) · (M_b-1)/M_b)^(m-M_b), with M_b = 2 × devices of a node, or the
        largest m measured if that is less. One rate alone says nothing about groups: r(m) is then r(1).
        """
        measured = self.samples_per_second
        if devices <= len(measured):
            return measured[devices - 1]
        if len(measured) == 1:
            return measured[0]
        anchor = min(2 * self.node_devices, len(measured))
        per_device = measured[anchor - 1] / anchor
        decay = per_device / (measured[anchor - 2] / (anchor - 1))
        # A noisy anchor may look superlinear; Equation 5 would then promise rates without limit.
        return devices * per_device * min(decay, 1.0) ** (devices - anchor)

    def largest_group(self, devices: int) -> int:
        """Return the smallest m up to ``devices`` with the highest r(m): more slow the member down; 1 if unsplittable."""
        if not self.splittable:
            return 1
        best = 1
        for count in range(2, devices + 1):
            if self.rate(count) > self.rate(best):
                best = count
            elif count > len(self.samples_per_second):
                break  # Equation 5 has a single peak.
        return best

    def shard_seconds(self, devices: int, share: float) -> float:
        """Return the work per stream sample of a device that carries ``share`` of every batch in a group of ``devices``.

        fixed + share × proportional + all-reduce(m), which is 1 / r(m) at the even share 1/m by construction.
        """
        if devices == 1:
            return self.seconds_per_sample
        return self.shard_overhead(devices) + share * self.shard.proportional_seconds

    def shard_overhead(self, devices: int) -> float:
        """Return fixed + all-reduce(m): what a group of m costs each of its devices whatever the shares."""
        return max(0.0, 1.0 / self.rate(devices) - self.shard.proportional_seconds / devices)

    @property
    def shard(self) -> ShardCost:
        """The cost of a shard, measured or fitted."""
        return self.shard_cost or fit_shard_cost(self.samples_per_second)

    def observed(self, samples_per_second: float, *, devices: int = 1, weight: float = 0.5) -> "Profile":
        """Return the profile moved towards an observed rate; every r(m) is multiplied by the same factor."""
        factor = (1 - weight) + weight * samples_per_second / self.rate(devices)
        cost = self.shard_cost and ShardCost(
            fixed_seconds=self.shard_cost.fixed_seconds / factor,
            proportional_seconds=self.shard_cost.proportional_seconds / factor,
        )
        return replace(self, samples_per_second=tuple(r * factor for r in self.samples_per_second), shard_cost=cost)

    def to_json(self) -> dict[str, Any]:
        """Return a plain value for files."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Profile":
        """Return the profile that ``to_json`` wrote; raises PlanError for anything else."""
        try:
            profile: Profile = convert(value, cls, "it")
        except ValueError as error:
            raise PlanError(f"{str(value)[:40]!r} is not a profile: {error}. Measure it again.") from error
        return profile


@lru_cache(maxsize=65536)
def fit_shard_cost(samples_per_second: tuple[float, ...]) -> ShardCost:
    """Fit 1 / r(m) = fixed + proportional / m by least squares over the measured groups (m ≥ 2).

    Groups of one have no all-reduce, so they are left out. ``proportional`` is kept at most m / r(m) for every measured
    m, so that what remains for the all-reduce is never negative.
    """
    groups = [(1.0 / m, 1.0 / rate) for m, rate in enumerate(samples_per_second, start=1) if m > 1]
    if len(groups) < 2:
        whole = min(m / rate for m, rate in enumerate(samples_per_second, start=1))
        return ShardCost(fixed_seconds=0.0, proportional_seconds=whole)
    mean_x = sum(x for x, _ in groups) / len(groups)
    mean_y = sum(y for _, y in groups) / len(groups)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in groups) / sum((x - mean_x) ** 2 for x, _ in groups)
    ceiling = min(second / x for x, second in groups)
    # Noise may make the slope negative, but proportional work has to be greater than 0.
    proportional = min(max(slope, 0.01 * ceiling), ceiling)
    # At most what each group leaves, so that nothing negative remains for the all-reduce.
    fixed = max(0.0, min(second - proportional * x for x, second in groups))
    return ShardCost(fixed_seconds=fixed, proportional_seconds=proportional)


def pack_memory_bytes(pack: Iterable[Profile]) -> int:
    """Return the memory of members on one device: all that they hold between steps, and the largest need of one step."""
    resident, activation = 0, 0
    for profile in pack:
        resident += profile.resident_bytes
        activation = max(activation, profile.activation_bytes)
    return resident + activation


def largest_measured_group(rates: Sequence[float], *, node_devices: int) -> int:
    """Return M_t = max(M_a, M_b): M_a = ⌈max r(1) / min r(1)⌉, M_b = 2 × devices of a node (FLEET §6.1)."""
    return max(math.ceil(max(rates) / min(rates)), 2 * node_devices)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparationRates:
    """How fast the stream can be prepared, by cores."""

    samples_per_second: tuple[tuple[int, float], ...]
    """(cores, rate) in rising order of cores, as measured at 1, 2, 4, …"""

    def __post_init__(self) -> None:
        cores = [count for count, _ in self.samples_per_second]
        if not cores or cores != sorted(set(cores)) or min(cores) < 1:
            raise PlanError(f"preparation rates are given for {cores} cores. Give them in increasing order, from 1.")

    def rate(self, cores: int) -> float:
        """Return the samples per second on that many cores: linear between measurements, flat beyond the last."""
        below = (0, 0.0)
        for count, rate in self.samples_per_second:
            if cores <= count:
                return below[1] + (rate - below[1]) * (cores - below[0]) / (count - below[0])
            below = (count, rate)
        return below[1]


def save_profiles(path: Path, profiles: Iterable[Profile]) -> None:
    """Write profiles to one file that ``load_profiles`` reads on another machine."""
    with replacing(path) as file:
        file.write(json.dumps({"profiles": [profile.to_json() for profile in profiles]}, indent=2).encode())


def load_profiles(path: Path) -> tuple[Profile, ...]:
    """Return the profiles of a file; raises PlanError if it holds none."""
    try:
        content: Profiles = convert(parse_json(path.read_text()), Profiles, "it")
        return content["profiles"]
    except (OSError, ValueError) as error:
        raise PlanError(
            f"cannot read profiles from {path} ({error}). Write them with `argosy profile --out`."
        ) from error


class Profiles(TypedDict):
    """Contents of a file of profiles."""

    profiles: tuple[Profile, ...]
