"""Preparation: a function of (seed, split, epoch, index), whoever does it; faults are named."""

import random

import numpy as np
import pytest
import studies
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from argosy import Data
from argosy.errors import StudyError
from argosy.stream.blocks import Place
from argosy.stream.sources import ArraySource, DatasetSource, open_sources


def fill(source, indices, epoch: int = 0) -> list[torch.Tensor]:
    """The leaves of a block of these samples."""
    place = Place(leg=0, split="train", epoch=epoch, section=epoch, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    source.fill(block, 0, np.array(indices, dtype=np.int64))
    assert block.indices.tolist() == list(indices)
    return [leaf.clone() for leaf in block.leaves]


def source(dataset, *, skip_errors: bool = False) -> DatasetSource:
    return open_sources(Data(train=dataset, on_error="skip" if skip_errors else "raise"), seed=0)["train"]


def test_a_sample_does_not_depend_on_who_came_before() -> None:
    here = source(studies.Vectors(30))
    torch.manual_seed(1)
    random.seed(2)
    one, other = fill(here, [4, 9, 2]), fill(here, [2, 4, 9])
    assert torch.equal(one[0][[2, 0, 1]], other[0])


def test_epochs_differ() -> None:
    here = source(studies.Vectors(30))
    assert not torch.equal(fill(here, [4], epoch=0)[0], fill(here, [4], epoch=1)[0])


class OwnGenerator(studies.Vectors):
    """Draws from a generator that nobody can seed from outside."""

    generator = np.random.default_rng()

    def __getitem__(self, index):
        return torch.tensor(self.generator.random()), 0


def test_an_own_generator_is_refused_by_name() -> None:
    with pytest.raises(StudyError, match=r"OwnGenerator.*generator of its own"):
        source(OwnGenerator(10))


class Ragged(studies.Vectors):
    """Sample 17 is longer than the others."""

    def __getitem__(self, index):
        return torch.zeros(3 + (index == 17)), 0


def test_unequal_shapes_say_pad() -> None:
    with pytest.raises(StudyError, match=r"sample 17 .*\(4,\).*\(3,\).*pad"):
        fill(source(Ragged(30)), [16, 17])


class Broken(studies.Vectors):
    """Sample 17 cannot be read."""

    def __getitem__(self, index):
        if index == 17:
            raise OSError("truncated file")
        return super().__getitem__(index)


def test_a_raising_sample_is_named() -> None:
    with pytest.raises(StudyError, match=r"sample 17 raised OSError: truncated file"):
        fill(source(Broken(30)), [16, 17])


def test_a_raising_sample_can_be_skipped() -> None:
    here = source(Broken(30), skip_errors=True)
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=3, last=True)
    block = here.layout.block(place, np.zeros(here.layout.block_bytes(3), np.uint8))
    assert here.fill(block, 0, np.array([16, 17, 18])) == [(17, "OSError: truncated file")]
    assert block.sound.tolist() == [True, False, True]


class Lists(Dataset):
    """Counts how it is asked."""

    def __init__(self) -> None:
        self.lists = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index):
        return torch.tensor(float(index))

    def __getitems__(self, indices):
        self.lists += 1
        return [self[index] for index in indices]


def test_getitems_is_used_where_it_is_deterministic() -> None:
    dataset = Lists()
    here = source(dataset)
    assert fill(here, [3, 1])[0].tolist() == [3.0, 1.0]
    assert dataset.lists == 2
    # A Subset has __getitems__ too, and would draw many samples under one seed.
    assert not source(Subset(studies.Vectors(30), range(20))).facts.gathers


def test_arrays_and_tensor_datasets_take_the_fast_path() -> None:
    x, y = torch.arange(12.0).reshape(6, 2), np.arange(6)
    for data in (Data(arrays=(x, y)), Data(train=TensorDataset(x, torch.from_numpy(y)))):
        here = open_sources(data, seed=0)["train"]
        assert isinstance(here, ArraySource)
        assert fill(here, [5, 0])[0].tolist() == [[10.0, 11.0], [0.0, 1.0]]


def test_a_memory_map_stays_on_disk(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20, dtype=np.float32))
    here = open_sources(Data(arrays=(np.load(tmp_path / "x.npy", mmap_mode="r"),)), seed=0)["train"]
    assert fill(here, [7, 3])[0].tolist() == [7.0, 3.0]


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(StudyError, match="one common length"):
        open_sources(Data(arrays=(np.zeros(3), np.zeros(4))), seed=0)


def test_what_the_stream_cannot_carry_is_named() -> None:
    with pytest.raises(StudyError, match=r"^Data.train: sample 0 holds 'text' of type str; .* Convert it"):
        source(["text", "more"])
