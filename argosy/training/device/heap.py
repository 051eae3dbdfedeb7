"""What the C library does with the memory that training steps take and free.

By default it gives the free end of the heap back to the system as soon as that is a few MiB, which every step of a network
frees; every next step takes it again, page by page, all of them cleared by the kernel. For small convolutions that was a
fifth of their CPU time. So a trainer keeps it.

What is kept serves the next block and the next member only while it is whole, and two things divide it for good:

* What a member's first step leaves behind, in many small pieces: its optimizer's state, and the kernels that were made for
  its shapes. In such a step large arrays lie outside of the heap, so that what remains lies side by side.
* Small freed pieces that the C library sets aside for the next request of their size (tcache and fastbins) instead of joining
  them with their free neighbours. Every aligned array leaves two such pieces at its ends. The tcache can only be turned off
  by the environment, before the process begins; a trainer needs no more CPU time without.
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
"""Of glibc, in bytes; what is larger has a mapping of its own whatever one asks for."""
LARGE = 64 * 2**10
"""Bytes from which on an array is large: some pages, so that a mapping of its own wastes little."""
TUNABLES = "GLIBC_TUNABLES"
NO_TCACHE = "glibc.malloc.tcache_count=0"

_libc = ctypes.CDLL(None)
_keeps = False
"""Whether this process keeps freed memory: the heap is the process's."""


def without_tcache(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that has no tcache, nor its forks; a person's own setting comes later, so it counts."""
    own = environment.get(TUNABLES)
    return {**environment, TUNABLES: f"{NO_TCACHE}:{own}" if own else NO_TCACHE}


def allow_tcache(environment: MutableMapping[str, str]) -> None:
    """Undo `without_tcache`, for programs that this process will start."""
    environment[TUNABLES] = environment[TUNABLES].removeprefix(NO_TCACHE).removeprefix(":")


def keep_freed_memory() -> None:
    """Keep freed memory in this process, whole, until `give_back_memory`."""
    global _keeps
    _keeps = True
    _libc.mallopt(M_MXFAST, 0)
    _libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    _libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)


def give_back_memory() -> None:
    """Give back what is free now."""
    _libc.malloc_trim(0)


@contextlib.contextmanager
def large_outside() -> Iterator[None]:
    """Meanwhile take large arrays from the system and give them back there; where freed memory is not kept, do nothing."""
    if not _keeps:
        yield
        return
    _libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        _libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
