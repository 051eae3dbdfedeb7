"""The interface of policies: what they know, and the two questions that they answer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from argosy.cluster import Device
from argosy.errors.checks import check_number
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["MOVING_BY_FILES", "Moving", "NamedPolicy", "Policy", "Situation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moving:
    """Costs of moving members to other devices."""

    rebalance_seconds: float = 0.0
    """Fixed time of every re-balancing: finishing the epoch, forming groups, and starting again."""
    bytes_per_second: float = math.inf
    """Bandwidth of one device; devices send and receive at the same time."""
    one_link: bool = False
    """Whether the whole cluster shares that bandwidth."""

    def __post_init__(self) -> None:
        check_number("Moving: rebalance_seconds", self.rebalance_seconds, least=0)
        if self.bytes_per_second != math.inf:
            check_number("Moving: bytes_per_second", self.bytes_per_second, above=0)


MOVING_BY_FILES = Moving(rebalance_seconds=0.1, bytes_per_second=2e8)
"""Costs in a run. A member moves through a file that is written, hashed, flushed, read and loaded, while others on its device wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Everything that a policy may know when it decides."""

    waiting: tuple[Profile, ...]
    """Members that are not training, in the order of the study."""
    free: tuple[Device, ...]
    devices: tuple[Device, ...]
    """The whole cluster, free or not."""
    running: tuple[Flotilla, ...] = ()
    """Flotillas that are training, with their remaining members; without the one about which ``keeps`` is asked."""
    epochs_done: Mapping[str, int] = field(default_factory=dict)
    epochs_left: Mapping[str, int] = field(default_factory=dict)
    """Epochs until its limit for every member with a known limit, waiting or training; it may end sooner."""
    epochs_certain: Mapping[str, int] = field(default_factory=dict)
    """Epochs that a member trains whatever its results: until its limit if it has no other rule, or until the next rung of a trial."""
    samples_per_epoch: int = 1
    homes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Devices that hold a member's weights and optimizer state."""
    preparation_samples_per_second: float | None = None
    """Rate at which the cluster can prepare samples; None if not measured, so that policies that have the choice share one stream."""
    moving: Moving = field(default_factory=Moving)

    def free_with(self, flotilla: Flotilla) -> tuple[Device, ...]:
        """Return the free devices and those of a flotilla, in the order of the cluster."""
        names = {*flotilla.devices, *(device.name for device in self.free)}
        return tuple(device for device in self.devices if device.name in names)


class Policy(Protocol):
    """A policy of the planner; both answers depend only on the arguments."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Return flotillas to start on free devices; asked again while members wait, devices are free, and the last answer had any."""

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return whether a flotilla continues; asked when some of its members end an epoch. ``live`` are the members that continue.

        If not, all of them are saved and wait, their devices become free, and ``launch`` is asked.
        """


class NamedPolicy(Policy, Protocol):
    """A policy from the caller, with a name for reports."""

    @property
    def name(self) -> str:
        """Name in reports."""
