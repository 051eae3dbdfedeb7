"""Tests that each forked loader worker has its own position in a dataset's open files, however they were opened."""

import _thread
import os
import signal
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import evidence
import pytest
import studies
import torch
from torch.utils.data import Dataset

import argosy
from argosy.errors import StudyError, WorkerError
from argosy.stream import standby

ROWS = 96
WIDTH = 12
"""The number of values in a record."""


class Sample(NamedTuple):
    """A sample of a user's type, which every process has to rebuild from blocks."""

    x: torch.Tensor
    y: int


class Records(Dataset[Any]):
    """A dataset that reads each sample from a binary file in a thread, with a pause between seek and read."""

    def __init__(self, path: Path, *, at_once: bool) -> None:
        self.path = path
        self.file = self.pool = None
        self.places = torch.randperm(ROWS).tolist()
        if at_once:
            self.open()

    def open(self) -> None:
        self.file, self.pool = self.path.open("rb", buffering=0), ThreadPoolExecutor(1, "reader")
        self.pool.submit(int).result()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.open()
        return Sample(self.pool.submit(self.read, self.places[index]).result(), index % 10)

    def read(self, place: int) -> torch.Tensor:
        self.file.seek(place * 4 * WIDTH)
        time.sleep(0.001)
        return torch.frombuffer(bytearray(self.file.read(4 * WIDTH)), dtype=torch.float32)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()
            self.pool.shutdown()


class Table(Dataset[Any]):
    """A dataset that reads each sample from a database."""

    def __init__(self, path: Path, *, at_once: bool) -> None:
        self.path = path
        self.rows = sqlite3.connect(path) if at_once else None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if self.rows is None:
            self.rows = sqlite3.connect(self.path)
        ((value,),) = self.rows.execute("select value from numbers where id = ?", (index,))
        return Sample(torch.full((WIDTH,), value), index % 10)

    def __del__(self) -> None:
        if self.rows is not None:
            self.rows.close()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The paths of a file of records and of a database."""
    path, base = tmp_path / "records", tmp_path / "base"
    path.write_bytes(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).numpy().tobytes())
    rows = sqlite3.connect(base)
    rows.execute("create table numbers (id integer primary key, value real)")
    rows.executemany("insert into numbers values (?, ?)", [(index, index / ROWS) for index in range(ROWS)])
    rows.commit()
    rows.close()
    return path, base


def train(data: argosy.Data, directory: Path, **settings: Any) -> argosy.Report:
    study = studies.study(data=data, fleet=[studies.member(batch_size=16)], epochs=2)
    return argosy.train(study, directory=directory, devices="cpu:1", block_size=32, **settings)


@pytest.mark.parametrize("at_once", [False, True])
def test_each_loader_worker_has_its_own_place_in_files(
    tmp_path: Path, files: tuple[Path, Path], *, at_once: bool
) -> None:
    path, base = files
    if at_once:
        train_, val = partial(Records, path, at_once=True), partial(Table, base, at_once=True)
    else:
        train_, val = Records(path, at_once=False), Table(base, at_once=False)
    for name, settings in {"forked": {"loader_workers": 3}, "inline": {"launcher": "inline"}}.items():
        train(argosy.Data(train=train_, val=val), tmp_path / name, **settings)
    assert evidence.results(tmp_path / "forked") == evidence.results(tmp_path / "inline")
    log = (tmp_path / "forked" / "workers" / "feeder-0.log").read_text()
    assert f"not usable in a fork: {base}, {path}, reader_0. Each loader worker opens its own." in log


class Fickle(Records):
    """A dataset with an open file and different samples in each process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, at_once=True)
        self.places = [os.getpid() % ROWS] * ROWS


def test_a_dataset_that_is_another_one_in_each_worker_is_refused(tmp_path: Path, files: tuple[Path, Path]) -> None:
    data = argosy.Data(train=partial(Fickle, files[0]))
    with pytest.raises(StudyError, match=r"^Data\.train: Fickle differs each time it is opened .* sort listed files"):
        train(data, tmp_path / "run", loader_workers=1)


class Ending(studies.Vectors):
    """A dataset whose first sample ends the process."""

    def __getitem__(self, index: int) -> Any:
        os._exit(3)


def test_a_dataset_that_ends_its_process_while_it_is_probed_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"'feeder-10' was lost \(.* while preparing sample 0 of train\)"):
        train(argosy.Data(train=Ending(30)), tmp_path / "run", loader_workers=1)


def test_a_spare_that_is_killed_in_its_feeders_place_ends_that_the_same_way() -> None:
    """If the spare that replaces a feeder is killed, the feeder's process ends with the same signal.

    From that signal, users are told whether memory ran out.
    """
    pid = os.fork()
    if pid == 0:
        spare, word = standby._Standby.fork()
        if word is None:
            spare.take_over({}, lambda: None)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("package", ["blosc2", "duckdb", "polars", "tensorstore"])
def test_threads_that_a_package_has_started_are_not_usable_in_a_fork(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lock.acquire, ())  # unknown to `threading`, as those of Polars
    try:
        assert f"the threads of {package}" in standby.list_unforkable()
    finally:
        lock.release()
