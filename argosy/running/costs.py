"""From what trainers measured to what planners know."""

from dataclasses import dataclass

from argosy.commands import Measured
from argosy.profiles import Profile

__all__ = ["Costs", "profile_of"]

LINK_BYTES_PER_SECOND = 10e9
"""Assumed of an all-reduce that was not measured, as inside a node of GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What members and preparation cost."""

    profiles: tuple[Profile, ...]
    notes: tuple[str, ...]
    lengths: dict[str, int]
    preparation_seconds_per_sample: float
    """Of one core; 0 where nothing is prepared."""


def profile_of(measured: Measured, *, batch_size: int, device_kind: str, node_devices: int) -> Profile:
    """The profile of one member.

    A group of m devices trains at batch / (step of one share + ring all-reduce of the gradients at a usual link's
    speed). Only a thorough measurement has groups, and only those profiles may be split: a run itself splits nobody.
    """
    groups = [
        batch_size / (seconds + 2 * (m - 1) / m * measured.gradient_bytes / LINK_BYTES_PER_SECOND)
        for m, seconds in enumerate(measured.shard_seconds, start=2)
    ]
    return Profile(
        member=measured.member,
        device_kind=device_kind,
        samples_per_second=(measured.samples_per_second, *groups),
        memory_bytes=measured.memory_bytes,
        activation_bytes=measured.activation_bytes,
        state_bytes=measured.state_bytes,
        splittable=bool(groups) and not measured.batch_norm,
        node_devices=node_devices,
    )
