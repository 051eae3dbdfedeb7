"""The legs of a run: which devices step which members on each stream, and how far each stream may go. This module sends no messages.

Contract (credit and barriers). A leg's feeders announce sections up to its credit. When every assignment has reported all of
them, the leg is at a *barrier*: no trainer steps, and assignments may change. Credit extends to the first section after which something may
change (`LiveLeg.free_until`), so no trainer waits at the end of a section after which all members continue. If a change is needed earlier,
the leg is held: its feeders stop and report where, and the barrier is after the last section that one of them has begun.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from argosy.plans import Flotilla
from argosy.protocol.feeder import Leg

__all__ = ["Assignment", "Change", "Gate", "Legs", "LiveLeg", "Starting", "assignment_changes", "resplit_members"]


class Gate(Enum):
    """What happens to a leg next."""

    OPEN = "continues as far as nothing can change"
    HOLDING = "holds at the next barrier, for a change"
    REGROUPING = "its trainers save and release their members"


@dataclass(slots=True)
class Assignment:
    """The members that one trainer steps."""

    number: int
    """Unique and increasing over all assignments; blocks carry it."""
    members: list[str]
    section: int
    """The first section of the stream whose end has not been reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Difference between a device's assignment and its next one; all other members stay on the device."""

    leave: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


@dataclass(slots=True)
class Starting:
    """An assignment that cannot start yet."""

    start: tuple[str, ...]
    missing: set[str]
    """The members of `start` that another device has not saved yet."""


def resplit_members(now: Flotilla, wanted: Flotilla) -> set[str]:
    """Return the members whose split changes, in its devices or shares: they leave all of their devices and start again."""
    before = {placement.member: placement for placement in now.placements}
    return {
        placement.member
        for placement in wanted.placements
        if (was := before.get(placement.member)) is not None
        and (was.is_split or placement.is_split)
        and (was.devices, was.shares) != (placement.devices, placement.shares)
    }


def assignment_changes(
    now: Mapping[str, Iterable[str]], wanted: Mapping[str, Iterable[str]], anew: Collection[str] = ()
) -> dict[str, Change]:
    """Return the changes between two assignments of members to devices, for devices that change.

    Members in `anew` leave and start even on devices that they stay on.
    """
    changes = {}
    for device in dict.fromkeys((*now, *wanted)):
        before, after = tuple(now.get(device, ())), tuple(wanted.get(device, ()))
        stays = (set(before) & set(after)).difference(anew)
        leave = tuple(name for name in before if name not in stays)
        start = tuple(name for name in after if name not in stays)
        if leave or start:
            changes[device] = Change(leave=leave, start=start)
    return changes


@dataclass(slots=True)
class LiveLeg:
    """A leg that is under way."""

    number: int
    flotilla: Flotilla
    """The flotilla of the latest plan."""
    feeders: tuple[str, ...]
    until: int
    """The first section without credit."""
    begins: Leg = field(default_factory=Leg.empty)
    """Where in the stream its first section begins."""
    gate: Gate = Gate.OPEN
    judged: set[str] = field(default_factory=set)
    """Members that have ended a section since the last barrier; their verdicts take effect at the next."""
    assignments: dict[str, Assignment] = field(default_factory=dict)
    """By device; an assignment without members takes no part."""
    carriers: dict[str, set[str]] = field(default_factory=dict)
    """By member: the devices whose assignments it is in."""
    savers: dict[str, str] = field(default_factory=dict)
    """By member: the device that saves and reports it, the first one if it is split."""
    free_until: dict[str, int] = field(default_factory=dict)
    """By member: it is certain to continue in all sections before this one."""
    last: dict[str, int | None] = field(default_factory=dict)
    """By member: the first section that it certainly does not need; None if unknown."""
    readers: tuple[str, ...] = ()
    """Devices named with the last credit; feeders announce nothing before all of them are connected."""
    holding_feeders: set[str] = field(default_factory=set)
    """Feeders that were asked to hold and have not answered yet."""
    credit: int = 0
    """The first section without credit when feeders were asked to hold; earlier sections may have begun."""
    starting: dict[str, Starting] = field(default_factory=dict)
    """Assignments that cannot start yet, by device."""
    makes_room: bool = True
    """Whether its members may have to make room for others at the next barrier; if so, nothing is prepared beyond it."""

    @property
    def members(self) -> list[str]:
        """Members of all its assignments."""
        return list(dict.fromkeys([name for assignment in self.assignments.values() for name in assignment.members]))

    @property
    def devices(self) -> list[str]:
        """Devices that have members."""
        return [device for device, assignment in self.assignments.items() if assignment.members]

    @property
    def section(self) -> int:
        """Section of its most advanced assignment."""
        return max((self.assignments[device].section for device in self.devices), default=self.until)

    def devices_of(self, member: str) -> list[str]:
        """Return the devices that step a member; several if it is split."""
        # In the order of the assignments, because that of a set differs from run to run.
        carriers = self.carriers.get(member, set())
        return list(carriers) if len(carriers) < 2 else [device for device in self.assignments if device in carriers]

    @property
    def linked_devices(self) -> list[tuple[str, ...]]:
        """Groups of devices that wait for each other, directly or through others, because they share split members."""
        linked: list[set[str]] = []
        for devices in self.carriers.values():
            if len(devices) > 1:
                joined = [others for others in linked if others & devices]
                linked = [*(others for others in linked if others not in joined), devices.union(*joined)]
        return [tuple(sorted(devices)) for devices in linked]

    @property
    def at_barrier(self) -> bool:
        """Whether every assignment has reported all credited sections, and all feeders that were asked to hold have answered."""
        return not self.holding_feeders and all(
            its.section >= self.until for its in self.assignments.values() if its.members
        )

    def note_section_end(self, device: str, section: int) -> None:
        """Note that an assignment has ended a section."""
        self.assignments[device].section = max(self.assignments[device].section, section + 1)

    def remove(self, member: str) -> bool:
        """Take a member out of all assignments; return whether it was in one."""
        devices = self.devices_of(member)
        for device in devices:
            self.assignments[device].members.remove(member)
        self.carriers.pop(member, None)
        self.judged.discard(member)
        self.forget(member)
        return bool(devices)

    def forget(self, member: str) -> None:
        """Let a member no longer influence how far the leg goes."""
        self.savers.pop(member, None)
        self.free_until.pop(member, None)
        self.last.pop(member, None)

    def change(self, device: str, number: int, change: Change) -> None:
        """Give a device its next assignment, from this barrier on."""
        assignment = self.assignments.setdefault(device, Assignment(number=number, members=[], section=self.until))
        assignment.number, assignment.section = number, self.until
        for name in change.leave:
            self.carriers[name].remove(device)
            if not self.carriers[name]:
                del self.carriers[name]
        for name in change.start:
            self.carriers.setdefault(name, set()).add(device)
        leave = set(change.leave)
        assignment.members = [*(name for name in assignment.members if name not in leave), *change.start]

    def hold(self) -> list[str]:
        """Bring the leg to a barrier soon; return the feeders that have to be asked where they stop."""
        if self.gate is not Gate.OPEN:
            return []
        self.gate, self.holding_feeders, self.credit = Gate.HOLDING, set(self.feeders), self.until
        return list(self.feeders)

    def held(self, feeder: str, until: int) -> bool:
        """Note that a feeder has stopped before a section; return whether it was the last one, so that the barrier is known."""
        if feeder not in self.holding_feeders:
            return False
        # The first answer replaces the earlier credit; answers of other nodes may be later sections.
        first = len(self.holding_feeders) == len(self.feeders)
        self.until = until if first else max(self.until, until)
        self.holding_feeders.discard(feeder)
        if not self.holding_feeders:
            # The epoch may have more sections than all members certainly need.
            self.until = min(self.until, max(self.credit, self.certain))
        return not self.holding_feeders

    def credit_limit(self, *, turns: int | None) -> int:
        """Return how far credit may go: to where a member may end, and at most to `turns` while other members wait for their turn."""
        certain = self.certain
        # Feeders may have announced everything before `until` already, so credit never shrinks here.
        return certain if turns is None else max(min(certain, turns), self.until)

    @property
    def certain(self) -> int:
        """The first section in which a member may not continue."""
        return min([self.free_until[name] for name in self.carriers], default=self.until)

    @property
    def horizon(self) -> int | None:
        """The first section without credit that no member can need; None if unknown."""
        ends = [self.last[name] for name in self.members]
        return None if None in ends else max([self.until, *(end for end in ends if end is not None)])

    def assignment_numbers(self) -> dict[str, int]:
        """Readers of the next announcements, with the numbers of their assignments."""
        return {device: self.assignments[device].number for device in self.devices}


class Legs:
    """All legs of a run."""

    def __init__(self) -> None:
        self.live: list[LiveLeg] = []
        self.count = 0
        """Number of legs so far, which is the number of the latest."""
        self.assignments: int = 0
        """Number of assignments so far."""

    def next_assignment(self) -> int:
        """Return the number of a new assignment."""
        self.assignments += 1
        return self.assignments

    @property
    def devices(self) -> list[str]:
        """Devices that have an assignment, or will have one."""
        return [device for leg in self.live for device in (*leg.devices, *leg.starting)]

    @property
    def members(self) -> list[str]:
        """Members of all assignments."""
        return [name for leg in self.live for name in leg.members]

    @property
    def regrouping(self) -> list[LiveLeg]:
        """Legs that regroup."""
        return [leg for leg in self.live if leg.gate is Gate.REGROUPING]

    def members_on(self, device: str) -> list[str]:
        """Return the members that a device steps."""
        return [name for leg in self.live if device in leg.assignments for name in leg.assignments[device].members]

    def of(self, member: str) -> LiveLeg | None:
        """Return the leg that has a member; None if none has."""
        return next((leg for leg in self.live if leg.devices_of(member)), None)

    def with_worker(self, worker: str) -> list[LiveLeg]:
        """Return the legs that a worker feeds or trains."""
        return [leg for leg in self.live if worker in (*leg.feeders, *leg.devices, *leg.starting)]
