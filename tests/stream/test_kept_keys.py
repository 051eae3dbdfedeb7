"""Tests that kept samples are prepared again if a change of code, values, files or environment affects them, and not otherwise.

Each mutation changes only one of forty samples if possible. So the key or a witness has to find it: the proof, which prepares
three samples again, would hardly do so.
"""

import importlib
import importlib.metadata
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import zlib
from collections import UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import studies
import torch
from torch.utils.data import Dataset

import argosy
from argosy import Data
from argosy.stream import value_text
from argosy.stream.blocks import Place
from argosy.stream.kept import witnesses
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.keys import make_key
from argosy.stream.opening import open_kept_rows, open_sources
from argosy.stream.sources import Source
from argosy.stream.value_text import UnreadableContent

LENGTH, ONE = 40, 17
"""The number of samples, and the index of the sample that a mutation changes."""
ROOM = 2**24
KEY, WITNESS = "changed since it was last prepared: ", r"\((?!changed since|never prepared).*"
PROOF = "although nothing that it depends on seems to have changed"
FILES = """
import functools, json, os, sqlite3
from pathlib import Path
import numpy as np
import torch
from torch.utils.data import Dataset

class Files(Dataset):
    def __init__(self, folder, length=40):
        self.folder, self.length = folder, length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return torch.tensor([float(sum(self.file(index).read_bytes())), float(self.more() if index == 17 else 0)])
    def file(self, index):
        return Path(self.folder, f"{index}.bin")
    def more(self):
        return 0

class Lazy(Files):
    @functools.cached_property
    def index(self):
        return json.loads(Path(self.folder, "index.json").read_text())
    def more(self):
        return self.index["17"]

class Early(Lazy):
    def __init__(self, folder):
        super().__init__(folder)
        self.known = self.index

@functools.cache
def table(folder):
    return json.loads(Path(folder, "index.json").read_text())

class Cached(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.known = sorted(self.table(folder))
    def table(self, folder):
        return table(folder)
    def more(self):
        return self.table(self.folder)["17"]

LOADED = None

class Loaded(Cached):
    def table(self, folder):
        global LOADED
        if LOADED is None:
            LOADED = json.loads(Path(folder, "index.json").read_text())
        return LOADED

class Enclosed(Cached):
    def __init__(self, folder):
        self.table = enclosing()
        super().__init__(folder)

def enclosing():
    loaded = None
    def table(folder):
        nonlocal loaded
        loaded = loaded or json.loads(Path(folder, "index.json").read_text())
        return loaded
    return table

def made(folder):
    dataset = Files(folder)
    given = json.loads(Path(folder, "index.json").read_text())["17"]
    dataset.more = lambda: given
    return dataset

class Listing(Files):
    def more(self):
        return len(os.listdir(self.folder))

class Globbing(Files):
    def more(self):
        return len(list(Path(self.folder).glob("*.bin")))

class Looking(Files):
    def more(self):
        try:
            return len(Path(self.folder, "mask.bin").read_bytes())
        except FileNotFoundError:
            return 0

class Mapping(Files):
    def more(self):
        return np.memmap(Path(self.folder, "mapped.bin"), np.uint8)[0]

class Mapped(Files):
    def __init__(self, folder, name="rows.npy"):
        super().__init__(folder)
        self.rows = np.load(Path(folder, name), mmap_mode="r")
    def more(self):
        return self.rows[17]

class Base(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.name = str(Path(folder, "rows.sqlite"))
    def more(self):
        connection = sqlite3.connect(self.place())
        try:
            return connection.execute("select y from row where x = 17").fetchone()[0]
        finally:
            connection.close()
    def place(self):
        return self.name

class Shards(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.names = [str(Path(folder, name)) for name in ("other.sqlite", "rows.sqlite")]
    def place(self):
        return self.names[1]
    more = Base.more

class Unnamed(Base):
    def __init__(self, folder):
        Files.__init__(self, folder)
    def place(self):
        return str(Path(self.folder, "rows.sqlite"))

class Relative(Files):
    def file(self, index):
        return Path(f"{index}.bin") if index == 17 else super().file(index)

def getenv(): return os.getenv("GAIN")
def get(): return os.environ.get("GAIN", "1")

class Brackets(Files):
    def more(self):
        return float(os.environ["GAIN"])

class Get(Files):
    def more(self):
        return float(get())

class Getenv(Files):
    def more(self):
        return float(getenv() or 1)

class Placed(Files):
    def file(self, index):
        return Path(os.environ["GAIN"], f"{index}.bin")

class Asked(Files):
    def more(self):
        return float("GAIN" in os.environ)
"""
CODE = {
    "deeper.py": """
FURTHER = 1.0

def below(index):
    return index * 0.5

class Deep:
    def __call__(self, x):
        return x + 0.5
""",
    "package/__init__.py": "",
    "package/inner.py": "def within(index):\n    return index * 3.0\n",
    "helpers.py": """
from deeper import below

LEVEL = 1.0

def brightened(index):
    return below(index) + 0.125

def attributed(index):
    return index + 0.75

def imported_late(index):
    return index + 0.875
""",
    "photos.py": '''
"""Photos."""
import abc, functools
import cloudpickle, importlib.metadata
import numpy as np
import torch
from torch.utils.data import Dataset
import helpers
import package.inner
from deeper import Deep
from helpers import brightened

CONSTANT = 1.0
TABLE = {"gain": 1.0, "bias": 2.0}
ORDERED = {"first": 1.0, "second": 2.0}
LARGE = np.zeros(5_000_000, np.uint8)
LARGE[-1] = 1

def twice(function):
    @functools.wraps(function)
    def called(*args):
        return 2 * function(*args)
    return called

def own(index, by=1.0):
    """A helper."""
    return by * index

@twice
def decorated(index):
    return index + 0.5

def marked(index):
    return index + marked.by

marked.by = 1.0

def enclosed(by):
    return lambda index: by * index

class Turned:
    def __init__(self, angle):
        self.angle = angle
    def __call__(self, x):
        return x + self.angle

class Filling(dict):
    def __missing__(self, name):
        return 7.0

class Word(str):
    pass

class Measuring(type):
    def measure(cls):
        return 8.0

class Measured(metaclass=Measuring):
    pass

FILLING, WORD = Filling(a=1.0), Word("abc")

class Kind(Dataset, abc.ABC):
    def inherited(self, index):
        return index * 1.5
    @staticmethod
    def still(index):
        return index * 2.5
    @classmethod
    def of_class(cls, index):
        return index * 4.5

class Photos(Kind):
    size = 3.0
    def __init__(self, scale=1.0):
        self.scale = scale
        self.enclosed = enclosed(0.25)
        self.short = lambda index: index * 0.625
        self.partial = functools.partial(own, by=0.75)
        self.turned = [Turned(4.0), Deep()]
    def __len__(self):
        return 40
    @property
    def height(self):
        return 5.0
    @functools.cached_property
    def width(self):
        return 6.0
    @functools.cache
    def __getitem__(self, index):
        return torch.tensor([float(index), self.special(index) if index == 17 else 0.0], dtype=torch.float64)
    def special(self, index):
        from helpers import imported_late
        values = [own(index), brightened(index), helpers.attributed(index), package.inner.within(index), imported_late(index),
            decorated(index), marked(index), CONSTANT, helpers.LEVEL, TABLE["gain"], TABLE["bias"] * 3, list(ORDERED.values())[0],
            float(LARGE[-1]), self.size, self.height, self.width, self.scale, self.enclosed(index), self.short(index),
            self.partial(index), self.turned[0](index), self.turned[1](index), FILLING["b"], float(len(WORD)),
            self.inherited(index), self.still(index), self.of_class(index), Measured.measure(),
            float(len(importlib.metadata.version("cloudpickle")) + len(cloudpickle.__name__))]
        return sum(value * (number + 1) for number, value in enumerate(values))
''',
}
CHANGED_CODE = {
    "the body of a helper in the same module": ("photos.py", "return by * index\n\n", "return by * index + 1\n\n"),
    "a keyword default of a function": ("photos.py", "index, by=1.0", "index, by=1.5"),
    "a helper in another module": ("helpers.py", "+ 0.125", "+ 0.25"),
    "a helper of a helper": ("deeper.py", "index * 0.5", "index * 0.25"),
    "a helper reached by attribute": ("helpers.py", "+ 0.75", "+ 0.5"),
    "a helper in a module of a package": ("package/inner.py", "3.0", "3.5"),
    "a helper imported by the function": ("helpers.py", "+ 0.875", "+ 0.5"),
    "a global constant": ("photos.py", "CONSTANT = 1.0", "CONSTANT = 2.0"),
    "a constant of another module": ("helpers.py", "LEVEL = 1.0", "LEVEL = 2.0"),
    "an entry of a global dict": ("photos.py", '"bias": 2.0', '"bias": 3.0'),
    "the order of a dict": ("photos.py", '"first": 1.0, "second": 2.0', '"second": 2.0, "first": 1.0'),
    "the last of 5 million elements": ("photos.py", "LARGE[-1] = 1", "LARGE[-1] = 2"),
    "a class attribute": ("photos.py", "size = 3.0", "size = 4.0"),
    "a method of a base class": ("photos.py", "index * 1.5", "index * 1.25"),
    "a static method": ("photos.py", "index * 2.5", "index * 2.25"),
    "a class method": ("photos.py", "index * 4.5", "index * 4.25"),
    "a value in a closure": ("photos.py", "enclosed(0.25)", "enclosed(0.5)"),
    "the body of a lambda": ("photos.py", "index * 0.625", "index * 0.5"),
    "the keyword of a partial": ("photos.py", "by=0.75", "by=0.5"),
    "the body of a property": ("photos.py", "return 5.0", "return 5.5"),
    "the body of a cached property": ("photos.py", "return 6.0", "return 6.5"),
    "the body of a decorated function": ("photos.py", "index + 0.5", "index + 0.25"),
    "a decorator": ("photos.py", "return 2 * function", "return 3 * function"),
    "an attribute of a function": ("photos.py", "marked.by = 1.0", "marked.by = 2.0"),
    "an attribute of a transform": ("photos.py", "Turned(4.0)", "Turned(5.0)"),
    "a method of a transform": ("photos.py", "x + self.angle", "x - self.angle"),
    "a transform of another module": ("deeper.py", "x + 0.5", "x + 0.25"),
    "a method of a user's dict class": ("photos.py", "return 7.0", "return 8.0"),
    "a method of a metaclass": ("photos.py", "return 8.0", "return 9.0"),
    "a string of a user's class": ("photos.py", 'Word("abc")', 'Word("abcd")'),
    "the decorated __getitem__": ("photos.py", "if index == 17 else 0.0", "if index == 17 else float(index == 18)"),
}
SAME_CODE = {
    "nothing": ("photos.py", "", ""),
    "a comment": ("photos.py", "return by * index", "# by how much\n    return by * index  # so much"),
    "a docstring": ("photos.py", '"""A helper."""', '"""Another docstring of a helper."""'),
    "no docstring": ("photos.py", '    """A helper."""\n', ""),
    "lines that move": ("photos.py", "import abc", "\n\n\n\nimport abc"),
    "the order of methods": (
        "photos.py",
        "    def __len__(self):\n        return 40\n    @property\n    def height(self):\n        return 5.0\n",
        "    @property\n    def height(self):\n        return 5.0\n    def __len__(self):\n        return 40\n",
    ),
    "the order of functions": (
        "helpers.py",
        "LEVEL = 1.0\n\ndef brightened(index):\n    return below(index) + 0.125\n",
        "def brightened(index):\n    return below(index) + 0.125\n\nLEVEL = 1.0\n",
    ),
    "an annotation": ("photos.py", "def own(index, by=1.0)", "def own(index: int, by: float = 1.0) -> float"),
    "an annotated attribute": ("photos.py", "size = 3.0", "size: float = 3.0"),
    "another global": ("photos.py", "CONSTANT = 1.0", "UNRELATED, CONSTANT = 5, 1.0"),
    "another function": ("helpers.py", "def brightened", "def unrelated():\n    return 1\n\ndef brightened"),
    "a helper that nobody calls": ("deeper.py", "FURTHER = 1.0", "FURTHER = 2.0"),
}


class Holding(Dataset[Any]):
    """A dataset whose sample `ONE` depends on the value that it holds."""

    def __init__(self, value: Any, take: Callable[[Any], Any]) -> None:
        self.value, self.take = value, take

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), float(self.take(self.value)) if index == ONE else 0.0])


class Queue(deque[int]):
    """An object of a user's class that keeps its content in C, like a compiled reader."""


class Day(date):
    """The same, in so few bytes that two pointers would have room for them."""


class Counting(Holding):
    """A dataset that changes with each sample: a counter and a cache among its attributes, and a global list."""

    def __init__(self) -> None:
        super().__init__(1.0, float)
        self.calls = 0
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        ASKED.append(index)
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


class Mapping(Dataset[Any]):
    """A dataset that reads a file that it names in C++, as HDF5 does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.from_file(self.name, size=LENGTH, dtype=torch.float64)[index : index + 1].clone()


class MappingIn(Mapping):
    """The same, given the folder of its file."""

    def __getitem__(self, index: int) -> Any:
        return torch.from_file(f"{self.name}/data.mdb", size=LENGTH, dtype=torch.float64)[index : index + 1].clone()


class Growing(Dataset[Any]):
    """A dataset whose length is an argument."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


class Plain(Dataset[Any]):
    """A dataset that draws no random numbers, so that its samples can be kept, in the form that `studies.member` trains on."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        x = torch.zeros(12)
        x[1 + index % 10] = 2.0
        x[0] = index / self.length
        return x, index % 10


ASKED: list[int] = []


def text_of(value: str) -> int:
    return zlib.crc32(value.encode()) % 1000


def element(value: Any) -> Any:
    return value[12_345]


def drawn(value: Any) -> float:
    return float(deepcopy(value).random())


def negative(value: Any) -> Any:
    return value(torch.tensor(-1.0)).detach()


def binarized(value: Any) -> Any:
    return value.transform([[0.5]])[0, 0]


def times(by: float) -> Callable[[float], float]:
    return lambda value: value * by


def one_at(value: float, size: int = 20_000) -> np.ndarray[Any, Any]:
    found = np.zeros(size)
    found[12_345] = value
    return found


def words(*changed: str, size: int = 20_000) -> list[str]:
    found = [f"word {number}" for number in range(size)]
    found[12_345 : 12_345 + len(changed)] = changed
    return found


def binarizer(threshold: float) -> Any:
    return pytest.importorskip("sklearn.preprocessing").Binarizer(threshold=threshold)


CHANGED_VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "an argument": (lambda: 1.0, lambda: 2.0, float),
    "two paths exchanged in a list": (
        lambda: ["/data/a", "/data/b"],
        lambda: ["/data/b", "/data/a"],
        lambda value: text_of(value[0]),
    ),
    "one of 20,000 items": (lambda: words("a"), lambda: words("b"), lambda value: text_of(value[12_345])),
    "one of 20,000 paths": (
        lambda: [f"/data/{word}" for word in words("a")],
        lambda: [f"/data/{word}" for word in words("b")],
        lambda value: text_of(value[12_345]),
    ),
    "two of 20,000 items exchanged": (
        lambda: [Path(word) for word in words("a", "b")],
        lambda: [Path(word) for word in words("b", "a")],
        lambda value: text_of(str(value[12_345])),
    ),
    "an element of an array": (lambda: one_at(1), lambda: one_at(2), element),
    "an element of a tensor": (lambda: torch.tensor(one_at(1)), lambda: torch.tensor(one_at(2)), element),
    "an element of a view": (lambda: one_at(1, 40_000)[::1][:20_000], lambda: one_at(2, 40_000)[:20_000], element),
    "the seed of a generator": (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2), drawn),
    "the seed of the second of two generators": (
        lambda: [np.random.RandomState(1), np.random.RandomState(2)],
        lambda: [np.random.RandomState(1), np.random.RandomState(3)],
        lambda value: drawn(value[1]),
    ),
    "two functions of one name exchanged": (
        lambda: [times(2), times(3)],
        lambda: [times(3), times(2)],
        lambda value: value[0](1.0),
    ),
    "one of two functions given twice": (
        lambda: [(one := times(2)), times(3), one],
        lambda: [times(2), (two := times(3)), two],
        lambda value: value[2](1.0),
    ),
    "content that is in no attribute": (lambda: Queue([1]), lambda: Queue([2]), lambda value: value[0]),
    "a date of a user's class": (lambda: Day(2026, 1, 1), lambda: Day(2026, 1, 2), lambda value: value.day),
    "the slope of a torch module": (lambda: torch.nn.LeakyReLU(0.1), lambda: torch.nn.LeakyReLU(0.2), negative),
    "a threshold of scikit-learn": (lambda: binarizer(0.25), lambda: binarizer(0.75), binarized),
    "an entry of a namespace": (lambda: SimpleNamespace(a=1), lambda: SimpleNamespace(a=2), lambda value: value.a),
    "the default of a defaultdict": (
        lambda: defaultdict(lambda: 1),
        lambda: defaultdict(lambda: 2),
        lambda value: deepcopy(value)["x"],
    ),
    "the order of entries": (
        lambda: {"a": 1, "b": 2},
        lambda: {"b": 2, "a": 1},
        lambda value: next(iter(value.values())),
    ),
    "a dict of which a method is held": (lambda: {"x": 1}.get, lambda: {"x": 2}.get, lambda value: value("x")),
    "an array of which a method is held": (
        lambda: np.array([1, 3]).__getitem__,
        lambda: np.array([2, 3]).__getitem__,
        lambda value: value(0),
    ),
    "a regular expression": (
        lambda: re.compile("a"),
        lambda: re.compile("a|b"),
        lambda value: len(value.findall("ab")),
    ),
    "the mask of an array": (
        lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
        lambda: np.ma.array([1.0, 2.0], mask=[False, False]),
        lambda value: value.filled(0.0)[0],
    ),
    "an attribute of a library's mapping": (
        lambda: pytest.importorskip("cachetools").Cache(maxsize=1),
        lambda: pytest.importorskip("cachetools").Cache(maxsize=2),
        lambda value: value.maxsize,
    ),
    "bytes": (lambda: bytearray(b"a"), lambda: bytearray(b"b"), lambda value: value[0]),
    "the type of a number": (lambda: np.float32(0.1), lambda: np.float64(0.1), lambda value: value.itemsize),
}


@dataclass
class Desk:
    """A user's folder of modules and data files."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    mine: set[str] = field(default_factory=set)

    def write(self, files: dict[str, str], folder: Path | None = None) -> None:
        """Write modules and let them be imported from there."""
        folder = folder or self.folder / "code"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            self.mine.add(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        self.monkeypatch.syspath_prepend(str(folder))
        self.forget()

    def forget(self) -> None:
        """Let each module be imported again."""
        for name in self.mine:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(name)

    def fresh_module(self, name: str) -> ModuleType:
        """Import a module as another process would, without what its functions have read."""
        self.forget()
        return self.module(name)

    def data(self, name: str = "data") -> Path:
        """Make a folder of files, with an index, arrays and databases, and return it."""
        folder = self.folder / name
        folder.mkdir()
        for index in range(LENGTH):
            (folder / f"{index}.bin").write_bytes(bytes([index, 1]))
        (folder / "mapped.bin").write_bytes(bytes([1, 2]))
        (folder / "index.json").write_text(json.dumps({"17": 1}))
        np.save(folder / "rows.npy", np.arange(LENGTH))
        np.save(folder / "other.npy", np.arange(LENGTH) + (np.arange(LENGTH) == ONE))
        for database in ("rows.sqlite", "other.sqlite"):
            with sqlite3.connect(folder / database) as connection:
                connection.execute("create table row (x, y)")
                connection.execute("insert into row values (17, 1)")
            connection.close()
        return folder


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A desk in a process that appears to have read no files yet."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(witnesses.RECORDER, "notes", [])
    monkeypatch.setattr(witnesses.RECORDER, "_seen", set())
    monkeypatch.setenv("GAIN", "1")
    found = Desk(tmp_path, monkeypatch)
    yield found
    found.forget()


def opened(dataset: Any, *, seed: int = 3, location: bool = True, split: str = "train", **data: Any) -> Source:
    given = Data(**{"train": dataset, split: dataset, **data})
    sources = open_sources(given, seed=seed, cache=RowCache(most_bytes=ROOM) if location else None)
    open_kept_rows(sources, 0)
    return sources[split]


def filled(source: Source, *, epoch: int = 0, order: Any = None, block: int = LENGTH) -> tuple[torch.Tensor, int]:
    """Return all samples by index, and how many of them were prepared."""
    indices = np.arange(source.length) if order is None else np.asarray(order)
    found, prepared = torch.zeros(source.length, *source.layout.shapes[0], dtype=source.layout.dtypes[0]), 0
    for number, some in enumerate(np.array_split(indices, -(-len(indices) // block))):
        place = Place(leg=0, split="train", epoch=epoch, section=epoch, start=number, rows=len(some), last=False)
        rows = source.layout.block(place, np.zeros(source.layout.block_bytes(len(some)), np.uint8))
        prepared += source.fill(rows, 0, some.astype(np.int64)).prepared
        found[some] = rows.leaves[0]
    return found, prepared


def found_out(before: Callable[[], Any], mutate: Callable[[], object], after: Callable[[], Any], by: str) -> None:
    """Keep all samples, apply a mutation, and assert that no stale sample is used and that `by`, not the proof, found it."""
    old, prepared = filled(opened(before()))
    assert prepared == LENGTH
    mutate()
    source = opened(after())
    found, prepared = filled(source)
    truth, _ = filled(opened(after(), location=False))
    changed = (
        len(truth) if truth.shape != old.shape else int((truth != old).reshape(len(truth), -1).any(dim=1).sum().item())
    )
    assert changed, "the mutation changes no sample"
    stale = int((found != truth).reshape(len(truth), -1).any(dim=1).sum().item())
    assert (stale, prepared > 0) == (0, True)
    assert PROOF not in source.facts.keeping
    assert re.search(by, source.facts.keeping), source.facts.keeping


def not_missed(before: Callable[[], Any], mutate: Callable[[], object], after: Callable[[], Any], **data: Any) -> None:
    """Keep all samples, apply a harmless change, and assert that all of them are found again."""
    old, prepared = filled(opened(before()))
    assert prepared == LENGTH
    mutate()
    source = opened(after(), **data)
    found, prepared = filled(source)
    assert (source.facts.keeping, prepared) == (f"{LENGTH} of {LENGTH} kept by earlier runs", 0)
    assert torch.equal(found, old)


# ---- mutations


@pytest.mark.parametrize("name", CHANGED_CODE)
def test_code_that_changed_is_found(desk: Desk, name: str) -> None:
    file, old, new = CHANGED_CODE[name]
    assert CODE[file].count(old) == 1
    desk.write(CODE)
    changed = {**CODE, file: CODE[file].replace(old, new)}
    found_out(
        lambda: desk.module("photos").Photos(), lambda: desk.write(changed), lambda: desk.module("photos").Photos(), KEY
    )


@pytest.mark.parametrize("name", CHANGED_VALUES)
def test_a_value_that_changed_is_found(desk: Desk, name: str) -> None:
    before, after, take = CHANGED_VALUES[name]
    found_out(lambda: Holding(before(), take), lambda: None, lambda: Holding(after(), take), KEY)


def test_a_module_that_is_built_again_is_found(desk: Desk) -> None:
    file = desk.folder / f"compiled_reader{EXTENSION_SUFFIXES[0]}"
    module = ModuleType("compiled_reader")
    module.__file__ = str(file)
    desk.monkeypatch.setitem(sys.modules, "compiled_reader", module)
    file.write_bytes(b"1")
    key = make_key(SimpleNamespace(reader=module))
    file.write_bytes(b"2")
    assert make_key(SimpleNamespace(reader=module)) == key  # this process has loaded the old one
    value_text._compiled_content.cache_clear()
    assert make_key(SimpleNamespace(reader=module)).difference(key.parts) == "compiled_reader (compiled)"


STARTED = """
import torch
from torch.utils.data import Dataset

start = {start}
LOADED = None

def opened():
    generator = (number for number in range(3))
    return lambda: next(generator)

def nested(depth):
    return [nested(depth - 1), object] if depth else [0]

def loaded(load):
    global LOADED
    LOADED = LOADED or load()
    return LOADED

class Ranges(Dataset):
    def __init__(self, name):
        loaded({{"opened": opened, "nested": lambda: nested(400), "fails": Fails}}[name])
    def __len__(self):
        return 40
    def __getitem__(self, index):
        start = 10 * index
        return torch.tensor([loaded(list) is None, *[start + k for k in range(3)]])

class Fails:
    @property
    def __dict__(self):
        raise RuntimeError("no connection")
"""


@pytest.mark.parametrize("name", ["opened", "nested", "fails"])
def test_what_functions_set_may_be_unreadable_and_have_the_name_of_a_global(desk: Desk, name: str) -> None:
    desk.write({"started.py": STARTED.format(start=1.0)})
    key = make_key(desk.module("started").Ranges(name))
    desk.write({"started.py": STARTED.format(start=2.0)})
    assert make_key(desk.fresh_module("started").Ranges(name)) == key


def test_an_argument_in_the_users_code_is_found(desk: Desk) -> None:
    desk.write(CODE)
    found_out(lambda: desk.module("photos").Photos(1.0), desk.forget, lambda: desk.module("photos").Photos(2.0), KEY)


def test_another_length_is_found(desk: Desk) -> None:
    found_out(lambda: Growing(LENGTH), lambda: None, lambda: Growing(LENGTH + 1), KEY)


def test_another_version_of_a_package_is_found(desk: Desk) -> None:
    desk.write(CODE)
    real = importlib.metadata.distribution

    def other(name: str) -> Any:
        return SimpleNamespace(version="99.99.99.99", requires=()) if name == "cloudpickle" else real(name)

    def install() -> None:
        desk.monkeypatch.setattr(importlib.metadata, "distribution", other)
        desk.forget()

    found_out(
        lambda: desk.module("photos").Photos(), install, lambda: desk.module("photos").Photos(), f"{KEY}.*cloudpickle"
    )


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def put_back(path: Path) -> None:
    """Change a file and restore its access and modification times; its ctime cannot be set."""
    found = path.stat()
    path.write_bytes(b"ab")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def renamed(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"ab")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("18.bin"))


def written(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("update row set y = 2")
    connection.close()


def logged(path: Path) -> None:
    """Let changes of the database go to a log beside it: the database's file does not change while a connection is open."""
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode=wal")
    connection.close()


def mapped(path: Path) -> None:
    rows = np.load(path, mmap_mode="r+")
    rows[ONE] = 99
    rows.flush()


def index_of(value: int) -> bytes:
    return json.dumps({"17": value}).encode()


CHANGED_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a byte of a file": ("Files", lambda folder: put(folder / "17.bin", b"ab"), "17.bin has changed"),
    "a byte, and its time put back": ("Files", lambda folder: put_back(folder / "17.bin"), "17.bin has changed"),
    "a longer file": ("Files", lambda folder: put(folder / "17.bin", b"abc"), "17.bin has changed"),
    "a file replaced by a rename": ("Files", lambda folder: renamed(folder / "17.bin"), "17.bin has changed"),
    "a link to another file": ("Files", lambda folder: linked(folder / "17.bin"), "17.bin has changed"),
    "an index read with the first sample": (
        "Lazy",
        lambda folder: put(folder / "index.json", index_of(2)),
        "index.json has changed",
    ),
    "a file read by __init__": ("Early", lambda folder: put(folder / "index.json", index_of(2)), KEY),
    "a file read by a factory": ("made", lambda folder: put(folder / "index.json", index_of(2)), KEY),
    "a file that a factory makes a cached function read": (
        "Cached",
        lambda folder: put(folder / "index.json", index_of(2)),
        "index.json has changed",
    ),
    "a file that __init__ reads into a global": ("Loaded", lambda folder: put(folder / "index.json", index_of(2)), KEY),
    "a file that __init__ reads into an enclosing variable": (
        "Enclosed",
        lambda folder: put(folder / "index.json", index_of(2)),
        KEY,
    ),
    "a file in a folder that is listed": ("Listing", lambda folder: put(folder / "new.txt", b"a"), "data has changed"),
    "a file in a folder that is globbed": ("Globbing", lambda folder: put(folder / "41.bin", b"a"), "data has changed"),
    "a file that was looked for and missing": (
        "Looking",
        lambda folder: put(folder / "mask.bin", b"a"),
        "mask.bin has changed",
    ),
    "a file mapped to be written to": (
        "Mapping",
        lambda folder: put(folder / "mapped.bin", b"a\2"),
        "mapped.bin has changed",
    ),
    "a map among the attributes": ("Mapped", lambda folder: mapped(folder / "rows.npy"), "rows.npy has changed"),
    "a database named by an attribute": (
        "Base",
        lambda folder: written(folder / "rows.sqlite"),
        "rows.sqlite has changed",
    ),
    "a database named in a list": ("Shards", lambda folder: written(folder / "rows.sqlite"), "rows.sqlite has changed"),
    "a database that is not named": (
        "Unnamed",
        lambda folder: written(folder / "rows.sqlite"),
        "rows.sqlite has changed",
    ),
}


@pytest.mark.parametrize("name", CHANGED_FILES)
@pytest.mark.parametrize("old", [True, False])
def test_a_file_that_changed_is_found(desk: Desk, name: str, old: bool) -> None:
    """A changed file is found, also if it was young when it was read, so that the change may have left the same time."""
    kind, change, by = CHANGED_FILES[name]
    desk.monkeypatch.setattr(witnesses, "UNRELIABLE_SECONDS", -1e9 if old else 1e9)
    desk.write({"files.py": FILES})
    folder = desk.data()
    again = lambda: partial(getattr(desk.fresh_module("files"), kind), str(folder))  # noqa: E731
    found_out(again, lambda: change(folder), again, by)


@pytest.mark.parametrize(
    ("kind", "named", "file"),
    [
        (Mapping, "data/numbers.bin", ""),
        (Mapping, "{}/data/numbers.bin", ""),
        (Mapping, "numbers.h5", ""),
        (MappingIn, "{}/data", "/data.mdb"),
    ],
)
def test_a_file_that_is_read_in_native_code_is_found_by_its_name(desk: Desk, kind: Any, named: str, file: str) -> None:
    desk.data()
    desk.monkeypatch.chdir(desk.folder)
    name = named.format(desk.folder)
    numbers = np.arange(LENGTH, dtype=np.float64)
    numbers.tofile(name + file)
    changed = numbers + (numbers == ONE)
    found_out(lambda: kind(name), lambda: changed.tofile(name + file), lambda: kind(name), WITNESS)


def test_what_encoded_texts_of_a_library_hold_beside_their_items_is_not_read(tmp_path: Path) -> None:
    encoded = type("BatchEncoding", (UserDict,), {"__module__": torch.__name__})({"ids": [[1, 2]]})
    key = make_key(SimpleNamespace(encoded=encoded))
    with (tmp_path / "lines").open("w") as encoded.encodings:
        assert make_key(SimpleNamespace(encoded=encoded)) == key


def test_the_folders_of_many_classes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.h5").write_bytes(b"")
    assert make_key(SimpleNamespace(folders=[str(tmp_path)] * 100)).files == (str(tmp_path / "train.h5"),)
    assert make_key(SimpleNamespace(folders=[str(tmp_path)] * 101)).files == ()


def test_the_lock_of_a_database_is_no_part_of_its_content(desk: Desk) -> None:
    folder = desk.data()
    np.arange(LENGTH, dtype=np.float64).tofile(folder / "data.mdb")
    lock = folder / "lock.mdb"
    lock.write_bytes(b"1")
    not_missed(lambda: MappingIn(str(folder)), lambda: lock.write_bytes(b"23"), lambda: MappingIn(str(folder)))


def test_another_file_that_is_mapped_is_found(desk: Desk) -> None:
    desk.write({"files.py": FILES})
    kind, folder = desk.module("files").Mapped, str(desk.data())
    found_out(lambda: kind(folder), lambda: None, lambda: kind(folder, "other.npy"), KEY)


def test_a_database_with_a_log_beside_it_is_found(desk: Desk) -> None:
    desk.write({"files.py": FILES})
    folder = desk.data()
    logged(folder / "rows.sqlite")
    writing = sqlite3.connect(folder / "rows.sqlite")

    def write() -> None:
        writing.execute("update row set y = 2")
        writing.commit()

    found_out(
        lambda: desk.module("files").Base(str(folder)),
        write,
        lambda: desk.module("files").Base(str(folder)),
        "has changed",
    )
    writing.close()


def test_another_working_directory_with_another_file_of_that_name_is_found(desk: Desk) -> None:
    desk.write({"files.py": FILES})
    folder = desk.data()
    for name, text in (("one", b"a"), ("two", b"b")):
        (desk.folder / name).mkdir()
        put(desk.folder / name / "17.bin", text)
    desk.monkeypatch.chdir(desk.folder / "one")
    again = lambda: desk.module("files").Relative(str(folder))  # noqa: E731
    found_out(again, lambda: desk.monkeypatch.chdir(desk.folder / "two"), again, "")  # whatever is given as the reason


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("Brackets", "1", "2"),
        ("Get", "1", "2"),
        ("Get", "3", None),
        ("Getenv", "1", "2"),
        ("Getenv", "3", None),
        ("Asked", "1", None),
        ("Asked", None, "1"),
    ],
)
def test_another_environment_variable_is_found(desk: Desk, kind: str, before: str | None, after: str | None) -> None:
    desk.write({"files.py": FILES})
    folder = str(desk.data())

    def set_to(value: str | None) -> None:
        desk.monkeypatch.delenv("GAIN", raising=False)
        if value is not None:
            desk.monkeypatch.setenv("GAIN", value)

    set_to(before)
    again = lambda: getattr(desk.module("files"), kind)(folder)  # noqa: E731
    found_out(again, partial(set_to, after), again, "the environment variable GAIN has another value")


# ---- harmless changes


@pytest.mark.parametrize("name", SAME_CODE)
def test_code_that_computes_the_same_is_the_same(desk: Desk, name: str) -> None:
    file, old, new = SAME_CODE[name]
    assert CODE[file].count(old) == 1 or not old
    desk.write(CODE)
    changed = {**CODE, file: CODE[file].replace(old, new)} if old else CODE
    not_missed(
        lambda: desk.module("photos").Photos(), lambda: desk.write(changed), lambda: desk.module("photos").Photos()
    )


def test_modules_may_lie_in_another_folder(desk: Desk) -> None:
    desk.write(CODE)

    def move() -> None:
        shutil.rmtree(desk.folder / "code")
        desk.write(CODE, desk.folder / "elsewhere")

    not_missed(lambda: desk.module("photos").Photos(), move, lambda: desk.module("photos").Photos())


def moved(folder: Path) -> Path:
    return folder.rename(folder.with_name("elsewhere"))


def copied(folder: Path) -> Path:
    time.sleep(0.02)
    found = Path(shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile))
    shutil.rmtree(folder)
    return found


def copied_beside(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile))


def touched(folder: Path) -> Path:
    for path in folder.iterdir():
        path.touch()
    return folder


def shut(folder: Path) -> Path:
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


@pytest.mark.parametrize("change", [moved, copied, copied_beside, touched, shut])
@pytest.mark.parametrize(
    "kind",
    [
        "Files",
        "Lazy",
        "Early",
        "Cached",
        "Loaded",
        "made",
        "Listing",
        "Globbing",
        "Looking",
        "Mapping",
        "Mapped",
        "Base",
        "Shards",
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_files_may_be_moved_and_copied(desk: Desk, change: Callable[[Path], Path], kind: str, old: bool) -> None:
    desk.monkeypatch.setattr(witnesses, "UNRELIABLE_SECONDS", -1e9 if old else 1e9)
    desk.write({"files.py": FILES})
    places = [desk.data()]
    again = lambda: partial(getattr(desk.fresh_module("files"), kind), str(places[-1]))  # noqa: E731
    not_missed(again, lambda: places.append(change(places[0])), again)


@pytest.mark.parametrize(
    "how",
    [{"seed": 4}, {"split": "val"}, {"on_error": "skip"}, {"then": lambda sample: sample}],
    ids=["seed", "split", "on_error", "then"],
)
def test_another_study_finds_the_same(desk: Desk, how: dict[str, Any]) -> None:
    not_missed(lambda: Growing(LENGTH), lambda: None, lambda: Growing(LENGTH), **how)


def test_other_orders_epochs_and_blocks_find_the_same(desk: Desk) -> None:
    filled(opened(Growing(LENGTH)), order=np.random.RandomState(1).permutation(LENGTH), block=7)
    source = opened(Growing(LENGTH))
    for epoch, block in ((0, 3), (1, 40), (2, 1)):
        found, prepared = filled(
            source, epoch=epoch, order=np.random.RandomState(epoch).permutation(LENGTH), block=block
        )
        assert prepared == 0
        assert torch.equal(found[:, 0], torch.arange(float(LENGTH)))


def test_a_factory_gives_what_its_dataset_is(desk: Desk) -> None:
    not_missed(lambda: Growing(LENGTH), lambda: None, lambda: partial(Growing, LENGTH))
    source = opened(lambda: Growing(LENGTH))
    assert filled(source)[1] == 0


@pytest.mark.parametrize("kind", ["Files", "Lazy", "Mapped", "Base", "Listing"])
def test_another_working_directory_is_the_same(desk: Desk, kind: str) -> None:
    desk.write({"files.py": FILES})
    folder = str(desk.data())
    (desk.folder / "elsewhere").mkdir()
    desk.monkeypatch.chdir(folder)
    again = lambda: getattr(desk.module("files"), kind)(folder)  # noqa: E731
    not_missed(again, lambda: desk.monkeypatch.chdir(desk.folder / "elsewhere"), again)


def test_the_folder_may_come_from_the_environment_in_another_working_directory(desk: Desk) -> None:
    desk.write({"files.py": FILES})
    desk.monkeypatch.setenv("GAIN", str(desk.data()))
    (desk.folder / "elsewhere").mkdir()
    desk.monkeypatch.chdir(desk.folder)
    again = lambda: desk.module("files").Placed("")  # noqa: E731
    not_missed(again, lambda: desk.monkeypatch.chdir(desk.folder / "elsewhere"), again)


def test_an_unrelated_variable_is_the_same(desk: Desk) -> None:
    desk.write({"files.py": FILES})
    folder = str(desk.data())
    again = lambda: desk.module("files").Brackets(folder)  # noqa: E731
    not_missed(again, lambda: desk.monkeypatch.setenv("UNRELATED", "1"), again)


def test_a_set_is_the_same_in_any_order(desk: Desk) -> None:
    not_missed(lambda: Holding({"a", "b", "c"}, len), lambda: None, lambda: Holding({"c", "b", "a"}, len))


def test_what_samples_change_themselves_counts_in_an_object_that_is_used_again(desk: Desk) -> None:
    """A counter, a cache and a list that samples fill are values like others, and so is an edit of one: nothing is known of its cause."""
    one = Counting()
    assert filled(opened(one))[1] == LENGTH
    one.cache[ONE] = torch.tensor([3.0, 4.0])
    assert torch.equal(filled(opened(one))[0][ONE], torch.tensor([3.0, 4.0]))


def test_what_was_changed_in_an_object_that_samples_change_is_found(desk: Desk) -> None:
    """A dataset that changes as samples are prepared is still new if another attribute of it has changed."""
    one = Counting()
    one.cache[ONE] = torch.tensor([1.0, 1.0])
    other = Counting()
    other.cache[ONE] = torch.tensor([1.0, 2.0])
    found_out(lambda: one, lambda: None, lambda: other, KEY)


def test_two_folders_of_the_same_names_have_rows_of_their_own(desk: Desk) -> None:
    """Two folders whose keys differ only in the path: neither dataset uses or replaces the other's kept samples."""
    desk.write({"files.py": FILES})
    one, other = desk.data("one"), desk.data("other")
    put(other / "17.bin", b"ab")
    kind = desk.module("files").Files
    for prepared in (LENGTH, 0):
        sources = open_sources(
            Data(train=kind(str(one)), val=kind(str(other))), seed=3, cache=RowCache(most_bytes=ROOM)
        )
        open_kept_rows(sources, 0)
        for split, folder in (("train", one), ("val", other)):
            found = filled(sources[split])
            assert torch.equal(found[0], filled(opened(kind(str(folder)), location=False))[0])
            assert found[1] == prepared


def test_a_part_that_is_there_is_completed_elsewhere(desk: Desk) -> None:
    desk.write({"files.py": FILES})
    folder = desk.data()
    filled(opened(desk.module("files").Files(str(folder))), order=range(20))
    elsewhere = str(moved(folder))
    found, prepared = filled(opened(desk.module("files").Files(elsewhere)))
    assert prepared == LENGTH - 20
    assert torch.equal(found, filled(opened(desk.module("files").Files(elsewhere), location=False))[0])


def test_the_example_of_the_page_keeps_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kept.md").read_text()
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        for index in range(LENGTH):
            np.save(tmp_path / split / f"{index:02}.npy", np.arange(4.0) + index + 100 * (split == "val"))
    (tmp_path / "images.py").write_text(
        "import random\nimport argosy\nimport numpy as np\nimport torch\nfrom pathlib import Path\n"
        f"from torch.utils.data import Dataset\n{page.partition('```python')[2].partition('```')[0]}"
    )
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "images", raising=False)
    data = importlib.import_module("images").data
    for prepared in (LENGTH, 0):
        sources = open_sources(data, seed=3, cache=RowCache(most_bytes=ROOM))
        open_kept_rows(sources, 0)
        found, again = filled(sources["train"]), filled(sources["train"], epoch=1)
        assert (found[1], again[1]) == (prepared, 0)
        assert not torch.equal(found[0], again[0])
        assert torch.equal(found[0].sort(dim=1)[0], again[0].sort(dim=1)[0])
        assert filled(sources["val"])[1] == prepared
    monkeypatch.delitem(sys.modules, "images")


class Unordered(Holding):
    """A dataset that holds sets of strings, whose order depends on the process's hash seed."""

    names = frozenset({"a", "b", "c", "d"})

    def __init__(self) -> None:
        super().__init__({"one": {"x", "y", "z"}, "two": {1, 2, 3}}, lambda value: len(value["one"] & {"x", "y", "q"}))


def test_another_process_finds_what_was_kept_whatever_its_order_of_sets(desk: Desk) -> None:
    assert filled(opened(Unordered()))[1] == LENGTH
    program = "from test_kept_keys import Unordered, filled, opened; print(filled(opened(Unordered()))[1])"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout == "0\n"


def test_a_run_in_other_processes_finds_what_one_in_this_process_has_kept(tmp_path: Path) -> None:
    study = studies.study(data=Data(train=Plain(120), val=Plain(40)), fleet=[studies.member()], epochs=2)
    first = argosy.train(study, directory=tmp_path / "one", launcher="inline", devices="cpu:1")
    how: dict[str, Any] = {"launcher": "processes", "devices": "cpu:1", "loader_workers": 2, "block_size": 16}
    second = argosy.train(study, directory=tmp_path / "two", **how)
    assert (first.preparations, second.preparations) == (0.5, 0.0)
    assert first.member("mlp").metrics == second.member("mlp").metrics


def test_a_class_of_a_module_whose_name_is_no_text_has_a_key() -> None:
    assert make_key(type("Files", (Dataset,), {"__module__": "caf\udce9"})()).name


class Archive(Dataset[torch.Tensor]):
    """A dataset that holds an open archive of NumPy, of which an object raises where it is asked for its class."""

    def __init__(self, path: Path) -> None:
        self.arrays = np.load(path)

    def __len__(self) -> int:
        return LENGTH


def test_an_open_archive_of_numpy_is_unreadable(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(LENGTH))
    with pytest.raises(UnreadableContent, match=r"BagObj|BufferedReader"):
        make_key(Archive(tmp_path / "x.npz"))
