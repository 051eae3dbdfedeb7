"""Every test leaves the process as it found it: one thread, no stray child."""

import contextlib
import gc
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import differing
import forked
import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings

from argosy.protocol.packs import FellBack
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal
from argosy.running.launch.forkserver import ForkServer
from argosy.running.watch import apart
from argosy.stream.kept.witnesses import RECORDER

pytest_plugins = ("listeners", "quick")
# The same examples in every run, however slow the machine: a failure says something about the last change.
settings.register_profile("tests", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("hostile", settings.get_profile("tests"), derandomize=False, max_examples=10_000)
settings.load_profile("tests")


MANY_MODULES = 100
_frozen = [0]
"""Modules that were there when all was frozen."""
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 * 2**30
"""A file system in memory, and what must be free there."""


def pytest_configure() -> None:
    """The folders of tests are in memory where there is room: to flush a file to a disk takes milliseconds, and to remove it again.

    No test can see whether a disk was reached. What a disk forgets is played (`simulation.disk`); full ones are mounted.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: collecting garbage need not look through it again in each test."""
    _freeze()


def pytest_runtest_setup() -> None:
    """The same where earlier tests imported more, as torch's compiler, ONNX or Optuna, each of hundreds of modules."""
    if len(sys.modules) > _frozen[0] + MANY_MODULES:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    _frozen[0] = len(sys.modules)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """A failed comparison of what runs made says what differs first."""
    words = differing.explained(left, right) if op == "==" else ""
    return [words] if words else None


@pytest.fixture(autouse=True)
def _tidy() -> object:
    torch.set_num_threads(1)
    yield
    left = {child: words for child in children() if (words := described(child))}
    for child in left:  # the tests after this one have done nothing
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    assert not list(left.values())


def children() -> list[psutil.Process]:
    """All below this process; looking through those of the machine takes longer than most tests."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def described(process: psutil.Process) -> list[str]:
    """The words of a process that still runs; none of one that has just gone."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(autouse=True)
def _watched_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view hears all that there is to hear, however slow the machine."""
    monkeypatch.setattr(apart, "FAREWELL_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _forked_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork servers need not import again what this process has imported."""
    if request.node.get_closest_marker("fresh") is None:
        monkeypatch.setattr(ForkServer, "start", forked.start_server)


@pytest.fixture(autouse=True)
def _cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs of a test keep of its samples, rates and choices no other test finds, nor what its samples read."""
    number = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache" / number))
    monkeypatch.setenv("ARGOSY_CACHE", str(tmp_path_factory.getbasetemp() / "kept" / number))
    monkeypatch.setattr(RECORDER, "notes", [])
    monkeypatch.setattr(RECORDER, "_seen", set())


@pytest.fixture(autouse=True)
def _audited(request: pytest.FixtureRequest) -> object:
    """Every run that a test leaves behind passes its audit, unless the test is about one that does not, as no view failed."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for log in folder.rglob("workers/view.log") if folder is not None else ():
        pytest.fail(log.read_text())
    if folder is not None and request.node.get_closest_marker("tampers") is None:
        for path in folder.rglob("study.json"):
            if (path.parent / "journal.jsonl").exists():
                assert audit(path.parent) == []


@pytest.fixture(autouse=True)
def _fell_back(request: pytest.FixtureRequest) -> object:
    """No run that a test leaves behind gave up a faster program, in whatever process, unless the test is about one that does."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None and not any(map(request.node.get_closest_marker, ("falls_back", "tampers"))):
        for path in folder.rglob("study.json"):
            if (path.parent / "journal.jsonl").exists():
                events = read_journal(path.parent)
                assert [event.words for event in events if isinstance(event, FellBack)] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k,mode=700", "argosy-test", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small file system is not permitted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
