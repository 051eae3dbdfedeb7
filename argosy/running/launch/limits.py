"""What the kernel lets this process use: cores and memory, by affinity and by control groups of either version."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["memory_limit", "memory_to_keep_in", "only_cores", "quota_cores", "restrict", "usable_cores"]

GROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 2**60
"""From here up, the first version of control groups means no limit."""


@contextlib.contextmanager
def only_cores(count: int | None) -> Iterator[None]:
    """Let this thread, and what it starts, use so many of its cores at most; as before at the end."""
    before = os.sched_getaffinity(0)
    restrict(0, count)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def restrict(pid: int, count: int | None) -> None:
    """Let a process use the first so many of the cores that it may; None for all of them."""
    os.sched_setaffinity(pid, sorted(os.sched_getaffinity(pid))[:count])


def usable_cores() -> int:
    """Cores that this process may really use: its affinity, bounded by the quota."""
    cores, quota = len(os.sched_getaffinity(0)), quota_cores()
    return cores if quota is None else min(cores, max(1, math.floor(quota)))


def quota_cores() -> float | None:
    """The tightest CPU quota of this process's control groups, in cores; None for no quota."""
    found = [int(quota) / int(period) for quota, period in _quotas() if quota not in ("max", "-1")]
    return min(found, default=None)


def memory_limit() -> int | None:
    """The tightest memory limit of this process's control groups, in bytes; None for no limit."""
    texts = [path.read_text().strip() for path in _files("memory", "memory.max", "memory.limit_in_bytes")]
    found = [int(text) for text in texts if text != "max" and int(text) < UNLIMITED_BYTES]
    return min(found, default=None)


def memory_to_keep_in(nodes: int) -> int:
    """Bytes in which a feeder may keep samples: a quarter of what its host has left, which it may share with other nodes."""
    left: int = psutil.virtual_memory().available
    return min(left, memory_limit() or left) // (4 * nodes)


def _quotas() -> Iterator[list[str]]:
    for path in _files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        if path.name == "cpu.max":
            yield path.read_text().split()
        else:
            yield [path.read_text().strip(), path.with_name("cpu.cfs_period_us").read_text().strip()]


def _files(controller: str, unified: str, separate: str) -> Iterator[Path]:
    """The files of this process's groups and of all groups above them, which bind it as well."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = GROUPS, unified
        elif controller in controllers.split(","):
            root, name = GROUPS / controller, separate
        else:
            continue
        # In a container the path may be the host's, and only the root is to be seen.
        folder = root / group.lstrip("/")
        for above in (folder, *folder.parents):
            if above.is_relative_to(root) and (above / name).exists():
                yield above / name
