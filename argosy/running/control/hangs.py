"""Tells workers that hang from slow ones: pure bookkeeping over their signs of life."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from argosy.stream.heartbeat import Sign

__all__ = ["Hangs"]

OBSERVATIONS = 4
"""A worker is observed so often without any progress before it hangs: while the driver itself was held up (a suspended
machine), no worker could be seen to move."""
SHARE = 0.01
"""Share of a core that opaque code uses at least. A thread that only waits and wakes up now and then uses less."""


@dataclass(slots=True)
class _Still:
    """A sign that has not moved since it was first seen."""

    sign: Sign
    observed: float
    seconds: float = 0.0
    """How long it has been seen like that."""
    cpu_seconds: float | None = None
    """CPU time of the worker when it was seen for the second time."""
    elapsed: float = 0.0
    """Seconds since then."""


class Hangs:
    """A worker hangs when something that it is busy with makes no progress for so many seconds.

    Progress is another beat or something else to do; in opaque code, where nothing beats, CPU time as well. Slow is not
    hung, and nothing that is idle hangs.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._still: dict[str, dict[int, _Still]] = {}
        """By worker and slot of its heartbeat; only those that are busy."""

    def observe(self, now: float, worker: str, signs: Sequence[Sign], cpu_seconds: Callable[[], float]) -> None:
        """Note what a worker shows. Its CPU time is asked for only where opaque code has been seen without a beat."""
        before = self._still.get(worker, {})
        self._still[worker] = {
            slot: self._compare(now, before.get(slot), sign, cpu_seconds)
            for slot, sign in enumerate(signs)
            if sign.busy
        }

    def hanging(self) -> list[tuple[str, str, float]]:
        """(worker, what it is doing, seconds without progress) of workers to be ended; each is named once."""
        found = []
        for worker, stills in list(self._still.items()):
            still = max(stills.values(), key=lambda still: still.seconds, default=None)
            if still is not None and still.seconds >= self.seconds:
                found.append((worker, still.sign.doing, still.seconds))
                self.forget(worker)
        return found

    def forget(self, worker: str) -> None:
        """A worker is gone; another one of its name starts anew."""
        self._still.pop(worker, None)

    def _compare(self, now: float, still: _Still | None, sign: Sign, cpu_seconds: Callable[[], float]) -> _Still:
        if still is None or still.sign != sign:
            return _Still(sign, now)
        seen = min(now - still.observed, self.seconds / OBSERVATIONS)
        still.observed = now
        still.seconds += seen
        if sign.opaque:
            used, still.elapsed = cpu_seconds(), still.elapsed + seen
            if still.cpu_seconds is None:
                still.cpu_seconds, still.elapsed = used, 0.0
            elif abs(used - still.cpu_seconds) > SHARE * still.elapsed:
                return _Still(sign, now, cpu_seconds=used)
        return still
