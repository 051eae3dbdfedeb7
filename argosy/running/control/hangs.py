"""Distinguishes hung workers from slow ones, by pure bookkeeping over their signs of life."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from argosy.stream.heartbeat import Sign

__all__ = ["Hangs", "UnchangedSince"]

T = TypeVar("T")

OBSERVATIONS = 4
"""A worker hangs only after this many observations without progress, because while the driver itself was suspended no
progress could be seen."""
SHARE = 0.01
"""Opaque code counts as working if it uses at least this share of a core; a thread that only waits uses less."""


@dataclass(slots=True)
class UnchangedSince(Generic[T]):
    """Something that has not changed since it was first seen."""

    shown: T
    observed: float
    seconds: float = 0.0
    """How long it has been unchanged."""
    cpu_seconds: float | None = None
    """CPU time of the worker at the second observation."""
    elapsed: float = 0.0
    """Seconds since the second observation."""

    def observe_again(self, now: float, limit: float) -> float:
        """Note another observation; return the seconds that it counts, limited so that a hang takes `OBSERVATIONS` of them."""
        counted = min(now - self.observed, limit / OBSERVATIONS)
        self.observed = now
        self.seconds += counted
        return counted


class Hangs:
    """Finds workers whose current work has made no progress for a number of seconds.

    Progress is another beat, another activity or, in opaque code that cannot beat, CPU time. Slow workers do not count as hung, and idle
    workers never do.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._still: dict[str, dict[int, UnchangedSince[Sign]]] = {}
        """Unchanged signs of busy workers, by worker and heartbeat slot."""

    def observe(self, now: float, worker: str, signs: Sequence[Sign], cpu_seconds: Callable[[], float]) -> None:
        """Note the signs of a worker. Its CPU time is only read if opaque code has not beaten."""
        before = self._still.get(worker, {})
        self._still[worker] = {
            slot: self._compare(now, before.get(slot), sign, cpu_seconds)
            for slot, sign in enumerate(signs)
            if sign.busy
        }

    def hanging(self) -> list[tuple[str, str, float]]:
        """Return (worker, activity, seconds without progress) of hung workers, each once."""
        workers = []
        for worker, stills in list(self._still.items()):
            still = max(stills.values(), key=lambda still: still.seconds, default=None)
            if still is not None and still.seconds >= self.seconds:
                workers.append((worker, still.shown.doing, still.seconds))
                self.forget(worker)
        return workers

    def forget(self, worker: str) -> None:
        """Forget a lost worker; its successor has the same name."""
        self._still.pop(worker, None)

    def _compare(
        self, now: float, still: UnchangedSince[Sign] | None, sign: Sign, cpu_seconds: Callable[[], float]
    ) -> UnchangedSince[Sign]:
        if still is None or still.shown != sign:
            return UnchangedSince(sign, now)
        seen = still.observe_again(now, self.seconds)
        if sign.opaque:
            used, still.elapsed = cpu_seconds(), still.elapsed + seen
            if still.cpu_seconds is None:
                still.cpu_seconds, still.elapsed = used, 0.0
            elif abs(used - still.cpu_seconds) > SHARE * still.elapsed:
                return UnchangedSince(sign, now, cpu_seconds=used)
        return still
