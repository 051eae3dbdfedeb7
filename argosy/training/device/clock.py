"""Clocks: the seconds that a device works for a member, which are not those in which the host asks for its work.

An asynchronous device is behind the host. So two timed events enclose each turn of a program at a block, on the stream of its
steps; they are read when they have passed. Members of one program share its time, like ones evenly. Programs side by side share the
time of their pass in proportion to their own times, which overlap.
"""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from argosy.training.device.devices import Backend, TimedEvent

__all__ = ["DeviceClock", "TimedSpan", "side_by_side", "timed"]


class DeviceClock:
    """Seconds of one member on its device."""

    def __init__(self, backend: Backend, seconds: float = 0.0) -> None:
        self.backend = backend
        self.beside: _Pass | None = None
        """The pass under way in which its program runs side by side with others."""
        self._seconds = seconds
        """Seconds that were read."""
        self._coming: deque[tuple[TimedSpan, Callable[[], float]]] = deque()
        """Turns to be read: the work that each waits for, and its seconds once that has passed."""

    @property
    def seconds(self) -> float:
        """Seconds so far. Waits for an asynchronous device."""
        while self._coming:
            self._coming[0][0].wait()
            self._read()
        return self._seconds

    def add(self, span: "TimedSpan", seconds: Callable[[], float]) -> None:
        """Add a turn, whose seconds are known once this work has passed. Never waits."""
        self._coming.append((span, seconds))
        self.poll()

    def poll(self) -> int:
        """Read the turns that the device has completed; returns how many are left. Never waits."""
        while self._coming and self._coming[0][0].passed:
            self._read()
        return len(self._coming)

    def _read(self) -> None:
        self._seconds += self._coming.popleft()[1]()


@contextlib.contextmanager
def timed(clocks: Sequence[DeviceClock], parts: Sequence[float]) -> Iterator[None]:
    """Add the device's time for the work inside, issued on the current stream, to these clocks, to each its part."""
    backend, beside = clocks[0].backend, clocks[0].beside
    start = backend.stamp()
    try:
        yield
    finally:
        span = TimedSpan(start, backend.stamp())
        if beside is None:
            for clock, part in zip(clocks, parts, strict=True):
                clock.add(span, partial(span.part, part))
        else:
            beside.spans.append((span, clocks, parts))


@contextlib.contextmanager
def side_by_side(clocks: Sequence[DeviceClock]) -> Iterator[None]:
    """Share the time of the work inside among these clocks; their programs issue it on streams of their own."""
    if not clocks:
        yield
        return
    backend = clocks[0].backend
    beside = _Pass(backend.stamp())
    for clock in clocks:
        clock.beside = beside
    try:
        yield
    finally:
        for clock in clocks:
            clock.beside = None
        beside.close(backend.stamp())


class TimedSpan:
    """Work between two points of a stream. Members of a program share one, so that the device is asked once for all of them."""

    def __init__(self, start: TimedEvent, end: TimedEvent) -> None:
        self._start = start
        self._end = end
        self._passed = False

    @property
    def passed(self) -> bool:
        """Whether the device has completed it. Never waits."""
        self._passed = self._passed or self._end.query()
        return self._passed

    def wait(self) -> None:
        """Wait until it has passed."""
        self._end.synchronize()

    @functools.cached_property
    def seconds(self) -> float:
        """Its seconds, once it has passed."""
        return self._start.elapsed_time(self._end) / 1000

    def part(self, part: float) -> float:
        """Return a part of its seconds."""
        return self.seconds * part


class _Pass:
    """Turns side by side."""

    def __init__(self, start: TimedEvent) -> None:
        self.spans: list[tuple[TimedSpan, Sequence[DeviceClock], Sequence[float]]] = []
        self._start = start

    def close(self, end: TimedEvent) -> None:
        """Add the turns to their clocks; they are read when the whole pass has passed."""
        self._whole = TimedSpan(self._start, end)
        for span, clocks, parts in self.spans:
            for clock, part in zip(clocks, parts, strict=True):
                clock.add(self._whole, partial(self._seconds, span, part))

    def _seconds(self, span: TimedSpan, part: float) -> float:
        return span.part(part) * self._scale

    @functools.cached_property
    def _scale(self) -> float:
        """The time of the pass in relation to the sum of the turns' times."""
        return self._whole.seconds / (sum(span.seconds for span, *_ in self.spans) or 1.0)
