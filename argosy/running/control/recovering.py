"""Members that a lost trainer carried, and that are behind the others of their leg: who waits for them, and who does not.

They go on as soon as a device is free, on a leg of their own. Nobody makes room for them meanwhile, so that no barrier takes them
for members without a place. Those that are to meet their leg again have it held: it stands at the end of the section at hand
until they are there, saved and waiting, and are planned anew together with everybody aboard.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from argosy.protocol.feeder import Hold
from argosy.running.control.legs import LiveLeg

if TYPE_CHECKING:
    from argosy.running.control.scheduler import LegScheduler

__all__ = ["Recovering"]


class Recovering:
    """Of one run."""

    def __init__(self, scheduler: "LegScheduler") -> None:
        self.scheduler = scheduler
        self.meets: dict[str, int] = {}
        """By member: number of the leg that it is to meet."""
        self.apart: set[str] = set()
        """Members that go on without the others, until they are aboard."""

    def take_off(self, device: str) -> list[str]:
        """A trainer is gone, and whom it carried, who are returned; whoever was to board there waits, or will when saved."""
        gone = self._unsaved(device)
        off = list(gone)
        for leg in self.scheduler.legs:
            here = list(leg.assignments[device].members) if device in leg.assignments else []
            boarding = leg.boarding.pop(device, None)
            gone += [name for name in here if boarding is None or name not in boarding.start]
            off += here
        self._remove(device, gone, off)
        return gone

    def drop_unsaved(self, device: str) -> list[str]:
        """A trainer is gone, and those that were leaving it, who are returned; what becomes of its assignment is for others to say."""
        gone = self._unsaved(device)
        for leg in self.scheduler.legs:
            leg.boarding.pop(device, None)
        self._remove(device, gone, gone)
        return gone

    def _unsaved(self, device: str) -> list[str]:
        """Members that a trainer which is gone was to save, or one of a node that was given up."""
        pool, leaving = self.scheduler.pool, self.scheduler.leaving
        return [name for name, its in leaving.items() if its.device == device or not pool.knows(its.device)]

    def _remove(self, device: str, gone: Collection[str], off: Collection[str]) -> None:
        """With the trainer of a device, those that are `gone` leave nobody any more, and those that are `off` are aboard nowhere."""
        scheduler = self.scheduler
        for name in gone:
            scheduler.judged.discard(name)
            scheduler.leaving.pop(name, None)
        for leg in scheduler.legs:
            removed = [name for name in off if leg.remove(name)]
            # Members of the device may have ended since the leg's last credit named it.
            if (removed or device in leg.readers) and leg.devices and not leg.asked:
                # Its feeders wait for a reader that is no more; those that are asked get their credit when they have answered.
                scheduler.allow(leg, leg.until)
                scheduler.predictions.change(leg, ())
        for name in gone:
            scheduler.arrive(name)

    def fall_behind(self, names: Collection[str], leg: LiveLeg | None) -> None:
        """These wait for a device, and are to meet this leg again, if any, where it can be held."""
        if leg is None:
            self.apart |= set(names) - self.meets.keys()
            return
        self.apart -= set(names)
        self.meets |= dict.fromkeys(names, leg.number)
        for feeder in leg.hold():
            self.scheduler.pool.send(feeder, Hold(leg=leg.number, multiple=1))

    def forget(self, name: str) -> None:
        """It wants nothing of anybody's barrier, as everybody else, or nothing at all."""
        self.meets.pop(name, None)
        self.apart.discard(name)

    def boarded(self, names: Iterable[str]) -> None:
        """These train again."""
        self.apart -= set(names)

    def meet(self, leg: LiveLeg) -> None:
        """A leg is at a barrier that nobody is still on the way to: those that are there and can join it are like everybody else.

        All together, at the next barrier if not here: one may want a batch that was begun before this one.
        """
        there = [name for name, number in self.meets.items() if number == leg.number]
        if all(self.scheduler.asking.can_join(name, leg) for name in there):
            self.over(leg)

    def over(self, leg: LiveLeg) -> None:
        """Nobody is to meet this leg any more."""
        self.meets = {name: number for name, number in self.meets.items() if number != leg.number}

    # ---- questions

    def others(self, names: Iterable[str]) -> list[str]:
        """Those that are none, and have no place yet."""
        placed = self.scheduler.leg_starts.seated | self.apart | self.meets.keys()
        return [name for name in names if name not in placed]

    def goes_to(self, leg: LiveLeg) -> LiveLeg | None:
        """The leg that members of this one are to meet at a barrier."""
        if not self.meets:
            return None
        numbers = {self.meets.get(name) for name in leg.members}
        return next((other for other in self.scheduler.legs if other.number in numbers), None)

    def to_meet(self, leg: LiveLeg) -> bool:
        """Whether somebody is to meet this leg, at this barrier or the next."""
        return leg.number in self.meets.values()

    def awaited(self, leg: LiveLeg) -> bool:
        """Whether somebody is still on the way to the barrier of a leg."""
        return any(number == leg.number and not self._there(name, leg) for name, number in self.meets.items())

    def not_yet(self) -> set[str]:
        """Waiting ones that go on from a barrier that is to come, or behind it, or when it is known where that is."""
        legs = {leg.number: leg for leg in self.scheduler.legs}
        return {
            name
            for name, number in self.meets.items()
            if number in legs and (legs[number].asked or self._there(name, legs[number]))
        }

    def _there(self, name: str, leg: LiveLeg) -> bool:
        """Whether it waits, and wants nothing of what is before the barrier, but for a batch that was begun there."""
        member_table = self.scheduler.member_table
        return name in member_table.waiting and member_table.place(name) >= leg.until
