"""Tests that a stream that can only be iterated is read once, and then has samples by index like any other Dataset."""

import itertools
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from argosy import Data
from argosy.errors import StudyError
from argosy.stream.blocks import Block, Place
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.proof import SAMPLES_VERIFIED
from argosy.stream.opening import open_kept_rows, open_sources
from argosy.stream.sources import Source

LENGTH = 41


class Lines(IterableDataset[Any]):
    """An iterable dataset of the numbers in a file, one in each line, which counts the samples that it gives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        with self.path.open() as file:
            for line in file:
                self.given += 1
                yield torch.full((3,), float(line)), int(line)


class CountedLines(Lines):
    """The same with a length."""

    def __len__(self) -> int:
        return LENGTH


class PlainLines:
    """The same without torch's base class."""

    def __init__(self, path: Path) -> None:
        self.lines = Lines(path)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.lines)


def generated(path: Path) -> Iterator[Any]:
    yield from Lines(path)


class Drawing(Lines):
    def __iter__(self) -> Iterator[Any]:
        return ((x + random.random(), y) for x, y in super().__iter__())


class Unlike(Lines):
    def __iter__(self) -> Iterator[Any]:
        return (torch.zeros(y // 30 + 1) for _, y in super().__iter__())


class Raising(Lines):
    def __iter__(self) -> Iterator[Any]:
        return ((x, 1 // (y - 7)) for x, y in super().__iter__())


def doubled(sample: Any) -> Any:
    x, y = sample
    return x.mul_(2) + torch.rand(1), y


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{n}\n" for n in range(LENGTH)))
    return path


def opened(stream: Any, **data: Any) -> Source:
    sources = open_sources(Data(train=stream, **data), seed=3, cache=RowCache())
    open_kept_rows(sources, 0)
    return sources["train"]


def filled(source: Source, indices: Any, *, epoch: int = 0) -> tuple[Block, int]:
    place = Place(leg=0, split="train", epoch=epoch, section=epoch, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    return block, source.fill(block, 0, np.asarray(indices, dtype=np.int64)).prepared


@pytest.mark.parametrize("kind", [Lines, CountedLines, PlainLines, "factory", "generator"])
def test_samples_have_the_numbers_of_their_order_and_are_not_prepared_again(kind: Any, lines: Path) -> None:
    given = {"factory": partial(Lines, lines), "generator": partial(generated, lines)}
    source = opened(given[kind] if isinstance(kind, str) else kind(lines))
    order = np.random.RandomState(1).permutation(LENGTH)
    for epoch in range(2):
        block, prepared = filled(source, order, epoch=epoch)
        assert prepared == 0
        assert torch.equal(block.leaves[1], torch.from_numpy(order))
        assert torch.equal(block.leaves[0][:, 0], torch.from_numpy(order).float())
    assert source.length == LENGTH


def test_a_later_run_reads_its_first_samples_alone(lines: Path) -> None:
    opened(Lines(lines))
    again = Lines(lines)
    source = opened(again)
    assert (again.given, source.length, source.facts.keeping) == (SAMPLES_VERIFIED, LENGTH, "read by an earlier run")
    assert filled(source, np.arange(LENGTH))[1] == 0


@pytest.mark.parametrize("name", ["header.json", "marks.bin", "boot", "rows.bin"])
def test_a_stream_is_read_again_if_a_file_of_its_samples_is_missing(name: str, lines: Path) -> None:
    opened(Lines(lines))
    (entry,) = RowCache().entries()
    (entry.folder / name).unlink()
    again = Lines(lines)
    opened(again)
    assert again.given > SAMPLES_VERIFIED
    assert opened(Lines(lines)).facts.keeping == "read by an earlier run"


def test_a_file_that_has_changed_is_read_again(lines: Path) -> None:
    opened(Lines(lines))
    lines.write_text(lines.read_text().replace("40", "50"))
    source = opened(Lines(lines))
    assert f"{lines} has changed" in source.facts.keeping
    assert filled(source, [LENGTH - 1])[0].leaves[1].item() == 50


class Native(Lines):
    """A stream of the bytes of a file, which it reads in C++."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.from_file(str(self.path), size=LENGTH, dtype=torch.uint8).clone())


def test_a_file_that_is_read_in_native_code_and_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "bytes.bin"
    for last in (1, 2):
        path.write_bytes(bytes(LENGTH - 1) + bytes([last]))
        assert filled(opened(Native(path)), [LENGTH - 1])[0].leaves[0].item() == last


def test_then_draws_anew_in_each_epoch(lines: Path) -> None:
    source = opened(Lines(lines), then=doubled)
    first, second = (filled(source, np.arange(LENGTH), epoch=epoch)[0].leaves[0] for epoch in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first[:, 0].floor(), 2 * torch.arange(LENGTH).float())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Drawing, "Drawing draws random numbers, but is read only once, so they would be the same in each epoch"),
        (Unlike, r"sample 30 has shape \(2,\) in its element 0, the first sample \(1,\)"),
        (Raising, "sample 7 raised ZeroDivisionError"),
    ],
)
def test_what_cannot_be_read_is_said_and_leaves_nothing(kind: type[Lines], words: str, lines: Path) -> None:
    with pytest.raises(StudyError, match=rf"^Data\.train: {words}"):
        opened(kind(lines))
    assert not [path for path in RowCache().folder.glob("*") if path.is_dir()]
    assert not list(RowCache().folder.glob(".*"))


class Naming(Lines):
    """A stream that draws a random number that does not affect its samples, as some do when they are opened."""

    def __iter__(self) -> Iterator[Any]:
        self.name = random.random()
        return super().__iter__()


class Shuffling(Lines):
    """A stream that shuffles by a generator that it makes and does not seed."""

    def __iter__(self) -> Iterator[Any]:
        samples = list(super().__iter__())
        return iter(random.Random().sample(samples, LENGTH))


class Once(Lines):
    """A stream that can be read only once."""

    def __iter__(self) -> Iterator[Any]:
        if self.given:
            raise EOFError
        return super().__iter__()


class LateDrawing(Lines):
    """A stream of equal samples whose length depends on a random number."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(super().__iter__(), LENGTH - random.randrange(10))


PIPELINE = SimpleNamespace(generator=np.random.default_rng(0))
"""Transforms of a library, with a generator of their own."""


class Piped(Lines):
    """A stream that draws from a pipeline in a global variable, with an effect on its last sample."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in super().__iter__():
            yield x + int(y == LENGTH - 1) * PIPELINE.generator.random(), y


def test_what_is_drawn_may_decide_nothing(lines: Path) -> None:
    stream = Naming(lines)
    assert opened(stream).length == LENGTH
    assert stream.given == 2 * LENGTH
    with pytest.raises(StudyError, match=r"^Data\.train: LateDrawing draws random numbers"):
        opened(LateDrawing(lines))
    with pytest.raises(StudyError, match=r"^Data\.train: Piped draws random numbers"):
        opened(Piped(lines))


def test_a_stream_that_yields_other_samples_when_it_is_read_again_is_refused(lines: Path) -> None:
    with pytest.raises(StudyError, match=r"^Data\.train: Shuffling yields different samples when it is read again"):
        opened(Shuffling(lines))
    assert opened(Once(lines)).length == LENGTH


@pytest.mark.parametrize("make", [generated, lambda path: iter(PlainLines(path))], ids=["a generator", "an iterator"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_function_that_returns_an_iterator_is_called_for_each_pass(lines: Path, keep: bool, make: Any) -> None:
    factory = partial(make, lines)
    sources = open_sources(Data(train=factory, val=factory, keep=keep), seed=3, cache=RowCache() if keep else None)
    assert {name: source.length for name, source in sources.items()} == {"train": LENGTH, "val": LENGTH}
    order = np.arange(LENGTH)
    for source in sources.values():
        for epoch in range(2):
            block, _ = filled(source, order, epoch=epoch)
            assert torch.equal(block.leaves[1], torch.from_numpy(order))


def test_messages_name_the_function_that_returns_an_iterator(lines: Path) -> None:
    returned = generated(lines)

    def same() -> Iterator[Any]:
        return returned

    with pytest.raises(
        StudyError, match=r"train is empty: \S*same yields no samples\. Yield at least one each time it is read"
    ):
        open_sources(Data(train=same, val=same), seed=3, cache=RowCache())
    returned = generated(lines)
    with pytest.raises(StudyError, match=rf"shard 0 of \S*same has fewer than the {LENGTH} samples"):
        open_sources(Data(train=same, keep=False), seed=3)

    def shuffled() -> Iterator[Any]:
        samples = list(generated(lines))
        random.shuffle(samples)
        return iter(samples)

    with pytest.raises(StudyError, match=r"\S*shuffled draws random numbers"):
        open_sources(Data(train=shuffled), seed=3, cache=RowCache())
    open_sources(Data(train=partial(generated, lines)), seed=3, cache=RowCache())
    assert "generated()" in [entry.header.subject for entry in RowCache().entries()]


class WholeShards(Lines):
    """A stream that yields all samples for each shard."""

    num_shards = 2


@pytest.mark.parametrize("keep", [True, False])
def test_shards_that_are_the_same_are_refused(lines: Path, keep: bool) -> None:
    with pytest.raises(StudyError, match=r"^Data\.train: WholeShards yields the same samples for each of its 2 shards"):
        open_sources(Data(train=WholeShards(lines), keep=keep), seed=3)


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(StudyError, match=r"Data\.train is empty: Lines yields no samples"):
        opened(Lines(tmp_path / "empty.txt"))


def test_without_room_it_is_said_how_much_was_read(lines: Path) -> None:
    sample = 3 * 4 + 8
    with pytest.raises(StudyError, match=r"no room for more than 10 samples of Lines \(205 bytes\)"):
        open_sources(Data(train=Lines(lines)), seed=3, cache=RowCache(most_bytes=10 * sample + 5))


def test_a_disk_that_is_full_is_said(lines: Path, small_disk: Path) -> None:
    class Wide(Lines):
        def __iter__(self) -> Iterator[Any]:
            return (torch.zeros(8192) for _ in super().__iter__())

    with pytest.raises(
        StudyError, match=rf"the samples of Wide cannot be written to {small_disk}: No space left on device\. Free some"
    ):
        open_sources(Data(train=Wide(lines)), seed=3, cache=RowCache(small_disk, most_bytes=2**30))
    assert not list(small_disk.iterdir())


def test_a_folder_that_cannot_be_made_is_said(lines: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"cannot be written to .*: Not a directory"):
        open_sources(Data(train=Lines(lines)), seed=3, cache=RowCache(lines / "rows"))


def test_a_pass_that_was_killed_leaves_a_folder_that_the_next_one_takes_away(lines: Path) -> None:
    RowCache().folder.mkdir(parents=True, mode=0o700)
    (RowCache().folder / ".0123").mkdir()
    (RowCache().folder / ".0123" / "leaf0").write_bytes(b"half")
    os.utime(RowCache().folder / ".0123", (0, 0))
    with RowCache().new() as other:
        opened(Lines(lines))
        assert other.is_dir()  # another process is still writing to this folder
    assert not list(RowCache().folder.glob(".*"))


def test_two_splits_of_a_stream_within_a_tight_budget_keep_each_other(lines: Path) -> None:
    other = lines.with_name("other.txt")
    other.write_text(lines.read_text() * 2)
    cache = RowCache(most_bytes=2**25)
    sources = open_sources(Data(train=Lines(lines), val=Lines(other)), seed=3, cache=cache)
    open_kept_rows(sources, 0)
    assert [source.length for source in sources.values()] == [LENGTH, 2 * LENGTH]
