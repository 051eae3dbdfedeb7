"""Signals from users: the first one pauses a run, the second has its usual effect."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["pausing_on_signal"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Job schedulers such as Slurm can send SIGUSR1 some time before a job's end; a terminal that is closed sends SIGHUP."""


@contextmanager
def pausing_on_signal(pause: Callable[[str], None]) -> Iterator[None]:
    """Handle signals inside the block: the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP calls `pause` with a reason, then the old handler.

    Ignored signals stay ignored; shells set this for background jobs. Only the main thread can set handlers, so in
    any other thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    def handle(number: int, frame: Any) -> None:
        restore()
        pause(f"{signal.Signals(number).name}; the same command resumes the run")
        chained = earlier[signal.Signals(number)]
        # Python's own handler would raise in the middle of whatever the driver does.
        if callable(chained) and chained is not signal.default_int_handler:
            chained(number, frame)

    for number in earlier:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
