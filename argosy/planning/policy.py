"""The seam of the planners: what a policy is asked, and the two questions that it answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from argosy.cluster import Device
from argosy.errors.checks import check_number
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["FILES", "Moving", "NamedPolicy", "Policy", "Situation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moving:
    """Costs of placing members anew."""

    rebalance_seconds: float = 0.0
    """Time for every re-balancing: finish the epoch, form the groups, start again."""
    bytes_per_second: float = math.inf
    """Bandwidth of one device; devices send and receive at the same time."""
    one_link: bool = False
    """Whether the whole cluster shares that bandwidth."""

    def __post_init__(self) -> None:
        check_number("Moving: rebalance_seconds", self.rebalance_seconds, least=0)
        if self.bytes_per_second != math.inf:
            check_number("Moving: bytes_per_second", self.bytes_per_second, above=0)


FILES = Moving(rebalance_seconds=0.1, bytes_per_second=2e8)
"""Costs in a run: a member moves through a file that is written, summed, flushed, read and loaded, while others of its device wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """All that a policy may know when it decides."""

    waiting: tuple[Profile, ...]
    """Members that train nowhere, in the order of the study."""
    free: tuple[Device, ...]
    devices: tuple[Device, ...]
    """The whole cluster, free or not."""
    running: tuple[Flotilla, ...] = ()
    """Flotillas that train beside, with the members that are still in them; not the one that ``keeps`` is asked about."""
    epochs_done: Mapping[str, int] = field(default_factory=dict)
    epochs_left: Mapping[str, int] = field(default_factory=dict)
    """Epochs until its limit, of every member with a known limit, wherever it is; it may end sooner."""
    epochs_certain: Mapping[str, int] = field(default_factory=dict)
    """Epochs that a member trains whatever their results: until its limit where it has no other rule, until a trial's next rung."""
    samples_per_epoch: int = 1
    homes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Devices that hold a member's weights and optimizer state."""
    preparation_samples_per_second: float | None = None
    """What the cluster can prepare in all; None: not measured, then policies that have the choice share one stream."""
    moving: Moving = field(default_factory=Moving)


class Policy(Protocol):
    """A planner. Both answers are functions of the arguments alone."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Return flotillas to start on free devices; asked while devices are free, members wait, and there was an answer."""

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return whether a flotilla trains on; asked when members of it end an epoch, ``live`` are those that want more.

        If not, all of them are saved and wait, their devices are free, and ``launch`` is asked.
        """


class NamedPolicy(Policy, Protocol):
    """A policy that a caller brings along, and the name that reports give it."""

    @property
    def name(self) -> str:
        """Name in reports."""
