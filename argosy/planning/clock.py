"""The two clocks of a simulation: seconds, and fed seconds, which pass more slowly while streams demand more than can be prepared.

The progress of a member depends only on fed seconds. When a stream starts or ends, only their speed changes, not the fed second at
which a member's epoch ends. So the next event is at the top of one of two heaps, however many members train.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

__all__ = ["Clock", "Runner"]

_SAME_TIME = 1e-9
"""Events this close, relative to an epoch, are simultaneous; rounding must not separate members that end an epoch together."""


@dataclass(eq=False, slots=True)
class Runner:
    """One member of a running leg."""

    member: str
    leg: int
    samples_left: float
    """Samples left in its current epoch, as of ``since``."""
    seconds_per_sample: float
    since: float = 0.0
    """Time of the last `Clock.settle`, in fed seconds."""
    event: int = 0
    """Number of its valid entry in the clock's heaps: the end of its epoch or of its pause."""
    paused: bool = True


@dataclass(slots=True)
class Clock:
    """The current time, and the next events."""

    samples_per_epoch: int
    now: float = 0.0
    fed: float = 0.0
    prepared: float = 1.0
    """Fraction of the streams' demand that is prepared, which is the number of fed seconds per second."""
    _pauses: list[tuple[float, int, Runner]] = field(default_factory=list)
    """Heap of the ends of pauses, in seconds."""
    _epochs: list[tuple[float, int, Runner]] = field(default_factory=list)
    """Heap of the ends of epochs, in fed seconds."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def pause(self, runner: Runner, seconds: float) -> None:
        """Pause a member for this many seconds; it then begins its epoch."""
        if not seconds:
            self._run(runner)
            return
        runner.paused, runner.event = True, next(self._numbers)
        heapq.heappush(self._pauses, (self.now + seconds, runner.event, runner))

    def change(self, runner: Runner, seconds_per_sample: float) -> None:
        """Change a member's rate."""
        self.settle(runner)
        runner.seconds_per_sample = seconds_per_sample
        if not runner.paused:
            self._run(runner)

    def remove(self, runner: Runner) -> None:
        """Stop a member."""
        self.settle(runner)
        runner.event = 0

    def settle(self, runner: Runner) -> float:
        """Subtract the samples that a member has trained since the last call; return the fed seconds that passed."""
        if runner.paused:
            return 0.0
        passed, runner.since = self.fed - runner.since, self.fed
        runner.samples_left -= passed / runner.seconds_per_sample
        return passed

    def next_event(self) -> float | None:
        """Return the time at which the next epoch or pause ends; None if no member trains."""
        times = []
        if pause := _earliest_valid(self._pauses):
            times.append(pause[0])
        if epoch := _earliest_valid(self._epochs):
            times.append(self._time_of(epoch[0]))
        return min(times, default=None)

    def advance_to(self, time: float) -> list[Runner]:
        """Advance to a time, and end pauses; return the members whose epoch ends at that time."""
        fed, ended = self.fed + (time - self.now) * self.prepared, []
        # Also compare with the same sum as `next_event`: a short epoch may be smaller than the floating-point spacing of a late time.
        while (epoch := _earliest_valid(self._epochs)) and (
            self._is_over(epoch, fed) or self._time_of(epoch[0]) <= time
        ):
            ended.append(heapq.heappop(self._epochs)[2])
            fed = max(fed, epoch[0])
        self.now, self.fed = time, fed
        while (pause := _earliest_valid(self._pauses)) and pause[0] <= time:
            self._run(heapq.heappop(self._pauses)[2])
        return ended

    def _is_over(self, epoch: tuple[float, int, Runner], fed: float) -> bool:
        return epoch[0] - fed <= _SAME_TIME * self.samples_per_epoch * epoch[2].seconds_per_sample

    def _time_of(self, fed: float) -> float:
        return self.now + max(fed - self.fed, 0.0) / self.prepared

    def _run(self, runner: Runner) -> None:
        runner.paused, runner.since, runner.event = False, self.fed, next(self._numbers)
        left = runner.samples_left * runner.seconds_per_sample
        heapq.heappush(self._epochs, (self.fed + left, runner.event, runner))


def _earliest_valid(entries: list[tuple[float, int, Runner]]) -> tuple[float, int, Runner] | None:
    """Return the earliest entry that is still valid."""
    while entries and entries[0][1] != entries[0][2].event:
        heapq.heappop(entries)
    return entries[0] if entries else None
