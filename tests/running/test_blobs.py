"""Tests of what is sent to workers: they share one copy of arrays and tensors, files are sent by name, and open handles are refused."""

import contextlib
import os
import pickle
import resource
import sqlite3
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
import studies
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.data import Dataset

import argosy
from argosy.errors import DiskError, StudyError
from argosy.running.launch import worker
from argosy.running.launch.blobs import load_blob, make_blobs, write_blob, write_data_blob
from argosy.running.launch.launcher import Job
from argosy.settings import Settings

MB = 2**20


def there_and_back(value: Any) -> Any:
    descriptor = write_blob(value, "a value")
    try:
        return load_blob(descriptor)
    finally:
        os.close(descriptor)


# torch 2.11 says so of the first sparse tensor of a process.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_arrays_and_tensors_arrive_as_they_were() -> None:
    x = np.arange(24.0).reshape(4, 6)
    arrays = {"c": x, "f": np.asfortranarray(x), "part": x[1::2, ::-1], "none": x[:0], "one": np.float32(3)}
    arrays |= {"words": np.array(["a", "bc"]), "objects": np.array([{1}, None], dtype=object)}
    for name, found in there_and_back(arrays).items():
        assert (found.dtype, found.shape) == (arrays[name].dtype, arrays[name].shape)
        assert np.array_equal(found, arrays[name])
    t = torch.arange(24.0).reshape(4, 6)
    tensors = [t, t.t(), t[::2], t.bfloat16(), t > 3, torch.complex(t, t).conj(), t[0, 0], t[:0]]
    tensors += [t.clone().requires_grad_(), nn.Parameter(t), torch.zeros(1).expand(10**9), t.to_sparse()]
    for tensor, found in zip(tensors, there_and_back(tensors), strict=True):
        assert (type(found), found.dtype, found.requires_grad) == (type(tensor), tensor.dtype, tensor.requires_grad)
        assert found.shape == tensor.shape
        if tensor.layout == torch.strided and tensor.numel() < 100:
            assert torch.equal(found, tensor)
            found.detach().zero_()
    assert x[1, 1] == t[1, 1] == 7.0


@pytest.mark.parametrize("name", ["settings_of_mine", "mine_alone.settings", "__mp_main__"])
def test_a_module_that_was_loaded_from_a_path_travels_with_its_classes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes the script of a process spawned by multiprocessing, and test modules as pytest may import them."""
    (tmp_path / "settings.py").write_text("class Net: width = 3\n")
    spec = spec_from_file_location(name, tmp_path / "settings.py")
    assert spec is not None
    module = module_from_spec(spec)
    package = ModuleType("mine_alone")
    package.__path__ = [str(tmp_path)]
    with monkeypatch.context() as here:
        here.setitem(sys.modules, "mine_alone", package)
        here.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        descriptor = write_blob(module.Net, "a class")
    cloudpickle.unregister_pickle_by_value(module)
    assert load_blob(descriptor).width == 3
    os.close(descriptor)


def test_a_function_that_names_a_module_which_no_import_finds_travels() -> None:
    decorated = once_differentiable(lambda context, gradient: 2 * gradient)
    assert there_and_back(decorated)(None, 3.0) == 6.0
    assert there_and_back(torch._C._functions) is torch._C._functions


def test_a_module_made_by_code_travels_whole_also_as_an_attribute_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made, inner = ModuleType("made"), ModuleType("made.inner")
    vars(inner)["x"], vars(made)["inner"] = 2, inner
    monkeypatch.setitem(sys.modules, "made", made)
    assert there_and_back(inner).x == 2
    assert there_and_back(inner) is not inner  # a worker has no module of the name of its parent


def test_a_memory_map_travels_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10_000.0).reshape(1000, 10))
    whole = np.load(path, mmap_mode="r")
    for array in (whole, whole[700:], np.load(path, mmap_mode="c"), whole[::2]):
        found = there_and_back(array)
        assert np.array_equal(found, array)
    assert str(there_and_back(whole[700:]).filename) == str(whole.filename)
    own = np.load(path, mmap_mode="c")
    own[0] = -1.0
    assert there_and_back(own)[0, 0] == -1.0


def rewritten(path: Path) -> None:
    np.save(path, -np.load(path))


def replaced(path: Path) -> None:
    np.save(path.with_name("new.npy"), -np.load(path))
    path.with_name("new.npy").rename(path)


def put_back(path: Path) -> None:
    found = path.stat()
    rewritten(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def deleted(path: Path) -> None:
    path.unlink()


def linked_elsewhere(path: Path) -> None:
    path.rename(path.with_name("old.npy"))
    np.save(path.with_name("other.npy"), np.zeros((1000, 10)))
    path.symlink_to(path.with_name("other.npy"))


@pytest.mark.parametrize("happens", [replaced, deleted, linked_elsewhere, rewritten])
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_map_whose_file_is_another_one_travels_with_its_own_numbers(happens: Any, mode: Any, tmp_path: Path) -> None:
    """The values of the given map arrive, whole, in part, copied or as an attribute; after a rewrite in place these are the file's."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10_000.0).reshape(1000, 10))
    whole = np.load(path, mmap_mode=mode)
    if mode == "c":
        whole[5] = 7.0
    happens(path)
    arrays = [whole, whole[700:], whole[::2], whole.view(np.ndarray), whole.reshape(-1)]
    for array, found in zip(arrays, there_and_back(arrays), strict=True):
        assert np.array_equal(found, array)
    assert torch.equal(there_and_back(torch.from_numpy(np.asarray(whole).copy())), torch.from_numpy(np.array(whole)))
    rows = there_and_back(Rows(whole))
    assert np.array_equal(rows.x, whole)


def test_a_tensor_of_a_file_travels_with_its_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.arange(1000.0).tofile(path)
    tensor = torch.from_file(str(path), shared=True, size=1000, dtype=torch.float64)
    path.unlink()
    np.zeros(1000).tofile(path)
    assert torch.equal(there_and_back(tensor), torch.arange(1000.0, dtype=torch.float64))


def test_a_map_whose_file_was_cut_is_refused_where_its_numbers_would_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10_000.0).reshape(1000, 10))
    whole = np.load(path, mmap_mode="r")
    os.truncate(path, 500)
    with pytest.raises(
        StudyError, match=r"x.npy has 500 bytes, but an array of Data maps 80128 bytes of it: it was truncated"
    ):
        write_data_blob(argosy.Data(arrays=(whole,)))


class Rows(Dataset[Any]):
    """A dataset whose samples are views of an array."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.x[index]), index % 10


class Copied(Rows):
    """A dataset whose samples are copies, because a read-only map gives no writable views."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.x[index]), index % 10


@dataclass(frozen=True, slots=True)
class Happens:
    """A metric that calls `what` on a file in the second epoch of the run."""

    what: Any
    path: Path
    calls: list[int] = field(default_factory=list)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls.append(1)
        if len(self.calls) == 3:
            self.what(self.path)
        return torch.zeros(len(target))


@pytest.mark.parametrize("launcher", ["inline", "processes"])
@pytest.mark.parametrize("held", ["arrays", "attribute", "factory"])
@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (rewritten, "it was written to at"),
        (put_back, "its data or its attributes were changed at"),
        (replaced, "another file has its name"),
        (deleted, "it is gone"),
    ],
)
def test_a_file_that_changes_while_the_run_goes_on_ends_it(
    launcher: str, held: str, happens: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).normal(size=(400, 12)).astype(np.float32))
    x, y = np.load(path, mmap_mode="r"), torch.arange(400) % 10
    given: dict[str, Any] = {"train": Copied(x)} if held == "attribute" else {"arrays": (x, y)}
    given = {"train": lambda: Copied(np.load(path, mmap_mode="r"))} if held == "factory" else given
    fleet = [studies.member(metrics={"happens": Happens(happens, path)}, eval_batch_size=40)]
    data = argosy.Data(**given, val_arrays=(torch.zeros(40, 12), torch.zeros(40).long()))
    study = studies.study(data=data, fleet=fleet, stop=studies.Unsure(200))
    with pytest.raises(StudyError, match=rf"x.npy changed during the run: {words}"):
        argosy.train(study, directory=tmp_path / "run", launcher=launcher, devices="cpu:1", loader_workers=1)


class Held(Dataset[Any]):
    """A dataset with a nested attribute that only this process can use."""

    def __init__(self, held: Any) -> None:
        self.held = SimpleNamespace(deep=[held])

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2), 0


def test_data_that_hold_files_or_connections_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("a\nb\n")
    with path.open() as text, path.open("rb") as binary, contextlib.closing(sqlite3.connect(":memory:")) as base:
        for held, word in ((text, "an open file, '.*text'"), (binary, "BufferedReader"), (base, "Connection")):
            with pytest.raises(StudyError, match=rf"^Data\.train \(Held\) cannot .*{word}.*Data\(train=lambda: Held\("):
                write_data_blob(argosy.Data(train=Held(held)))
            with pytest.raises(StudyError, match=r"^Data\.val \(Held\) cannot .*Data\(val=lambda: Held\("):
                write_data_blob(argosy.Data(train=Held(0), val=Held(held)))


class Glance(nn.Module):
    """A network that uses only the first 12 bytes of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = studies.Mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, :12].float())


def weigh(path: Path, output: Tensor, target: Tensor) -> Tensor:
    """Write down how many MB of data the run's processes hold: blobs, copies of them, and large allocations outside trainers."""
    blobs, copies = {}, 0.0
    for process in psutil.Process().parent().children(recursive=True):
        for opened in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "argosy-blob" in str(opened.readlink()):
                    blobs[opened.stat().st_ino] = opened.stat().st_blocks * 512
        for region in process.memory_maps(grouped=False):
            if "argosy-blob" in region.path:
                copies += region.anonymous
            elif region.path in ("", "[anon]") and region.size > 50 * MB and process.name() != "argosy-trainer":
                copies += region.pss
    path.write_text(str((sum(blobs.values()) + copies) / MB))
    return torch.zeros(len(target))


def test_memory_that_the_system_refuses_is_not_blamed_on_the_data() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(DiskError, match=r"sent to other processes: .*File too large.*ulimit -f unlimited"):
            write_data_blob(argosy.Data(arrays=(np.zeros((100, 10)),)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.fresh
def test_data_in_memory_are_there_once_beside_the_caller_s_own(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 255, (1024, 64 * 1024), dtype=np.uint8)
    own = torch.from_numpy(numbers[::-1].copy())
    data = argosy.Data(train=Rows(numbers), val_arrays=(own, torch.arange(1024) % 10))
    metrics = {"weight": partial(weigh, tmp_path / "MB")}
    fleet = [studies.member(model=Glance, metrics=metrics, batch_size=32, eval_batch_size=128)]
    study = studies.study(data=data, fleet=fleet, epochs=1)
    argosy.train(study, directory=tmp_path / "run", devices="cpu:2", loader_workers=2, block_size=64)
    assert 128 <= float((tmp_path / "MB").read_text()) < 1.1 * 128


def test_what_is_refused_leaves_no_copy_of_the_data_behind(tmp_path: Path) -> None:
    """Otherwise every attempt in a notebook would keep another copy."""
    lock = threading.Lock()
    data = argosy.Data(arrays=(torch.zeros(4, 3),), on_device=lambda batch: batch if lock else None)
    job = Job(study=studies.study(data=data), settings=Settings(), directory=tmp_path, lock=-1)
    before = psutil.Process().num_fds()
    with pytest.raises(StudyError, match=r"Data\.on_device cannot be sent"):
        make_blobs(job)
    assert psutil.Process().num_fds() == before


class Index:
    """An object that reads a truncated file when it is unpickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {"path": os.devnull}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pickle.loads(Path(state["path"]).read_bytes())


def test_a_file_that_ends_too_early_for_what_is_unpacked_is_not_the_drivers_end() -> None:
    descriptor = write_blob(Index(), "a value")
    try:
        with pytest.raises(RuntimeError, match="EOFError: Ran out of input"):
            worker._unpack(descriptor)
    finally:
        os.close(descriptor)
