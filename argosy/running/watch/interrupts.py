"""Signals from users: the first one pauses a run, the second has its usual effect, but for SIGHUP."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

__all__ = ["pausing_on_signal"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Job schedulers such as Slurm can send SIGUSR1 some time before a job's end; a terminal that is closed sends SIGHUP."""


class HandlerExit(BaseException):
    """Raised in place of SystemExit of a user's handler, which boundaries to members' code would take for an error of a member."""


@contextmanager
def pausing_on_signal(pause: Callable[[str], None]) -> Iterator[None]:
    """Handle signals inside the block: the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP calls `pause` with a reason, then the old handler.

    An exit that a handler asks for ends the block, also inside members' code. Ignored signals stay ignored; shells set this
    for background jobs. Only the main thread can set handlers, so in any other thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    # Without Python's own handler, which would raise in the middle of whatever the driver does.
    own = {
        number: partial(_call, handler)
        for number, handler in earlier.items()
        if callable(handler) and handler is not signal.default_int_handler
    }

    def handle(number: int, frame: Any) -> None:
        for each in earlier:
            signal.signal(each, own.get(each, earlier[each]))
        # It is sent twice where a terminal is closed: by the shell, and by the kernel once the shell has ended.
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        pause(f"{signal.Signals(number).name}; the same command resumes the run")
        if number in own:
            own[signal.Signals(number)](number, frame)

    for number in earlier:
        signal.signal(number, handle)
    try:
        yield
    except HandlerExit as asked:
        raise SystemExit(*asked.args) from None
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _call(handler: Callable[[int, Any], Any], number: int, frame: Any) -> None:
    try:
        handler(number, frame)
    except SystemExit as error:
        raise HandlerExit(*error.args) from error
