"""Checks of how the C library's heap treats small freed pieces."""

import ctypes
import itertools
from typing import Any

import studies
from torch import nn

from argosy.training.device.heap import keep_freed_memory

__all__ = ["left_in_use", "network_where_none_is_left"]


def left_in_use() -> bool:
    """Return whether, after `keep_freed_memory`, the heap caches a small freed piece instead of merging it with free neighbours."""
    libc: Any = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    keep_freed_memory()
    places = sorted(libc.malloc(104) for _ in range(1000))
    low, high = next(pair for pair in itertools.pairwise(places[500:]) if pair[1] - pair[0] == 112)
    libc.free(low)
    # glibc stores a piece's size in front of it; the lowest bit of that says whether the piece before it is in use.
    return bool(ctypes.c_size_t.from_address(high - 8).value & 1)


def network_where_none_is_left() -> nn.Module:
    """Build a network; raises in a process whose heap keeps small freed pieces in a cache."""
    if left_in_use():
        raise RuntimeError("a small freed piece was set aside")
    return studies.Mlp()
