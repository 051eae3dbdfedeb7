"""Tests of the tiers of tests: in a quick test, starting a process fails, and the lists name only tests that exist."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from quick import LEFT_OUT, LONG, guard

TESTS = Path(__file__).resolve().parent


def take_a_port() -> None:
    """Bind a socket to any free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))


def spawn() -> None:
    """Start a process by multiprocessing."""
    multiprocessing.get_context("spawn").Process().start()


STARTS = [os.fork, lambda: subprocess.run([sys.executable, "-c", ""], check=True), partial(os.system, "true"), spawn]


@pytest.mark.parametrize("start", [*STARTS, take_a_port])
def test_whatever_starts_a_process_or_takes_a_port_is_stopped(start: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match=r"in a test of the quick tier: name the test in tests/not_quick\.txt\."):
        start()
    assert len(guard.seen) == 1, (
        "the guard must record the attempt, so that the test fails even if it catches the error"
    )
    guard.seen.clear()


@pytest.mark.parametrize("file", ["not_quick.txt", "long.txt"])
def test_what_is_named_is_there(file: str) -> None:
    for name in {"not_quick.txt": LEFT_OUT, "long.txt": LONG}[file]:
        of, _, case = name.partition("::")
        path, function = TESTS.parent / of, case.partition("[")[0]
        assert path.exists(), f"tests/{file} names {of}, which does not exist"
        assert f"def {function}(" in path.read_text() or not function, (
            f"tests/{file} names {name}, which does not exist"
        )
