"""Tests that the checkpoints of an assignment are written together, all or none, as plain data without duplicates."""

import copy
import errno
import os
import resource
import time
import warnings
import zipfile
from collections import Counter, OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pytest
import torch
from torch import nn

from argosy.disk.files import sha256_of
from argosy.errors import ArgosyError, CheckpointError, DiskError, RunError, WorkerError
from argosy.protocol.events import Checkpoint
from argosy.training.member import checkpoint
from argosy.training.member.checkpoint import to_plain
from argosy.training.member.files import Draft, Files, Saving


def state(number: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((3, 2), float(number))}, "epoch": number}


def all_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_a_assignment_is_saved_together(tmp_path: Path, count: int) -> None:
    paths = [tmp_path / f"m{number}" / "e0001.pt" for number in range(count)]
    for path in paths:
        path.parent.mkdir()
    sums = checkpoint.save_all([(state(number), path) for number, path in enumerate(paths)])
    assert sums == [sha256_of(path) for path in paths]
    for number, (path, digest) in enumerate(zip(paths, sums, strict=True)):
        assert evidence.fingerprint(checkpoint.load(path, digest)) == evidence.fingerprint(state(number))
    assert len(all_files(tmp_path)) == count


def test_where_one_file_cannot_be_written_nothing_changes(tmp_path: Path) -> None:
    paths = [tmp_path / name / "e0001.pt" for name in ("a", "b", "missing", "c")]
    for path in paths:
        if path.parent.name != "missing":
            path.parent.mkdir()
    before = checkpoint.save(state(7), paths[0])
    with pytest.raises(DiskError, match=r"missing/e0001\.pt"):
        checkpoint.save_all([(state(number), path) for number, path in enumerate(paths)])
    assert all_files(tmp_path) == {"a/e0001.pt"}
    assert sha256_of(paths[0]) == before


class Tied(nn.Module):
    """A network with two names for a view, two layers that share a weight, and parameters that are views of one flat tensor."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(20_000)
        self.first, self.second = nn.Parameter(flat[:10_000].view(100, 100)), nn.Parameter(flat[10_000:])
        self.again = self.first
        self.inner = nn.Linear(100, 100, bias=False)
        self.outer = nn.Linear(100, 100, bias=False)
        self.outer.weight = self.inner.weight


@pytest.mark.parametrize("host", [False, True])
def test_what_is_one_and_the_same_is_saved_once(tmp_path: Path, host: bool) -> None:
    model, other = Tied(), Tied()
    checkpoint.save({"model": to_plain(model.state_dict(), host=host)}, tmp_path / "tied.pt")
    assert (tmp_path / "tied.pt").stat().st_size < 30_000 * 4 + 5_000
    other.load_state_dict(checkpoint.load(tmp_path / "tied.pt")["model"])
    assert evidence.fingerprint(other.state_dict()) == evidence.fingerprint(model.state_dict())
    assert other.again is other.first


def test_a_view_is_saved_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    big = torch.randn(100_000)
    checkpoint.save(to_plain({"row": big[5:9], "column": big.view(100, 1000)[:, 3]}), tmp_path / "view.pt")
    assert (tmp_path / "view.pt").stat().st_size < 5_000
    loaded = checkpoint.load(tmp_path / "view.pt")
    assert torch.equal(loaded["row"], big[5:9])
    assert torch.equal(loaded["column"], big.view(100, 1000)[:, 3])


def test_copies_for_the_host_do_not_change_with_the_model() -> None:
    model = Tied()
    kept = to_plain(model.state_dict(), host=True)
    before = evidence.fingerprint(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert evidence.fingerprint(kept) == before != evidence.fingerprint(model.state_dict())


@pytest.mark.parametrize("state", [{"weights": torch.ones(2)}, [1, 2]])
def test_a_file_without_the_wanted_entry_is_refused(tmp_path: Path, state: Any) -> None:
    checkpoint.save(to_plain(state), tmp_path / "other.pt")
    assert checkpoint.load(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"other.pt has no entry 'model'; it has ('weights'|list)"):
        checkpoint.load(tmp_path / "other.pt", key="model")


def test_plain_values_open_without_code(tmp_path: Path) -> None:
    point = namedtuple("point", "x y")
    value = {"a": np.float64(1.5), "b": np.arange(3), "c": point(1, [2.0, None]), 4: {"d", "e"}, "e": (True, "x", b"y")}
    value |= {"f": Counter([3, 3]), "g": OrderedDict(a=1)}
    checkpoint.save(to_plain(value), tmp_path / "plain.pt")
    loaded = checkpoint.load(tmp_path / "plain.pt")
    assert torch.equal(loaded.pop("b"), torch.arange(3))
    kept = {"f": loaded.pop("f"), "g": loaded.pop("g")}
    assert (kept, [*map(type, kept.values())]) == ({"f": {3: 2}, "g": {"a": 1}}, [Counter, OrderedDict])
    assert loaded == {"a": 1.5, "c": (1, [2.0, None]), 4: {"d", "e"}, "e": (True, "x", b"y")}


def test_what_torch_warns_of_when_it_reads_a_file_is_no_damage(tmp_path: Path) -> None:
    """Sparse tensors from torch 2.14 on, and this protocol in all versions."""
    torch.save({"edges": torch.eye(3).to_sparse()}, tmp_path / "one.pt", pickle_protocol=3)
    assert checkpoint.load(tmp_path / "one.pt")["edges"].to_dense().equal(torch.eye(3))


def test_reading_in_several_threads_leaves_the_filters_of_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save({"a": 1}, tmp_path / "one.pt")
    read, before, seconds = torch.load, list(warnings.filters), iter((0.1, 0.2))

    def slow(*arguments: Any, **keywords: Any) -> Any:
        time.sleep(next(seconds))  # the thread that begins first also ends first
        return read(*arguments, **keywords)

    monkeypatch.setattr(torch, "load", slow)
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(checkpoint.load, [tmp_path / "one.pt"] * 2)] == [{"a": 1}] * 2
    assert warnings.filters == before


def test_what_could_not_be_opened_again_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"state\['optimizer'\]\[1\]\['hook'\] is a builtins\.function"):
        to_plain({"optimizer": [1, {"hook": lambda: None}]})


class Norm(IntEnum):
    """A number that can be restored only with its class."""

    SIGN = 1


def test_a_number_of_a_class_of_its_own_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"state\['schedule'\]\['norm'\] is a test_checkpoint\.Norm; "):
        to_plain({"schedule": {"norm": Norm.SIGN}})


def test_links_and_files_that_stay(tmp_path: Path) -> None:
    for name in ("e0000.pt", "e0001.pt", "e0002.pt", ".e0003.pt.17"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "log.txt").write_text("")
    for name in ("e0001.pt", "e0002.pt"):
        checkpoint.link(tmp_path / "last.pt", name)
    checkpoint.keep_newest(tmp_path, {"e0001.pt", "e0002.pt"})
    assert {path.name for path in tmp_path.iterdir()} == {"e0001.pt", "e0002.pt", "last.pt", "log.txt"}
    assert (tmp_path / "last.pt").resolve().name == "e0002.pt"


@pytest.mark.parametrize(
    ("number", "error", "advice"),
    [(errno.EMFILE, WorkerError, "ulimit -n 4096"), (errno.EIO, DiskError, "The disk is failing")],
)
def test_a_file_that_the_system_refuses_to_read_is_not_said_to_be_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[ArgosyError], advice: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    checkpoint.save(state(1), tmp_path / "last.pt")
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(error, match=f"last.pt cannot be read: .*{advice}"):
        checkpoint.load(tmp_path / "last.pt")


def packed(path: Path) -> None:
    """Rewrite a checkpoint with compressed entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


def test_a_small_file_that_unpacks_to_a_large_state_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "e0001.pt"
    checkpoint.save({"w": torch.zeros(2**26)}, path)
    packed(path)
    size, before = path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert size < 2**19
    began = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"has 25\d\.\d KiB and would unpack to 256\.0 MiB\. Argosy writes no such .* refused"
    ):
        checkpoint.load(path)
    assert time.monotonic() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_entries_that_lie_over_each_other_count_each(tmp_path: Path) -> None:
    path = tmp_path / "e0001.pt"
    checkpoint.save({"w": torch.zeros(2**16)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        (entry,) = (one for one in archive.infolist() if one.filename.endswith("data/0"))
        archive.filelist += [copy.copy(entry) for _ in range(50)]
        archive._didModify = True  # type: ignore[attr-defined]  # writes its list of entries again
    with pytest.raises(CheckpointError, match=r"would unpack to 12\.\d MiB"):
        checkpoint.load(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_what_is_not_written_as_checkpoints_are_is_refused(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "e0001.pt"
    if legacy:
        torch.save({"w": torch.zeros(4)}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(b"PK\x05\x06" + b"\x00" * 18)
    with pytest.raises(CheckpointError, match="cannot be opened as plain data and is refused"):
        checkpoint.load(path)


def test_a_link_out_of_its_folder_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    checkpoint.save({"w": torch.zeros(4)}, tmp_path / "outside.pt")
    checkpoint.save({"w": torch.zeros(4)}, tmp_path / "one" / "e0001.pt")
    checkpoint.link(tmp_path / "one" / "last.pt", "e0001.pt")
    assert checkpoint.load(tmp_path / "one" / "last.pt")["w"].tolist() == [0.0] * 4
    for target in ("../outside.pt", tmp_path / "outside.pt"):
        (tmp_path / "one" / "e0002.pt").symlink_to(target)
        for sha256 in (None, "0" * 64):
            with pytest.raises(RunError, match="is a symbolic link"):
                checkpoint.load(tmp_path / "one" / "e0002.pt", sha256)
        (tmp_path / "one" / "e0002.pt").unlink()


@pytest.mark.parametrize(
    ("second", "count"),
    [
        (state(2), 1),
        ({**state(2), "extra": 1}, 2),
        ({**state(2), "epoch": 2.0}, 2),
        ({**state(2), "model": {"weight": torch.zeros(3, 2, dtype=torch.float64)}}, 2),
    ],
)
def test_a_first_file_is_read_back_unless_one_like_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any], count: int
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(checkpoint, "load", lambda path, sha256: read.append(path))
    saving = Saving(checkpoint_seconds=5.0)
    for name, of in {"a": state(1), "b": second}.items():
        files = Files(tmp_path / name, None)
        draft = Draft(
            Checkpoint(file="e0001.pt", sha256="", epoch=1, section=0, position=0), [(of, tmp_path / name / "e0001.pt")]
        )
        for _, save in saving.write({name: (files, draft)}):
            save()
    assert len(read) == count


def test_a_state_that_may_not_be_readable_has_the_form_of_no_other() -> None:
    for odd in ({Norm.SIGN: 1}, {"edges": torch.eye(3).to_sparse()}, {"text": b""}, {"seen": 1 << 2040}):
        assert checkpoint.form_of(odd) != checkpoint.form_of(odd)
