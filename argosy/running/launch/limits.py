"""Cores and memory that the kernel lets this process use, as limited by affinity and by control groups v1 and v2."""

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from argosy.errors import PlanError

__all__ = [
    "check_proc",
    "memory_limit",
    "feeder_cache_bytes",
    "limit_cores",
    "quota_cores",
    "restrict_to_cores",
    "usable_cores",
]

PROC = Path("/proc/self")
GROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 2**60
"""In version 1 of control groups, values from this one up mean no limit."""


def check_proc() -> None:
    """Raise PlanError on a Linux without /proc, as in a chroot."""
    if sys.platform == "linux" and not PROC.exists():
        raise PlanError(
            f"{PROC} does not exist, where a run sees its processes. Mount it, as in a chroot: mount -t proc proc /proc."
        )


@contextlib.contextmanager
def limit_cores(count: int | None) -> Iterator[None]:
    """Restrict this thread, and what it starts, to at most `count` of its cores; restores the affinity at the end."""
    if sys.platform != "linux":
        if count is not None:
            raise PlanError(
                f"cores is {count}, but only Linux can restrict a run to some cores; this system is {sys.platform}. "
                "Leave it out; devices and threads say how many threads train."
            )
        yield
        return
    before = os.sched_getaffinity(0)
    restrict_to_cores(0, count)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def restrict_to_cores(pid: int, count: int | None) -> None:
    """Restrict a process to the first `count` of its allowed cores; None means all of them."""
    os.sched_setaffinity(pid, sorted(os.sched_getaffinity(pid))[:count])


def usable_cores() -> int:
    """Return the number of cores that this process can really use: its affinity, bounded by the quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores, quota = len(os.sched_getaffinity(0)), quota_cores()
    return cores if quota is None else min(cores, max(1, math.floor(quota)))


def quota_cores() -> float | None:
    """Return the tightest CPU quota of this process's control groups, in cores; None for no quota."""
    quotas = [int(quota) / int(period) for quota, period in _quotas() if quota not in ("max", "-1")]
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Return the tightest memory limit of this process's control groups, in bytes; None for no limit."""
    texts = [path.read_text().strip() for path in _files("memory", "memory.max", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text != "max" and int(text) < UNLIMITED_BYTES]
    return min(limits, default=None)


def feeder_cache_bytes(nodes: int) -> int:
    """Return the bytes that a feeder may keep: a quarter of its host's free memory, divided among its nodes."""
    available: int = psutil.virtual_memory().available
    return min(available, memory_limit() or available) // (4 * nodes)


def _quotas() -> Iterator[list[str]]:
    for path in _files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        if path.name == "cpu.max":
            yield path.read_text().split()
        else:
            yield [path.read_text().strip(), path.with_name("cpu.cfs_period_us").read_text().strip()]


def _files(controller: str, unified: str, separate: str) -> Iterator[Path]:
    """Yield the files of this process's control groups and of all groups above them, which limit it as well."""
    for line in Path("/proc/self/cgroup").read_text().splitlines() if sys.platform == "linux" else ():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = GROUPS, unified
        elif controller in controllers.split(","):
            root, name = GROUPS / controller, separate
        else:
            continue
        # In a container the path may be the host's, and only the root is visible.
        folder = root / group.lstrip("/")
        for above in (folder, *folder.parents):
            if above.is_relative_to(root) and (above / name).exists():
                yield above / name
