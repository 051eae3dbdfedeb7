"""Where validation samples are the training samples again: each is prepared once, and is what it would have become anew."""

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from argosy import Data
from argosy.stream.blocks import Block, Place
from argosy.stream.sources import Filled, Source, keep, open_sources

LENGTH = 31
ROOM = 2**20


class Rows(Dataset[Any]):
    """Counts how often it is asked for a sample, and when it was made."""

    made = 0

    def __init__(self) -> None:
        self.asked = 0
        Rows.made += 1

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return torch.full((3,), float(index)), index


class Sometimes(Rows):
    """Every third sample draws from one of the generators."""

    draws = (random.random, np.random.rand, partial(torch.rand, 1))

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (x + float(self.draws[index // 3 % 3]()) if index % 3 == 1 else x), y


class Always(Rows):
    """The first sample draws already."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + random.random(), y


class Seeded(Rows):
    """Has a generator of its own, whose seed is that of the sample: it moves none of the others."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + torch.rand(3, generator=torch.Generator().manual_seed(torch.initial_seed())), y


class Broken(Rows):
    """Two neighbours cannot be read."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        if index in (7, 8):
            raise OSError("truncated")
        return found


class Lists(Rows):
    """Whole lists may be asked for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def opened(dataset: Any, *, room: int = ROOM) -> dict[str, Source]:
    """The splits of a study that has it as both."""
    sources = open_sources(Data(train=dataset, val=dataset, on_error="skip"), seed=3)
    keep(sources, room)
    return sources


def fill(source: Source, split: str, indices: Any, *, epoch: int) -> tuple[Block, Filled]:
    """A block of these samples."""
    place = Place(leg=0, split=split, epoch=epoch, section=epoch, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    return block, source.fill(block, 0, np.asarray(indices, dtype=np.int64))


def in_any_order() -> Any:
    return np.random.RandomState(1).permutation(LENGTH)


@pytest.mark.parametrize("kind", [Rows, Sometimes, Always, Seeded, Broken, Lists])
@pytest.mark.parametrize("room", [ROOM, 10 * 20, 0])
def test_what_is_kept_is_what_would_be_prepared_anew(kind: type[Rows], room: int) -> None:
    sources, anew = opened(kind(), room=room), open_sources(Data(train=kind(), val=kind(), on_error="skip"), seed=3)
    for epoch in range(2):
        fill(sources["train"], "train", in_any_order(), epoch=epoch)
        found, filled = fill(sources["val"], "val", np.arange(LENGTH), epoch=epoch)
        wanted, all_of_them = fill(anew["val"], "val", np.arange(LENGTH), epoch=epoch)
        sound = wanted.sound
        assert all(
            torch.equal(a[torch.from_numpy(sound)], b[torch.from_numpy(sound)])
            for a, b in zip(found.leaves, wanted.leaves, strict=True)
        )
        assert np.array_equal(found.indices, wanted.indices)
        assert np.array_equal(found.sound, sound)
        assert filled.holes == all_of_them.holes


@pytest.mark.parametrize(
    ("kind", "room", "prepared"),
    [
        (Rows, ROOM, 0),
        (Lists, ROOM, 0),
        (Sometimes, ROOM, 10),
        (Broken, ROOM, 2),
        (Rows, 10 * 20, 21),
        (Always, ROOM, 31),
    ],
)
def test_only_what_is_not_kept_is_prepared_for_validation(kind: type[Rows], room: int, prepared: int) -> None:
    dataset = kind()
    sources = opened(dataset, room=room)
    assert fill(sources["train"], "train", in_any_order(), epoch=0)[1].prepared == LENGTH
    before = dataset.asked
    assert fill(sources["val"], "val", np.arange(LENGTH), epoch=0)[1].prepared == prepared
    # A list in which a sample raises is asked for again, sample by sample.
    assert dataset.asked - before == prepared


def test_training_samples_are_prepared_in_every_epoch() -> None:
    sources = opened(Rows())
    for epoch in range(2):
        assert fill(sources["train"], "train", np.arange(LENGTH), epoch=epoch)[1].prepared == LENGTH


def test_a_factory_given_for_both_is_called_once() -> None:
    Rows.made = 0
    sources = opened(lambda: Rows())
    assert (Rows.made, sources["val"].takes_kept) == (1, True)


def test_nothing_is_kept_where_the_datasets_are_two() -> None:
    sources = open_sources(Data(train=Rows(), val=Rows()), seed=3)
    keep(sources, ROOM)
    assert not sources["val"].takes_kept
    x = torch.zeros(4, 2)
    arrays = open_sources(Data(arrays=(x,), val_arrays=(x,)), seed=3)
    keep(arrays, ROOM)
    assert not arrays["val"].takes_kept
