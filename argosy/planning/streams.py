"""One stream or several: which members train at a pace of their own.

Members of one stream move at one pace and are prepared for once. That costs nothing as long as all devices are busy and no
member is in a hurry; but one that may last as long as all the rest together must not wait for others. So the members that are likely
to last longest get streams of their own, as many as it takes and as preparation can feed, and the others share one.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from argosy.planning.outlook import EXPECTED, Outlook, feeds_all_devices, preparation_left
from argosy.planning.policy import Situation
from argosy.profiles import Profile

__all__ = ["members_apart"]

UNSLOWED = 0.95
"""A member that trains at this part of its own rate is not held up by its stream."""
IDLE = 0.01
"""Devices may be expected to idle for this part of the whole time until a shared stream's epoch ends and takes them in."""
BUSY = 0.75
"""Where no limit is known, devices of a shared stream work at least at this part of what they could."""


def members_apart(outlook: Outlook, situation: Situation) -> tuple[Profile, ...] | None:
    """Return the members that get a stream and a device of their own, while all others share a stream on the rest.

    None: every free device gets a stream, the longest members first, and those that are left wait (LPT, Graham 1969).
    """
    if situation.preparation_samples_per_second is None or len(situation.devices) == 1:
        return ()  # On one device no member ends sooner for being alone.
    sharing = _Sharing(outlook=outlook, situation=situation)
    needed, fed = sharing.needed, sharing.fed
    if needed is not None and fed == needed and sharing.is_worth_it(needed):
        return sharing.long[:needed]
    if feeds_all_devices(outlook.longest_first, situation) or len(situation.free) < sharing.fair_devices / 2:
        return None
    return sharing.long[:fed]


@dataclass(frozen=True, kw_only=True)
class _Sharing:
    """What becomes of the free devices if so many of the longest members train apart."""

    outlook: Outlook
    situation: Situation

    @cached_property
    def long(self) -> tuple[Profile, ...]:
        return self.outlook.long

    @cached_property
    def most_apart(self) -> int:
        """The most members apart: at least one shares, unless there is a device for each."""
        devices, members = len(self.situation.free), len(self.outlook.longest_first)
        return min(len(self.long), devices if members <= devices else devices - 1)

    @cached_property
    def _shared_work(self) -> list[float]:
        """Seconds per sample of all that share a stream, by how many train apart."""
        work = sum(profile.seconds_per_sample for profile in self.outlook.longest_first)
        return list(accumulate((-profile.seconds_per_sample for profile in self.long), initial=work))

    @cached_property
    def _slowest_shared(self) -> list[float]:
        """Seconds per sample of the slowest of them that cannot be split, by how many train apart."""
        rest = max((p.seconds_per_sample for p in self._others if not p.splittable), default=0.0)
        return list(accumulate((p.seconds_per_sample for p in reversed(self.long)), max, initial=rest))[::-1]

    @cached_property
    def _fastest_shared(self) -> list[float]:
        """Seconds per sample of the fastest of them, by how many train apart."""
        rest = min((p.seconds_per_sample for p in self._others), default=math.inf)
        return list(accumulate((p.seconds_per_sample for p in reversed(self.long)), min, initial=rest))[::-1]

    @cached_property
    def _others(self) -> list[Profile]:
        long = {profile.member for profile in self.long}
        return [profile for profile in self.outlook.longest_first if profile.member not in long]

    @cached_property
    def _demand_apart(self) -> list[float]:
        """Samples per second that the streams of those apart ask for, by how many they are."""
        return list(accumulate((profile.rate(1) for profile in self.long), initial=0.0))

    def pace_seconds(self, apart: int) -> float:
        """Return the seconds per sample of the shared stream on the devices that are left."""
        devices = max(len(self.situation.free) - apart, 1)
        return max(self._shared_work[apart] / devices, self._slowest_shared[apart])

    def shares(self, apart: int) -> bool:
        """Return whether any member is left for the shared stream."""
        return apart < len(self.outlook.longest_first)

    @cached_property
    def needed(self) -> int | None:
        """The fewest apart so that no long member is held up nor holds others up; None: too many, or one stream cannot hold the rest."""
        if self._is_crowded or not self._is_at_one_epoch:
            return None
        return next((n for n in range(self.most_apart + 1) if n == len(self.long) or self._are_alike(n)), None)

    def _are_alike(self, apart: int) -> bool:
        """Return whether all that share a stream would train about as fast without the others."""
        return self._fastest_shared[apart] >= UNSLOWED * self.pace_seconds(apart)

    @property
    def _is_crowded(self) -> bool:
        """Whether the memory of the free devices may not hold all members at once."""
        members = self.outlook.longest_first
        largest_step = max(profile.activation_bytes for profile in members)
        there = sum(device.memory_bytes - largest_step for device in self.situation.free)
        return sum(profile.resident_bytes for profile in members) > there

    @property
    def _is_at_one_epoch(self) -> bool:
        done = self.situation.epochs_done
        return len({done.get(profile.member, 0) for profile in self.outlook.longest_first}) == 1

    @cached_property
    def fed(self) -> int:
        """The most apart, up to those needed, that preparation can feed beside the shared stream."""
        most = self.most_apart if self.needed is None else self.needed
        return max((apart for apart in range(most + 1) if self._demand(apart) <= self._left), default=0)

    def _demand(self, apart: int) -> float:
        return self._demand_apart[apart] + (1.0 / self.pace_seconds(apart) if self.shares(apart) else 0.0)

    @cached_property
    def _left(self) -> float:
        return preparation_left(self.situation)

    @property
    def fair_devices(self) -> float:
        """The part of the cluster that the waiting members would take if all were to end together."""
        return EXPECTED * sum(self.outlook.seconds) / self.outlook.horizon_seconds

    def is_worth_it(self, apart: int) -> bool:
        """Return whether sharing keeps devices busy: free ones beside it wait for the end of the stream's epoch."""
        if not self.shares(apart):
            return True
        devices, free = len(self.situation.devices), len(self.situation.free)
        pace = self.pace_seconds(apart)
        if not self.situation.epochs_left:
            work = apart + self._shared_work[apart] / pace
            if work < BUSY * min(free, len(self.outlook.longest_first)):
                return False
        beside = 1 - (free - apart) / devices
        return beside * pace * self.situation.samples_per_epoch / 2 <= IDLE * self.outlook.horizon_seconds
