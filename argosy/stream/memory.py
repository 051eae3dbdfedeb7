"""Anonymous memory files: memory that processes share by descriptor, without a name that could be left behind."""

import os
import sys
import tempfile

from argosy.errors import WorkerError
from argosy.errors.system import resources_refused

__all__ = ["memory_file"]


def memory_file(name: str, size: int = 0) -> int:
    """Return the descriptor of a memory file of so many bytes. Programs started by this process do not inherit it.

    Raises WorkerError if the system refuses.
    """
    try:
        if sys.platform == "linux":
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
    except OSError as error:
        raise resources_refused(error, "no memory can be shared between processes") or WorkerError(
            f"no memory can be shared between processes because memfd_create is refused: {error}. Allow it in the "
            "sandbox (docker run --security-opt seccomp=unconfined), or use launcher inline."
        ) from error
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise WorkerError(
            f"processes cannot share {size:,} bytes: {error}. Lower --block-size, or raise the limits (ulimit -f, -v)."
        ) from error
    return descriptor
