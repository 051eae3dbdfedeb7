"""The tie of a child to its parent: a process of a run never outlives the one that forked it; and its name in `ps`."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterable

__all__ = ["die_with_parent", "forked", "name_process"]

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; at once if it has already ended.

    The kernel watches the *thread* that forked: start processes from a thread that lives as long as the run.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Show this process as ``argosy-<name>``, of which the kernel keeps 15 characters."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, f"argosy-{name}".encode(), 0, 0, 0)


def forked(name: str, work: Callable[[], int], *, closing: Iterable[Callable[[], None]] = ()) -> int:
    """Fork a process that does this work and ends with the code that it returns; return its number.

    It inherits all that this one has, and closes first what it must not hold.
    """
    parent = os.getpid()
    gc.freeze()  # else the child's garbage collections would copy the pages of a dataset that lives in memory
    pid = os.fork()
    if pid == 0:
        for close in closing:
            close()
        die_with_parent(parent)
        name_process(name)
        os._exit(work())
    return pid
