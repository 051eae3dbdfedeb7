"""The work that a process has done so far: its CPU time, and its reads and writes converted to seconds of CPU time."""

import contextlib

import psutil

__all__ = ["tree_activity", "process_activity"]

BYTES_PER_SECOND = 1e8
"""Bytes read or written that count as one second of CPU time when a worker's progress is judged."""


def tree_activity(pid: int) -> float:
    """Return the work of a process and of all its descendants so far, in the unit of `Workers.cpu_seconds`."""
    children: list[int] = []
    with contextlib.suppress(psutil.Error):
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return sum(map(process_activity, (pid, *children)))


def process_activity(pid: int) -> float:
    """Return the CPU seconds of a process and of its ended children, plus its reads and writes converted to seconds."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        seconds += sum(process.cpu_times()[:4])
        traffic = process.io_counters()
        seconds += (traffic.read_chars + traffic.write_chars + traffic.read_bytes) / BYTES_PER_SECOND
    return seconds
