"""Tests that resources refused by the system (descriptors, memory, a home directory) are reported in one sentence or do no harm."""

import errno
import os
import re
import resource
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import pytest
import studies
from family import SCRIPT, Run

import argosy
from argosy.disk.cached import cache_folder
from argosy.errors import DiskError, WorkerError
from argosy.errors.system import disk_refused, explain_refusals, resources_refused, system_refused
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # the tests check the reports instead

ADVICE = {
    errno.EMFILE: "ulimit -n 4096",
    errno.ENFILE: "fs.file-max",
    errno.ENOMEM: "Memory has run out",
    errno.EAGAIN: "ulimit -u",
}


@pytest.mark.parametrize("number", ADVICE)
def test_means_are_told_apart(number: int) -> None:
    told = resources_refused(OSError(number, os.strerror(number)), "feeder-0")
    assert isinstance(told, WorkerError)
    assert str(told).startswith(f"feeder-0: [Errno {number}]")
    assert ADVICE[number] in str(told)
    assert str(told).endswith("the same command resumes the run.")


def test_a_refusal_is_told_once_and_what_is_somebodys_own_passes(tmp_path: Path) -> None:
    told = [
        (MemoryError(), WorkerError, "no memory. Memory has run out"),
        (
            RuntimeError("can't start new thread"),
            WorkerError,
            "can't start new thread. No more.*threads.*ulimit -u.*-v",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), DiskError, "Free disk space"),
        (OSError(errno.ENAMETOOLONG, "File name too long"), DiskError, "Choose a shorter name"),
        (OSError(errno.EIO, "Input/output error", str(tmp_path / "x")), DiskError, "The disk is failing"),
        (PermissionError(errno.EACCES, "no", str(tmp_path / "x")), DiskError, "Grant yourself access there"),
    ]
    for error, kind, words in told:
        with pytest.raises(kind, match=words), explain_refusals(tmp_path):
            raise error
    for error in (
        FileNotFoundError(errno.ENOENT, "no such file", "/data"),
        PermissionError(errno.EACCES, "no", "/data"),
    ):
        with pytest.raises(type(error), match="/data"), explain_refusals(tmp_path):
            raise error
    assert "Check the disk" in str(disk_refused(RuntimeError("?"), "cannot write"))
    nowhere = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert "Set TMPDIR to a folder" in str(system_refused(nowhere, "argosy cannot continue"))
    assert system_refused(FileNotFoundError("download the weights first"), "the study cannot be sent") is None


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
"""


def test_256_open_files_are_enough(tmp_path: Path) -> None:
    settings = 'devices="cpu:4", loader_workers=4'
    run = Run(tmp_path, LIMITED + SCRIPT, settings=settings, length=140, epochs=1)
    assert run.end() == 0, run.errors


def test_refused_memory_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    study = studies.study(fleet=[studies.member()])
    with pytest.raises(WorkerError, match=r"memfd_create is refused: .*seccomp=unconfined.*launcher inline"):
        argosy.train(study, directory=tmp_path, devices="cpu:1")
    assert argosy.train(study, directory=tmp_path, devices="cpu:1", launcher="inline").status == "done"


def test_a_member_that_raises_what_it_could_open_ends_alone(tmp_path: Path) -> None:
    """An `EMFILE` raised by a member while its process can still open files is that member's own failure; the others train on."""
    fleet = [studies.member("plain"), studies.member("greedy", augment=partial(open_many, tmp_path / "enough"))]
    train = partial(
        argosy.train, studies.study(fleet=fleet), directory=tmp_path / "run", launcher="inline", devices="cpu:1"
    )
    assert {row.name: row.status for row in train().rows} == {"plain": "done", "greedy": "failed"}
    (tmp_path / "enough").touch()
    assert {row.status for row in train(retry_failed=True).rows} == {"done"}


class Leaks:
    """An augmentation that leaves `each` files open per batch: until it is deleted itself, or for good in a list of the class."""

    kept: list[Any] = []  # noqa: RUF012

    def __init__(self, *, each: int, good: bool) -> None:
        self.files, self.each = self.kept if good else [], each

    def __call__(self, batch: Any) -> Any:
        self.files += [open(os.devnull) for _ in range(self.each)]  # noqa: PTH123, SIM115
        return batch


@pytest.mark.parametrize("each", [1, 5, 1000])
@pytest.mark.parametrize("good", [False, True])
def test_a_member_that_leaks_files_ends_alone_and_the_others_lose_nothing(
    tmp_path: Path, each: int, good: bool
) -> None:
    def train(name: str, *leaking: argosy.Member) -> argosy.Report:
        study = studies.study(400, fleet=[studies.member("one"), *leaking, studies.member("two", hidden=8)], epochs=2)
        return argosy.train(study, directory=tmp_path / name, devices="cpu:1", loader_workers=1, numerics="exact")

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert before[1] > 400
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        report = train(
            "run", studies.member("leaks", augment=partial(augmented_by, Leaks(each=each, good=good)), batch_size=5)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    leaks = report.member("leaks")
    assert leaks.status == "failed"
    assert re.search("left [0-9]+ files open|Too many open files", leaks.reason)
    without = train("without")
    for name in ("one", "two"):
        assert report.member(name).metrics == without.member(name).metrics
    assert not RunState.of(read_journal(tmp_path / "run")).lost


def augmented_by(leaks: Leaks, batch: Any) -> Any:
    return leaks(batch)


def open_many(enough: Path, batch: Any) -> Any:
    """An augmentation that fails as if its process had reached the limit on open files."""
    if not enough.exists():
        raise OSError(errno.EMFILE, "Too many open files")
    return batch


def test_without_a_home_there_is_no_cache_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(path: Path) -> Path:
        if path.parts[0] == "~":
            raise RuntimeError("Could not determine home directory.")
        return path

    study = studies.study(fleet=[studies.member()])
    argosy.train(study, directory=tmp_path / "at-home", launcher="inline")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    elsewhere = tmp_path / f"argosy-{os.geteuid()}"
    assert cache_folder() == elsewhere
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert cache_folder() == elsewhere
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/proc")
    argosy.train(study, directory=tmp_path / "homeless", launcher="inline")
    assert evidence.results(tmp_path / "homeless") == evidence.results(tmp_path / "at-home")


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_a_signal_is_answered_after_a_step_however_large_the_block(tmp_path: Path, launcher: str) -> None:
    fleet = [studies.member(augment=partial(third_time, tmp_path / "steps", os.getpid()), batch_size=4)]
    settings = {"launcher": launcher, "devices": "cpu:1", "block_size": 512}
    paused = argosy.train(studies.study(fleet=fleet, length=400), directory=tmp_path / "run", **settings)
    assert (paused.status, paused.reason) == ("paused", "SIGTERM; the same command resumes the run")
    (saved,) = evidence.event_lines(tmp_path / "run", "Saved")
    # The only block holds 100 steps, and from the third on they take 0.25 s each.
    assert 0 < saved["checkpoint"]["position"] < 200
    (tmp_path / "over").touch()
    argosy.train(studies.study(fleet=fleet, length=400), directory=tmp_path / "run", **settings)
    whole = [studies.member(batch_size=4)]
    argosy.train(studies.study(fleet=whole, length=400), directory=tmp_path / "whole", launcher="inline")
    assert evidence.results(tmp_path / "run") == evidence.results(tmp_path / "whole")


def third_time(steps: Path, driver: int, batch: Any) -> Any:
    """An augmentation that sends SIGTERM to the driver in the third training step, and delays this step and all that follow."""
    if (steps.parent / "over").exists() or not list(steps.parent.glob("run/members")):
        return batch
    with steps.open("a") as file:
        file.write(".")
    if steps.read_text() == "...":
        os.kill(driver, signal.SIGTERM)
    if len(steps.read_text()) >= 3:
        time.sleep(0.25)
    return batch
