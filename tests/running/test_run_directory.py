"""Tests the directory of a run: its owner and permissions, its lock, and what happens if it cannot be written or is removed."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import evidence
import pytest
import studies
from disks import fill_up
from family import COMMAND, Run, study_file

import argosy
from argosy.disk import settled
from argosy.disk.files import open_append_descriptor
from argosy.errors import DiskError, RunError
from argosy.protocol.events import Checkpoint
from argosy.results.fold import MemberState
from argosy.running.control.resume import settle_files
from argosy.running.directory import audit as audit_of
from argosy.running.directory.anew import set_run_aside
from argosy.running.directory.lock import Lock
from argosy.stream.order import split_order


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_its_users_alone(tmp_path: Path) -> None:
    argosy.train(
        studies.study(epochs=1, fleet=[studies.member()]), directory=tmp_path / "runs" / "a", launcher="inline"
    )
    assert mode(tmp_path / "runs" / "a") == 0o700
    assert mode(tmp_path / "runs" / "a" / "run.lock") == 0o600


def test_that_of_another_user_is_refused_and_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to somebody else")
    directory = tmp_path / "theirs"
    directory.mkdir()
    os.chown(directory, 12345, -1)
    with pytest.raises(
        RunError, match=r"theirs belongs to user 12345, who could .*; this process runs as user 0\. Choose another"
    ):
        argosy.train(studies.study(), directory=directory, launcher="inline")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("where", ["file", "file/below", "n" * 300, "/proc/runs"])
def test_where_none_can_be_made_a_sentence_says_so(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"cannot be used as a run directory: .*\. Choose another one\."):
        argosy.train(studies.study(), directory=tmp_path / where, launcher="inline")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def read_only(small_disk: Path) -> Iterator[Path]:
    """A file system that is mounted read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    yield small_disk


def test_a_disk_that_cannot_be_written_is_named(read_only: Path) -> None:
    with pytest.raises(
        DiskError, match=r"Read-only file system.*Mount the disk as writable, or choose another directory"
    ):
        argosy.train(studies.study(), directory=read_only, launcher="inline")
    with pytest.raises(RunError, match=r"Read-only file system.*Choose another one"):
        argosy.train(studies.study(), directory=read_only / "below", launcher="inline")


def test_a_disk_that_is_full_at_the_start_is_named(small_disk: Path) -> None:
    filling = fill_up(small_disk)
    with pytest.raises(
        DiskError, match=r"No space left on device.*Free disk space; the same command resumes the run\."
    ):
        argosy.train(studies.study(fleet=[studies.member()]), directory=small_disk / "run", launcher="inline")
    filling.unlink()
    report = argosy.train(studies.study(fleet=[studies.member()]), directory=small_disk / "run", launcher="inline")
    assert report.status == "done"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(
        RunError, match=rf"on a file system that refuses locks \(\[Errno {number}\].*mount this one with locks"
    ):
        argosy.train(studies.study(), directory=tmp_path, launcher="inline")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_symbolic_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(RunError, match=r"on a file system without symbolic links .*Choose a directory on another disk"):
        argosy.train(studies.study(), directory=tmp_path, launcher="inline")
    assert not list(tmp_path.glob(".run.lock*"))


def test_a_finished_run_is_read_and_set_aside_although_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.study(epochs=1)
    argosy.train(study, directory=tmp_path / "run", launcher="inline")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "symlink", refuse)
    assert argosy.train(study, directory=tmp_path / "run", launcher="inline").status == "done"
    assert set_run_aside(tmp_path / "run") == tmp_path / "run.old-1"


def test_a_file_system_that_flushes_no_folders_takes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def flush_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush_files)
    report = argosy.train(studies.study(epochs=1), directory=tmp_path, launcher="inline")
    assert report.status == "done"


def test_a_clock_that_is_set_makes_no_stranger_of_a_driver(tmp_path: Path) -> None:
    """The lock identifies its holder by values that do not change when the clock is set."""
    with Lock(tmp_path / "run.lock"):
        pid, _, begun = (tmp_path / "run.lock").read_text().split()
    assert int(pid) == os.getpid()
    assert begun == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def test_a_lock_is_that_of_the_directory_which_is_there_when_it_is_taken(tmp_path: Path) -> None:
    """A lock is taken in the new directory if its holder meanwhile moved the old one aside and started afresh."""
    run = tmp_path / "run"
    run.mkdir()
    descriptor = open_append_descriptor(run / "run.lock")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        lock = pool.submit(Lock(run / "run.lock").__enter__)
        time.sleep(0.2)
        run.rename(tmp_path / "run.old-1")
        run.mkdir()
        os.close(descriptor)
        taken = lock.result()
    assert str(os.getpid()) in (run / "run.lock").read_text()
    assert (tmp_path / "run.old-1" / "run.lock").read_text() == ""
    taken.__exit__()


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_another_command_has_set_aside_is_not_moved_again(tmp_path: Path, begun: bool) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "journal.jsonl").touch()
    descriptor = open_append_descriptor(run / "run.lock")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(set_run_aside, run)
        time.sleep(0.2)
        run.rename(tmp_path / "run.old-1")
        if begun:
            run.mkdir()
        os.close(descriptor)
        assert moved.result() is None
    assert run.exists() == begun
    assert not (tmp_path / "run.old-2").exists()


class Starting(studies.Vectors):
    """Samples of which one starts a program that outlives the run."""

    def __init__(self, length: int, note: Path) -> None:
        super().__init__(length)
        self.note = note

    def __getitem__(self, index: int):
        if index == 17 and not self.note.exists():
            self.note.write_text(str(subprocess.Popen(["sleep", "600"], close_fds=False).pid))
        return super().__getitem__(index)


def test_files_are_settled_where_one_was_saved_twice(tmp_path: Path) -> None:
    """Settling accepts a file that was saved twice, as when a section is trained again after a device was lost, and updates the links."""
    member, folder = MemberState("m"), tmp_path / "members" / "m"
    folder.mkdir(parents=True)
    for position in (5, 8, 5, 16, 24):
        file = folder / f"e0000-s{position}.pt"
        file.touch()
        member.saved.append(Checkpoint(file=file.name, sha256="", epoch=0, section=0, position=position))
    settle_files(member, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"last.pt", "e0000-s16.pt", "e0000-s24.pt"}
    assert (folder / "last.pt").readlink() == Path("e0000-s24.pt")


def test_programs_that_a_dataset_starts_do_not_hold_the_lock(tmp_path: Path) -> None:
    data = argosy.Data(train=Starting(60, tmp_path / "pid"))
    fleet = [studies.member()]
    settings = {"directory": tmp_path / "run", "devices": "cpu:1", "loader_workers": 1}
    argosy.train(studies.study(data=data, fleet=fleet, epochs=1, objective="train_loss"), **settings)
    pid = int((tmp_path / "pid").read_text())
    try:
        held = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(
                FileNotFoundError
            ):  # the loader of a program that is just starting closes its files again
                held.append(link.readlink())
        assert not [path for path in held if tmp_path in path.parents and path.name != "feeder-0.log"]
        with Lock(tmp_path / "run" / "run.lock"):
            pass
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_leading_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not expand ``--dir=~/run``, and whoever deletes a directory named ``~`` easily deletes their home instead."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    argosy.train(studies.study(epochs=1), directory="~/run", launcher="inline", quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert argosy.load("~/run").table() == argosy.load(tmp_path / "home" / "run").table()


def test_a_run_whose_directory_is_removed_ends_with_a_sentence(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = Run(directory, COMMAND, settings=study_file(tmp_path, 50))
    run.wait_for("SectionEnded", 2)
    shutil.rmtree(directory, ignore_errors=True)
    assert run.end(60) == 1
    assert run.left() == []
    (line,) = [line for line in run.errors.splitlines() if "Error" in line]
    assert line.startswith("DiskError: ")
    assert "It was removed" in run.errors
    assert "Traceback" not in run.errors


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_refusals_of_a_checkpoint_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    advice = {errno.ENOSPC: "Free disk space", errno.EIO: "The disk is failing", errno.EMFILE: "ulimit -n"}[number]
    argosy.train(studies.study(epochs=1), directory=tmp_path, launcher="inline")
    before = evidence.results(tmp_path)
    monkeypatch.setattr(settled, "_flush_each", refuse)
    with pytest.raises(
        argosy.ArgosyError, match=rf"the checkpoint before it is untouched: \[Errno {number}\].*{advice}"
    ):
        argosy.train(studies.study(epochs=2), directory=tmp_path, launcher="inline")
    after = evidence.results(tmp_path)
    assert {name: found["weights"] for name, found in after.items()} == {
        name: found["weights"] for name, found in before.items()
    }


def test_the_order_of_an_epoch_is_computed_once_for_all_members_and_sections_that_an_audit_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = [studies.member(name, batch_size=size) for name, size in (("a", 7), ("b", 20), ("c", 20))]
    fleet.append(studies.member("fold", subset=range(40)))
    study = studies.study(90, val=11, fleet=fleet, epochs=2, validations_per_epoch=3)
    argosy.train(study, directory=tmp_path, launcher="inline")
    orders = Counter[tuple[str, int]]()

    def counted(seed: int, split: str, epoch: int, *rest: Any) -> Any:
        orders[split, epoch] += 1
        return split_order(seed, split, epoch, *rest)

    monkeypatch.setattr(audit_of, "split_order", counted)
    assert audit_of.audit(tmp_path) == []
    assert orders == {("train", 0): 3, ("train", 1): 2, ("val", 0): 1, ("val", 1): 1}, (
        "orders were computed once per member or section instead of once per subset and batch size"
    )


@pytest.mark.tampers
def test_the_first_section_that_is_missing_is_named_and_not_all_others(tmp_path: Path) -> None:
    study = studies.study(fleet=[studies.member("a")], epochs=4)
    argosy.train(study, directory=tmp_path, launcher="inline")
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    second = [line for line in lines if '"SectionEnded"' in line][1]
    journal.write_text("".join(line for line in lines if line != second))
    found = audit_of.audit(tmp_path)[0]
    assert found == "a: the journal has section 2 where section 1 belongs; some are missing"
    with pytest.raises(RunError, match="lacks section 2 of member 'a', although a later one is there"):
        argosy.load(tmp_path)
    with pytest.raises(RunError, match="lacks section 2 of member 'a'"):
        argosy.train(study, directory=tmp_path, launcher="inline")
