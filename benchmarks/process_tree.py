"""Measures commands with all their descendants: wall time, CPU seconds and peak memory, whichever process forked them.

This process becomes the reaper of its orphaned descendants and waits for every one of them, so that the kernel's
account of its children holds the CPU time of whole trees, including processes whose parents died before them. `Tree`
tells apart what two trees take at the same time, by holding one while the other works.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

__all__ = ["Cost", "Tree", "allocated_bytes", "proportional_bytes", "run"]

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_SECONDS = 0.2
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What some commands took, with their whole process trees."""

    wall_seconds: float
    """From the start of the first command to the end of the last process."""
    cpu_seconds: float
    """User and system time."""
    began: float
    """Unix time of the first command's start."""
    peak_bytes: int | None
    """Largest sum of proportional set sizes over the trees; None if it was not sampled."""
    others_cores: float
    """Cores that other work on the machine kept busy meanwhile: above 0.2, wall time says little."""


def run(
    commands: Sequence[Sequence[str]],
    *,
    at_once: int = 1,
    environment: Mapping[str, str] | None = None,
    output: Path,
    memory: bool = False,
) -> Cost:
    """Run the commands, `at_once` at a time; raise CalledProcessError if one fails.

    Sampling `memory` takes CPU time from the commands, so leave it out when time is measured.
    """
    _adopt_orphans()
    before, busy_before, began, started = _children_seconds(), _machine_seconds(), time.time(), time.perf_counter()
    peak = _Peak() if memory else None
    with output.open("ab") as log, peak or contextlib.nullcontext():
        waiting, running = list(commands), dict[int, subprocess.Popen[bytes]]()
        while waiting or running:
            while waiting and len(running) < at_once:
                process = subprocess.Popen(
                    waiting.pop(0), env={**os.environ, **(environment or {})}, stdout=log, stderr=log
                )
                running[process.pid] = process
            pid, status = os.waitpid(-1, 0)
            if pid in running:
                _check(running.pop(pid), os.waitstatus_to_exitcode(status), output)
        _wait_for_orphans()
    wall_seconds, cpu_seconds = time.perf_counter() - started, _children_seconds() - before
    return Cost(
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        began=began,
        peak_bytes=peak.bytes if peak else None,
        others_cores=max(_machine_seconds() - busy_before - cpu_seconds, 0.0) / wall_seconds,
    )


class Tree:
    """A command and all its descendants within a ``with`` block, at whose end they are killed.

    `hold` stops the first process before the others, and `go_on` continues it after them, so that a process that
    watches its descendants never sees them stopped.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, output: Path) -> None:
        self.command = command
        self.output = output
        _adopt_orphans()
        with output.open("ab") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=log, stderr=log)
        self._root = psutil.Process(self._process.pid)

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is not None:
            return
        descendants = self._root.children(recursive=True)
        for process in (self._root, *descendants):
            _signal(process, signal.SIGKILL)
        self._process.wait()
        for process in descendants:
            while process.is_running():
                # A process becomes a child of this one when its parents have ended.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
                time.sleep(0.001)

    def check(self) -> None:
        """Raise CalledProcessError if the command has ended, which it must not do by itself."""
        if self._process.poll() is not None:
            print(self.output.read_text()[-4000:])
            raise subprocess.CalledProcessError(self._process.returncode, self.command)

    def cpu_seconds(self) -> float:
        """Return user and system time of all live processes and of those that they have waited for."""
        return sum(_figures((self._root, *self._root.children(recursive=True)), _process_seconds))

    def hold(self) -> None:
        """Stop all of them."""
        _signal(self._root, signal.SIGSTOP)
        while self._root.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)
        for process in self._root.children(recursive=True):
            _signal(process, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all of them continue."""
        for process in (*self._root.children(recursive=True), self._root):
            _signal(process, signal.SIGCONT)


def proportional_bytes(pid: int) -> int:
    """Return a process's proportional set size: its own pages, and its share of those that others map as well."""
    return _memory(pid)["Pss"]


def allocated_bytes(pid: int) -> int:
    """Return what a process has allocated: its anonymous pages, and its share of shared memory.

    Mapped files are left out. They belong to the page cache, and this process's share of them changes when another
    process that maps the same libraries starts or ends: four that import torch made 12 MiB.
    """
    memory = _memory(pid)
    return memory["Anonymous"] + memory["Pss_Shmem"]


def _memory(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name.removesuffix(":"): int(kibibytes) * 1024 for name, kibibytes, _ in map(str.split, lines)}


class _Peak:
    """Samples the memory of all descendants within a ``with`` block."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            descendants = psutil.Process().children(recursive=True)
            self.bytes = max(self.bytes, sum(_figures(descendants, lambda process: proportional_bytes(process.pid))))


def _figures(processes: Iterable[psutil.Process], figure: Callable[[psutil.Process], Number]) -> Iterator[Number]:
    for process in processes:
        # A process may end at any moment.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            yield figure(process)


def _process_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process, and of its children that it has waited for."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel does not let a process adopt its orphaned descendants")


def _wait_for_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _check(process: subprocess.Popen[bytes], code: int, output: Path) -> None:
    process.returncode = code
    if code != 0:
        print(output.read_text()[-4000:])
        raise subprocess.CalledProcessError(code, process.args)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine_seconds() -> float:
    """Return the CPU time of all processes since the machine started, including what a hypervisor gave to others."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.irq + times.softirq + times.steal)
