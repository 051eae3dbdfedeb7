"""Open files of a run directory safely, although other users may have placed something under their names.

A symbolic link as the last part of a path is never followed, a pipe never blocks, and writing replaces a name or appends to a file
of this user. A directory determines what code a run executes (for example, an ``add`` command names a study file), so it is
accepted only if it belongs to this user and no other user may write to it.
"""

import contextlib
import errno
import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from argosy.errors import RunError
from argosy.errors.system import disk_refused

__all__ = [
    "NO_LINKS",
    "open_append_descriptor",
    "append_flushed",
    "open_append",
    "unfinished_name",
    "check_directory",
    "check_own",
    "create_new",
    "flush",
    "read_lines",
    "make_folder",
    "open_plain",
    "read_own_text",
    "replacing",
    "sha256_of",
    "user_path",
]

FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Permissions that no other user may have on files that name code."""
PASSING = stat.S_IXGRP | stat.S_IXOTH
"""Permissions that other users need to reach the contents of a directory."""
FOLDERS = ("commands", "members", "workers")
"""Folders of a run directory whose files determine what a run does."""
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without links."""
LONGEST_LINE = 2**26
"""Most bytes of a line in a journal."""


def user_path(path: str | Path) -> Path:
    """Return a user's path with a leading ``~`` expanded to the home directory, because shells do not expand it in ``--dir=~/runs``."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path's own raises for a name that belongs to no user


def check_directory(directory: Path) -> None:
    """Raise RunError if another user owns or may write to a run directory or one of its folders; OSError if it does not exist."""
    status = _directory(directory)
    check_own(directory, status)
    if (link := directory.lstat()).st_uid not in (status.st_uid, 0):
        raise _owned_by_another(directory, link.st_uid)
    for folder in FOLDERS if status.st_mode & PASSING else ():
        with contextlib.suppress(FileNotFoundError):
            check_own(directory / folder, _directory(directory / folder))


def _directory(path: Path) -> os.stat_result:
    """Return the status of a directory, even if it is not readable."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return status


def check_own(path: Path, status: os.stat_result) -> None:
    """Raise RunError if another user owns or may write to a file or directory; `status` is that of the opened one."""
    if status.st_uid != os.geteuid():
        raise _owned_by_another(path, status.st_uid)
    if status.st_mode & OTHERS:
        raise RunError(
            f"other users may write to {path} (mode {stat.S_IMODE(status.st_mode):o}), so they could make the run "
            f"execute any code. Remove the permission with `chmod go-w {shlex.quote(str(path))}`, and check that "
            "nothing there belongs to them."
        )


def _owned_by_another(path: Path, owner: int) -> RunError:
    return RunError(
        f"{path} belongs to user {owner}, who could make the run execute any code; this process runs as user "
        f"{os.geteuid()}. Choose another directory, or run it as the owner."
    )


def make_folder(folder: Path) -> None:
    """Create a folder of a run directory to which no other user may write, whatever the umask is."""
    if not folder.parent.is_dir():
        make_folder(folder.parent)
    folder.mkdir(mode=0o755, exist_ok=True)


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading; raises RunError for anything else, and OSError if it cannot be opened."""
    return os.fdopen(_open_plain_descriptor(path, os.O_RDONLY), "rb")


def read_own_text(path: Path, *, most: int = 2**20) -> str:
    """Return the text of a small file that only this user may write; raises RunError, OSError, and ValueError if it is not text."""
    with open_plain(path) as file:
        status = os.fstat(file.fileno())
        check_own(path, status)
        if status.st_size > most:
            raise ValueError(f"it has {status.st_size} bytes, more than {most}")
        return file.read(most).decode()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file; raises what `open_plain` raises."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the complete lines of a file from a byte position on, without an unfinished last line; raises what `open_plain` raises."""
    with open_plain(path) as file:
        file.seek(start)
        while line := file.readline(LONGEST_LINE):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == LONGEST_LINE:
                raise RunError(f"{path} has a line of more than {LONGEST_LINE >> 20} MiB. Restore a copy of it.")


def open_append(path: Path) -> BinaryIO:
    """Open a plain file of this user for appending, and create it if it does not exist; raises RunError for anything else."""
    return os.fdopen(open_append_descriptor(path), "ab", buffering=0)


def open_append_descriptor(path: Path, mode: int = 0o644) -> int:
    """Open such a file as a descriptor that can also be read; a run keeps the descriptors of its journal and its lock."""
    descriptor = _open_plain_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        os.close(descriptor)
        raise RunError(
            f"{path} belongs to user {owner}, but this run belongs to user {os.geteuid()} and would write to it. "
            "Move it away."
        )
    return descriptor


def create_new(path: Path, mode: int = 0o644) -> BinaryIO:
    """Create a file under an unused name; raises FileExistsError if the name exists, even as a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, mode), "wb")


def append_flushed(descriptor: int, content: bytes, path: Path) -> None:
    """Append to the open file of a path and flush it to the disk; if that raises DiskError, nothing was appended.

    It does so if the file was removed or replaced: the system would take what is written until the file is closed, and lose it.
    """
    opened = os.fstat(descriptor)
    try:
        there = path.stat()
        # Some network disks give a file another number after they have been connected again.
        if not os.path.samestat(opened, there) and there.st_size != opened.st_size:
            raise FileNotFoundError(errno.ENOENT, "Another file has taken its name", str(path))
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        if hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, opened.st_size)
        raise disk_refused(error, f"cannot write {path}") from error


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o644, durable: bool = False) -> Iterator[BinaryIO]:
    """Write a new file that takes the name atomically when the block ends; if `durable`, file and name are then on the disk.

    It is written under a unique name. Anything under `path` is replaced; a link there is not followed.
    """
    unfinished = unfinished_name(path)
    with create_new(unfinished, mode) as file:
        try:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            os.rename(unfinished, path)  # noqa: PTH104  # Path's own makes another path of the name
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
    if durable:
        flush(path.parent, os.fsync)


def unfinished_name(path: Path) -> Path:
    """Return a name for an unfinished file that no other user can predict."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}")


def flush(path: Path, how: Callable[[int], int | None]) -> int | None:
    """Flush a file, or the entries of a folder, to the disk by a function of its descriptor; returns what that returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return how(descriptor)
    except OSError as error:
        # Some file systems flush no folders, only files.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
        return None
    finally:
        os.close(descriptor)


def _open_plain_descriptor(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a plain file as a descriptor; a pipe does not block and is refused."""
    try:
        descriptor = os.open(path, flags | FLAGS, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe without a reader, or a socket
            raise _not_a_plain_file(path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_a_plain_file(path)


def _not_a_plain_file(path: Path) -> RunError:
    kind = "a symbolic link" if path.is_symlink() else "a pipe, a socket or a device"
    return RunError(
        f"{path} is {kind}, but a run reads and writes only regular files. Move it away, or restore a copy."
    )
