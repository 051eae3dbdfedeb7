"""Settings of the C library's heap for the memory that training steps allocate and free.

By default glibc returns the free end of the heap to the system once it exceeds a few MiB, which every training step frees. The
next step takes the memory again, page by page, and the kernel clears each page. For small convolutions this was a fifth of their CPU
time. A trainer therefore keeps freed memory.

The next block and the next member can use kept memory only if it is contiguous. Two things would fragment it permanently:

* The many small pieces that a member's first step leaves behind: its optimizer's state, and the kernels that were made for its
  shapes. In such a step large arrays are allocated outside the heap, so that these pieces lie side by side.
* Small freed pieces that glibc sets aside for the next request of their size (tcache and fastbins) instead of joining them with
  their free neighbours. Every aligned array leaves two such pieces at its ends. The tcache can only be turned off by an environment
  variable before the process starts; a trainer needs no more CPU time without it.
"""

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, MutableMapping

__all__ = ["allow_tcache", "give_back_memory", "keep_freed_memory", "outside_heap", "without_tcache"]

M_MXFAST = 1
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
NEVER = -1
LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc's limit in bytes: a larger array gets its own mapping whatever the threshold is."""
LARGE = 64 * 2**10
"""Bytes from which an array counts as large: several pages, so that its own mapping wastes little."""
TUNABLES = "GLIBC_TUNABLES"
NO_TCACHE = "glibc.malloc.tcache_count=0"

_libc = ctypes.CDLL(None)
_keeps = False
"""Whether this process keeps freed memory; global, like the heap."""


def without_tcache(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that disables tcache in a process and its forks; the user's own setting comes later, so it wins."""
    own = environment.get(TUNABLES)
    return {**environment, TUNABLES: f"{NO_TCACHE}:{own}" if own else NO_TCACHE}


def allow_tcache(environment: MutableMapping[str, str]) -> None:
    """Undo `without_tcache` for programs that this process starts later."""
    environment[TUNABLES] = environment[TUNABLES].removeprefix(NO_TCACHE).removeprefix(":")


def keep_freed_memory() -> None:
    """Keep freed memory in this process, unfragmented, until `give_back_memory`."""
    global _keeps
    _keeps = True
    _libc.mallopt(M_MXFAST, 0)
    _libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    _libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)


def give_back_memory() -> None:
    """Return free memory to the system, where the C library keeps any."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def outside_heap(*, when: bool = True) -> contextlib.AbstractContextManager[None]:
    """Allocate large arrays outside the heap in this context; do nothing unless `when`, or if freed memory is not kept."""
    return _outside_heap() if when and _keeps else contextlib.nullcontext()


@contextlib.contextmanager
def _outside_heap() -> Iterator[None]:
    _libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        _libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
