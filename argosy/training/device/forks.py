"""Refuses accelerators in forked processes, because their drivers do not survive the fork of a process that uses one."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from argosy.errors import WorkerError

__all__ = ["check_not_forked"]

_before_fork: dict[str, Any] = {"pid": 0, "found": ""}
"""The process that made the latest fork, an ancestor of this process or itself, and the accelerator that it had initialised."""


def _check_before_fork() -> None:
    _before_fork.update(pid=os.getpid(), found=_initialised())


def _initialised() -> str:
    """Return the kind of accelerator that this process uses, or an empty string.

    A driver that was only asked for the number of devices is in use too. Torch does not know this, so the open files are examined.
    """
    for kind in ("cuda", "xpu"):
        if torch.get_device_module(kind).is_initialized():
            return kind
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()) == "/dev/nvidia-uvm":
                return "cuda"
    return ""


def check_not_forked(name: str) -> None:
    """Raise WorkerError if this process was forked from one that was using an accelerator."""
    if _before_fork["found"] and _before_fork["pid"] != os.getpid():
        raise WorkerError(
            f"{name} cannot be used: {_before_fork['found']} was initialised in process {_before_fork['pid']} "
            "before this process was forked from it, and drivers do not survive a fork. A module that is imported "
            "with torch uses the device at import; change it to do so on first use."
        )


os.register_at_fork(before=_check_before_fork)
