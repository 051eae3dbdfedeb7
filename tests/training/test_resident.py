"""Tests that samples that fit stay on an accelerator, are sent once with equal results, and are freed if memory runs out."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import late
import numpy as np
import pytest
import studies
import torch
from blocks import blocks
from torch import Tensor, nn

import argosy
from argosy.stream.blocks import Block
from argosy.training.device import resident
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import open_backend

devices = late.devices
ROWS, WIDTH = 256, 50
X = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
Y = torch.arange(ROWS) % 10
ROOM = 10**7


@pytest.fixture
def sent(devices: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield a list of the bytes that each block copies to a device of 10 MB, in this process."""
    monkeypatch.setenv("LATE_BYTES", str(ROOM))
    found: list[int] = []
    copy = late.Late.copy

    def counted(self: late.Late, tensors: Sequence[Tensor]) -> Any:
        found.append(sum(tensor.nbytes for tensor in tensors))
        return copy(self, tensors)

    monkeypatch.setattr(late.Late, "copy", counted)
    yield found
    gc.collect()  # so that copies under way at a run's end count as lost now, and not in the next test


def epoch(number: int, *, fixed: bool = True) -> list[Block]:
    """Return the blocks of an epoch, in its own order."""
    order = np.random.RandomState(number).permutation(ROWS)
    found = blocks(order, 64, arrays=(X, Y), epoch=number)
    for block in found:
        block.fixed = fixed
    return found


def through(copies: DeviceCopies, stream: list[Block]) -> None:
    """Copy each block to the device, overwrite its slot as soon as it is released, and compare the copy with the original."""
    while stream:
        block = stream.pop(0)
        there, wanted = copies.start(block), [leaf.clone() for leaf in block.leaves]
        while copies.release_done():
            pass
        for leaf in block.leaves:
            leaf.zero_()
        assert all(map(torch.equal, there.leaves, wanted))
        assert there.labels is not None


def opened() -> DeviceCopies:
    backend = open_backend("late:0")
    backend.activate()
    return DeviceCopies(backend)


LEAVES, ORDER = 64 * (WIDTH * 4 + 8), 64 * 8


def test_rows_are_sent_once_and_the_order_alone_from_then_on(sent: list[int]) -> None:
    copies = opened()
    through(copies, epoch(0))
    assert sent == [LEAVES] * 4, "rows should not stay before a section has shown what steps need"
    copies.resident.allow({"train": ROWS})
    for number in (1, 2, 3):
        through(copies, epoch(number))
    assert sent[4:] == [LEAVES + ORDER] * 4 + [ORDER] * 8
    through(copies, epoch(4, fixed=False))
    assert sent[-4:] == [LEAVES] * 4, "samples that change in each epoch should be sent"


def test_a_part_of_an_epoch_is_completed_by_the_next(sent: list[int]) -> None:
    """A run that was resumed in the middle of an epoch sends part of it first."""
    copies = opened()
    copies.resident.allow({"train": ROWS})
    through(copies, epoch(0)[2:])
    through(copies, epoch(1))
    through(copies, epoch(2))
    assert sent == [LEAVES + ORDER] * 6 + [ORDER] * 4


def test_rows_take_a_share_of_what_is_left_and_are_given_back(
    sent: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    copies = opened()
    size = ROWS * (WIDTH * 4 + 8)
    taken = torch.zeros(ROOM - 4 * size + 4, dtype=torch.uint8)
    copies.resident.allow({"train": ROWS})
    through(copies, epoch(0))
    assert sent == [LEAVES] * 4, "a quarter of the memory left is too little for the rows"
    del taken
    copies = opened()
    copies.backend.reset_peak()
    copies.resident.allow({"train": ROWS})
    before = copies.backend.memory_in_use()
    assert before is not None
    through(copies, epoch(0))
    assert copies.backend.memory_in_use() == before + size
    assert copies.resident.give_back("no memory")
    assert copies.backend.memory_in_use() == before
    assert capsys.readouterr().out == "from now on, samples are sent to late:0 in each epoch: no memory\n"
    copies.resident.allow({"train": ROWS})
    through(copies, epoch(1))
    assert sent[-4:] == [LEAVES] * 4
    assert not copies.resident.give_back("no memory"), "rows should be given back once and for all"


# ---- runs


def study(data: argosy.Data, epochs: int = 4) -> argosy.Study:
    fleet = [
        studies.member("small", hidden=8),
        studies.member("wide", batch_size=33, hidden=24),
        studies.member("part", subset=range(5, 200, 3)),
    ]
    fleet = [replace(member, model=partial(network, number)) for number, member in enumerate(fleet)]
    return argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(epochs))


def network(number: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8 + number), nn.Tanh(), nn.Linear(8 + number, 10))


def halved(batch: Any) -> Any:
    """Halve the inputs in place, as `Data.on_device` may do."""
    return batch[0].mul_(0.5), batch[1]


class Rows(torch.utils.data.Dataset[Any]):
    """A Dataset whose samples can be cached, because they do not change."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def jittered(sample: Any) -> Any:
    """Add noise that differs in each epoch, to training samples only, so that only validation samples can stay."""
    return sample[0] + torch.randn(WIDTH), sample[1]


ARRAYS = argosy.Data(arrays=(X, Y), val_arrays=(X[:100], Y[:100]), on_device=halved)
KINDS = {
    "arrays": ARRAYS,
    "kept": argosy.Data(train=Rows(), val=Rows()),
    "augmented": argosy.Data(train=Rows(), val=Rows(), then=jittered),
}


def run(data: argosy.Data, directory: Path, *, epochs: int = 4, where: str = "late:0", **options: Any) -> Any:
    late.forget()
    argosy.train(study(data, epochs), directory=directory, devices=where, block_size=64, **options)
    return evidence.results(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_members_of_a_run_have_equal_bits_with_and_without(
    kind: str, sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resident rows, which a device has once for its members, change no result."""
    found = run(KINDS[kind], tmp_path / "with", launcher="inline", where="late:0,1")
    assert sum(size <= ORDER for size in sent) >= 8
    sent.clear()
    monkeypatch.setattr(resident, "MEMORY_DIVISOR", ROOM)
    assert run(KINDS[kind], tmp_path / "without", launcher="inline", where="late:0,1") == found
    assert min(sent) > ORDER


def test_a_resumed_run_has_the_bits_of_one_in_one_piece(sent: list[int], tmp_path: Path) -> None:
    whole = run(ARRAYS, tmp_path / "whole", launcher="inline")
    run(ARRAYS, tmp_path / "parts", epochs=1, launcher="inline")
    sent.clear()
    assert run(ARRAYS, tmp_path / "parts", launcher="inline") == whole
    assert ORDER in sent, "the last epoch should send the order alone"


def test_a_block_that_finds_no_room_takes_that_of_rows_and_moves_no_member(
    sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(ARRAYS, tmp_path / "whole", launcher="inline")
    copy, ended = late.Late.copy, list[int]()

    def ends(self: late.Late, tensors: Sequence[Tensor]) -> Any:
        if not ended and sum(tensor.nbytes for tensor in tensors) == ORDER:
            ended.append(len(sent))
            raise torch.OutOfMemoryError("late out of memory")
        return copy(self, tensors)

    monkeypatch.setattr(late.Late, "copy", ends)
    sent.clear()
    assert run(ARRAYS, tmp_path / "ended", launcher="inline") == whole
    assert ended and min(sent[ended[0] :]) > ORDER, "whole blocks should be sent again"


class Greedy(nn.Module):
    """A network that needs much memory from its fourth epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2000, 10)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
            if self.batches > 3 * 192 / 32:
                torch.zeros(ROOM - 1_500_000, dtype=torch.uint8)
        output: Tensor = self.linear(x)
        return output


def test_where_memory_ends_samples_come_through_the_ring_again(sent: list[int], tmp_path: Path) -> None:
    """Rows are freed before the member is moved to a device of its own or given micro-batches."""
    wide = argosy.Data(
        arrays=(torch.rand(192, 2000), Y[:192])
    )  # within a quarter of the memory left, and too much beside what the fourth epoch needs
    greedy = studies.member("greedy", model=Greedy, batch_size=32, metrics={})
    asked = argosy.Study(data=wide, members=[greedy], stop=argosy.MaxEpochs(5))
    report = argosy.train(asked, directory=tmp_path, devices="late:0", block_size=64)
    assert [(row.status, row.epochs) for row in report.rows] == [("done", 5)]
    assert "from now on, samples are sent to late:0 in each epoch" in (tmp_path / "workers" / "late-0.log").read_text()
    assert not evidence.event_lines(tmp_path, "Divided")
