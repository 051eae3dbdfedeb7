"""Tests which members a trainer tries as one program, depending on earlier trials."""

import copy
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import late
import packs
import pytest
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from argosy.protocol.packs import FellBack, Packed, StepsAlone
from argosy.protocol.trainer import SectionReport
from argosy.stream.blocks import Block
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.schedule import Orders
from argosy.training.choice import fused_check, rehearsal
from argosy.training.choice.fusion_group import FusionGroup
from argosy.training.device.devices import open_backend
from argosy.training.member.files import Files
from argosy.training.programs.fused.fused import Fused
from argosy.training.trainer import program_choice, program_instances
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.guard import Guard, Poisoned
from argosy.training.trainer.program_choice import MIN_PAIRS, ProgramChoice
from argosy.training.trainer.program_instances import ProgramInstance, Round

devices = late.devices
ORDERS = Orders(0, {"train": packs.TRAIN})
SPARED = "other pairs of members were no faster as one program on this device"


def assigned(folder: Path, name: str, hidden: int) -> AssignedMember:
    live = packs.live(packs.member(name, model=partial(packs.mlp, hidden=64 * hidden), batch_size=2), exact=False)
    live.begin_epoch(ORDERS, 0)
    return AssignedMember(live, Files(folder, None), ORDERS, 1, stream_epoch=0, next_section=0, earlier=0, leads=True)


@pytest.mark.parametrize(("cost", "spared"), [(3.0, True), (0.5, False)], ids=["slower", "faster"])
def test_twos_are_tried_no_more_where_none_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost: float, spared: bool
) -> None:
    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        if samples:
            fusion_group.tries[fusion_group.now] = [cost if fusion_group.now.size == 2 else 1.0]

    monkeypatch.setattr(FusionGroup, "note", note)
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    instances, said = list[ProgramInstance](), list[SectionReport]()
    fusion = ProgramChoice(
        "cpu:0", instances, said.append, lambda names: [], Heartbeat.private(), lambda since: None, allowed=True
    )
    for hidden in range(5, 5 + MIN_PAIRS + 1):
        instances.extend(ProgramInstance.of([assigned(tmp_path, f"{name}{hidden}", hidden)]) for name in "ab")
        fusion.note_assigned()
        fusion.form_groups(block)
        for _ in range(4):
            for instance in list(instances):
                instance.step(block, lambda: False)
            fusion.settle()
    reasons = {}
    for report in said:
        for event in report.events:
            reasons |= dict(event.reasons) if isinstance(event, StepsAlone) else {}
    assert {name for name, reason in reasons.items() if reason == SPARED} == ({"a7", "b7"} if spared else set())
    assert sorted(len(instance.assignment) for instance in instances) == ([1] * 6 if spared else [2] * 3)


@pytest.mark.parametrize("shows", [False, True])
def test_members_are_saved_before_other_programs_only_if_that_shows_in_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows: bool
) -> None:
    monkeypatch.setattr(
        FusionGroup, "note", lambda group, *of: group.tries.setdefault(group.now, [1.0 / group.now.size])
    )
    if shows:
        monkeypatch.setattr(FusionGroup, "shows", True)
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    instances, saved = [ProgramInstance.of([assigned(tmp_path, name, 5)]) for name in "abc"], list[str]()

    def save(names: Collection[str]) -> list[Any]:
        saved.extend(names)
        return []

    fusion = ProgramChoice(
        "cpu:0", instances, lambda report: None, save, Heartbeat.private(), lambda since: None, allowed=True
    )
    fusion.note_assigned()
    fusion.form_groups(block)
    for instance in list(instances):
        instance.step(block, lambda: False)
    fusion.settle()
    assert [instance.names for instance in instances] == [("a", "b", "c")]
    assert saved == (["a", "b", "c"] if shows else [])


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("where", [fused_check, rehearsal], ids=["the check", "a trainer"])
def test_an_assertion_of_a_kernel_is_no_reason_against_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    """Whichever call notices a poisoned device, it ends the process, and does not rule out the program for good."""
    monkeypatch.setattr(FusionGroup, "note", lambda group, *of: group.tries.setdefault(group.now, [1.0]))
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    instances, said = [ProgramInstance.of([assigned(tmp_path, name, 5)]) for name in "abc"], list[Any]()
    guard = Guard(
        "late:0",
        open_backend("late:0"),
        tmp_path,
        said.append,
        lambda name, failed=False: None,
        lambda _: [],
        lambda _: False,
    )
    fusion = ProgramChoice(
        *("cpu:0", instances, said.append, lambda names: [], Heartbeat.private(), guard.check_device), allowed=True
    )
    monkeypatch.setattr(where, "Fused", SimpleNamespace(of=lambda *given, **named: late.poison()))
    fusion.note_assigned()
    with pytest.raises(Poisoned, match="late:0 is unusable in this process since"):
        for _ in range(4):
            fusion.form_groups(block)
            for instance in list(instances):
                instance.step(block, lambda: False)
            fusion.settle()
    assert not [event for report in said for event in report.events if isinstance(event, FellBack | StepsAlone)]


def test_a_block_without_samples_does_not_decide_whether_members_are_one_program(tmp_path: Path) -> None:
    """Such a block comes first if a run is resumed after the last step of an epoch."""
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    leaves = tuple(leaf[:0] for leaf in block.leaves)
    empty = Block(replace(block.place, rows=0), block.tree, leaves, block.indices[:0], block.sound[:0])
    instances, said = [ProgramInstance.of([assigned(tmp_path, name, 5)]) for name in "abc"], list[SectionReport]()
    fusion = ProgramChoice(
        "cpu:0", instances, said.append, lambda names: [], Heartbeat.private(), lambda since: None, allowed=True
    )
    fusion.note_assigned()
    fusion.form_groups(empty)
    assert not said and not any(instance.fusion_group for instance in instances)
    fusion.form_groups(block)
    assert not any(isinstance(event, StepsAlone) for report in said for event in report.events)
    assert all(instance.fusion_group is instances[0].fusion_group is not None for instance in instances)


def rounding(folder: Path, name: str, **rest: Any) -> AssignedMember:
    """Return a member whose products are so small that a program of several rounds differently."""
    live = packs.live(packs.member(name, model=partial(packs.mlp, 0.2, hidden=3), batch_size=2, **rest), exact=False)
    live.begin_epoch(ORDERS, 0)
    return AssignedMember(live, Files(folder, None), ORDERS, 1, stream_epoch=0, next_section=0, earlier=0, leads=True)


def test_what_shows_in_bits_is_chosen_on_copies_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FusionGroup, "note", lambda group, *of: group.tries.setdefault(group.now, [1 / group.now.size]))
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    scheduled: Any = {"schedule": partial(StepLR, step_size=1), "schedule_per": "step"}  # copies must not warn
    instances, said = [ProgramInstance.of([rounding(tmp_path, n, **scheduled)]) for n in "abc"], list[SectionReport]()
    before = [copy.deepcopy(instance.assignment[0].live.state_dict()) for instance in instances]
    fusion = ProgramChoice(
        "cpu:0", instances, said.append, lambda names: [], Heartbeat.private(), lambda since: None, allowed=True
    )
    fusion.note_assigned()
    fusion.form_groups(block)
    (instance,) = instances
    assert instance.round is None and instance.fusion_group is not None and instance.fusion_group.lengths is None
    assert [assigned.name for assigned in instance.assignment] == ["a", "b", "c"]
    for assigned, state in zip(instance.assignment, before, strict=True):
        assert packs.difference(assigned.live.state_dict(), state) == 0
    (event,) = [event for report in said for event in report.events]
    assert isinstance(event, Packed) and event.settled and event.seconds_per_sample == ((1, 1.0), (3, 1 / 3))


def test_a_round_of_slow_steps_has_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise rounds of eight steps would take most of a short run of large networks."""
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    made = []
    for seconds in (60.0, 0.0):
        monkeypatch.setattr(program_instances, "ROUND_SECONDS", seconds)
        instance = ProgramInstance.of([assigned(tmp_path, "a", 5)])
        instance.round = timed = Round()
        assert not instance.step(block, lambda: False) and instance.rests
        made.append((instance.assignment[0].live.steps, timed.samples))
    assert made == [(8, 16), (1, 2)]


def test_a_round_on_copies_of_slow_steps_has_one_of_them_and_of_members_that_are_alike_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first round, which does not count, has one step of each program: steps of copies train nothing."""
    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    few: Any = {"schedule": partial(OneCycleLR, max_lr=0.1, total_steps=4), "schedule_per": "step"}
    lives, note, noted = [rounding(tmp_path, name, **few).live for name in "abc"], FusionGroup.note, list[int]()

    def noting(group: FusionGroup, seconds: float, samples: int) -> None:
        noted.append(samples)
        note(group, seconds, samples)

    monkeypatch.setattr(FusionGroup, "note", noting)
    for seconds, alike, samples in ((60.0, True, {3 * 2, 3 * 8 * 2}), (0.0, False, {3 * 2}), (0.0, True, {2, 3 * 2})):
        monkeypatch.setattr(rehearsal, "ROUND_SECONDS", seconds)
        rehearsal.rehearse(FusionGroup(alike=alike), lives, block)
        assert {*noted} == samples
        noted.clear()


def test_a_program_of_copies_that_raises_is_ruled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: Fused) -> int:
        raise ValueError("not three of them")

    (block,) = packs.blocks(ORDERS.epoch("train", 0), packs.TRAIN, arrays=packs.samples()[0])
    instances, said = [ProgramInstance.of([rounding(tmp_path, name)]) for name in "abc"], list[SectionReport]()
    fusion = ProgramChoice(
        "cpu:0", instances, said.append, lambda names: [], Heartbeat.private(), lambda since: None, allowed=True
    )
    admitted = program_choice.admit
    monkeypatch.setattr(program_choice, "admit", lambda *given, **named: (admitted(*given, **named), patch())[0])
    patch = partial(monkeypatch.setattr, Fused, "finish", finish)
    fusion.note_assigned()
    fusion.form_groups(block)
    assert [len(instance.assignment) for instance in instances] == [1, 1, 1]
    assert not any(instance.assignment[0].live.steps for instance in instances)
    (fell,) = [event for report in said for event in report.events if isinstance(event, FellBack)]
    assert fell.members == ("a", "b", "c") and "not three of them" in fell.reason
