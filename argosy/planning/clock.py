"""The two times of a simulation: seconds, and fed seconds, which pass slower while streams ask for more than can be prepared.

How far a member has come depends on fed seconds alone, so a stream that starts or ends changes how fast they pass and no
member's end in them: the next event is on the top of one of two heaps, however many members train.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

__all__ = ["Clock", "Runner"]

_SAME_TIME = 1e-9
"""Events this close, relative to an epoch, happen at once: rounding must not part the members of one epoch."""


@dataclass(eq=False, slots=True)
class Runner:
    """One member of a running leg."""

    member: str
    leg: int
    samples_left: float
    """Samples left of its current epoch, as of ``since``."""
    seconds_per_sample: float
    since: float = 0.0
    """Time of the last count, in fed seconds."""
    event: int = 0
    """Number of the clock's entry that is still valid: the end of its epoch or of its pause."""
    paused: bool = True

    @property
    def epoch_left(self) -> float:
        """Fed seconds to the end of its epoch, as of ``since``."""
        return self.samples_left * self.seconds_per_sample


@dataclass(slots=True)
class Clock:
    """The current time, and the next events."""

    samples_per_epoch: int
    now: float = 0.0
    fed: float = 0.0
    prepared: float = 1.0
    """The part of what the streams ask for that is prepared: fed seconds a second."""
    _pauses: list[tuple[float, int, Runner]] = field(default_factory=list)
    """Heap of the ends of pauses, in seconds."""
    _epochs: list[tuple[float, int, Runner]] = field(default_factory=list)
    """Heap of the ends of epochs, in fed seconds."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def pause(self, runner: Runner, seconds: float) -> None:
        """Let a member train nothing for so long, then go on."""
        if not seconds:
            self._run(runner)
            return
        runner.paused, runner.event = True, next(self._numbers)
        heapq.heappush(self._pauses, (self.now + seconds, runner.event, runner))

    def change(self, runner: Runner, seconds_per_sample: float) -> None:
        """Let a member go on at another rate."""
        self.settle(runner)
        runner.seconds_per_sample = seconds_per_sample
        if not runner.paused:
            self._run(runner)

    def remove(self, runner: Runner) -> None:
        """Let a member train no longer."""
        self.settle(runner)
        runner.event = 0

    def settle(self, runner: Runner) -> float:
        """Count what a member has trained since the last count; return the fed seconds that it took."""
        if runner.paused:
            return 0.0
        passed, runner.since = self.fed - runner.since, self.fed
        runner.samples_left -= passed / runner.seconds_per_sample
        return passed

    def next_event(self) -> float | None:
        """Return when the next epoch or pause ends; None where no member trains."""
        times = []
        if pause := _first(self._pauses):
            times.append(pause[0])
        if epoch := _first(self._epochs):
            times.append(self._time_of(epoch[0]))
        return min(times, default=None)

    def advance_to(self, time: float) -> list[Runner]:
        """Let time pass and pauses end; return the members that end an epoch at that time."""
        fed, ended = self.fed + (time - self.now) * self.prepared, []
        # By the same sum as in `next_event`, too: a short epoch may end between two numbers that a late time can tell apart.
        while (epoch := _first(self._epochs)) and (self._is_over(epoch, fed) or self._time_of(epoch[0]) <= time):
            ended.append(heapq.heappop(self._epochs)[2])
            fed = max(fed, epoch[0])
        self.now, self.fed = time, fed
        while (pause := _first(self._pauses)) and pause[0] <= time:
            self._run(heapq.heappop(self._pauses)[2])
        return ended

    def _is_over(self, epoch: tuple[float, int, Runner], fed: float) -> bool:
        return epoch[0] - fed <= _SAME_TIME * self.samples_per_epoch * epoch[2].seconds_per_sample

    def _time_of(self, fed: float) -> float:
        return self.now + max(fed - self.fed, 0.0) / self.prepared

    def _run(self, runner: Runner) -> None:
        runner.paused, runner.since, runner.event = False, self.fed, next(self._numbers)
        heapq.heappush(self._epochs, (self.fed + runner.epoch_left, runner.event, runner))


def _first(entries: list[tuple[float, int, Runner]]) -> tuple[float, int, Runner] | None:
    """Return the earliest entry that is still valid."""
    while entries and entries[0][1] != entries[0][2].event:
        heapq.heappop(entries)
    return entries[0] if entries else None
