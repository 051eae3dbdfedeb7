"""Decides which members train apart, each on its own stream and at its own pace.

Members of one stream train at one pace, and samples are prepared once for all of them. That costs nothing as long as all devices are
busy, but a member that may last as long as all others together should not wait for them. So the members that are likely to last
longest get their own streams, as many as are needed and as preparation can feed, and the others share one.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from argosy.planning.outlook import EXPECTED, Outlook, feeds_all_devices, preparation_left
from argosy.planning.policy import Situation
from argosy.profiles import Profile

__all__ = ["members_with_own_stream"]

UNSLOWED = 0.95
"""A member that trains at this fraction of its own rate or faster is not held up by its stream."""
IDLE = 0.01
"""Largest fraction of the whole time for which free devices may idle until a shared stream's epoch ends and they can join."""


def members_with_own_stream(outlook: Outlook, situation: Situation) -> tuple[Profile, ...] | None:
    """Return the members that train apart, each with its own stream and device; all others share a stream on the other devices.

    None means that every free device gets a stream, the longest members first, and the other members wait (LPT, Graham 1969).
    """
    if situation.preparation_samples_per_second is None or len(situation.devices) == 1:
        return ()  # on one device, no member ends sooner on its own stream
    sharing = _Sharing(outlook=outlook, situation=situation)
    needed, fed = sharing.needed, sharing.fed
    if needed is not None and fed == needed and sharing.is_worth_it(needed):
        return sharing.long[:needed]
    if feeds_all_devices(outlook.longest_first, situation) or len(situation.free) < sharing.fair_devices / 2:
        return None
    return sharing.long[:fed]


@dataclass(frozen=True, kw_only=True)
class _Sharing:
    """The effects of training a number of the longest members apart."""

    outlook: Outlook
    situation: Situation

    @cached_property
    def long(self) -> tuple[Profile, ...]:
        return self.outlook.long

    @cached_property
    def most_apart(self) -> int:
        """Largest possible number of members apart; one device is left for the shared stream unless each member has its own."""
        devices, members = len(self.situation.free), len(self.outlook.longest_first)
        return min(len(self.long), devices if members <= devices else devices - 1)

    @cached_property
    def _shared_work(self) -> list[float]:
        """Total seconds per sample of the members that share a stream, by the number of members apart."""
        work = sum(profile.seconds_per_sample for profile in self.outlook.longest_first)
        return list(accumulate((-profile.seconds_per_sample for profile in self.long), initial=work))

    @cached_property
    def _slowest_shared(self) -> list[float]:
        """Seconds per sample of the slowest sharing member that cannot be split, by the number of members apart."""
        rest = max((p.seconds_per_sample for p in self._others if not p.splittable), default=0.0)
        return list(accumulate((p.seconds_per_sample for p in reversed(self.long)), max, initial=rest))[::-1]

    @cached_property
    def _fastest_shared(self) -> list[float]:
        """Seconds per sample of the fastest sharing member, by the number of members apart."""
        rest = min((p.seconds_per_sample for p in self._others), default=math.inf)
        return list(accumulate((p.seconds_per_sample for p in reversed(self.long)), min, initial=rest))[::-1]

    @cached_property
    def _others(self) -> list[Profile]:
        long = {profile.member for profile in self.long}
        return [profile for profile in self.outlook.longest_first if profile.member not in long]

    @cached_property
    def _demand_apart(self) -> list[float]:
        """Samples per second that the streams of the members apart demand, by their number."""
        return list(accumulate((profile.rate(1) for profile in self.long), initial=0.0))

    def pace_seconds(self, apart: int) -> float:
        """Return the seconds per sample of the shared stream on the remaining devices."""
        devices = max(len(self.situation.free) - apart, 1)
        return max(self._shared_work[apart] / devices, self._slowest_shared[apart])

    @cached_property
    def needed(self) -> int | None:
        """Smallest number of members apart with which no long member is held up or holds up others.

        None if that would be too many, or if one stream cannot hold all others.
        """
        if self._is_crowded or not self._is_at_one_epoch:
            return None
        return next((n for n in range(self.most_apart + 1) if n == len(self.long) or self._are_alike(n)), None)

    def _are_alike(self, apart: int) -> bool:
        """Return whether no member of the shared stream would be much faster alone."""
        return self._fastest_shared[apart] >= UNSLOWED * self.pace_seconds(apart)

    @property
    def _is_crowded(self) -> bool:
        """Whether the members may need more memory together than the free devices have."""
        members = self.outlook.longest_first
        largest_step = max(profile.activation_bytes for profile in members)
        room = sum(device.memory_bytes - largest_step for device in self.situation.free)
        return sum(profile.resident_bytes for profile in members) > room

    @property
    def _is_at_one_epoch(self) -> bool:
        done = self.situation.epochs_done
        return len({done.get(profile.member, 0) for profile in self.outlook.longest_first}) == 1

    @cached_property
    def fed(self) -> int:
        """Largest number of members apart, up to `needed`, that preparation can feed besides the shared stream."""
        most, left = self.most_apart if self.needed is None else self.needed, preparation_left(self.situation)
        return max((apart for apart in range(most + 1) if self._demand(apart) <= left), default=0)

    def _demand(self, apart: int) -> float:
        shared = 1.0 / self.pace_seconds(apart) if apart < len(self.outlook.longest_first) else 0.0
        return self._demand_apart[apart] + shared

    @property
    def fair_devices(self) -> float:
        """Number of devices that the waiting members would take if all members were to end together."""
        return EXPECTED * sum(self.outlook.seconds) / self.outlook.horizon_seconds

    def is_worth_it(self, apart: int) -> bool:
        """Return whether sharing keeps devices busy; devices that become free wait for the end of the stream's epoch."""
        beside = 1 - (len(self.situation.free) - apart) / len(self.situation.devices)
        idle_seconds = beside * self.pace_seconds(apart) * self.situation.samples_per_epoch / 2
        return idle_seconds <= IDLE * self.outlook.horizon_seconds
