"""Clocks that measure how many seconds a device works for each member.

An asynchronous device runs behind the host, so host time cannot be used. Instead, each turn of a program at a block is enclosed by two timed
events on the stream of its steps, which are read after the device has passed them. Members of one program share its time, members of one
architecture evenly. Programs that run side by side overlap; they share the time of the whole pass in proportion to their own times.
"""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from argosy.training.device.devices import Backend, TimedEvent

__all__ = ["DeviceClock", "Stopwatch", "TimedSpan", "divide_time", "time_on_device"]


class Stopwatch:
    """Seconds of work since its creation, without those for which other processes had this thread's core, as far as the system counts them.

    Steps are compared by it: beside other load, each wait for a core may be many times as long as a short step.
    """

    def __init__(self, backend: Backend) -> None:
        self._counts = not backend.apart  # other devices work on while the host waits
        self._started = time.perf_counter()
        self._waited = self._waiting_seconds()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        waited = self._waiting_seconds() - self._waited  # first: waits that are subtracted must be within the time
        return time.perf_counter() - self._started - waited

    def _waiting_seconds(self) -> float:
        if not self._counts:
            return 0.0
        try:
            return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # only Linux counts them
            return 0.0


class DeviceClock:
    """Seconds that a device has worked for one member."""

    def __init__(self, backend: Backend, seconds: float = 0.0) -> None:
        self.backend = backend
        self.beside: _ConcurrentPass | None = None
        """The current pass, if the member's program runs side by side with others in it."""
        self._seconds = seconds
        """Seconds read so far."""
        self._coming: deque[tuple[TimedSpan, Callable[[], float]]] = deque()
        """Turns that are not read yet: the work that each waits for, and a function that returns its seconds after that."""

    @property
    def seconds(self) -> float:
        """Seconds so far. Waits for an asynchronous device."""
        while self._coming:
            self._coming[0][0].wait()
            self._read()
        return self._seconds

    def add(self, span: "TimedSpan", seconds: Callable[[], float]) -> None:
        """Add a turn, whose seconds are known when the device has completed this work. Never waits."""
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
def time_on_device(clocks: Sequence[DeviceClock], parts: Sequence[float]) -> Iterator[None]:
    """Measure the device time of the work issued inside on the current stream, and add to each clock its part."""
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
def divide_time(clocks: Sequence[DeviceClock]) -> Iterator[None]:
    """Divide the time of the work inside among these clocks; their programs issue it on their own streams."""
    if not clocks:
        yield
        return
    backend = clocks[0].backend
    beside = _ConcurrentPass(backend.stamp())
    for clock in clocks:
        clock.beside = beside
    try:
        yield
    finally:
        for clock in clocks:
            clock.beside = None
        beside.close(backend.stamp())


class TimedSpan:
    """Work between two points of a stream. Members of a program share one object, so the device is queried once for all of them."""

    def __init__(self, start: TimedEvent, end: TimedEvent) -> None:
        self._start = start
        self._end = end
        self._passed = False

    @property
    def passed(self) -> bool:
        """Whether the device has completed the work. Never waits."""
        self._passed = self._passed or self._end.query()
        return self._passed

    def wait(self) -> None:
        """Wait until the device has completed the work."""
        self._end.synchronize()

    @functools.cached_property
    def seconds(self) -> float:
        """Duration in seconds; available when `passed`."""
        return self._start.elapsed_time(self._end) / 1000

    def part(self, part: float) -> float:
        """Return this fraction of the seconds."""
        return self.seconds * part


class _ConcurrentPass:
    """Turns of programs that run side by side."""

    def __init__(self, start: TimedEvent) -> None:
        self.spans: list[tuple[TimedSpan, Sequence[DeviceClock], Sequence[float]]] = []
        self._start = start

    def close(self, end: TimedEvent) -> None:
        """Add the turns to their clocks, which read them when the device has completed the whole pass."""
        self._whole = TimedSpan(self._start, end)
        for span, clocks, parts in self.spans:
            for clock, part in zip(clocks, parts, strict=True):
                clock.add(self._whole, partial(self._seconds, span, part))

    def _seconds(self, span: TimedSpan, part: float) -> float:
        return span.part(part) * self._scale

    @functools.cached_property
    def _scale(self) -> float:
        """Duration of the pass divided by the sum of the turns' durations."""
        return self._whole.seconds / (sum(span.seconds for span, *_ in self.spans) or 1.0)
