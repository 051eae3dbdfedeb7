"""Tests that devices that carry shares of members never wait for each other in a circle, even if members leave."""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.training.trainer.merged import Begin, Move, next_move
from argosy.training.trainer.stepping import Stepping

LENGTH = 60


@dataclass
class Member:
    number: int
    devices: tuple[int, ...]
    batch_size: int

    @property
    def name(self) -> str:
        return f"m{self.number}"


@dataclass
class Device:
    """A device that moves as a trainer does, on blocks that come as the ring allows."""

    number: int
    splits: list[Member]
    whole: int
    """Steps of whole members in each block."""
    blocks: deque[int] = field(default_factory=deque)
    begins: list[Begin] = field(default_factory=list)
    under_way: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    """Number of batches begun, by member."""
    left: int = 0
    at_hand: int | None = None
    taken: list[str] = field(default_factory=list)


class World:
    """All devices; the sum of a member's batch is complete when all its ranks have begun it."""

    def __init__(self, draw: Random, members: list[Member], block: int, slots: int) -> None:
        self.draw, self.members, self.block, self.slots = draw, members, block, slots
        count = max(device for member in members for device in member.devices) + 1
        self.devices = [
            Device(n, [m for m in members if n in m.devices and len(m.devices) > 1], draw.randrange(4))
            for n in range(count)
        ]
        self.announced = 0
        self.leaving: set[str] = set()

    def begun(self, member: Member, batch: int) -> bool:
        """Return whether every rank has begun a batch."""
        return all(self.devices[d].done.get(member.name, 0) > batch for d in member.devices)

    def waits(self, device: Device, name: str) -> bool:
        member = self.members[int(name[1:])]
        return name in device.under_way and not self.begun(member, device.under_way[name])

    def announce(self) -> None:
        """Announce a block if every device has room for it, as a ring waits for its slowest reader."""
        if self.announced * self.block < LENGTH and all(len(d.blocks) < self.slots for d in self.devices):
            for device in self.devices:
                device.blocks.append(self.announced)
            self.announced += 1

    def let_go(self) -> None:
        """Let a device drop a member that failed or shall leave; the driver tells other devices at other times."""
        if self.leaving and self.draw.random() < 0.5:
            name = self.draw.choice(sorted(self.leaving))
            device = self.draw.choice(self.devices)
            device.splits = [m for m in device.splits if m.name != name]
            device.under_way.pop(name, None)

    def move(self, device: Device) -> bool:
        """Make a device's next move; return whether it could do anything."""
        if device.at_hand is None:
            if not device.blocks:
                return False
            device.at_hand, device.left = device.blocks[0], device.whole
            device.begins = sorted(b for m in device.splits for b in self.of_block(m, device.at_hand))
        here = {member.name for member in device.splits}
        device.begins = [begin for begin in device.begins if begin.member in here]
        ends = (device.at_hand + 1) * self.block >= LENGTH
        head = device.begins[0].member if device.begins else None
        found = next_move(
            head, device.under_way, lambda name: self.waits(device, name), whole=device.left > 0, ends=ends
        )
        if found is None:
            device.blocks.popleft()
            device.at_hand = None
            return True
        move, name = found
        if move is Move.WHOLE:
            device.left -= 1
        elif move is Move.BEGIN:
            device.begins.pop(0)
            device.under_way[name] = device.done.get(name, 0)
            device.done[name] = device.under_way[name] + 1
            device.taken.append(f"{name} {device.under_way[name]}")
        elif move is Move.FINISH:
            del device.under_way[name]
        return move is not Move.WAIT

    def of_block(self, member: Member, block: int) -> list[Begin]:
        ends = range(member.batch_size, LENGTH + member.batch_size, member.batch_size)
        elements = [min(end, LENGTH) for end in ends]
        low, high = block * self.block, (block + 1) * self.block
        return [Begin(e, member.number, member.name) for e in elements if low < e <= high]

    @property
    def over(self) -> bool:
        return self.announced * self.block >= LENGTH and not any(d.blocks for d in self.devices)


@st.composite
def flotillas(draw: st.DrawFn) -> list[Member]:
    """Generate members on random devices with random batch sizes."""
    groups = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True).map(tuple)
    sizes = st.integers(1, 70)
    found = draw(st.lists(st.tuples(groups, sizes), min_size=1, max_size=8))
    return [Member(number, devices, size) for number, (devices, size) in enumerate(found)]


@given(flotillas(), st.integers(1, 30), st.integers(1, 3), st.randoms(use_true_random=False), st.booleans())
def test_no_device_waits_for_ever(
    members: list[Member], block: int, slots: int, draw: Random, some_leave: bool
) -> None:
    world = World(draw, members, block, slots)
    for _ in range(20_000):
        if world.over:
            break
        if some_leave and draw.random() < 0.02:
            world.leaving.add(draw.choice(members).name)
        world.let_go()
        world.announce()
        # Devices move in any order. A round in which none can move, with no member leaving, would be a deadlock.
        could = [world.move(device) for device in draw.sample(world.devices, len(world.devices))]
        assert any(could) or world.leaving or world.over
    assert world.over
    for one in world.devices:
        assert not one.under_way
        for other in world.devices:
            shared = set(one.taken) & set(other.taken)
            assert [t for t in one.taken if t in shared] == [t for t in other.taken if t in shared]


def test_a_waiting_device_steps_whole_members_first() -> None:
    busy = {"a"}
    assert next_move("a", busy, lambda name: True, whole=True, ends=False) == (Move.WHOLE, "a")
    assert next_move("a", busy, lambda name: True, whole=False, ends=False) == (Move.WAIT, "a")
    assert next_move("a", busy, lambda name: False, whole=True, ends=False) == (Move.FINISH, "a")
    assert next_move("a", set(), lambda name: False, whole=True, ends=False) == (Move.BEGIN, "a")


def test_what_is_under_way_is_finished_where_a_section_ends_and_not_before() -> None:
    assert next_move(None, ["a"], lambda name: False, whole=False, ends=False) is None
    assert next_move(None, ["a"], lambda name: False, whole=True, ends=True) == (Move.WHOLE, "")
    assert next_move(None, ["a"], lambda name: False, whole=False, ends=True) == (Move.FINISH, "a")


def test_whole_members_have_their_turns_beside_one_that_rests_though_a_pass_is_always_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[str] = []

    def step(instance: Any, block: Any) -> bool:
        del block
        turns.append(instance.name)
        return bool(instance.name == "resting")

    nothing: Any = SimpleNamespace(beat=bool)
    block: Any = SimpleNamespace(place=SimpleNamespace(last=False))
    instances: Any = [SimpleNamespace(name=name, follow=bool, shard=None) for name in ("resting", "other")]
    stepping = Stepping(instances, {}, nothing, nothing, nothing, nothing, wanted=lambda: True)
    monkeypatch.setattr(stepping, "_step_once", step)
    assert not stepping._step_beside_split(block)
    assert turns == ["resting", "other"]
