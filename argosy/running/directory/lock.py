"""The claim of one driver on a run directory: its lock, whether a driver works there, and waits for what it does."""

import contextlib
import errno
import fcntl
import os
import socket
import sys
import time
from pathlib import Path

from argosy.disk.files import NO_LINKS, check_directory, open_append_descriptor, open_plain, read_lines
from argosy.errors import RunError
from argosy.errors.system import disk_refused

__all__ = ["Lock", "has_driver", "make_own_directory", "wait_for_data", "wait_for_end", "wait_for_section"]

POLL_SECONDS = 0.1
"""Seconds between two checks for new lines."""
ENDS = (b'{"event": "SectionEnded"', b'{"event": "RunEnded"')
"""Prefixes of the lines that end a section or the run."""
LONGEST_SIGNATURE = 512
"""Most bytes of the signature in a driver's lock."""
PATIENCE_SECONDS = 10.0
"""Most seconds that the processes of a killed driver take to end."""


def make_own_directory(directory: Path) -> None:
    """Create a run directory for its user alone; raises RunError if that fails or another user may write to it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise disk_refused(error, f"cannot make {directory}") from error
        raise RunError(f"{directory} cannot be used as a run directory: {error}. Choose another one.") from error
    check_directory(directory)


def has_driver(directory: Path) -> bool:
    """Return whether a driver works on this run.

    A process of another host cannot be examined, so any such process that holds the lock counts.
    """
    path = directory / "run.lock"
    try:
        with open_plain(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # Processes of a killed driver hold the lock a little longer than the driver lives.
        return _is_alive(*_signature(path))
    except PermissionError:  # another user's lock; the rest of the directory may be readable
        # Only Linux lists locks; elsewhere it counts as free, as does one in a directory of another user that is private.
        with contextlib.suppress(OSError):
            return sys.platform == "linux" and f":{path.stat().st_ino} " in Path("/proc/locks").read_text()
    except OSError:
        return False  # without a lock there is no run
    return False


def wait_for_data(directory: Path) -> None:
    """Wait until a run's data is open (before that there is nothing to report), or no driver works on it."""
    while has_driver(directory) and not (directory / "study.json").exists():
        time.sleep(POLL_SECONDS)


def wait_for_end(directory: Path) -> None:
    """Wait until no driver works on a run."""
    while has_driver(directory):
        time.sleep(POLL_SECONDS)


def wait_for_section(directory: Path) -> None:
    """Wait until a section of any member ends, or no driver works on the run."""
    path = directory / "journal.jsonl"
    read = path.stat().st_size if path.exists() else 0
    while has_driver(directory):
        if path.exists():
            lines = list(read_lines(path, read))
            read += sum(len(line) + 1 for line in lines)
            if any(line.startswith(ENDS) for line in lines):
                return
        time.sleep(POLL_SECONDS)


class Lock:
    """Lock that allows one driver per run directory.

    Workers inherit the descriptor, so the kernel holds the lock until the last process of a run has gone, in whatever
    order they are killed; a driver that follows a killed one waits for that. Programs that workers start do not inherit
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int = -1

    def __enter__(self) -> "Lock":
        while True:
            with contextlib.ExitStack() as undone:
                self.descriptor = open_append_descriptor(self.path, 0o600)
                undone.callback(os.close, self.descriptor)
                self._wait()
                if self._is_in_place():
                    self._check_links()
                    os.ftruncate(self.descriptor, 0)
                    signature = f"{os.getpid()} {socket.gethostname()} {_start_time(os.getpid())}"
                    os.pwrite(self.descriptor, signature.encode(), 0)
                    undone.pop_all()
                    return self

    def __exit__(self, *error: object) -> None:
        # The run's own workers have gone; processes that the user's code forked there may live on, and hold the lock
        # too.
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)

    def _is_in_place(self) -> bool:
        """Return whether the path still names this file: a directory that was moved to begin anew has taken its lock along."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def _check_links(self) -> None:
        """Raise RunError before anything trains if the file system has no symbolic links, as many network and USB disks."""
        link = self.path.with_name(f".{self.path.name}.link")
        link.unlink(missing_ok=True)  # a killed process may have left it
        try:
            link.symlink_to(self.path.name)
        except OSError as error:
            if error.errno in NO_LINKS:
                raise RunError(
                    f"{self.path.parent} is on a file system without symbolic links ({error.strerror}), by which a run names "
                    "the newest and best weights of each member. Choose a directory on another disk."
                ) from error
            return  # as of a full disk, on which a finished run can still be read, or set aside
        link.unlink()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._try_lock():
            if time.monotonic() > deadline - PATIENCE_SECONDS / 2:
                self._end_stopped_orphans()
            pid, host, begun = _signature(self.path)
            # The lock may name this process, after an earlier run of its own that has ended; its workers are about to
            # go.
            another = pid != str(os.getpid()) and _is_alive(pid, host, begun)
            if another or time.monotonic() > deadline:
                raise RunError(
                    f"{self.path.parent} is in use by process {pid} on {host}. Wait for it, or choose another "
                    "directory."
                )
            time.sleep(0.05)

    def _end_stopped_orphans(self) -> None:
        """Kill stopped processes that hold the lock: stopped before their tie was set, they outlive the driver."""
        import psutil  # readers do not need it

        own = self.path.resolve()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                holds = any(link.resolve() == own for link in Path(f"/proc/{process.pid}/fd").iterdir())
                if holds and process.status() == psutil.STATUS_STOPPED:
                    process.kill()

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise RunError(
                f"{self.path.parent} is on a file system that refuses locks ({error}), so two runs could write "
                "there at once. Choose a directory on another disk, or mount this one with locks."
            ) from error
        return True


def _signature(path: Path) -> tuple[str, str, str]:
    """Return pid, host and start time of the driver that has the lock, or had it last."""
    with open_plain(path) as file:
        words = file.read(LONGEST_SIGNATURE).decode(errors="replace").split()
    pid, host, begun = [*words, "?", "?", "?"][:3]
    return pid if pid.isascii() and pid.isdecimal() else "?", host, begun


def _is_alive(pid: str, host: str, begun: str) -> bool:
    """Return whether the driver with this signature lives; one on another host cannot be examined and counts as living."""
    # A driver that has the lock and has not signed it yet will do so in a moment.
    return pid != "?" and (host != socket.gethostname() or begun == _start_time(int(pid)))


def _start_time(pid: int) -> str:
    """Return a process's start time, empty if there is none; it tells a driver from a later process with the same pid.

    The time is in ticks since the machine started, so setting the clock does not change it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if sys.platform == "linux" else "?"
