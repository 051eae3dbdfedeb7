"""Tests runs on simulated accelerators (see `late`): no peculiarity of a GPU may change a study's results."""

import gc
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import late
import pytest
import studies
import torch
from torch import Tensor, nn

import argosy
from argosy import api
from argosy.errors import MemberFailed
from argosy.running.launch.inline import Inline
from argosy.settings import Settings
from argosy.stream.order import permutation
from argosy.training.choice.fusion_group import FusionGroup

pytestmark = pytest.mark.usefixtures("devices")
devices = late.devices


def in_place(batch: Any) -> Any:
    inputs, target = batch
    return inputs.mul_(2.0), target


def test_results_are_those_of_a_cpu(tmp_path: Path) -> None:
    study = studies.study(data=argosy.Data(train=studies.Vectors(170), val=studies.Vectors(41), on_device=in_place))
    for place in ("cpu:2", "late:0,1"):
        report = argosy.train(study, directory=tmp_path / place, devices=place, block_size=32)
        assert [row.status for row in report.rows] == ["done"] * 4
    assert evidence.results(tmp_path / "cpu:2") == evidence.results(tmp_path / "late:0,1")
    began = evidence.event_lines(tmp_path / "late:0,1", "MemberStarted")
    assert {line["device"] for line in began} == {"late:0", "late:1"}


def test_memory_is_measured_where_the_device_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's memory counter includes what a step allocates temporarily, which a count of autograd's saved tensors misses."""
    study = studies.study(fleet=[studies.member(hidden=256, batch_size=64)])
    settings = Settings(devices="late:0", loader_workers=0)
    (kept,) = api.profile(study, settings=settings).profiles
    monkeypatch.setenv("LATE_BYTES", str(10**8))
    (counted,) = api.profile(study, settings=settings).profiles
    assert kept.memory_bytes < counted.memory_bytes < 3 * kept.memory_bytes


def test_a_member_that_runs_out_of_memory_gets_smaller_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = [studies.member("wide", hidden=2000, batch_size=128), studies.member("small")]
    study = studies.study(256, fleet=fleet, epochs=1)
    monkeypatch.setenv("LATE_BYTES", str(4_500_000))
    report = argosy.train(study, directory=tmp_path, devices="late:0")
    assert {row.name: row.status for row in report.rows} == {"wide": "done", "small": "done"}
    # Once beside the other member, which is then given back, and once alone.
    assert (tmp_path / "workers" / "late-0.log").read_text().count("late out of memory") == 2, (
        "a failed step kept memory"
    )


def test_members_that_have_no_room_together_are_measured_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = [studies.member(f"m{width}", model=partial(Square, width)) for width in range(200, 206)]
    # Room for one of them with its copies, gradients and momentum, but not beside five that are only built.
    monkeypatch.setenv("LATE_BYTES", str(9 * 205 * 205 * 4))
    study = studies.study(64, fleet=fleet, epochs=1)
    gc.disable()  # as in a process of many objects, in which old ones are collected rarely
    try:
        report = argosy.train(study, directory=tmp_path, devices="late:0", launcher="inline", numerics="exact")
    finally:
        gc.enable()
    assert {row.status for row in report.rows} == {"done"}


class Square(nn.Sequential):
    """A network with more weights than activations, which refers to itself."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, 10))
        self.whole = [self]


class Wide(torch.utils.data.Dataset):
    """A dataset whose samples are far larger than the members' weights."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((8000,), 0.001 * index), index % 3


def test_a_block_that_finds_no_room_sends_the_largest_member_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = [studies.member(f"m{outputs}", model=partial(nn.Linear, 8000, outputs), batch_size=8) for outputs in (3, 4)]
    study = studies.study(data=argosy.Data(train=Wide()), fleet=fleet, epochs=1)
    # Room for a block twice, as needed while it is copied, and for one member with its momentum, but not for both.
    monkeypatch.setenv("LATE_BYTES", str(2 * 64 * 8000 * 4 + 300_000))
    report = argosy.train(study, directory=tmp_path, devices="late:0", block_size=64)
    assert {row.name: row.status for row in report.rows} == {"m3": "done", "m4": "done"}
    assert "late out of memory" in (tmp_path / "workers" / "late-0.log").read_text()


def noisy() -> list[argosy.Member]:
    return [studies.member(f"noisy-{batch}", batch_size=batch, augment=late.noise) for batch in (16, 33)]


@pytest.mark.fresh
def test_random_states_of_a_device_belong_to_the_member(tmp_path: Path) -> None:
    """A member draws the same random numbers beside others and uninterrupted as alone and interrupted."""
    several = studies.study(fleet=[*noisy(), studies.member("plain")], epochs=3)
    argosy.train(several, directory=tmp_path / "together", devices="late:0", launcher="inline")
    for epochs in (1, 3):
        one = studies.study(fleet=noisy()[1:], epochs=epochs)
        argosy.train(one, directory=tmp_path / "alone", devices="late:3", launcher="processes")
    together, alone = (evidence.results_of(tmp_path / place, "noisy-33") for place in ("together", "alone"))
    assert together == alone


def poisoned_once(batch: Any, flag: Path, poison: Callable[[], Any]) -> Any:
    """An augmentation that poisons the device once in training, as an index out of bounds in a kernel does."""
    if flag.exists() and flag.read_text() == "now":
        flag.unlink()
        poison()
    if flag.exists():
        flag.write_text("now" if len(flag.read_text()) > 12 else flag.read_text() + ".")
    return batch


@pytest.mark.parametrize("poison", [late.poison, late.poison_later])
def test_a_poisoned_device_ends_its_process_and_no_member(tmp_path: Path, poison: Callable[[], Any]) -> None:
    """The process is replaced whether the failing call itself raises or the error surfaces later, between two blocks."""
    flag = tmp_path / "flag"
    flag.touch()
    breaks = partial(poisoned_once, flag=flag, poison=poison)
    fleet = [studies.member("breaks", augment=breaks), studies.member("sound")]
    for run in ("broken", "whole"):
        argosy.train(
            studies.study(fleet=fleet), directory=tmp_path / run, devices="late:0", time_limit=100, numerics="exact"
        )
        assert not flag.exists()
    assert len(evidence.event_lines(tmp_path / "broken", "WorkerLost")) == 1
    assert evidence.results(tmp_path / "broken") == evidence.results(tmp_path / "whole")


class AssertsAlways(nn.Linear):
    """A network that fails an assertion on the device, reported to the host later, in each forward pass after `after` training steps."""

    def __init__(self, after: int) -> None:
        super().__init__(12, 10)
        self.after = after
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps > self.after:
            late.poison_later()
        return super().forward(inputs)


@pytest.mark.parametrize("after", [0, 20], ids=["from its measuring on", "from its third epoch on"])
def test_a_member_whose_kernel_asserts_always_ends_alone(tmp_path: Path, after: int) -> None:
    # numerics="exact", because programs of small networks are chosen by time and round differently.
    sound = [studies.member("sound"), *(studies.member(f"like-{name}", batch_size=8) for name in "abc")]
    asserts = studies.member("asserts", model=partial(AssertsAlways, after))
    study = studies.study(fleet=[sound[0], asserts, *sound[1:]], epochs=4)
    with pytest.warns(MemberFailed, match="'asserts' failed: "):
        report = argosy.train(
            study, directory=tmp_path / "run", devices="late:0", time_limit=100, block_size=16, numerics="exact"
        )
    statuses = {row.name: row.status for row in report.rows}
    assert statuses == {**dict.fromkeys(statuses, "done"), "asserts": "failed"}
    assert report.member("asserts").reason.startswith("its kernel failed an assertion on late:0 for the second time (")
    lost = evidence.event_lines(tmp_path / "run", "WorkerLost")
    assert len(lost) <= 2
    assert lost[-1]["suspects"] == ["asserts"]
    assert "device-side assert triggered" in (tmp_path / "run" / "members" / "asserts" / "log.txt").read_text()
    argosy.train(
        studies.study(fleet=sound, epochs=4),
        directory=tmp_path / "alone",
        devices="late:0",
        block_size=16,
        numerics="exact",
    )
    for member in sound:
        assert evidence.results_of(tmp_path / "run", member.name) == evidence.results_of(
            tmp_path / "alone", member.name
        )


def asserts_at(batch: Any, calls: Path, at: tuple[int, ...]) -> Any:
    """A `Data.on_device` function that breaks the device in the calls numbered `at`, so that no member is at fault."""
    with calls.open("a") as file:
        file.write(".")
    if calls.stat().st_size in at:
        late.poison_later()
    return batch


def test_a_device_that_breaks_again_before_any_member_steps_is_no_members_fault(tmp_path: Path) -> None:
    for run, at in (("broken", (15, 24)), ("whole", ())):
        on_device = partial(asserts_at, calls=tmp_path / f"{run} calls", at=at)
        data = argosy.Data(train=studies.Vectors(170), val=studies.Vectors(41), on_device=on_device)
        fleet = [studies.member("one"), studies.member("other", batch_size=33)]
        study = studies.study(data=data, fleet=fleet)
        argosy.train(study, directory=tmp_path / run, devices="late:0", time_limit=100, block_size=16)
    assert len(evidence.event_lines(tmp_path / "broken", "WorkerLost")) == 2
    assert evidence.results(tmp_path / "broken") == evidence.results(tmp_path / "whole")


class AssertsForNan(nn.Linear):
    """A network that asserts, as `BCELoss` does on an accelerator, in the step after one that left NaN in its weights."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        self.steps += self.training
        if self.weight.isnan().any():
            late.poison_later()
        return super().forward(inputs) * (float("nan") if self.steps > 14 else 1.0)


def test_a_member_whose_epoch_is_one_block_has_diverged(tmp_path: Path) -> None:
    """The device has not completed the last block of an epoch when its steps have been issued."""
    arrays = torch.full((32, 12), math.nan), torch.arange(32) % 3
    fleet = [studies.member(f"m{batch}", model=partial(nn.Linear, 12, 3), batch_size=batch) for batch in (8, 16)]
    study = studies.study(data=argosy.Data(arrays=arrays, val_arrays=arrays), fleet=fleet, epochs=2)
    with pytest.warns(MemberFailed, match="not a number after"):
        report = argosy.train(study, directory=tmp_path, devices="late:0", launcher="inline", quiet=True)
    assert [(row.status, row.sections) for row in report.rows] == [("diverged", ())] * 2


def test_a_member_that_asserts_for_what_it_became_has_diverged(tmp_path: Path) -> None:
    fleet = [studies.member("diverges", model=AssertsForNan, batch_size=16), studies.member("sound")]
    with pytest.warns(MemberFailed, match="'diverges' diverged: its training loss is not a number after 15 steps"):
        report = argosy.train(
            studies.study(fleet=fleet), directory=tmp_path, devices="late:0", time_limit=100, block_size=16
        )
    assert {row.name: row.status for row in report.rows} == {"sound": "done", "diverges": "diverged"}
    assert len(evidence.event_lines(tmp_path, "WorkerLost")) == 1


class Hanging(nn.CrossEntropyLoss):
    """A loss that once occupies the device for an hour, in its 18th validation batch counted over all processes."""

    def __init__(self, calls: Path) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if not output.requires_grad:
            with self.calls.open("a") as file:
                file.write(".")
            if self.calls.stat().st_size == 18:
                late.takes(3600.0)
        return super().forward(output, target)


def test_a_device_that_hangs_in_a_validation_is_noticed(tmp_path: Path) -> None:
    """The hang is noticed although the trainer waits for the device between two blocks, outside any step."""
    study = studies.study(64, fleet=[studies.member(loss=Hanging(tmp_path / "calls"), batch_size=8)], epochs=1, val=160)
    report = argosy.train(
        study, directory=tmp_path / "run", devices="late:0", block_size=8, hang_seconds=2.0, time_limit=60
    )
    assert [row.status for row in report.rows] == ["done"]
    (lost,) = evidence.event_lines(tmp_path / "run", "WorkerLost")
    assert "waiting for its device" in lost["detail"]


class Asserting(nn.CrossEntropyLoss):
    """A cross-entropy loss that poisons the device when a label has no output, as the kernel on an accelerator does."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if bool(((target >= output.shape[1]) | ((target < 0) & (target != -100))).any()):
            late.poison()
        return super().forward(output, target)


@pytest.mark.falls_back
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_label_that_comes_late_ends_its_member_and_not_the_device(tmp_path: Path, split: str) -> None:
    inputs, sound = torch.randn(100, 12, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 10
    order = permutation(0, 0, 100)
    labels = sound.index_fill(0, torch.tensor(int(order[-1])), 10).index_fill(0, torch.tensor(int(order[60])), -100)
    fleet = [
        studies.member("meets_it", loss=Asserting(), metrics={}),
        studies.member("has_an_output", loss=Asserting(), metrics={}, model=partial(nn.Linear, 12, 11)),
    ]
    if split == "train":
        others = [number for number in range(100) if number != order[-1]]
        fleet += [
            studies.member("leaves_it_out", loss=Asserting(), metrics={}, subset=others),
            studies.member("drops_it", loss=Asserting(), metrics={}, batch_size=30, drop_last=True),
        ]
    data = argosy.Data(
        arrays=(inputs, labels if split == "train" else sound),
        val_arrays=(inputs, labels if split == "val" else sound),
    )
    study = studies.study(data=data, fleet=fleet, epochs=1)
    with pytest.warns(MemberFailed, match="'meets_it' failed: "):
        report = argosy.train(study, directory=tmp_path, launcher="inline", devices="late:0", block_size=16)
    statuses = {row.name: row.status for row in report.rows}
    assert statuses == {**dict.fromkeys(statuses, "done"), "meets_it": "failed"}
    assert report.member("meets_it").reason.startswith(
        "StudyError: member 'meets_it': a target has label 10, but its network has 10 outputs, for labels 0 to 9. Use"
    )
    gc.collect()  # frees copies that were never waited for, which count as lost, while this test has the device


def test_a_late_label_in_one_program_ends_the_members_that_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        fusion_group.tries[fusion_group.now] = [1.0 / fusion_group.now.size]

    monkeypatch.setattr(FusionGroup, "note", note)
    inputs, last = torch.randn(320, 12, generator=torch.Generator().manual_seed(0)), int(permutation(0, 0, 320)[-1])
    labels = (torch.arange(320) % 10).index_fill(0, torch.tensor(last), 10)
    one = partial(studies.member, loss=Asserting(), metrics={}, batch_size=8)
    fleet = [
        *(one(name, model=partial(nn.Linear, 12, 10)) for name in "ab"),
        one("c", model=partial(nn.Linear, 12, 11)),
    ]
    study = studies.study(data=argosy.Data(arrays=(inputs, labels)), fleet=fleet, epochs=1)
    with pytest.warns(MemberFailed) as told:
        report = argosy.train(study, directory=tmp_path, launcher="inline", devices="late:0", block_size=64)
    assert len(told) == 2
    assert [["a", "b"]] in [line["programs"] for line in evidence.event_lines(tmp_path, "Packed")]
    assert {row.name: row.status for row in report.rows} == {"a": "failed", "b": "failed", "c": "done"}
    for name in "ab":
        assert f"StudyError: member {name!r}: a target has label 10" in report.member(name).reason
    gc.collect()  # as in the test above


def test_seconds_are_those_of_the_device_and_not_those_of_asking(tmp_path: Path) -> None:
    """Reports, stopping rules and measured profiles count the seconds of the device, not those of submitting work to it."""
    fleet = [
        studies.member("light", hidden=10, loss=late.Taking(0.01)),
        studies.member("heavy", hidden=11, loss=late.Taking(0.08)),
        studies.member("stopped", hidden=12, loss=late.Taking(0.02), stop=argosy.MaxSeconds(0.2)),
    ]
    study = studies.study(200, fleet=fleet, epochs=2)
    settings = Settings(devices="late:0", loader_workers=0, numerics="exact")
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="late:0", numerics="exact")
    seconds = {row.name: row.seconds for row in report.rows}
    assert seconds["light"] == pytest.approx(0.26, rel=0.5)
    assert seconds["heavy"] == pytest.approx(8 * 0.26, rel=0.3)
    assert report.member("stopped").epochs == 1
    learnt = api.profile(study, settings=settings, launcher=Inline()).profiles
    rates = {profile.member: profile.rate(1) for profile in learnt}
    assert 5 < rates["light"] / rates["heavy"] < 10
