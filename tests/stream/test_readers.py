"""Tests that the rows kept of a sharded stream do not depend on the number of processes that read it."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy import Data
from argosy.data import from_shards
from argosy.errors import StudyError, WorkerError
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.proof import Prover
from argosy.stream.kept.rows import ROWS
from argosy.stream.opening import Opening
from argosy.stream.probing import Facts

LENGTHS = (5, 0, 17, 3, 8, 1, 30)


def numbers(shard: int, row: int) -> Iterator[Any]:
    for number in range(row, LENGTHS[shard]):
        time.sleep(0.0005 * (7 - shard))  # later shards are faster, so that they are ready out of order
        yield torch.full((3,), float(100 * shard + number)), number


def read(
    reader: Callable[[int, int], Iterator[Any]] = numbers,
    *,
    readers: int,
    keep: bool = True,
    cache: RowCache | None = None,
) -> Facts:
    opening = Opening(data=Data(train=from_shards(range(7), read=reader), keep=keep), seed=0, readers=readers)
    prover = Prover((cache or RowCache()) if keep else None)
    facts: Facts = opening.sources(opening.splits(), prover)["train"].facts
    assert not any(sign.busy for sign in opening.heartbeat.read())
    return facts


@pytest.mark.parametrize("readers", [2, 3, 16])
def test_what_is_kept_does_not_depend_on_the_number_of_readers(readers: int, tmp_path: Path) -> None:
    kept, notes = [], []
    for count in (1, readers):
        facts = read(readers=count, cache=RowCache(tmp_path / str(count)))
        assert facts.location is not None
        assert facts.location.folder is not None
        folder = Path(facts.location.folder)
        kept.append((facts.length, facts.fingerprint, (folder / ROWS).read_bytes()))
        notes.append(sorted(file.name for file in folder.iterdir()))
    assert kept[0] == kept[1]
    assert notes[0] == notes[1]
    assert kept[0][0] == sum(LENGTHS)


@pytest.mark.parametrize("readers", [1, 3])
def test_shards_are_counted_in_their_order(readers: int) -> None:
    assert read(readers=readers, keep=False).shards == LENGTHS


def raising(shard: int, row: int) -> Iterator[Any]:
    return ((x, 1 // (y + shard - 7)) for x, y in numbers(shard, row))


def drawing(shard: int, row: int) -> Iterator[Any]:
    return ((x + random.random(), y) for x, y in numbers(shard, row))


def unlike(shard: int, row: int) -> Iterator[Any]:
    return ((torch.zeros(1 + (shard == 3)), y) for _, y in numbers(shard, row))


def dying(shard: int, row: int) -> Iterator[Any]:
    for x, y in numbers(shard, row):
        if shard == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        yield x, y


@pytest.mark.parametrize(
    ("reader", "error", "words"),
    [
        (raising, StudyError, r"Data\.train: sample \d of shard \d raised ZeroDivisionError"),
        (drawing, StudyError, r"Data\.train: FromShards draws random numbers"),
        (
            unlike,
            StudyError,
            r"Data\.train: sample 0 of shard 3 has shape \(2,\) in its element 0, the first sample \(1,\)",
        ),
        (dying, WorkerError, r"A process that reads shards of a stream died\. Try --loader-workers 0"),
    ],
)
def test_what_goes_wrong_in_a_reader_is_said_and_leaves_nothing(
    reader: Callable[[int, int], Iterator[Any]], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(reader, readers=3)
    assert not [path for path in RowCache().folder.iterdir() if path.is_dir()]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def wide(shard: int, row: int) -> Iterator[Any]:
    return (torch.zeros(2**18) for _ in range(row, 200))


def test_readers_end_where_there_is_no_room() -> None:
    with pytest.raises(
        StudyError, match=r"there is no room for more than \d+ samples of FromShards \(8,388,608 bytes\)"
    ):
        read(wide, readers=3, cache=RowCache(most_bytes=2**23))
    assert not [path for path in RowCache().folder.iterdir() if path.is_dir()]
