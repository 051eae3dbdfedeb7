"""Watches what a piece of code does to the rest of the machine: files, programs, sockets, code that is run, time and memory."""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["watched"]

LONGEST_SECONDS = 5.0
"""CPU time, so that other work on the machine does not count."""
STUCK_SECONDS = 20.0
MOST_BYTES = 500 * 10**6
FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
    "exec",
    "compile",
)
PATHS = (
    "open",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
    "os.rmdir",
    "os.listdir",
)
LIBRARIES = (*(str(Path(path).resolve()) for path in (*sys.path, sys.base_prefix) if path), "/proc/", "/dev/", "/sys/")
"""Paths that may be read: the program itself, and the kernel's own file systems."""
FOLDERS = "/dev/shm/"
"""Part of /dev that holds ordinary files, also the tests' own folders, so that it may not be touched."""
_heard: list[str] | None = None


_allowed = ""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is None:
        return
    if event in FORBIDDEN:
        _heard.append(f"{event} {str(arguments)[:200]}")
    elif event in PATHS:
        paths = arguments[: 2 if event in ("os.rename", "os.link") else 1]
        if event == "os.symlink":
            paths = arguments[1], os.path.join(os.path.dirname(arguments[1]), arguments[0])  # noqa: PTH118, PTH120
        _heard.extend(f"{event} {path}" for path in paths if _outside(path))


def _outside(path: Any) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False  # a descriptor of a file opened before
    resolved = os.path.realpath(os.fsdecode(path))
    if resolved.startswith(_allowed):
        return False
    return resolved.startswith(FOLDERS) or not resolved.startswith(LIBRARIES)


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[None]:
    """Assert that the code inside touches nothing outside the directory, runs no other code, and needs little time and memory."""
    global _heard, _allowed
    heard: list[str] = []
    began, computed = time.monotonic(), time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _heard, _allowed = heard, str(directory.resolve())
    try:
        yield
    finally:
        _heard = None
    took, stuck = time.process_time() - computed, time.monotonic() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert not heard, heard
    assert took < LONGEST_SECONDS, f"{took:.1f} s"
    assert stuck < STUCK_SECONDS, f"{stuck:.1f} s"
    assert grown * 1024 < MOST_BYTES, f"{grown / 1024:.0f} MiB"
