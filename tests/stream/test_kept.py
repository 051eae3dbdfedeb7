"""Tests that samples that draw no random numbers are prepared once for all epochs, splits and runs, and equal newly prepared ones."""

import gc
import json
import os
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from argosy import Data
from argosy.stream.blocks import Block, Place
from argosy.stream.kept.cache import Location, RowCache
from argosy.stream.kept.proof import SAMPLES_VERIFIED
from argosy.stream.kept.rows import DURABLE, WRITTEN
from argosy.stream.opening import open_kept_rows, open_sources
from argosy.stream.sources import Filled, Source
from argosy.stream.standby import cache_for

LENGTH = 31
ROOM = 2**20


class Rows(Dataset[Any]):
    """A dataset that counts how often it is asked for a sample."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return torch.full((3,), float(index)), index


class Sometimes(Rows):
    """A dataset of which every third sample draws from Python's, NumPy's or torch's generator."""

    draws = (random.random, np.random.rand, partial(torch.rand, 1))

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (x + float(self.draws[index // 3 % 3]()) if index % 3 == 1 else x), y


class Always(Rows):
    """A dataset of which every sample, also the first, draws a random number."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + random.random(), y


class Seeded(Rows):
    """A dataset that draws from a generator of its own, seeded with the sample's seed, and moves no global generator."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + torch.rand(3, generator=torch.Generator().manual_seed(torch.initial_seed())), y


class Broken(Rows):
    """A dataset in which two neighbouring samples cannot be read."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        if index in (7, 8):
            raise OSError("truncated")
        return found


class Truncated(Broken):
    """A dataset in which the first sample cannot be read either."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        if index == 0:
            raise OSError("truncated")
        return found


class Lists(Rows):
    """A dataset with `__getitems__`, which prepares a list of samples."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Handle(Rows):
    """A dataset that holds an open file, for which there is no key."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = Path("/dev/null").open()  # noqa: SIM115


class Numbered(Rows):
    """A dataset that takes a megabyte when it is kept."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return torch.full((8000,), float(index + self.number))


class Unwritable:
    """A leaf that cannot be written; the writer appears to be killed at it."""

    def detach(self) -> Any:
        raise RuntimeError("killed here")


def jittered(sample: Any) -> Any:
    x, y = sample
    return x + random.random() + torch.rand(1), y


def inplace(sample: Any) -> Any:
    sample[0].add_(1)
    return sample


def opened(
    dataset: Any, *, room: int = ROOM, cache: RowCache | None = None, memory: int = 0, **data: Any
) -> dict[str, Source]:
    """Return the splits of a study that has the dataset as both."""
    given = Data(train=dataset, val=dataset, on_error="skip", **data)
    sources = open_sources(given, seed=3, cache=cache or RowCache(most_bytes=room))
    open_kept_rows(sources, memory)
    return sources


def fill(source: Source, split: str, indices: Any, *, epoch: int) -> tuple[Block, Filled]:
    """Return a block of these samples, and how it was filled."""
    place = Place(leg=0, split=split, epoch=epoch, section=epoch, start=0, rows=len(indices), last=True)
    block = source.layout.block(place, np.zeros(source.layout.block_bytes(len(indices)), np.uint8))
    return block, source.fill(block, 0, np.asarray(indices, dtype=np.int64))


def in_any_order() -> Any:
    return np.random.RandomState(1).permutation(LENGTH)


@pytest.mark.parametrize("kind", [Rows, Sometimes, Always, Seeded, Broken, Lists])
@pytest.mark.parametrize("room", [ROOM, 10 * 20, 0])
@pytest.mark.parametrize("then", [None, jittered])
def test_what_is_kept_is_what_would_be_prepared_anew(kind: type[Rows], room: int, then: Any) -> None:
    given = Data(train=kind(), val=kind(), on_error="skip", then=then)
    sources, anew = opened(kind(), room=room, then=then), open_sources(given, seed=3)
    for epoch in range(3):
        for split, order in (("train", in_any_order()), ("val", np.arange(LENGTH))):
            found, filled = fill(sources[split], split, order, epoch=epoch)
            wanted, all_of_them = fill(anew[split], split, order, epoch=epoch)
            sound = torch.from_numpy(wanted.sound)
            assert all(torch.equal(a[sound], b[sound]) for a, b in zip(found.leaves, wanted.leaves, strict=True))
            assert np.array_equal(found.indices, wanted.indices)
            assert np.array_equal(found.sound, wanted.sound)
            assert filled.holes == all_of_them.holes


@pytest.mark.parametrize(
    ("kind", "room", "prepared"),
    [
        (Rows, ROOM, 0),
        (Lists, ROOM, 0),
        (Sometimes, ROOM, 10),
        (Broken, ROOM, 2),
        (Truncated, ROOM, 3),
        (Rows, 10 * 20, 21),
        (Rows, 0, 31),
        (Always, ROOM, 31),
        (Seeded, ROOM, 31),
    ],
)
def test_only_what_is_not_kept_is_prepared_again(kind: type[Rows], room: int, prepared: int) -> None:
    dataset = kind()
    sources = opened(dataset, room=room)
    assert fill(sources["train"], "train", in_any_order(), epoch=0)[1].prepared == LENGTH
    for split, epoch in (("val", 0), ("train", 1), ("val", 1)):
        before = dataset.asked
        assert fill(sources[split], split, np.arange(LENGTH), epoch=epoch)[1].prepared == prepared
        assert dataset.asked - before == prepared


def test_a_sample_that_then_works_on_is_prepared_once_and_worked_on_in_each_epoch() -> None:
    sources = opened(Rows(), then=jittered)
    first, filled = fill(sources["train"], "train", np.arange(LENGTH), epoch=0)
    second, again = fill(sources["train"], "train", np.arange(LENGTH), epoch=1)
    val, _ = fill(sources["val"], "val", np.arange(LENGTH), epoch=1)
    assert (filled.prepared, again.prepared) == (LENGTH, 0)
    assert not torch.equal(first.leaves[0], second.leaves[0])
    assert torch.equal(val.leaves[0][:, 0], torch.arange(LENGTH).float())


def test_then_may_write_into_its_sample() -> None:
    sources = opened(Rows(), then=inplace)
    for epoch in range(2):
        found, _ = fill(sources["train"], "train", np.arange(LENGTH), epoch=epoch)
        assert torch.equal(found.leaves[0][:, 0], torch.arange(LENGTH).float() + 1)


def test_nothing_is_kept_that_was_not_to_be() -> None:
    sources = open_sources(
        Data(train=Rows(), val=Rows(), keep=False), seed=3, cache=cache_for(Data(train=Rows(), keep=False), None)
    )
    open_kept_rows(sources, ROOM)
    for epoch in range(2):
        assert fill(sources["train"], "train", np.arange(LENGTH), epoch=epoch)[1].prepared == LENGTH


def test_a_factory_given_for_both_is_called_once() -> None:
    made: list[Rows] = []

    def factory() -> Rows:
        made.append(Rows())
        return made[-1]

    sources = opened(factory)
    assert len(made) == 1
    assert sources["val"].kept is sources["train"].kept


def test_two_datasets_have_their_own_rows_and_arrays_none() -> None:
    sources = open_sources(Data(train=Rows(), val=Sometimes()), seed=3, cache=RowCache())
    open_kept_rows(sources, 0)
    assert sources["val"].kept is not sources["train"].kept is not None
    x = torch.zeros(4, 2)
    arrays = open_sources(Data(arrays=(x,), val_arrays=(x,)), seed=3, cache=RowCache())
    open_kept_rows(arrays, ROOM)
    assert arrays["val"].kept is None


def test_what_is_part_of_no_key_is_kept_in_memory_for_the_run() -> None:
    dataset = Handle()
    sources = opened(dataset)
    assert sources["train"].facts.location == Location(
        name=sources["train"].facts.location.name, folder=None, count=LENGTH
    )
    assert "this run only" in sources["train"].facts.keeping
    open_kept_rows(sources, ROOM)
    fill(sources["train"], "train", np.arange(LENGTH), epoch=0)
    assert fill(sources["val"], "val", np.arange(LENGTH), epoch=0)[1].prepared == 0
    assert not list(RowCache().folder.glob("*"))
    dataset.handle.close()


class Noise(Rows):
    """A dataset of which every sample draws."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + random.random(), y


def test_samples_that_are_drawn_are_not_said_to_be_kept_in_memory_where_nothing_can_be_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("not a folder")
    assert "this run only" in opened(Rows(), cache=RowCache(file))["train"].facts.keeping
    drawn = opened(Noise(), cache=RowCache(file))["train"].facts
    assert drawn.keeping.startswith("drawn again in each epoch")
    assert drawn.location is None


# ---- from run to run


def filled_whole(sources: dict[str, Source]) -> int:
    return fill(sources["train"], "train", np.arange(LENGTH), epoch=0)[1].prepared


def test_another_run_finds_what_was_kept_and_proves_it() -> None:
    filled_whole(opened(Rows()))
    dataset = Rows()
    sources = opened(dataset, memory=ROOM)
    assert dataset.asked == 2 * SAMPLES_VERIFIED  # once for each split
    assert sources["train"].facts == replace(
        sources["train"].facts, keeping="31 of 31 kept by earlier runs", seconds_per_sample=0.0, constant=True
    )
    assert sources["train"].facts.fingerprint == open_sources(Data(train=Rows()), seed=3)["train"].facts.fingerprint
    assert filled_whole(sources) == 0
    assert not sources["train"].parallel


@pytest.mark.parametrize("then", [None, jittered])
def test_rows_that_memory_has_no_room_for_are_read_from_disk_by_loader_workers(then: Any) -> None:
    for memory, from_disk in ((ROOM, False), (LENGTH * 20 - 1, True)):
        sources = opened(Rows(), memory=memory, then=then)
        found, _ = fill(sources["train"], "train", in_any_order(), epoch=0)
        assert sources["train"].kept is not None
        assert sources["train"].kept.from_disk == sources["val"].parallel == from_disk
        wanted, _ = fill(open_sources(Data(train=Rows(), then=then), seed=3)["train"], "train", in_any_order(), epoch=0)
        assert all(torch.equal(a, b) for a, b in zip(found.leaves, wanted.leaves, strict=True))


def test_rows_in_memory_may_take_all_of_it_and_need_no_loader_workers() -> None:
    dataset = Handle()
    sources = opened(dataset, memory=LENGTH * 20)
    filled_whole(sources)
    assert not sources["train"].parallel
    dataset.handle.close()


def test_a_part_that_is_there_is_completed() -> None:
    fill(opened(Rows())["train"], "train", np.arange(10), epoch=0)
    assert filled_whole(opened(Rows())) == LENGTH - 10
    assert filled_whole(opened(Rows())) == 0


def test_rows_that_are_not_what_would_be_prepared_are_dropped_with_the_samples_number() -> None:
    filled_whole(opened(Rows()))
    (entry,) = RowCache().entries()
    rows = entry.folder / "rows.bin"
    rows.write_bytes(bytes(len(rows.read_bytes())))
    sources = opened(Rows())
    assert re.search(r"sample \d+ differs from the kept one", sources["train"].facts.keeping)
    found, filled = fill(sources["train"], "train", np.arange(LENGTH), epoch=0)
    assert filled.prepared == LENGTH
    assert torch.equal(found.leaves[0][:, 0], torch.arange(LENGTH).float())


def test_a_writer_that_was_killed_leaves_whole_rows_alone() -> None:
    """A row that was being written when its writer was killed is not used; rows written before are."""
    sources = opened(Rows())
    rows = sources["train"].kept
    assert rows is not None
    fill(sources["train"], "train", np.arange(5), epoch=0)
    with pytest.raises(RuntimeError):
        rows.keep(7, [torch.full((3,), 99.0), Unwritable()])
    assert opened(Rows())["train"].facts.keeping == "5 of 31 kept by earlier runs"


def test_after_a_power_loss_only_what_was_flushed_is_trusted() -> None:
    sources = opened(Rows())
    fill(sources["train"], "train", np.arange(5), epoch=0)
    assert sources["train"].kept is not None
    sources["train"].kept.commit()
    fill(sources["train"], "train", np.arange(5, 20), epoch=0)
    (entry,) = RowCache().entries()
    del sources
    gc.collect()
    (entry.folder / "boot").write_text("another kernel")
    assert filled_whole(opened(Rows())) == LENGTH - 5


@pytest.mark.parametrize("content", [b"", None])
@pytest.mark.parametrize("name", ["header.json", "marks.bin", "boot", "rows.bin"])
def test_damaged_files_are_replaced(name: str, content: bytes | None) -> None:
    """A file that a loss of power has left empty, or that a program which tidies old files has deleted."""
    filled_whole(opened(Rows()))
    (entry,) = RowCache().entries()
    (entry.folder / name).unlink()
    if content is not None:
        (entry.folder / name).write_bytes(content)
    assert filled_whole(opened(Rows())) == LENGTH
    assert opened(Rows())["train"].facts.keeping == "31 of 31 kept by earlier runs"


def test_what_samples_have_read_is_on_the_disk_before_their_rows_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Read(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([float((tmp_path / "factor").read_text()) * index])

    (tmp_path / "factor").write_text("2")
    sources = opened(Read())
    filled_whole(sources)
    rows = sources["train"].kept
    assert rows is not None
    flushed: dict[str, set[int]] = {}
    monkeypatch.setattr(
        os, "fsync", lambda file: flushed.update({Path(f"/proc/self/fd/{file}").readlink().name: set(rows.marks)})
    )
    rows.commit()
    assert flushed == {name: {WRITTEN} for name in ("header.json", "marks.bin", "boot", "read.jsonl", "rows.bin")}
    assert set(rows.marks) == {DURABLE}


def test_rows_that_another_kernel_has_open_are_left_alone() -> None:
    first = opened(Rows())
    filled_whole(first)
    (entry,) = RowCache().entries()
    assert first["train"].kept is not None
    first["train"].kept.commit()
    (entry.folder / "boot").write_text("another kernel")
    second = opened(Rows())
    assert "another machine" in second["train"].facts.keeping
    assert filled_whole(second) == LENGTH


def test_a_full_disk_ends_keeping_and_nothing_else(small_disk: Path) -> None:
    class Wide(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.full((8192,), float(super().__getitem__(index)[1]))

    for _ in range(2):
        sources = opened(Wide(), cache=RowCache(small_disk, most_bytes=2**30))
        for epoch in range(2):
            found, filled = fill(sources["train"], "train", np.arange(LENGTH), epoch=epoch)
            assert torch.equal(found.leaves[0][:, 0], torch.arange(LENGTH).float())
        assert 0 < filled.prepared < LENGTH


def test_a_folder_that_others_may_write_is_not_used() -> None:
    RowCache().folder.mkdir(parents=True)
    RowCache().folder.chmod(0o777)
    sources = opened(Rows())
    assert "other users may write" in sources["train"].facts.keeping
    assert filled_whole(sources) == LENGTH


def test_what_was_not_used_for_longest_goes_first() -> None:
    room = 7 * 2**19
    kinds = [partial(Numbered, number) for number in range(4)]
    for kind in kinds[:3]:
        filled_whole(opened(kind(), room=room))
    filled_whole(opened(kinds[0](), room=room))  # used again
    filled_whole(opened(kinds[3](), room=room))
    there = [opened(kind(), room=room)["train"].facts.keeping for kind in (kinds[0], kinds[3])]
    assert there == ["31 of 31 kept by earlier runs"] * 2
    assert len(RowCache().entries()) == 3
    assert "never prepared" not in there[0]


def test_without_a_budget_nothing_is_added_and_nothing_goes() -> None:
    filled_whole(opened(Rows()))
    assert "no room" in opened(Sometimes(), room=0)["train"].facts.keeping
    assert opened(Rows(), room=0)["train"].facts.keeping == "31 of 31 kept by earlier runs"


def test_the_command_lists_what_is_kept_and_deletes_it(tmp_path: Path) -> None:
    fill(opened(Rows())["train"], "train", np.arange(10), epoch=0)
    of_a_killed_run = RowCache().folder / ".1"
    of_a_killed_run.mkdir()
    os.utime(of_a_killed_run, (0, 0))
    damaged = RowCache().folder / "damaged"
    damaged.mkdir()
    (damaged / "rows.bin").write_bytes(b"0")
    for words, key in ([], "kept"), (["--clear"], "deleted"):
        (row,) = json.loads(forked.command(tmp_path, ["cache", *words, "--json"]).stdout)[key]
        assert (row["dataset"], row["samples"], row["of"]) == ("test_kept.Rows", 10, LENGTH)
    assert forked.command(tmp_path, ["cache"]).stdout.startswith("No samples are kept in ")
    assert not of_a_killed_run.exists()
    assert not damaged.exists()


def test_two_processes_build_one_file() -> None:
    one, other = opened(Rows()), opened(Rows())
    fill(one["train"], "train", np.arange(0, LENGTH, 2), epoch=0)
    assert fill(other["train"], "train", np.arange(LENGTH), epoch=0)[1].prepared == LENGTH // 2
    assert filled_whole(one) == 0
