"""The tiers of tests: marks each collected test as ``quick`` or ``long``, which `make quick` and `make long` select, or as neither.

Quick tests start no process, take no port and are fast. A test is quick unless `not_quick.txt` names it or its file, one of its parameters
is a launcher of processes, or it has the mark ``fresh`` or ``gpu``. The mark ``quick`` on a single case of a test includes that case anyway.
A quick test that starts a process or takes a port fails, whichever tier is run.

`long.txt` names the long tests: files, tests or single cases. `make test` leaves them out.
"""

import sys
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

__all__ = ["LEFT_OUT", "LONG", "STARTS", "Guard", "guard"]

HERE = Path(__file__).resolve().parent
LEFT_OUT = {line for line in (HERE / "not_quick.txt").read_text().splitlines() if line and not line.startswith("#")}
LONG = {line for line in (HERE / "long.txt").read_text().splitlines() if line and not line.startswith("#")}
LAUNCHERS = {"processes", "agents", "ray"}
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
"""Audit events (PEP 578), which no import, saved reference or patch of a test can bypass."""


class Guard:
    """Raises in whatever starts a process or takes a port while a quick test runs."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        """Messages about what this test tried."""

    def handle(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event; a socket that is bound to a path takes no port."""
        if self.on and (event in STARTS or (event == "socket.bind" and isinstance(arguments[1], tuple))):
            self.stop(event)

    def stop(self, event: str, *_: object) -> None:
        """Raise AssertionError if a quick test runs."""
        if self.on:
            self.seen.append(f"{event} in a test of the quick tier: name the test in tests/not_quick.txt.")
            raise AssertionError(self.seen[-1])


guard = Guard()
sys.addaudithook(guard.handle)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip importing files that the selected tier leaves out completely."""
    left_out = {"quick": LEFT_OUT, "not long": LONG}.get(config.option.markexpr, set())
    return _name(collection_path) in left_out or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark quick and long tests before ``-m`` selects by marks."""
    for item in items:
        if _is_long(item):
            item.add_marker("long")
        elif _belongs(item):
            item.add_marker("quick")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard a quick test, including the fixtures that are set up for it."""
    guard.seen.clear()
    guard.on = item.get_closest_marker("quick") is not None
    try:
        return (yield)
    finally:
        guard.on = False


@pytest.fixture(autouse=True)
def _nothing_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a quick test even if it caught the guard's error; guard multiprocessing too, which starts processes without an audit event."""
    if guard.on:
        monkeypatch.setattr(util, "spawnv_passfds", lambda *_: guard.stop("multiprocessing"))
    yield
    assert not guard.seen, guard.seen


def _belongs(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if any(isinstance(value, str) and value in LAUNCHERS for value in values):
        return False
    if any(item.get_closest_marker(mark) for mark in ("fresh", "gpu")):
        return False
    file = _name(item.path)
    return not {file, f"{file}::{item.nodeid.split('[')[0].partition('::')[2]}"} & LEFT_OUT


def _is_long(item: pytest.Item) -> bool:
    file, case = _name(item.path), item.nodeid.partition("::")[2]
    return not {file, f"{file}::{case.partition('[')[0]}", f"{file}::{case}"}.isdisjoint(LONG)


def _name(path: Path) -> str:
    return path.relative_to(HERE.parent).as_posix() if path.is_relative_to(HERE) else ""
