"""The quick tier is what it says: what starts a process fails, and what is left out is there."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from quick import LEFT_OUT, guard

TESTS = Path(__file__).resolve().parent


def take_a_port() -> None:
    """Any that is free."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))


def spawn() -> None:
    """As multiprocessing does it."""
    multiprocessing.get_context("spawn").Process().start()


STARTS = [os.fork, lambda: subprocess.run([sys.executable, "-c", ""], check=True), partial(os.system, "true"), spawn]


@pytest.mark.parametrize("start", [*STARTS, take_a_port])
def test_whatever_starts_a_process_or_takes_a_port_is_stopped(start: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match=r"in a test of the quick tier: name the test in tests/not_quick\.txt\."):
        start()
    assert len(guard.seen) == 1, "the test would fail by it"
    guard.seen.clear()


def test_what_is_left_out_is_there() -> None:
    for name in LEFT_OUT:
        file, _, function = name.partition("::")
        path = TESTS.parent / file
        assert path.exists(), f"tests/not_quick.txt names {file}, which is not there"
        assert f"def {function}(" in path.read_text() or not function, (
            f"tests/not_quick.txt names {name}, which is not there"
        )
