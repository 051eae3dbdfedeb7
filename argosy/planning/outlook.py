"""Estimates of the remaining training: rates and limits are known, but not whether a member stops before its limit."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from argosy.planning.policy import Situation
from argosy.profiles import Profile

__all__ = ["EXPECTED", "Outlook", "alone_seconds", "feeds_all_devices", "horizon_seconds", "preparation_left"]

EXPECTED = 0.5
"""Fraction of the epochs left until its limit that a member is expected to train, because it may stop at any time before."""
LONG = 0.5
"""A member is long if it may need more than this fraction of the time in which everything is expected to finish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The waiting members, ordered by how long they may last."""

    longest_first: tuple[Profile, ...]
    """The members, longest first. They are marked as not splittable if limits are known, the longest is expected to finish whole before
    everything else is done, and preparation can feed all of them separately."""
    seconds: tuple[float, ...]
    """Longest time that each of them may need, alone on a device."""
    horizon_seconds: float
    """Time in which all devices together are expected to finish everything, including running flotillas."""

    @classmethod
    def of(cls, waiting: Sequence[Profile], situation: Situation) -> "Outlook":
        """Return the outlook of these members in a situation."""
        seconds = dict(zip((p.member for p in waiting), alone_seconds(waiting, situation), strict=True))
        longest_first = tuple(sorted(waiting, key=lambda p: (-seconds[p.member], -p.seconds_per_sample, p.member)))
        horizon = horizon_seconds(situation, seconds.values())
        in_time = bool(situation.epochs_left) and EXPECTED * seconds[longest_first[0].member] <= horizon
        samples = EXPECTED * math.fsum(seconds[profile.member] * profile.rate(1) for profile in longest_first)
        fed = feeds_all_devices(longest_first, situation) and samples <= preparation_left(situation) * horizon
        if in_time and fed:  # separate streams are prepared separately
            # Splits would use more device time without finishing sooner. The last members may be split when the others have stopped.
            longest_first = tuple(replace(profile, splittable=False) for profile in longest_first)
        return cls(
            longest_first=longest_first,
            seconds=tuple(seconds[profile.member] for profile in longest_first),
            horizon_seconds=horizon,
        )

    @property
    def long(self) -> tuple[Profile, ...]:
        """Members that may last too long to wait for others, except splittable ones, which get more devices instead."""
        enough = LONG * self.horizon_seconds
        pairs = zip(self.longest_first, self.seconds, strict=True)
        return tuple(profile for profile, seconds in pairs if seconds > enough and not profile.splittable)


def alone_seconds(profiles: Iterable[Profile], situation: Situation) -> list[float]:
    """Return the longest time that each member may need alone on a device; one without a limit gets the largest limit of the others."""
    left, furthest, samples = situation.epochs_left, _furthest(situation), situation.samples_per_epoch
    return [samples * (left.get(p.member, furthest) or 1) / p.samples_per_second[0] for p in profiles]


def horizon_seconds(situation: Situation, waiting_seconds: Iterable[float]) -> float:
    """Return the time in which all devices together are expected to finish waiting members with these times, and running ones."""
    left, furthest = situation.epochs_left, _furthest(situation)
    running = math.fsum(
        left.get(placement.member, furthest) * (sum(placement.device_seconds) or placement.seconds_per_sample)
        for flotilla in situation.running
        for placement in flotilla.placements
    )
    work = math.fsum(waiting_seconds) + running * situation.samples_per_epoch
    return EXPECTED * work / len(situation.devices)


def feeds_all_devices(longest_first: Sequence[Profile], situation: Situation) -> bool:
    """Return whether preparation can feed a stream on every free device."""
    first = longest_first[: len(situation.free)]
    return sum(profile.rate(1) for profile in first) <= preparation_left(situation)


def preparation_left(situation: Situation) -> float:
    """Return the samples per second that can be prepared besides those for running flotillas."""
    available = situation.preparation_samples_per_second or 0.0
    return available - sum(flotilla.samples_per_second for flotilla in situation.running)


def _furthest(situation: Situation) -> int:
    return max(situation.epochs_left.values(), default=1)
