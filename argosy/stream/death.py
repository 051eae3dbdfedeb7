"""Fork child processes, tie them to their parents, so that they never outlive the process that forked them, and name them in `ps`."""

import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from argosy.stream.heartbeat import Heartbeat

__all__ = ["Child", "die_with_parent", "name_process"]

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, or end it immediately if the parent has already ended.

    The kernel watches the *thread* that forked, so start processes from a thread that lives as long as the run.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Show this process as ``argosy-<name>``; the kernel keeps 15 characters."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, f"argosy-{name}".encode(), 0, 0, 0)


class Child:
    """A forked process, and this end of the connection to it."""

    def __init__(self, pid: int, connection: Connection, heartbeat: Heartbeat | None) -> None:
        self.pid = pid
        self.connection = connection
        self.heartbeat = heartbeat
        """Its own slot, if it has one."""

    @classmethod
    def fork(
        cls,
        name: str,
        work: Callable[[Connection], int],
        *,
        closing: Iterable[Any] = (),
        heartbeat: Heartbeat | None = None,
        slot: int = 0,
    ) -> "Child":
        """Fork a process that runs `work` with its end of the connection, and exits with the code that `work` returns.

        The child inherits everything; it first closes the connections `closing`, which it must not hold. If `heartbeat` is given, it
        writes to that slot of it.
        """
        parent, (ours, theirs) = os.getpid(), Pipe()
        own = None if heartbeat is None else heartbeat.slot(slot)
        gc.freeze()  # otherwise garbage collection in the child would copy the pages of a dataset in memory
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *closing):
                connection.close()
            die_with_parent(parent)
            name_process(name)
            if heartbeat is not None and own is not None:
                heartbeat.become(own)
            os._exit(work(theirs))
        theirs.close()
        return cls(pid, ours, own)

    def send(self, message: Any) -> None:
        """Send a message. A process that has just died does not receive it; its end-of-file will arrive."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Any:
        """Return its next message; None if it has died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def end(self, *, kill: bool = False) -> None:
        """Close the connection, and wait until the process has ended, by itself unless it is killed."""
        self.connection.close()
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        if self.heartbeat is not None:  # if it died in the middle of a sample, its slot still shows it as busy
            self.heartbeat.rest()
