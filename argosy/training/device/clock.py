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
from typing import NamedTuple

from argosy.training.device.devices import Backend, TimedEvent

__all__ = ["DeviceClock", "side_by_side", "timed"]


class DeviceClock:
    """Seconds of one member on its device."""

    def __init__(self, backend: Backend, seconds: float = 0.0) -> None:
        self.backend = backend
        self.beside: _Pass | None = None
        """The pass under way in which its program runs side by side with others."""
        self._seconds = seconds
        """Seconds that were read."""
        self._coming: deque[tuple[TimedEvent, Callable[[], float]]] = deque()
        """Turns to be read: the event behind each, and its seconds once that has passed."""

    @property
    def seconds(self) -> float:
        """Seconds so far. Waits for an asynchronous device."""
        while self._coming:
            self._coming[0][0].synchronize()
            self._read()
        return self._seconds

    def add(self, end: TimedEvent, seconds: Callable[[], float]) -> None:
        """Add a turn. Never waits."""
        self._coming.append((end, seconds))
        self.poll()

    def poll(self) -> int:
        """Read the turns that the device has completed; returns how many are left. Never waits."""
        while self._coming and self._coming[0][0].query():
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
        span = _Span(start, backend.stamp())
        if beside is None:
            for clock, part in zip(clocks, parts, strict=True):
                clock.add(span.end, partial(span.seconds, part))
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


class _Span(NamedTuple):
    """Work between two points of a stream."""

    start: TimedEvent
    end: TimedEvent

    def seconds(self, part: float) -> float:
        """Return a part of the seconds between the two, which have passed."""
        return self.start.elapsed_time(self.end) / 1000 * part


class _Pass:
    """Turns side by side."""

    def __init__(self, start: TimedEvent) -> None:
        self.spans: list[tuple[_Span, Sequence[DeviceClock], Sequence[float]]] = []
        self._start = start

    def close(self, end: TimedEvent) -> None:
        """Add the turns to their clocks; they are read when the whole pass has passed."""
        self._whole = _Span(self._start, end)
        for span, clocks, parts in self.spans:
            for clock, part in zip(clocks, parts, strict=True):
                clock.add(end, partial(self._seconds, span, part))

    def _seconds(self, span: _Span, part: float) -> float:
        return span.seconds(part) * self._scale

    @functools.cached_property
    def _scale(self) -> float:
        """The time of the pass in relation to the sum of the turns' times."""
        return self._whole.seconds(1.0) / (sum(span.seconds(1.0) for span, *_ in self.spans) or 1.0)
