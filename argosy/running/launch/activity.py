"""How much a process has done so far: CPU time, and traffic as if it were such."""

import contextlib

import psutil

__all__ = ["activity", "own_activity"]

BYTES_PER_SECOND = 1e8
"""What a second of CPU time is worth in bytes read and written, where a worker's progress is judged."""


def activity(pid: int) -> float:
    """What a process and all below it have done so far, as `Workers.cpu_seconds` has it."""
    children: list[int] = []
    with contextlib.suppress(psutil.Error):
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return sum(map(own_activity, (pid, *children)))


def own_activity(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended, and its traffic as if it were such."""
    found = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        found += sum(process.cpu_times()[:4])
        traffic = process.io_counters()
        found += (traffic.read_chars + traffic.write_chars + traffic.read_bytes) / BYTES_PER_SECOND
    return found
