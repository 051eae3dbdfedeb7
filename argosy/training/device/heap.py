"""Settings of the C library's heap for the memory that training steps allocate and free.

By default glibc returns the free end of the heap to the system once it is a few MiB, which every step of a network frees; the
next step takes it again, page by page, each cleared by the kernel. For small convolutions that was a fifth of their CPU time. So a
trainer keeps freed memory.

Kept memory serves the next block and the next member only while it is in one piece, and two things fragment it for good:

* The many small pieces that a member's first step leaves behind: its optimizer's state, and the kernels that were made for its
  shapes. In such a step large arrays are allocated outside of the heap, so that what remains lies side by side.
* Small freed pieces that glibc sets aside for the next request of their size (tcache and fastbins) instead of joining them with
  their free neighbours. Every aligned array leaves two such pieces at its ends. The tcache can only be turned off by the
  environment, before the process begins; a trainer needs no more CPU time without it.
"""

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, MutableMapping

__all__ = ["allow_tcache", "give_back_memory", "keep_freed_memory", "large_outside", "without_tcache"]

M_MXFAST = 1
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
NEVER = -1
LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc's limit, in bytes: a larger array has a mapping of its own whatever the threshold."""
LARGE = 64 * 2**10
"""Bytes from which an array counts as large: some pages, so that a mapping of its own wastes little."""
TUNABLES = "GLIBC_TUNABLES"
NO_TCACHE = "glibc.malloc.tcache_count=0"

_libc = ctypes.CDLL(None)
_keeps = False
"""Whether this process keeps freed memory; global, as the heap is."""


def without_tcache(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process and its forks without tcache; the user's own setting comes later, so it wins."""
    own = environment.get(TUNABLES)
    return {**environment, TUNABLES: f"{NO_TCACHE}:{own}" if own else NO_TCACHE}


def allow_tcache(environment: MutableMapping[str, str]) -> None:
    """Undo `without_tcache` for programs that this process will start."""
    environment[TUNABLES] = environment[TUNABLES].removeprefix(NO_TCACHE).removeprefix(":")


def keep_freed_memory() -> None:
    """Keep freed memory in this process, in one piece, until `give_back_memory`."""
    global _keeps
    _keeps = True
    _libc.mallopt(M_MXFAST, 0)
    _libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    _libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)


def give_back_memory() -> None:
    """Return free memory to the system."""
    _libc.malloc_trim(0)


@contextlib.contextmanager
def large_outside() -> Iterator[None]:
    """Allocate large arrays outside of the heap inside this context; do nothing where freed memory is not kept."""
    if not _keeps:
        yield
        return
    _libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        _libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
