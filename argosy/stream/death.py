"""Tie a child process to its parent, so that it never outlives the process that forked it, and name it in `ps`."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterable

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


def fork_process(name: str, work: Callable[[], int], *, closing: Iterable[Callable[[], None]] = ()) -> int:
    """Fork a process that runs `work` and exits with the code that it returns. Returns the process id.

    The child inherits everything; it first calls the functions `closing`, which close what it must not hold.
    """
    parent = os.getpid()
    gc.freeze()  # otherwise garbage collection in the child would copy the pages of a dataset in memory
    pid = os.fork()
    if pid == 0:
        for close in closing:
            close()
        die_with_parent(parent)
        name_process(name)
        os._exit(work())
    return pid
