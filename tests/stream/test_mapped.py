"""Tests that changes of a memory-mapped file are found, whatever object holds the map and however it was opened."""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

import argosy
from argosy.errors import StudyError
from argosy.stream.mapped import files_of_data, files_of_split

SHAPE = (400, 12)
HEAD = 128
"""Length in bytes of the header of a .npy file."""
LABELS = torch.arange(400) % 10
Given = dict[str, Any]


class Rows(Dataset[Any]):
    """A dataset of the samples of an array that `take` finds in `held`."""

    def __init__(self, held: Any, take: Callable[[Any], Any] = lambda held: held) -> None:
        self.held = held
        self.take = take

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(np.asarray(self.take(self.held)[index])), index % 10


class Late(Rows):
    """A dataset that opens its file with the first sample."""

    def __init__(self, path: Path, mode: Any) -> None:
        super().__init__(None)
        self.path = path
        self.mode = mode

    def __getitem__(self, index: int) -> Any:
        self.held = np.load(self.path, mmap_mode=self.mode) if self.held is None else self.held
        return super().__getitem__(index)


def bare(path: Path) -> Any:
    """Return a map without an array; each sample makes an array of it."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def as_rows(memory: Any) -> Any:
    return np.frombuffer(memory, np.float32, offset=HEAD).reshape(SHAPE)


def torch_file(path: Path) -> Tensor:
    numbers = HEAD // 4 + 400 * 12
    return torch.from_file(str(path), shared=True, size=numbers, dtype=torch.float32)[HEAD // 4 :].view(SHAPE)


HOLDERS: dict[str, Callable[[Any, Path], Given]] = {
    "arrays": lambda x, path: {"arrays": (x, LABELS)},
    "a view": lambda x, path: {"arrays": (x.view(np.ndarray), LABELS)},
    "a tensor": lambda x, path: {"arrays": (torch.from_numpy(x), LABELS)},
    "a tensor of a file": lambda x, path: {"arrays": (torch_file(path), LABELS)},
    "an attribute": lambda x, path: {"train": Rows(x)},
    "an attribute that is a tensor": lambda x, path: {"train": Rows(torch.from_numpy(x))},
    "a subset": lambda x, path: {"train": Subset(Rows(x), range(400))},
    "a list": lambda x, path: {"train": Rows([x], lambda held: held[0])},
    "a dict": lambda x, path: {"train": Rows({"x": x}, lambda held: held["x"])},
    "an array of objects": lambda x, path: {"train": Rows(np.array([{"x": x}, None]), lambda held: held[0]["x"])},
    "a function": lambda x, path: {"train": Rows(None, lambda held: x)},
    "a buffer": lambda x, path: {"train": Rows(memoryview(x._mmap), as_rows)},
    "a factory that is given it": lambda x, path: {"train": partial(Rows, x)},
    "a closure of a factory": lambda x, path: {"train": lambda: Rows(x)},
}
"""Data that hold a map opened by the caller, by the kind of holder."""
OPENED: dict[str, Callable[[Any, Path], Given]] = {
    "a factory": lambda mode, path: {"train": lambda: Rows(np.load(path, mmap_mode=mode))},
    "a factory without arrays": lambda mode, path: {"train": lambda: Rows(bare(path), as_rows)},
    "the first sample": lambda mode, path: {"train": Late(path, mode)},
}
"""Data that open the file themselves, by the time when they do."""


class Happens:
    """A metric that does something to a file when the run is in its second epoch."""

    def __init__(self, what: Callable[[Path], None], path: Path) -> None:
        self.what = what
        self.path = path
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            self.what(self.path)
        return torch.zeros(len(target))


def put_back(path: Path) -> None:
    """Write other numbers to the file and restore its times."""
    found = path.stat()
    np.save(path, -np.load(path))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def through_a_map(path: Path) -> None:
    """Write other numbers to the file through another map."""
    np.load(path, mmap_mode="r+")[:] *= -1


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk: tmpfs does not change a file's time when the file is written to through a map."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=SHAPE).astype(np.float32))
    return tmp_path / "x.npy"


def weights(given: Given, path: Path, what: Callable[[Path], None] | None = None, run: str = "run") -> Tensor:
    """Train for one epoch, or for three if `what` happens to the file in the second; return the weights."""
    data = argosy.Data(**given, val_arrays=(torch.zeros(40, 12), torch.zeros(40).long()))
    metrics = {} if what is None else {"happens": Happens(what, path)}
    fleet = [studies.member(metrics=metrics, eval_batch_size=40)]
    study = studies.study(data=data, fleet=fleet, epochs=1 if what is None else 3)
    report = argosy.train(study, directory=path.parent / run, launcher="inline", devices="cpu:1")
    return torch.cat([weight.flatten() for weight in report.best().load().parameters()])


CASES = [(name, "r+") for name in HOLDERS] + [(name, mode) for name in ("arrays", "a subset") for mode in ("r", "c")]


@pytest.mark.parametrize(("holder", "mode"), CASES)
def test_a_map_that_is_given_is_watched_wherever_it_is_held(holder: str, mode: Any, path: Path) -> None:
    with pytest.raises(StudyError, match=r"x.npy changed during the run: its data or its attributes were changed"):
        weights(HOLDERS[holder](np.load(path, mmap_mode=mode), path), path, put_back)


def test_a_map_that_is_given_trains_as_its_numbers_do_wherever_it_is_held(path: Path) -> None:
    own = weights({"arrays": (np.load(path), LABELS)}, path, run="own")
    for name, holder in HOLDERS.items():
        assert torch.equal(weights(holder(np.load(path, mmap_mode="r+"), path), path, run=name), own), name


@pytest.mark.parametrize("holder", OPENED.values(), ids=OPENED)
def test_a_map_that_the_study_opens_is_watched_too(holder: Callable[[Any, Path], Given], path: Path) -> None:
    with pytest.raises(StudyError, match=r"x.npy changed during the run: its data or its attributes were changed"):
        weights(holder("r", path), path, put_back)


def test_what_is_written_through_another_map_is_found(path: Path) -> None:
    with pytest.raises(StudyError, match=r"x.npy changed during the run: it was written to at"):
        weights({"arrays": (np.load(path, mmap_mode="r+"), LABELS)}, path, through_a_map)


def test_what_was_written_through_a_map_before_the_run_is_trained_on(path: Path) -> None:
    x = np.load(path, mmap_mode="r+")
    x[:] *= -1
    own = weights({"arrays": (np.array(x), LABELS)}, path, run="own")
    assert torch.equal(weights({"arrays": (x, LABELS)}, path), own)


class Cache(Rows):
    """A dataset that writes each prepared sample to the file that it maps."""

    def __init__(self, path: Path) -> None:
        super().__init__(np.load(path, mmap_mode="r+"))

    def __getitem__(self, index: int) -> Any:
        self.held[index] = index
        return super().__getitem__(index)


def test_a_dataset_writes_to_a_map_that_its_factory_has_opened(path: Path) -> None:
    weights({"train": partial(Cache, path)}, path)
    with pytest.raises(StudyError, match=r"open the map in the Dataset's factory\."):
        weights({"train": Cache(path)}, path, run="given")


class Proxy:
    """A lazy proxy, which raises if it is asked for its class."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("asked for what it stands for")


def test_what_an_object_holds_is_looked_at_without_asking_it(path: Path) -> None:
    x = np.load(path, mmap_mode="r")
    closed = bare(path)
    closed.close()
    held: list[Any] = [torch.nn.LazyLinear(3), Proxy(), np, closed, np.empty((0, 3)), torch.empty(0), x[:0], x]
    held.append(held)
    data = argosy.Data(train=Rows(held), on_device=lambda batch: batch)
    (file,) = files_of_data(data)
    assert file.path == str(path)
    assert files_of_split(data.train) == (file,)
    assert files_of_split([np.zeros(3), torch.zeros(3)]) == ()
