"""Tie a child process to its parent, so that it never outlives the process that forked it, and name it in `ps`."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, Pipe
from typing import Any

__all__ = ["die_with_parent", "fork_process", "name_process"]

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


def fork_process(
    name: str, work: Callable[[Connection], int], *, closing: Iterable[Any] = ()
) -> tuple[int, Connection]:
    """Fork a process that runs `work` with its end of a connection, and exits with the code that `work` returns.

    Returns the process id and the other end. The child inherits everything; it first closes the connections `closing`, which it must not hold.
    """
    parent, (ours, theirs) = os.getpid(), Pipe()
    gc.freeze()  # otherwise garbage collection in the child would copy the pages of a dataset in memory
    pid = os.fork()
    if pid == 0:
        for connection in (ours, *closing):
            connection.close()
        die_with_parent(parent)
        name_process(name)
        os._exit(work(theirs))
    theirs.close()
    return pid, ours
