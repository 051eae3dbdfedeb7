"""Errors of the operating system as sentences that say what to do."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from argosy.errors import ArgosyError, DiskError, RunError, WorkerError

__all__ = ["NO_FOLDER", "disk_refused", "files_refused", "resources_refused", "explain_refusals", "system_refused"]

DISK = {
    errno.ENOSPC: "Free disk space",
    errno.EDQUOT: "Free disk space, or ask for a larger quota",
    errno.EFBIG: "Raise the limit on the size of files: ulimit -f unlimited",
    errno.EROFS: "Mount the disk as writable, or choose another directory",
    errno.EACCES: "Grant yourself access there, or choose another directory",
    errno.EIO: "The disk is failing (see dmesg): copy the directory to a healthy one",
    errno.EISDIR: "Move this folder away",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.ENOENT: "It was removed: restore it, or start over in another directory",
}
MEANS = {
    errno.EMFILE: "Allow each process more open files: ulimit -n 4096",
    errno.ENFILE: "All programs of this machine have too many files open: close some, or raise fs.file-max",
    errno.ENOMEM: "Memory has run out: use fewer devices (--devices cpu:1), fewer --loader-workers or smaller members",
    errno.EAGAIN: "No more processes or threads are allowed: raise ulimit -u and ulimit -v, or the container's pids limit",
}
RESUMES = "the same command resumes the run"
NO_THREAD = "can't start new thread"
"""Python's message, in a RuntimeError, for EAGAIN; also if a limit on addresses (ulimit -v) leaves no room for a thread's stack."""

NO_FOLDER = "No usable temporary directory"
"""The message of `tempfile`, as in a container whose root is read-only."""


def disk_refused(error: BaseException, what: str, then: str = RESUMES) -> DiskError:
    """Return an error that says what could not be done, why, what fixes it, and what happens then."""
    number = error.errno if isinstance(error, OSError) else None
    return DiskError(f"{what}: {error}. {DISK.get(number or 0, 'Check the disk')}; {then}.")


def files_refused(error: BaseException | None = None) -> OSError | None:
    """Return why this process cannot open files, which may cause unrelated errors; None if it can."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return error
    try:
        os.close(os.dup(2))
    except OSError as refused:
        return refused if refused.errno in (errno.EMFILE, errno.ENFILE) else None
    return None


def resources_refused(error: BaseException, what: str, then: str = RESUMES) -> WorkerError | None:
    """Return an error that explains a refused descriptor, memory allocation or process; None for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if str(error) == NO_THREAD:
        number = errno.EAGAIN
    if number not in MEANS:
        return None
    return WorkerError(f"{what}: {str(error) or 'no memory'}. {MEANS[number]}; {then}.")


def system_refused(error: BaseException, what: str) -> ArgosyError | None:
    """Return an error of a command that need not be a run, for a refused resource or file write; None for any other error."""
    then = "then repeat the command"
    if NO_FOLDER in str(error):
        return RunError(f"{what}: {error}. Set TMPDIR to a folder that you may write in, {then}.")
    if isinstance(error, OSError) and (error.errno, error.filename) == (errno.ENOENT, None):  # os.getcwd names no file
        return RunError(f"{what}: the working directory (os.getcwd()) was removed. Change to another one (cd), {then}.")
    if isinstance(error, OSError) and error.errno in DISK.keys() - {errno.ENOENT, errno.EIO}:
        return disk_refused(error, what, then)
    return resources_refused(error, what, then)


@contextlib.contextmanager
def explain_refusals(directory: Path) -> Iterator[None]:
    """Inside this context, turn refusals of the system that affect the run into errors for the user; other errors pass."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        explained: ArgosyError | None = resources_refused(error, f"the run in {directory} cannot continue")
        if isinstance(error, OSError) and error.errno in DISK and _is_about_run(error, directory):
            explained = disk_refused(error, f"cannot write in {directory}")
        if explained is None:
            raise
        raise explained from error


def _is_about_run(error: OSError, directory: Path) -> bool:
    """Return whether an error is about the run's own files, as far as it names a file, and not about the user's data."""
    if error.errno == errno.ENOENT:
        folder = Path(str(error.filename)).parent
        return not directory.exists() or (directory in folder.parents and not folder.exists())
    names = [name for name in (error.filename, error.filename2) if name is not None]  # a link has two
    return not names or any(directory in Path(str(name)).parents for name in names)
