"""Errors in data as users have it: folders, tables, lines, streams, frozen networks."""

import importlib
import os
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from argosy import Data, Member, Ragged, Study, data
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept import spool
from argosy.stream.kept.cache import Location, RowCache
from argosy.stream.kept.readers import read_in_parallel
from argosy.stream.kept.rows import Rows
from argosy.stream.opening import open_sources

__all__ = ["CASES"]

ROWS = TensorDataset(torch.zeros(9, 4), torch.zeros(9))


class Numbers:
    """A stream of `count` samples."""

    def __init__(self, count: int, *, draws: bool = False) -> None:
        self.count, self.draws = count, draws

    def __iter__(self) -> Any:
        return (torch.tensor(float(n) + (random.random() if self.draws else 0.0)) for n in range(self.count))


class Whole(Numbers):
    """A stream that yields all samples for each shard."""

    num_shards = 2


class Masked(Numbers):
    """A stream of masked arrays, as files of climate data give them."""

    def __iter__(self) -> Any:
        return (np.ma.masked_less(np.arange(3.0), n + 1) for n in range(self.count))


class Unseeded(Numbers):
    """A stream that draws from a generator without a seed."""

    def __iter__(self) -> Any:
        generator = random.Random()
        return (torch.tensor(generator.random()) for _ in range(self.count))


def rows_from(shard: str, row: int) -> Any:
    return (torch.tensor(float(n)) for n in range(row, 3 if shard == "a" else 0))


def all_rows_of(shard: str, row: int) -> Any:
    return (torch.tensor(float(n)) for n in range(3))


def drawn_from(shard: str, row: int) -> Any:
    return (torch.tensor(random.random()) for _ in range(row, 3))


def read(stream: Any, **cache: Any) -> None:
    open_sources(Data(train=stream), seed=0, cache=RowCache(Path("rows"), **cache))


def read_on(folder: Path) -> None:
    open_sources(Data(train=Numbers(3)), seed=0, cache=RowCache(folder))


class Classed(TensorDataset):
    """A dataset with the attribute `classes`, like a folder of images."""

    def __init__(self, *classes: str) -> None:
        super().__init__(*ROWS.tensors)
        self.classes = classes


def budgeted(*, ragged: Any) -> None:
    member = Member("a", model=nn.Identity, optimizer=torch.optim.SGD, batch_size=8, batch_tokens=100)
    Study(data=Data(train=ROWS, ragged=ragged), members=[member])


def dogs() -> Path:
    Path("photos/dog").mkdir(parents=True)
    return Path("photos")


def measured() -> Path:
    Path("photos/cat").mkdir(parents=True)
    Image.fromarray(np.ones((4, 4), np.float32)).save("photos/cat/1.tif")
    return Path("photos")


def written(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def elsewhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rows, "open", lambda *_: None)
    spool._rows(Location(name="a", folder=Path("rows/a"), count=3), object())  # type: ignore[arg-type]


def on_an_accelerator() -> None:
    data.features(ROWS, nn.Linear(4, 2, device="meta"))


def without(patch: pytest.MonkeyPatch, package: str, module: str) -> None:
    patch.setitem(sys.modules, package, None)
    importlib.reload(importlib.import_module(module))


def like(second: dict[str, Any], **keywords: Any) -> None:
    first = {"x": ["red", "blue"], "y": ["a", "b"]}
    data.table({"x": ["red"], "y": ["b"]} | second, target="y", like=data.table(first, target="y"), **keywords)


def without_pyarrow(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "pyarrow", None)
    data.table("a.parquet", target="y")


class Digits:
    """A DataModule, as in Lightning."""

    def train_dataloader(self) -> Any:
        return DataLoader(ROWS)


CASES = {
    "a shard that cannot be read": lambda: read_in_parallel(
        lambda shard, *_: {1: None}[shard], 2, 2, Heartbeat.private(), lambda *_: None, "reading"
    ),
    "a reader of shards that dies": lambda: read_in_parallel(
        lambda *_: os._exit(1), 2, 2, Heartbeat.private(), lambda *_: None, "reading"
    ),
    "from_shards without shards": lambda: data.from_shards([], read=rows_from),
    "from_shards with one file": lambda: data.from_shards("train.tar", read=rows_from),
    "a different number of shards and lengths": lambda: data.from_shards(["a", "b"], read=rows_from, lengths=[3]),
    "a shard that became shorter": lambda: open_sources(
        Data(train=data.from_shards(["a", "b"], read=rows_from, lengths=[3, 1]), keep=False), seed=0
    ),
    "shards that ignore the starting row": lambda: open_sources(
        Data(train=data.from_shards(["a", "b"], read=all_rows_of, lengths=[3, 3]), keep=False), seed=0
    ),
    "a stream that draws random numbers and is not kept": lambda: open_sources(
        Data(train=data.from_shards(["a", "b"], read=drawn_from), keep=False), seed=0
    ),
    "a stream without samples": lambda: read(Numbers(0)),
    "a stream that draws random numbers": lambda: read(Numbers(3, draws=True)),
    "a stream whose shards are all the same": lambda: read(Whole(3)),
    "a sample with masked values": lambda: read(Masked(3)),
    "a stream that draws from a generator without a seed": lambda: read(Unseeded(3)),
    "a stream without disk space": lambda: read(Numbers(3), most_bytes=4),
    "kept samples that another machine uses": elsewhere,
    "a DataLoader as Data.train": lambda: Data(train=DataLoader(ROWS)),
    "a DataModule as Data.train": lambda: Data(train=Digits()),
    "features of a stream": lambda: data.features(Numbers(3), nn.Linear(4, 2)),
    "features of something that is not a network": lambda: data.features(ROWS, len),  # type: ignore[arg-type]
    "features of a network on an accelerator": on_an_accelerator,
    "a trunk that cannot be cut": lambda: data.features(ROWS, nn.Linear(4, 2), unfreeze=(1,)),
    "unfreeze that is not a list": lambda: data.features(ROWS, nn.Sequential(nn.Linear(4, 2)), unfreeze=2),
    "a number of layers that is not an int": lambda: data.unfrozen(nn.Sequential(nn.Linear(4, 2)), True, nn.Identity),
    "more layers to unfreeze than the trunk has": lambda: data.unfrozen(nn.Sequential(nn.Linear(4, 2)), 2, nn.Identity),
    "a folder of images that does not exist": lambda: data.image_folder("photos", size=8),
    "images without Pillow": lambda patch: without(patch, "PIL", "argosy.data.pillow"),
    "images with floating-point pixels": lambda: data.image_folder(measured(), size=4)[0],
    "a file of JSON lines that does not exist": lambda: data.json_lines("lines.jsonl", make=dict),
    "an empty file of JSON lines": lambda: data.json_lines(written("lines.jsonl", "\n"), make=dict),
    "a table file that does not exist": lambda: data.table("table.csv", target="y"),
    "a table whose columns differ in length": lambda: data.table({"x": [1, 2], "y": [1, 0, 1]}, target="y"),
    "a table without rows": lambda: data.table(written("table.csv", "x,y\n"), target="y"),
    "a table with a short line": lambda: data.table(written("table.csv", "x,y\n1,2\n3\n"), target="y"),
    "a table without the target": lambda: data.table(written("table.csv", "x,y\n1,2\n"), target="z"),
    "a table with no column but the target": lambda: data.table(written("table.csv", "y\n2\n"), target="y"),
    "a table with two columns of the same name": lambda: data.table(written("table.csv", "x,x,y\n1,2,3\n"), target="y"),
    "a table with a missing value": lambda: data.table(written("table.csv", "x,y\n1,2\n,3\n"), target="y"),
    "a column of numbers with one other value": lambda: data.table(
        {"x": [*"0123456789", "-"], "y": range(11)}, target="y"
    ),
    "a word in a target of numbers": lambda: data.table({"x": [1.0], "y": ["a"]}, target="y", target_is="numbers"),
    "an array as a table": lambda: data.table(np.zeros((3, 2)), target="y"),
    "like= that is not a table": lambda: data.table({"x": [1.0], "y": [0]}, target="y", like="train.csv"),  # type: ignore[arg-type]
    "like= with words=": lambda: like({"x": ["b"]}, words=["x"]),
    "a table with a class that the first one lacks": lambda: like({"y": ["c"]}),
    "a table with numbers in a column of words": lambda: like({"x": [1]}),
    "a Parquet file without pyarrow": without_pyarrow,
    "a folder of images that is not one of the classes": lambda: data.image_folder(dogs(), size=8, classes=["cat"]),
    "validation data with different classes": lambda: Data(train=Classed("cat", "dog"), val=Classed("dog")),
    "subsets of data with different classes": lambda: Data(
        train=Subset(Classed("cat", "dog"), [0]), val=Subset(Classed("dog", "cat"), [0])
    ),
    "factories of data with different classes": lambda: open_sources(
        Data(train=partial(Classed, "cat", "dog"), val=partial(Classed, "dog", "cat")), seed=0
    ),
    "a table with an infinite value": lambda: data.table({"x": np.array([np.inf]), "y": np.zeros(1)}, target="y"),
    "a table with dates": lambda: data.table({"x": np.zeros(1, "datetime64[D]"), "y": np.zeros(1)}, target="y"),
    "a target of dates": lambda: data.table({"x": np.zeros(1), "y": np.zeros(1, "datetime64[D]")}, target="y"),
    "a column with too many different words": lambda: data.table(
        {"x": np.arange(2000).astype(str), "y": np.zeros(2000)}, target="y"
    ),
    "a stream whose samples cannot be written": lambda: read_on(written("rows", "")),
    "a mask that is not a name": lambda: Ragged(8, mask=True),  # type: ignore[arg-type]
    "Data.ragged without an argosy.Ragged": lambda: Data(train=ROWS, ragged=(None, None)),
    "Data.ragged with a number": lambda: Data(train=ROWS, ragged=(8, None)),
    "a mask with the name of another entry": lambda: Data(
        train=ROWS, ragged={"x": Ragged(8, mask="m"), "m": Ragged(8)}
    ),
    "a mask for samples that are not dicts": lambda: Data(train=ROWS, ragged=(Ragged(8, mask="m"), None)),
    "Data.ragged with arrays": lambda: Data(arrays=ROWS.tensors, ragged=(Ragged(8), None)),
    "batch_tokens for samples of one length": lambda: budgeted(ragged=None),
    "batch_tokens below the length of a sample": lambda: budgeted(ragged=(Ragged(101), None)),
    "weights that are all 0": lambda: data.by_weight([0.0, 0.0], samples=3),
}
