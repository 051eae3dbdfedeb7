"""The tie of a child to its parent: a process of a run never outlives the one that forked it; and its name in `ps`."""

import ctypes
import os
import signal

__all__ = ["die_with_parent", "name_process"]

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
