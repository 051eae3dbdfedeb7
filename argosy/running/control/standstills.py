"""Distinguishes devices that wait for each other in vain from those that wait for a slow one, by pure bookkeeping over signs of life.

Devices that share split members are stuck if one of them waits for an all-reduce and none is busy: a busy device makes progress, or hangs
by itself. An idle device may still get a block, from a feeder that prepares it, or when a slower device of the leg releases one.
"""

from collections.abc import Collection, Mapping, Sequence

from argosy.running.control.hangs import UnchangedSince
from argosy.stream.heartbeat import Sign

__all__ = ["Devices", "Standstills"]

Devices = tuple[str, ...]
Shown = Mapping[str, Sequence[Sign]]
"""By worker: its own sign, then those of its loader workers."""
Marks = tuple[str | int, ...]


class Standstills:
    """Finds all-reduces in which no device has made progress for a number of seconds.

    It is progress if a device waits for something else, or if a device that does not wait has beaten. Other work of a device that then waits
    for the same again, such as saving its members, is no progress.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._still: dict[Devices, UnchangedSince[Marks]] = {}

    def observe(
        self, now: float, together: Mapping[Devices, Collection[str]], shown: Shown
    ) -> list[tuple[Devices, str]]:
        """Return groups that have been stuck for too long, with a description, each once.

        `together` maps devices that share split members to all workers of their leg.
        """
        before, self._still = self._still, {}
        standing = []
        for devices, workers in together.items():
            still = self._compare(now, before.get(devices), _progress_marks(devices, workers, shown))
            if still is not None and still.seconds >= self.seconds:
                standing.append((devices, f"no progress for {still.seconds:.0f} s: {_describe(devices, shown)}"))
            elif still is not None:
                self._still[devices] = still
        return standing

    def _compare(self, now: float, still: UnchangedSince[Marks] | None, marks: Marks) -> UnchangedSince[Marks] | None:
        if marks and (still is None or still.shown != marks):
            return UnchangedSince(marks, now)
        if still is not None:
            # Without marks a device may be about to make progress, so the time until now does not count.
            still.observe_again(now, self.seconds if marks else 0.0)
        return still


def _progress_marks(devices: Devices, workers: Collection[str], shown: Shown) -> Marks:
    """Return signs that change with any progress; empty if a device may be about to make progress."""
    signs = [shown[device][0] for device in devices]
    if not any(sign.waits for sign in signs):
        return ()
    if not all(sign.waits for sign in signs):
        signs = [sign for worker in workers for sign in shown[worker]]
    if any(sign.busy for sign in signs):
        return ()
    return tuple(sign.doing if sign.waits else sign.beat for sign in signs)


def _describe(devices: Devices, shown: Shown) -> str:
    return "; ".join(f"{device} {shown[device][0].doing or 'with nothing to do'}" for device in devices)
