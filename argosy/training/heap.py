"""What the C library does with the memory that a training step has freed.

By default it gives the free end of the heap back to the system as soon as that is a few MiB, which every step of a network
frees; every next step takes it again, page by page, all of them cleared by the kernel. For small convolutions that was a
fifth of their CPU time.
"""

import ctypes

__all__ = ["give_back_memory", "keep_freed_memory"]

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
NEVER = -1
LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""Of glibc, in bytes; what is larger has a mapping of its own whatever one asks for."""


def keep_freed_memory() -> None:
    """Keep freed memory in this process, until `give_back_memory`."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)


def give_back_memory() -> None:
    """Give back what is free now."""
    ctypes.CDLL(None).malloc_trim(0)
