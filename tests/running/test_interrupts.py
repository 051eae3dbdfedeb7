"""Tests of signals that pause a run."""

import os
import signal

import pytest

from argosy.running.watch.interrupts import pausing_on_signal


@pytest.mark.parametrize(("number", "heard_again"), [(signal.SIGHUP, 0), (signal.SIGTERM, 1)])
def test_a_terminal_that_is_closed_hangs_up_twice_and_pauses(number: signal.Signals, heard_again: int) -> None:
    paused, heard = list[str](), list[int]()
    before = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        with pausing_on_signal(paused.append):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
    assert paused == [f"{number.name}; the same command resumes the run"]
    assert len(heard) == 1 + heard_again + 1  # once as the handler before, and once after the block
