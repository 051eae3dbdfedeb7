"""What a piece of work does to the rest of the machine: the files that it opens, programs, sockets, code, time and memory."""

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
"""Of a processor: other work of the machine does not count."""
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
"""Where the program itself lies, and what the kernel tells."""
FOLDERS = "/dev/shm/"
"""Where those of tests are, which the kernel tells nothing in."""
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
        return False  # a descriptor, opened before
    resolved = os.path.realpath(os.fsdecode(path))
    if resolved.startswith(_allowed):
        return False
    return resolved.startswith(FOLDERS) or not resolved.startswith(LIBRARIES)


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[None]:
    """Inside, nothing outside of the directory is touched, no code is run, and neither time nor memory runs away."""
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
