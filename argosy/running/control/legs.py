"""The legs of a run: which devices step which members on each stream, and how far each stream may go. No messages leave from here.

Contract (credit and barriers). A leg's feeders announce sections up to its credit. When every assignment has reported all of
them, the leg stands at a *barrier*: no trainer steps, and assignments may change. Credit reaches as far as nothing can change
(`LiveLeg.free_until`), so that no trainer waits at the end of a section after which all go on. For a change that is wanted
sooner the leg is held: its feeders then say where they stopped, and the barrier is behind the last section that one of them
has begun.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from argosy.plans import Flotilla
from argosy.protocol.feeder import Leg

__all__ = ["Assignment", "Change", "Gate", "Legs", "LiveLeg", "Starting", "difference", "placed_anew"]


class Gate(Enum):
    """What a leg comes to."""

    OPEN = "goes on as far as nothing can change"
    HOLDING = "stands at the next barrier, for a change"
    REGROUPING = "its trainers save their members and let them go"


@dataclass(slots=True)
class Assignment:
    """The members that one trainer steps."""

    number: int
    """Grows with every change of any assignment: blocks carry it."""
    members: list[str]
    section: int
    """The first section of the stream whose end it has not reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """From one assignment of a device to the next: all other members stay where they are, untouched."""

    leave: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


@dataclass(slots=True)
class Starting:
    """An assignment that cannot start yet."""

    start: tuple[str, ...]
    missing: set[str]
    """Those of them that another device has not saved yet."""


def placed_anew(now: Flotilla, wanted: Flotilla) -> set[str]:
    """Members that other devices carry together, or in other shares: they leave all of them and start anew."""
    before = {placement.member: placement for placement in now.placements}
    return {
        placement.member
        for placement in wanted.placements
        if (was := before.get(placement.member)) is not None
        and (was.is_split or placement.is_split)
        and (was.devices, was.shares) != (placement.devices, placement.shares)
    }


def difference(
    now: Mapping[str, Iterable[str]], wanted: Mapping[str, Iterable[str]], anew: Collection[str] = ()
) -> dict[str, Change]:
    """What changes on each device between two assignments of members to devices; devices without a change are left out.

    Those that are to start `anew` stay nowhere.
    """
    changes = {}
    for device in dict.fromkeys((*now, *wanted)):
        here, there = tuple(now.get(device, ())), tuple(wanted.get(device, ()))
        stays = (set(here) & set(there)).difference(anew)
        leave = tuple(name for name in here if name not in stays)
        start = tuple(name for name in there if name not in stays)
        if leave or start:
            changes[device] = Change(leave=leave, start=start)
    return changes


@dataclass(slots=True)
class LiveLeg:
    """One leg."""

    number: int
    flotilla: Flotilla
    """What was planned last."""
    feeders: tuple[str, ...]
    until: int
    """The first section without credit."""
    begins: Leg = field(default_factory=Leg.empty)
    """Where its first section does."""
    gate: Gate = Gate.OPEN
    judged: set[str] = field(default_factory=set)
    """Members that have ended a section since the last barrier, where their verdicts count."""
    assignments: dict[str, Assignment] = field(default_factory=dict)
    """By device; one without members takes no part."""
    carriers: dict[str, set[str]] = field(default_factory=dict)
    """By member: the devices whose assignments it is in."""
    savers: dict[str, str] = field(default_factory=dict)
    """By member: the device that saves it and reports for it; of several the first."""
    free_until: dict[str, int] = field(default_factory=dict)
    """By member: the first section before which it is certain that it goes on."""
    last: dict[str, int | None] = field(default_factory=dict)
    """By member: the first section that it surely does not want; None where that is not known."""
    readers: tuple[str, ...] = ()
    """Devices that the last credit named: its feeders announce nothing before all of them are connected."""
    asked: set[str] = field(default_factory=set)
    """Feeders that were told to hold and have not answered."""
    credit: int = 0
    """The first section without credit when feeders were told to hold: sooner ones may have been begun."""
    starting: dict[str, Starting] = field(default_factory=dict)
    """By device."""
    makes_room: bool = True
    """Whether its members may have to make room for others where it stands next: then nothing is prepared beyond that."""

    @property
    def members(self) -> list[str]:
        """The members of all its assignments."""
        return list(dict.fromkeys(name for assignment in self.assignments.values() for name in assignment.members))

    @property
    def devices(self) -> list[str]:
        """Those with members."""
        return [device for device, assignment in self.assignments.items() if assignment.members]

    @property
    def section(self) -> int:
        """The one that the foremost of its assignments is in."""
        return max((self.assignments[device].section for device in self.devices), default=self.until)

    def devices_of(self, member: str) -> list[str]:
        """The devices that step a member: several may do so together."""
        carriers = self.carriers.get(member, set())
        return list(carriers) if len(carriers) < 2 else [device for device in self.assignments if device in carriers]

    @property
    def together(self) -> list[tuple[str, ...]]:
        """Devices that wait for one another: they step members together, or with the same others."""
        found: list[set[str]] = []
        for devices in self.carriers.values():
            if len(devices) > 1:
                joined = [others for others in found if others & devices]
                found = [*(others for others in found if others not in joined), devices.union(*joined)]
        return [tuple(sorted(devices)) for devices in found]

    @property
    def at_barrier(self) -> bool:
        """Whether every assignment has reported all that it has credit for, and all feeders that were told to hold have answered."""
        return not self.asked and all(self.assignments[device].section >= self.until for device in self.devices)

    def reported(self, device: str, section: int) -> None:
        """An assignment has ended a section."""
        self.assignments[device].section = max(self.assignments[device].section, section + 1)

    def remove(self, member: str) -> bool:
        """A member is in no assignment any more; whether it was in one."""
        devices = self.devices_of(member)
        for device in devices:
            self.assignments[device].members.remove(member)
        self.carriers.pop(member, None)
        self.judged.discard(member)
        self.forget(member)
        return bool(devices)

    def forget(self, member: str) -> None:
        """Nothing that a member wants decides any more how far the leg goes."""
        self.savers.pop(member, None)
        self.free_until.pop(member, None)
        self.last.pop(member, None)

    def change(self, device: str, number: int, change: Change) -> None:
        """A device has another assignment from this barrier on."""
        assignment = self.assignments.setdefault(device, Assignment(number=number, members=[], section=self.until))
        assignment.number, assignment.section = number, self.until
        for name in change.leave:
            if name in assignment.members:
                self._leaves(device, name)
        for name in change.start:
            self.carriers.setdefault(name, set()).add(device)
        leave = set(change.leave)
        assignment.members = [*(name for name in assignment.members if name not in leave), *change.start]

    def _leaves(self, device: str, member: str) -> None:
        """A member leaves one of its devices."""
        self.carriers[member].discard(device)
        if not self.carriers[member]:
            del self.carriers[member]

    def hold(self) -> list[str]:
        """Let the leg come to a barrier soon; returns the feeders that are to be asked where they stop."""
        if self.gate is not Gate.OPEN:
            return []
        self.gate, self.asked, self.credit = Gate.HOLDING, set(self.feeders), self.until
        return list(self.feeders)

    def held(self, feeder: str, until: int) -> bool:
        """A feeder has stopped before this section; whether it was the last to say so, and the barrier is known."""
        if feeder not in self.asked:
            return False
        # The first answer replaces the credit there was; those of other nodes may be further on.
        first = len(self.asked) == len(self.feeders)
        self.until = until if first else max(self.until, until)
        self.asked.discard(feeder)
        if not self.asked:
            # The epoch may have more sections than all members are sure to want.
            self.until = min(self.until, max(self.credit, self._certain))
        return not self.asked

    def reach(self, *, turns: int | None) -> int:
        """How far credit may go: to where a member may end, and while others wait for their turn no further than `turns`."""
        certain = self._certain
        return certain if turns is None else max(min(certain, turns), self.until)

    @property
    def _certain(self) -> int:
        return min((self.free_until[name] for name in self.members), default=self.until)

    @property
    def horizon(self) -> int | None:
        """The first section that no member can want; None where that is not known."""
        ends = [self.last[name] for name in self.members]
        return None if None in ends else max((end for end in ends if end is not None), default=self.until)

    def numbers(self) -> dict[str, int]:
        """The readers of what is announced next, and the numbers of their assignments."""
        return {device: self.assignments[device].number for device in self.devices}


class Legs:
    """All legs of a run that are under way."""

    def __init__(self) -> None:
        self.live: list[LiveLeg] = []
        self.count = 0
        """Legs so far; the newest one has this number."""
        self.assignments: int = 0
        """Assignments so far."""

    def next_assignment(self) -> int:
        """A number for an assignment."""
        self.assignments += 1
        return self.assignments

    @property
    def devices(self) -> list[str]:
        """Devices with an assignment, or with one that is to start."""
        return [device for leg in self.live for device in (*leg.devices, *leg.starting)]

    @property
    def members(self) -> list[str]:
        """Members of all assignments."""
        return [name for leg in self.live for name in leg.members]

    @property
    def regrouping(self) -> list[LiveLeg]:
        """Legs whose trainers let their members go."""
        return [leg for leg in self.live if leg.gate is Gate.REGROUPING]

    def members_on(self, device: str) -> list[str]:
        """Members that a device steps."""
        return [name for leg in self.live if device in leg.assignments for name in leg.assignments[device].members]

    def of(self, member: str) -> LiveLeg | None:
        """The leg that has a member."""
        return next((leg for leg in self.live if leg.devices_of(member)), None)

    def with_worker(self, worker: str) -> list[LiveLeg]:
        """Legs that a worker feeds, or steps members of."""
        return [leg for leg in self.live if worker in (*leg.feeders, *leg.devices, *leg.starting)]
