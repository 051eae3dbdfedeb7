"""Tests that an epoch of a stream that is not kept has each sample once, wherever reading begins and whichever process reads."""

import itertools
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import argosy
from argosy import Data
from argosy.data import from_shards
from argosy.errors import StudyError
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Block, Place
from argosy.stream.opening import open_sources
from argosy.stream.order import OPEN_SHARDS, SHARD_RUN, shard_order
from argosy.stream.shards import ShardMarks
from argosy.stream.sources import DatasetSource, Source

LENGTHS = (30, 0, 7, 64, 1, 18, 25, 9, 40, 12, 33)
TOTAL = sum(LENGTHS)


class Counted:
    """A reader of shards that records what it has read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int]] = []

    def __call__(self, shard: int, row: int) -> Iterator[Any]:
        for number in range(row, LENGTHS[shard]):
            self.read.append((shard, number))
            index = sum(LENGTHS[:shard]) + number
            yield torch.full((2,), float(index)), index


class ByWorker(IterableDataset[Any]):
    """A stream that divides its shards among DataLoader workers, like those of Hugging Face."""

    num_shards = len(LENGTHS)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        for shard in range(worker.id, len(LENGTHS), worker.num_workers) if worker else range(len(LENGTHS)):
            yield from Counted()(shard, 0)


class Whole(IterableDataset[Any]):
    """A stream that does not say how many shards it has, and is read as one."""

    def __iter__(self) -> Iterator[Any]:
        for shard in range(len(LENGTHS)):
            yield from Counted()(shard, 0)


class Placed(ByWorker):
    """A stream that tells and restores how far a shard was read, with the two methods of Hugging Face's streams."""

    def __init__(self) -> None:
        self.read, self.row, self.first = Counted(), 0, 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is not None
        self.row, self.first = self.first, 0
        for sample in self.read(worker.id, self.row):
            self.row += 1
            yield sample

    def __deepcopy__(self, memo: Any) -> "Placed":
        other = type(self)()
        other.read = self.read  # copies share the counter
        return other

    def state_dict(self) -> dict[str, Any]:
        return {"row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["row"]


class Forgetful(Placed):
    """A stream that shuffles in a buffer that is not part of its state, so that the state does not lead back."""

    def __iter__(self) -> Iterator[Any]:
        draws, buffer = random.Random(0), []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) == 10:
                yield buffer.pop(draws.randrange(10))
        yield from buffer


class Unspoken(Placed):
    """A stream whose state cannot be written as JSON, or is too long for a journal."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"row": self.row, "more": self.state}

    def __deepcopy__(self, memo: Any) -> "Unspoken":
        other = Unspoken(self.state)
        other.read = self.read
        return other


class Locked(Placed):
    """A stream that cannot be copied, like one that holds a lock or an open file."""

    def __deepcopy__(self, memo: Any) -> "Locked":
        raise TypeError("cannot pickle '_thread.lock' object")


class Refusing(Placed):
    """A stream that raises when it is asked for its state."""

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not while it is read")


KINDS = {
    "placed": Placed,
    "a list": lambda: from_shards(range(len(LENGTHS)), read=Counted()),
    "lengths": lambda: from_shards(range(len(LENGTHS)), read=Counted(), lengths=LENGTHS),
    "by worker": ByWorker,
    "whole": Whole,
}


def opened(stream: Any, **data: Any) -> Source:
    return open_sources(Data(train=stream, keep=False, **data), seed=3)["train"]


def filled(source: Source, indices: Any) -> Block:
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    assert source.fill(block, 0, np.asarray(indices, dtype=np.int64)).holes == []
    return block


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_the_same_wherever_reading_begins(kind: str) -> None:
    source = opened(KINDS[kind]())
    assert source.length == TOTAL
    assert sum(source.facts.shards) == TOTAL
    order = shard_order(5, 1, source.facts.shards)
    for start in (0, 100, 17, 230):
        block = filled(source, order[start : start + 40])
        assert torch.equal(block.leaves[1], torch.from_numpy(order[start : start + 40]))


@pytest.mark.parametrize("shards", [LENGTHS, (5,), (0, 3), (8,) * 40, tuple(range(20))])
def test_an_epoch_has_each_sample_once_and_reads_few_shards_forward(shards: tuple[int, ...]) -> None:
    orders = [shard_order(7, epoch, shards) for epoch in range(3)]
    starts = np.cumsum([0, *shards])
    for order in orders:
        assert sorted(order.tolist()) == list(range(sum(shards)))
        shard = np.searchsorted(starts[1:], order, side="right")
        for one in np.unique(shard):
            assert (np.diff(order[shard == one]) == 1).all()
        begun = {int(one): int(np.flatnonzero(shard == one)[0]) for one in np.unique(shard)}
        ended = {int(one): int(np.flatnonzero(shard == one)[-1]) for one in np.unique(shard)}
        for at in range(len(order)):
            assert sum(begun[one] <= at <= ended[one] for one in begun) <= OPEN_SHARDS
    assert len(shards) < 3 or len({tuple(order) for order in orders}) == 3


def test_runs_of_shards_mix() -> None:
    shard = shard_order(1, 0, (800,) * 16) // 800
    changes = np.flatnonzero(np.diff(shard))
    assert (
        0.8 < len(changes) / (16 * 800 / SHARD_RUN) <= 1
    )  # an eighth of the runs continues the shard of the run before
    assert len(set(shard[:400].tolist())) == OPEN_SHARDS


def test_an_epoch_in_order_reads_each_sample_once() -> None:
    read = Counted()
    source = opened(from_shards(range(len(LENGTHS)), read=read, lengths=LENGTHS))
    read.read.clear()
    order = shard_order(0, 0, LENGTHS)
    for start in range(0, TOTAL, 32):
        filled(source, order[start : start + 32])
    assert sorted(read.read) == [(shard, row) for shard, length in enumerate(LENGTHS) for row in range(length)]


def test_to_begin_in_the_middle_reads_nothing_that_is_not_wanted() -> None:
    read = Counted()
    source = opened(from_shards(range(len(LENGTHS)), read=read, lengths=LENGTHS))
    read.read.clear()
    filled(source, shard_order(0, 0, LENGTHS)[140:180])
    assert len(read.read) == 40


def test_the_samples_of_a_loader_are_those_of_the_stream() -> None:
    stream = from_shards(range(len(LENGTHS)), read=Counted())
    found = [y for _, y in DataLoader(stream, batch_size=None)]
    assert sorted(found) == list(range(TOTAL))


def test_ragged_and_then_apply_to_samples_of_shards(tmp_path: Path) -> None:
    def texts(shard: int, row: int) -> Iterator[Any]:
        return ((torch.ones(1 + number % 5), number) for number in range(row, 20))

    source = opened(
        from_shards(range(3), read=texts),
        ragged=(argosy.Ragged(8), None),
        then=lambda sample: (sample[0] * 2, sample[1]),
    )
    block = filled(source, [0, 23, 41])
    values, lengths = block.leaves[0], block.leaves[1]
    assert lengths.tolist() == [1, 4, 2]
    assert values.sum(1).tolist() == [2.0, 8.0, 4.0]


def moved(sample: Any) -> Any:
    return sample[0] + torch.rand(2), sample[1]


def test_then_draws_for_a_sample_what_it_draws_wherever_reading_begins() -> None:
    here, there = (opened(KINDS["a list"](), then=moved) for _ in range(2))
    order = shard_order(5, 0, LENGTHS)
    whole = [filled(here, order[start : start + 40]).leaves[0] for start in (0, 40)]
    assert torch.equal(filled(there, order[20:60]).leaves[0], torch.cat(whole)[20:60])
    assert not torch.equal(whole[0][:, 0], whole[0][:, 1])


def drawing(shard: int, row: int) -> Iterator[Any]:
    return (torch.tensor(random.random()) for _ in range(row, 9))


def told(shard: int, row: int) -> Iterator[Any]:
    return ((random.random(), torch.tensor(float(number)))[1] for number in range(row, 9))


def shrinking(lengths: Iterator[int], shard: int, row: int) -> Iterator[Any]:
    return (torch.tensor(float(number)) for number in range(row, next(lengths)))


def from_the_first(shard: int, row: int) -> Iterator[Any]:
    return (torch.tensor(float(number)) for number in range(9))


def of_one_value(shard: int, row: int) -> Iterator[Any]:
    return (torch.zeros(()) for _ in range(row, 9))


@pytest.mark.parametrize("lengths", [None, (9, 9), (1, 9)])
def test_a_shard_that_is_read_from_its_first_row_whatever_is_asked_for_is_refused(lengths: Any) -> None:
    with pytest.raises(StudyError, match=r"Let read\(shard, row\) start at sample `row`"):
        opened(from_shards([0, 1], read=from_the_first, lengths=lengths))
    assert opened(from_shards([0, 1], read=of_one_value)).length == 18
    assert opened(from_shards([0, 1], read=from_the_first, lengths=(1, 1))).length == 2, (
        "a shard of one sample is never read from another row"
    )


def test_what_cannot_be_read_again_is_said() -> None:
    with pytest.raises(StudyError, match="yields a different sample 0 when it is read again, so its samples depend"):
        opened(from_shards([0, 1], read=drawing))
    with pytest.raises(StudyError, match="yields a different sample 0 when it is read again"):
        opened(from_shards([0, 1], read=drawing, lengths=(9, 9)))
    with pytest.raises(StudyError, match=r"Data\.train is empty: FromShards yields no samples"):
        opened(from_shards([0, 1], read=lambda *_: iter(())))
    assert opened(from_shards([0, 1], read=told)).length == 18  # the numbers drawn do not affect the samples
    source = opened(from_shards([0], read=partial(shrinking, itertools.chain([9, 9, 9, 9], itertools.repeat(5)))))
    with pytest.raises(StudyError, match=r"sample 7 is missing: shard 0 of FromShards has fewer than the 9 samples"):
        filled(source, [7])


def marks_of_blocks(stream: Any, size: int = 32) -> dict[int, tuple[ShardMark, ...]]:
    """Return the marks from which each block of an epoch can be read, by the block's start."""
    source, marks = opened(stream), ShardMarks()
    order = shard_order(0, 0, source.facts.shards)
    return {start: marks.after(made(source, order[start : start + size])) for start in range(0, TOTAL, size)}


def made(source: Source, indices: Any) -> tuple[ShardMark, ...]:
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    return source.fill(block, 0, np.asarray(indices, dtype=np.int64)).marks


def read_on(stream: Any, at: int, marks: tuple[ShardMark, ...]) -> int:
    """Read the rest of the epoch from this sample on and check it; return how many earlier samples were read as well."""
    source = opened(stream)
    assert isinstance(source, DatasetSource)
    for mark in marks:
        source.resume_from(mark)
    order = shard_order(0, 0, source.facts.shards)
    stream.read.read.clear()
    for start in range(at, TOTAL, 32):
        block = filled(source, order[start : start + 32])
        assert torch.equal(block.leaves[1], torch.from_numpy(order[start : start + 32]))
    return len(stream.read.read) - (TOTAL - at)


def test_a_shard_is_read_on_from_its_state() -> None:
    marks = marks_of_blocks(Placed())
    places = range(0, TOTAL, 7)
    again = [read_on(Placed(), at, marks[at // 32 * 32]) for at in places]
    assert max(again) <= 64, (
        "more than two blocks; a run with too few samples to prove a mark has none, so the block before it may be read too"
    )
    assert np.median(again) <= 40
    assert np.median([read_on(Placed(), at, ()) for at in places]) > 64


@pytest.mark.parametrize(
    "stream", [Forgetful, partial(Unspoken, torch.ones(2)), partial(Unspoken, "long" * 2**10), Locked, Refusing]
)
def test_a_state_that_does_not_lead_back_is_not_used(stream: Any) -> None:
    source = opened(stream())
    order = shard_order(0, 0, source.facts.shards)
    whole = filled(source, order).leaves[1]
    marks = marks_of_blocks(stream())
    assert stream is Forgetful or not any(marks.values())
    for at in range(0, TOTAL, 16):
        again = opened(stream())
        for mark in marks[at // 32 * 32]:
            again.resume_from(mark)
        assert torch.equal(filled(again, order[at:]).leaves[1], whole[at:])


def test_the_streams_of_hugging_face_are_read_on(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for shard, length in enumerate(LENGTHS):
        start = sum(LENGTHS[:shard])
        rows = {
            "x": [[float(index)] * 2 for index in range(start, start + length)],
            "y": list(range(start, start + length)),
        }
        if length:
            datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / f"{shard:02}.parquet"))
    mapped: list[int] = []

    def noted(row: Any) -> Any:
        mapped.append(row["y"])
        return row

    def stream() -> Any:
        files = sorted(map(str, tmp_path.glob("*.parquet")))
        return (
            datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
            .map(noted)
            .with_format("torch")
        )

    source, newest = opened(stream()), ShardMarks()
    shards = source.facts.shards
    assert sum(shards) == TOTAL
    order = shard_order(0, 0, shards)
    marks = {start: newest.after(made(source, order[start : start + 32])) for start in range(0, TOTAL, 32)}
    assert marks[128]
    reads = []
    for at in range(60, TOTAL, 30):
        read = []
        for known in ((), marks[at // 32 * 32]):
            again = opened(stream())
            assert isinstance(again, DatasetSource)
            for mark in known:
                again.resume_from(mark)
            mapped.clear()
            block = filled(again, order[at : at + 32])
            assert torch.equal(block.leaves[-1], torch.from_numpy(order[at : at + 32]))
            read.append(len(mapped))
        assert read[1] <= 96, "more than this block and two others were read"
        reads.append(read)
    forward, from_states = np.sum(reads, axis=0)
    assert from_states < 0.8 * forward
