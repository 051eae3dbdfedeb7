"""Tests legs, feeders and assignments under every order of messages: no member goes too far, and assignments change only at barriers."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from argosy.plans import Flotilla, Placement
from argosy.protocol.feeder import Credit, Hold, Leg
from argosy.running.control.legs import Change, Gate, LiveLeg, assignment_changes, resplit_members
from argosy.stream.blocks import Place
from argosy.stream.course import FeedSchedule

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6)
DEVICES = ("d0", "d1", "d2")
PLANNED = Flotilla(placements=(Placement(member="m", devices=("d0",), seconds_per_sample=1.0),))


@st.composite
def assignments(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draw an assignment of members to devices, with each member at most once."""
    assignments: dict[str, list[str]] = {device: [] for device in draw(st.sets(st.sampled_from(DEVICES)))}
    for name in draw(NAMES) if assignments else []:
        assignments[draw(st.sampled_from(sorted(assignments)))].append(name)
    return assignments


@given(assignments(), assignments())
def test_a_difference_leads_to_the_wanted_assignments_and_names_no_other_member(
    now: dict[str, list[str]], wanted: dict[str, list[str]]
) -> None:
    changes, leg = assignment_changes(now, wanted), LiveLeg(number=0, flotilla=PLANNED, feeders=(), until=0)
    for device, members in now.items():
        leg.change(device, 0, Change(start=tuple(members)))
    for device, change in changes.items():
        assert change.leave or change.start
        assert set(change.leave) == set(now.get(device, ())) - set(wanted.get(device, ()))
        assert set(change.start) == set(wanted.get(device, ())) - set(now.get(device, ()))
        leg.change(device, 1, change)
    assert {device: set(leg.assignments[device].members) for device in leg.devices} == {
        device: set(members) for device, members in wanted.items() if members
    }
    assert {device for device, assignment in leg.assignments.items() if assignment.number == 1} == set(changes)
    for name in "abcdefgh":
        carriers = [device for device, assignment in leg.assignments.items() if name in assignment.members]
        assert leg.devices_of(name) == carriers
        assert leg.remove(name) == bool(carriers)
        assert leg.devices_of(name) == []


def test_a_member_on_other_devices_or_in_other_shares_starts_anew() -> None:
    def flotilla(*placed_at: tuple[str, dict[str, float]]) -> Flotilla:
        placed = [
            Placement(
                member=name, devices=tuple(at), seconds_per_sample=1.0, shares=tuple(at.values()) if len(at) > 1 else ()
            )
            for name, at in placed_at
        ]
        return Flotilla(placements=tuple(placed))

    two, whole = {"d0": 0.5, "d1": 0.5}, {"d0": 1.0}
    now = flotilla(("same", two), ("shares", two), ("parts", two), ("joins", whole), ("moves", whole), ("stays", whole))
    wanted = flotilla(
        ("same", two),
        ("shares", {"d0": 0.4, "d1": 0.6}),
        ("parts", whole),
        ("joins", two),
        ("moves", {"d1": 1.0}),
        ("stays", whole),
    )
    anew = resplit_members(now, wanted)
    assert anew == {"shares", "parts", "joins"}
    changes = assignment_changes(
        {"d0": ["same", "shares"], "d1": ["same", "shares"]}, {"d0": ["same", "shares"], "d1": ["shares", "same"]}, anew
    )
    assert changes == {device: Change(leave=("shares",), start=("shares",)) for device in ("d0", "d1")}


@dataclass
class Trainer:
    """A trainer's assignment, the blocks announced to it, and the section ends that it reported."""

    assignment: int = -1
    members: dict[str, int] = field(default_factory=dict)
    """The section of each assigned member."""
    blocks: deque[tuple[Place, int]] = field(default_factory=deque)
    said: deque[tuple[int, list[str]]] = field(default_factory=deque)


class World:
    """A simulation of one leg, its feeders and its trainers, in which each message is delayed at random."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.per_epoch = draw.randint(1, 3)
        self.feeders = {
            f"f{n}": FeedSchedule({"train": 6, "val": 2}, per_epoch=self.per_epoch, block_size=4) for n in range(2)
        }
        self.node = {"d0": "f0", "d1": "f1", "d2": "f1"}
        self.trainers = {device: Trainer() for device in DEVICES}
        self.orders: dict[str, deque[Credit | Hold]] = {name: deque() for name in self.feeders}
        self.answers: dict[str, deque[int]] = {name: deque() for name in self.feeders}
        first = draw.randrange(3) * self.per_epoch
        self.leg = LiveLeg(number=7, flotilla=PLANNED, feeders=tuple(self.feeders), until=first)
        self.ends: dict[str, int] = {}
        """Section before which each member must have ended."""
        self.assignment, self.barriers = 0, 0
        for course in self.feeders.values():
            course.begin(Leg(number=7, section=first, position=0))
        for number in range(draw.randint(1, 4)):
            self._join(f"m{number}", draw.choice(DEVICES))
        self._allow(self.leg.credit_limit(turns=None))

    # ---- driver

    def _join(self, name: str, device: str) -> None:
        self.assignment += 1
        until = self.leg.until
        self.ends[name] = until + self.draw.randint(1, 9)
        self.leg.free_until[name] = until + self.draw.randint(1, self.ends[name] - until)
        self.leg.change(device, self.assignment, Change(start=(name,)))
        self._assign(device, {**self.trainers[device].members, name: until})

    def _assign(self, device: str, members: dict[str, int]) -> None:
        self.trainers[device].assignment, self.trainers[device].members = self.leg.assignments[device].number, members

    def _allow(self, until: int) -> None:
        self.leg.until = until
        for name, orders in self.orders.items():
            assignments = {
                device: assignment
                for device, assignment in self.leg.assignment_numbers().items()
                if self.node[device] == name
            }
            orders.append(Credit(leg=7, until=until, horizon=None, assignments=assignments))

    def hold(self) -> None:
        for name in self.leg.hold():
            self.orders[name].append(Hold(leg=7, multiple=self.draw.choice([1, self.per_epoch])))

    def handle(self, device: str) -> None:
        section, names = self.trainers[device].said.popleft()
        for name in [name for name in names if name in self.leg.free_until]:
            left = self.ends[name] - section - 1
            assert left >= 0
            self.leg.free_until[name] = section + 1 + (self.draw.randint(1, left) if left else 0)
        if device in self.leg.assignments:
            self.leg.note_section_end(device, section)

    def handle_held(self, feeder: str) -> None:
        if self.leg.held(feeder, self.answers[feeder].popleft()):
            self._allow(self.leg.until)

    def fail(self) -> None:
        """Let a random member fail in the section where it is."""
        name = self.draw.choice(self.leg.members)
        (device,) = self.leg.devices_of(name)
        del self.trainers[device].members[name]
        assert self.leg.remove(name)
        assert not self.leg.remove(name)

    def go_on(self) -> None:
        leg = self.leg
        if not leg.at_barrier:
            if leg.gate is Gate.OPEN and leg.credit_limit(turns=None) > leg.until:
                self._allow(leg.credit_limit(turns=None))
            return
        self.barriers += 1
        for device in leg.devices:
            trainer = self.trainers[device]
            assert all(place.section < leg.until for place, _ in trainer.blocks), (
                "a trainer has blocks left at the barrier"
            )
            assert set(trainer.members.values()) == {leg.until}
        leg.gate = Gate.OPEN
        for name in [name for name in leg.members if self.ends[name] == leg.until]:
            (device,) = leg.devices_of(name)
            leg.remove(name)
            self.assignment += 1
            leg.change(device, self.assignment, Change())
            self._assign(device, {n: s for n, s in self.trainers[device].members.items() if n != name})
        if self.draw.random() < 0.4:
            self._join(f"n{self.barriers}", self.draw.choice(DEVICES))
        if leg.members:
            self._allow(leg.credit_limit(turns=None))

    # ---- feeders and trainers

    def obey(self, feeder: str) -> None:
        order = self.orders[feeder].popleft()
        if isinstance(order, Credit):
            self.feeders[feeder].allow(order)
        else:
            self.answers[feeder].append(self.feeders[feeder].hold(order).until)

    def announce(self, feeder: str) -> None:
        course = self.feeders[feeder]
        place = course.next()
        assert place is not None
        for device, assignment in course.assignments.items():
            self.trainers[device].blocks.append((place, assignment))
        course.note_announced(place, place.rows)

    def step(self, device: str) -> None:
        trainer = self.trainers[device]
        place, assignment = trainer.blocks.popleft()
        assert assignment <= trainer.assignment, "a block came before its assignment"
        if assignment < trainer.assignment:
            assert all(place.section < section for section in trainer.members.values()), "a block was missed"
            return
        # A feeder that had no assigned members for a while may be behind: members skip sections before their own.
        here = [name for name, section in trainer.members.items() if section <= place.section]
        assert all(trainer.members[name] == place.section < self.ends[name] for name in here), (
            "a member was stepped beyond its end"
        )
        if place.last and place.split == "val" and trainer.members:
            trainer.members |= dict.fromkeys(here, place.section + 1)
            trainer.said.append((place.section, here))

    def may(self) -> list[tuple[object, ...]]:
        """Return all actions of feeders, trainers and the driver that could happen next."""
        happen: list[tuple[object, ...]] = [(self.obey, name) for name, orders in self.orders.items() if orders]
        happen += [(self.handle_held, name) for name, answers in self.answers.items() if answers]
        for name, course in self.feeders.items():
            place = course.peek() if course.assignments else None
            if place is not None and course.may_announce(place):
                happen.append((self.announce, name))
        happen += [(self.step, device) for device, trainer in self.trainers.items() if trainer.blocks]
        happen += [(self.handle, device) for device, trainer in self.trainers.items() if trainer.said]
        return happen


@given(st.integers(0, 2**32))
def test_no_member_goes_too_far_and_all_arrive_in_any_order_of_messages(seed: int) -> None:
    draw = Random(seed)
    world = World(draw)
    for _ in range(300):
        if not world.leg.members:
            return
        if draw.random() < 0.05:
            world.hold()
        if draw.random() < 0.02:
            world.fail()
            continue
        happen = world.may()
        act, *who = draw.choice(happen) if happen else (world.go_on,)
        act(*who)  # type: ignore[operator]
        if world.leg.members and draw.random() < 0.5:
            world.go_on()
    assert world.barriers > 0
