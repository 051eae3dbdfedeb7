"""What is wrong with data as people have them: folders, tables, lines, streams, frozen networks."""

import importlib
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from argosy import Data, Member, Ragged, Study, data
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept import spool
from argosy.stream.kept.cache import Location, RowCache
from argosy.stream.kept.readers import by_readers
from argosy.stream.kept.rows import Rows
from argosy.stream.sources import open_sources

__all__ = ["CASES"]

ROWS = TensorDataset(torch.zeros(9, 4), torch.zeros(9))


class Numbers:
    """So many samples, one after another."""

    def __init__(self, count: int, *, draws: bool = False) -> None:
        self.count, self.draws = count, draws

    def __iter__(self) -> Any:
        return (torch.tensor(float(n) + (random.random() if self.draws else 0.0)) for n in range(self.count))


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
    """Tells its classes, as a folder of images does."""

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
    spool._rows(Location(name="a", folder="rows/a", count=3), object())  # type: ignore[arg-type]


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
    """As a DataModule of Lightning is."""

    def train_dataloader(self) -> Any:
        return DataLoader(ROWS)


CASES = {
    "a shard that a reader cannot read": lambda: by_readers(
        lambda shard, *_: {}[shard], 2, 2, Heartbeat.private(), lambda *_: None, "reading"
    ),
    "a reader of shards that dies": lambda: by_readers(
        lambda *_: os._exit(1), 2, 2, Heartbeat.private(), lambda *_: None, "reading"
    ),
    "no shards": lambda: data.from_shards([], read=rows_from),
    "shards and lengths": lambda: data.from_shards("ab", read=rows_from, lengths=[3]),
    "a shard that is shorter than it was": lambda: open_sources(
        Data(train=data.from_shards("ab", read=rows_from, lengths=[3, 1]), keep=False), seed=0
    ),
    "shards that are read from their first rows only": lambda: open_sources(
        Data(train=data.from_shards("ab", read=all_rows_of, lengths=[3, 3]), keep=False), seed=0
    ),
    "a stream that draws and is not kept": lambda: open_sources(
        Data(train=data.from_shards("ab", read=drawn_from), keep=False), seed=0
    ),
    "a stream without samples": lambda: read(Numbers(0)),
    "a stream that draws": lambda: read(Numbers(3, draws=True)),
    "a stream without room": lambda: read(Numbers(3), most_bytes=4),
    "rows that another machine uses": elsewhere,
    "a loader": lambda: Data(train=DataLoader(ROWS)),
    "a DataModule": lambda: Data(train=Digits()),
    "features of no Dataset": lambda: data.features(Numbers(3), nn.Linear(4, 2)),
    "features of no network": lambda: data.features(ROWS, len),  # type: ignore[arg-type]
    "features of a network elsewhere": on_an_accelerator,
    "a trunk that cannot be cut": lambda: data.features(ROWS, nn.Linear(4, 2), unfreeze=(1,)),
    "a trunk that is cut at no list of places": lambda: data.features(ROWS, nn.Sequential(nn.Linear(4, 2)), unfreeze=2),
    "a trunk that is cut nowhere": lambda: data.unfrozen(nn.Sequential(nn.Linear(4, 2)), True, nn.Identity),
    "more layers than the trunk has": lambda: data.unfrozen(nn.Sequential(nn.Linear(4, 2)), 2, nn.Identity),
    "a folder without images": lambda: data.image_folder("photos", size=8),
    "images without Pillow": lambda patch: without(patch, "PIL", "argosy.data.pillow"),
    "images of floats": lambda: data.image_folder(measured(), size=4)[0],
    "lines of no file": lambda: data.json_lines("lines.jsonl", make=dict),
    "lines of an empty file": lambda: data.json_lines(written("lines.jsonl", "\n"), make=dict),
    "a table of no file": lambda: data.table("table.csv", target="y"),
    "a table without rows": lambda: data.table(written("table.csv", "x,y\n"), target="y"),
    "a table with a short line": lambda: data.table(written("table.csv", "x,y\n1,2\n3\n"), target="y"),
    "a table without the target": lambda: data.table(written("table.csv", "x,y\n1,2\n"), target="z"),
    "a table with the target alone": lambda: data.table(written("table.csv", "y\n2\n"), target="y"),
    "a table with two columns of a name": lambda: data.table(written("table.csv", "x,x,y\n1,2,3\n"), target="y"),
    "a table with a missing value": lambda: data.table(written("table.csv", "x,y\n1,2\n,3\n"), target="y"),
    "a table of numbers with a slip": lambda: data.table({"x": [*"0123456789", "-"], "y": range(11)}, target="y"),
    "a target of words that is to be numbers": lambda: data.table(
        {"x": [1.0], "y": ["a"]}, target="y", target_is="numbers"
    ),
    "a table of an array": lambda: data.table(np.zeros((3, 2)), target="y"),
    "a table like no table": lambda: data.table({"x": [1.0], "y": [0]}, target="y", like="train.csv"),  # type: ignore[arg-type]
    "a table like another, with words": lambda: like({"x": ["b"]}, words=["x"]),
    "a table with a class that the first one lacks": lambda: like({"y": ["c"]}),
    "a table with numbers for words": lambda: like({"x": [1]}),
    "a Parquet file without pyarrow": without_pyarrow,
    "a folder that is none of the classes": lambda: data.image_folder(dogs(), size=8, classes=["cat"]),
    "classes that are numbered otherwise": lambda: Data(train=Classed("cat", "dog"), val=Classed("dog")),
    "a table with an infinite value": lambda: data.table({"x": np.array([np.inf]), "y": np.zeros(1)}, target="y"),
    "a table with dates": lambda: data.table({"x": np.zeros(1, "datetime64[D]"), "y": np.zeros(1)}, target="y"),
    "a table with names": lambda: data.table({"x": np.arange(2000).astype(str), "y": np.zeros(2000)}, target="y"),
    "a stream on a disk that fails": lambda: read_on(written("rows", "")),
    "a mask without a name": lambda: Ragged(8, mask=True),  # type: ignore[arg-type]
    "nothing that is ragged": lambda: Data(train=ROWS, ragged=(None, None)),
    "something else that is ragged": lambda: Data(train=ROWS, ragged=(8, None)),
    "a mask that is given twice": lambda: Data(train=ROWS, ragged={"x": Ragged(8, mask="m"), "m": Ragged(8)}),
    "a mask where samples have no names": lambda: Data(train=ROWS, ragged=(Ragged(8, mask="m"), None)),
    "arrays that are ragged": lambda: Data(arrays=ROWS.tensors, ragged=(Ragged(8), None)),
    "a budget of tokens for samples of one length": lambda: budgeted(ragged=None),
    "a budget of tokens below a sample": lambda: budgeted(ragged=(Ragged(101), None)),
    "weights that are all 0": lambda: data.by_weight([0.0, 0.0], samples=3),
}
