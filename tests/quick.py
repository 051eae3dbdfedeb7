"""The tiers of tests, marked as they are collected: ``quick`` and ``long``, which `make quick` and `make long` run, and all others.

Quick ones start no process, take no port and are soon over. A test belongs to them unless `not_quick.txt` names it or its file, one of its
parameters is a launcher of processes, or a mark says that it needs more; the mark ``quick`` on one of the cases of a test takes that case in
all the same. A quick test that starts a process or takes a port fails, whatever is run.

Long ones are named in `long.txt`, whole files, tests or single cases: `make test` leaves them out.
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
"""Audit events (PEP 578): nothing that a test imports, keeps or patches goes past them."""


class Guard:
    """Stop whatever starts a process or takes a port, while a test of the tier runs."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        """What was stopped in this test."""

    def handle(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Be told of an audit event; a socket that is bound to a path takes no port."""
        if self.on and (event in STARTS or (event == "socket.bind" and isinstance(arguments[1], tuple))):
            self.stop(event)

    def stop(self, event: str, *_: object) -> None:
        """Raise AssertionError in a test of the tier."""
        if self.on:
            self.seen.append(f"{event} in a test of the quick tier: name the test in tests/not_quick.txt.")
            raise AssertionError(self.seen[-1])


guard = Guard()
sys.addaudithook(guard.handle)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that a tier leaves out as a whole."""
    left_out = {"quick": LEFT_OUT, "not long": LONG}.get(config.option.markexpr, set())
    return _name(collection_path) in left_out or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the tiers, before ``-m`` chooses them."""
    for item in items:
        if _is_long(item):
            item.add_marker("long")
        elif _belongs(item):
            item.add_marker("quick")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard a test of the tier, with the fixtures that it is the first to ask for."""
    guard.seen.clear()
    guard.on = item.get_closest_marker("quick") is not None
    try:
        return (yield)
    finally:
        guard.on = False


@pytest.fixture(autouse=True)
def _nothing_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An attempt whose error was caught is found as well; multiprocessing has a way of its own, which is no audit event."""
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
