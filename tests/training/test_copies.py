"""Tests that data kept by members holds no slot of the ring, and that blocks do not depend on how the stream is cut."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from blocks import blocks
from torch import nn

from argosy.errors import StudyError
from argosy.stream.batches import InOrderCutter
from argosy.stream.blocks import Block
from argosy.stream.order import Selection
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import open_backend

ORDER = np.arange(48, dtype=np.int64)


def views(
    copies: DeviceCopies, stream: list[Block], count: int, keep: Callable[[Block], Any] = lambda block: None
) -> Any:
    """Return for each of the next `count` blocks whether members step on the slot itself; the results of `keep` live until then."""
    found, kept = [], []
    for _ in range(count):
        block = stream.pop(0)
        there = copies.start(block)
        found.append(there.leaves[0].data_ptr() == block.leaves[0].data_ptr())
        kept.append(keep(there))
        del block, there
    return found


def test_a_block_is_copied_while_a_part_of_an_earlier_one_is_kept() -> None:
    copies, train, val = DeviceCopies(open_backend("cpu:0")), blocks(ORDER, 4), blocks(ORDER, 4, split="val")
    assert views(copies, train, 3) == [False, True, True], "the first block is copied, since a new member may keep it"
    assert views(copies, val, 3, keep=lambda block: block.leaves[1][2:].flatten()) == [False] * 3
    assert views(copies, train, 1) == views(copies, val, 1) == [True], "nothing is kept any more"
    kept: list[Any] = []
    assert views(copies, train, 3, keep=lambda block: kept.append(block.leaves[1][:2].numpy())) == [True, False, False]
    assert views(copies, val, 1) == [False]
    assert [part.tolist() for part in kept] == [[16, 17], [20, 21], [24, 25]]
    kept.clear()
    assert views(copies, train, 1) == [True]
    copies.member_assigned()
    assert views(copies, train, 2) == [False, True]


# ---- the study's on_device


def on_device(work: Callable[[Any], Any], size: int = 16) -> list[Block]:
    """Return what `work` makes of blocks of `size` samples."""
    copies = DeviceCopies(open_backend("cpu:0"), work)
    return [copies.start(block) for block in blocks(ORDER, size, arrays=(IMAGES, TARGETS))]


IMAGES = torch.randint(0, 255, (48, 4, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(48) % 10
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(72, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.5)).eval()


def scaled(batch: Any) -> Any:
    return batch[0].float() / 255, batch[1]


def embedded(batch: Any) -> Any:
    """Apply a frozen network."""
    with torch.no_grad():
        return {"x": NETWORK(batch[0].float()), "y": nn.functional.one_hot(batch[1], 10)}


def with_no_numbers(batch: Any) -> Any:
    """Return NaN for black images, such as those of skipped samples."""
    x = batch[0].float() * (batch[1] > 0)[:, None, None, None]
    return x / x.amax((1, 2, 3), keepdim=True), torch.complex(x, -x).conj(), batch[1]


def in_place(batch: Any) -> Any:
    batch[0].floor_divide_(2)
    return batch


@pytest.mark.parametrize("work", [scaled, embedded, with_no_numbers, in_place])
def test_what_follows_from_each_sample_is_done(work: Callable[[Any], Any]) -> None:
    (first, *_), (same, *_) = on_device(work), on_device(work, size=3)
    assert all(map(torch.equal, first.leaves[-1][:3], same.leaves[-1]))


def centred(batch: Any) -> Any:
    """Subtract the mean of the given block."""
    x = batch[0].float() / 255
    return x - x.mean(), batch[1]


def in_training(batch: Any) -> Any:
    """Apply BatchNorm without `eval()`."""
    return nn.BatchNorm2d(4)(batch[0].float()), batch[1]


def ranked(batch: Any) -> Any:
    """Rank the labels of the block among each other."""
    return batch[0], batch[1].argsort()


class Counting:
    """A function that depends on the number of its calls."""

    calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        return batch[0].float() * self.calls, batch[1]


@pytest.mark.parametrize("work", [centred, in_training, ranked, Counting()])
def test_what_does_not_is_refused(work: Callable[[Any], Any]) -> None:
    with pytest.raises(StudyError, match=r"^Data\.on_device returns different values for a block in two parts"):
        on_device(work)


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, np.random.rand])
def test_what_draws_is_refused_though_nothing_came_of_it(draw: Callable[[], float]) -> None:
    def erasing(batch: Any) -> Any:
        return batch if draw() < 2.0 else batch[0]

    with pytest.raises(StudyError, match=r"^Data\.on_device draws random numbers"):
        on_device(erasing)


def test_of_no_samples_nothing_is_made() -> None:
    """An empty block ends an epoch whose last section has no block of its own."""
    (block, *_) = blocks(ORDER, 16, arrays=(IMAGES, TARGETS))
    leaves = tuple(leaf[:0] for leaf in block.leaves)
    empty = Block(replace(block.place, rows=0), block.tree, leaves, block.indices[:0], block.sound[:0])
    assert DeviceCopies(open_backend("cpu:0"), lambda batch: batch[0].amax()).start(empty).place.rows == 0


def channels_first(batch: Any) -> Any:
    return batch[0].permute(0, 3, 1, 2).float()


def gray(batch: Any) -> Any:
    """Return images with one channel, which torch considers contiguous with channels first and last."""
    return batch[0].float().mean(-1, keepdim=True).permute(0, 3, 1, 2)


def conjugated(batch: Any) -> Any:
    return torch.fft.rfft(batch[0].float()).conj()


def spread(batch: Any) -> Any:
    return batch[1][:, None].expand(-1, 3)


@pytest.mark.parametrize("work", [channels_first, gray, conjugated, spread])
def test_batches_lie_in_memory_alike_wherever_blocks_end(work: Callable[[Any], Any]) -> None:
    """The memory format affects the rounding of kernels."""
    found = set()
    for size in (5, 16, 48):
        for subset in (None, range(48)):
            cutter = InOrderCutter(selection=Selection.of(subset, 48), order=ORDER, batch_size=8, drop_last=False)
            for block in on_device(work, size):
                for batch in cutter.take(block):
                    cutter.commit(batch)
                    found.add((batch.data.stride(), batch.data.is_conj()))
    assert len(found) == 1
