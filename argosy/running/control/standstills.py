"""Tells devices that wait for one another in vain from those that wait for a slow one: pure bookkeeping over their signs of life.

Devices that carry members together stand still together where one of them waits for a sum and none of them is busy: a busy one
makes progress, or hangs by itself. One that has nothing to do may be given a block to step on yet, by a feeder that prepares it,
or when a slower device of the leg lets go of another.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from argosy.running.control.hangs import OBSERVATIONS
from argosy.stream.heartbeat import Sign

__all__ = ["Devices", "Standstills"]

Devices = tuple[str, ...]
Shown = Mapping[str, Sequence[Sign]]
"""By worker: its own sign, then those of its loaders."""
Marks = tuple[str | int, ...]


@dataclass(slots=True)
class _Silence:
    """Devices as they were when none was busy."""

    marks: Marks
    observed: float
    seconds: float = 0.0
    """How long they have been seen like that."""


class Standstills:
    """A sum hangs when nothing has happened for so many seconds among the devices that wait for it.

    Something has happened where one waits for something else, or has beaten that does not wait. What a device does meanwhile
    that waits for the same afterwards, as saving its members, is no progress.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._still: dict[Devices, _Silence] = {}

    def observe(
        self, now: float, together: Mapping[Devices, Collection[str]], shown: Shown
    ) -> list[tuple[Devices, str]]:
        """Those that stand still for too long, with what they show; each is named once.

        `together` has the devices that carry members together, and all workers of their leg.
        """
        before, self._still = self._still, {}
        found = []
        for devices, workers in together.items():
            still = self._compare(now, before.get(devices), _marks(devices, workers, shown))
            if still is not None and still.seconds >= self.seconds:
                found.append((devices, f"no progress for {still.seconds:.0f} s: {_words(devices, shown)}"))
            elif still is not None:
                self._still[devices] = still
        return found

    def _compare(self, now: float, still: _Silence | None, marks: Marks) -> _Silence | None:
        if marks and (still is None or still.marks != marks):
            return _Silence(marks, now)
        if still is not None:
            # While the driver itself was held up, no device could be seen to move.
            still.seconds += min(now - still.observed, self.seconds / OBSERVATIONS) if marks else 0.0
            still.observed = now
        return still


def _marks(devices: Devices, workers: Collection[str], shown: Shown) -> Marks:
    """What changes with any progress; empty where a device may be about to make some."""
    signs = [shown[device][0] for device in devices]
    if not any(sign.waits for sign in signs):
        return ()
    if not all(sign.waits for sign in signs):
        signs = [sign for worker in workers for sign in shown[worker]]
    if any(sign.busy for sign in signs):
        return ()
    return tuple(sign.doing if sign.waits else sign.beat for sign in signs)


def _words(devices: Devices, shown: Shown) -> str:
    return "; ".join(f"{device} {shown[device][0].doing or 'with nothing to do'}" for device in devices)
