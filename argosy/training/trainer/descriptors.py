"""Tracks the open files of a trainer's members, which share their process's limit: only a member that leaks files is ended."""

import gc
import os
import resource
from collections import Counter

__all__ = ["Descriptors", "lowest_free"]

LEAKED = 16
"""Files that a member must have left open to count as leaking."""
MARGIN = 32
"""Files that the other members must still be able to open."""
ROOM = 256
"""Files by which the limit is raised where an ended member's files stay open."""


class Descriptors:
    """Open files of one trainer. The lowest free descriptor approximates their number, and costs a microsecond to get."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()
        """Files that each member's own code has left open."""

    def count(self, name: str, before: int) -> None:
        """Count files that a member's code has left open, by what `lowest_free` was before it."""
        self.left[name] += lowest_free() - before

    def exhausted_by(self, name: str) -> bool:
        """Whether a member has leaked files, and hardly any more can be opened."""
        return self.left[name] >= LEAKED and lowest_free() > _limit() - MARGIN

    def make_room(self, name: str) -> None:
        """Close files of an ended member; where they stay open, raise the soft limit as far as possible."""
        del self.left[name]
        gc.collect()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if lowest_free() > soft - MARGIN and soft != hard:
            most = soft + ROOM if hard == resource.RLIM_INFINITY else min(soft + ROOM, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def lowest_free() -> int:
    """Return the lowest free descriptor; the limit where none is free."""
    try:
        descriptor = os.dup(2)
    except OSError:
        return _limit()
    os.close(descriptor)
    return descriptor
