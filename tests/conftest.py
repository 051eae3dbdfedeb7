"""Fixtures and hooks of all tests: no test leaves a child process, and all runs pass their audit."""

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
# Every run tries the same examples, however slow the machine, so that a new failure is due to the last change.
settings.register_profile("tests", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("hostile", settings.get_profile("tests"), derandomize=False, max_examples=10_000)
settings.load_profile("tests")


MANY_MODULES = 100
_frozen = [0]
"""Number of modules that were imported when the heap was last frozen."""
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 * 2**30
"""A file system in memory, and the free bytes that it must have to be used."""


def pytest_configure() -> None:
    """Put the temporary folders of tests in memory if there is room, because flushing and removing files on a disk takes milliseconds each.

    No test can see whether data reached a disk. Lost writes are simulated (`simulation.disk`), and full disks are mounted.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish() -> None:
    """Freeze what was imported and collected, so that garbage collections in tests need not look through it."""
    _freeze()


def pytest_runtest_setup() -> None:
    """Freeze again if earlier tests imported many modules, such as torch's compiler, ONNX or Optuna with hundreds each."""
    if len(sys.modules) > _frozen[0] + MANY_MODULES:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    _frozen[0] = len(sys.modules)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say what differs first if a comparison of two runs' results fails."""
    words = differing.explained(left, right) if op == "==" else ""
    return [words] if words else None


@pytest.fixture(autouse=True)
def _tidy() -> object:
    torch.set_num_threads(1)
    yield
    left = {child: words for child in children() if (words := described(child))}
    for child in left:  # so that later tests do not fail for this one
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    assert not list(left.values())


def children() -> list[psutil.Process]:
    """Return all descendants of this process; if it has no children, psutil's slow search of all processes is left out."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def described(process: psutil.Process) -> list[str]:
    """Return the command line of a running process; empty if it has ended."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(autouse=True)
def _watched_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs wait until their view has received everything, however slow the machine."""
    monkeypatch.setattr(apart, "FAREWELL_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def _forked_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the fork servers of runs from this process, which has imported what they need, except under the mark `fresh`."""
    if request.node.get_closest_marker("fresh") is None:
        monkeypatch.setattr(ForkServer, "start", forked.start_server)


@pytest.fixture(autouse=True)
def _cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each test its own caches for samples, rates and program choices, and an empty record of what samples read."""
    number = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache" / number))
    monkeypatch.setenv("ARGOSY_CACHE", str(tmp_path_factory.getbasetemp() / "kept" / number))
    monkeypatch.setattr(RECORDER, "notes", [])
    monkeypatch.setattr(RECORDER, "_seen", set())


@pytest.fixture(autouse=True)
def _audited(request: pytest.FixtureRequest) -> object:
    """Check that every run of a test passes its audit, except under the mark `tampers`, and that no view failed."""
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
    """Check that no run of a test fell back to a slower program, except under the marks `falls_back` and `tampers`."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None and not any(map(request.node.get_closest_marker, ("falls_back", "tampers"))):
        for path in folder.rglob("study.json"):
            if (path.parent / "journal.jsonl").exists():
                events = read_journal(path.parent)
                assert [event.words for event in events if isinstance(event, FellBack)] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 600 kB."""
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
