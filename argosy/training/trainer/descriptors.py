"""Tracks open files by member. Members share their process's limit, and only a member that leaks files must end when it is reached."""

import gc
import os
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

__all__ = ["Descriptors"]

LEAK_FILES = 16
"""Number of files left open from which a member counts as leaking."""
MARGIN = 32
"""Number of files that the other members must still be able to open."""
RAISED_BY = 256
"""Number of files by which the limit is raised if an ended member's files stay open."""


class Descriptors:
    """Open files of one trainer. Their number is approximated by the lowest free descriptor, which takes a microsecond to get."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()
        """Number of files that each member's own code has left open."""

    def counted(self, name: str, action: Callable[[], Any]) -> Any:
        """Run a piece of a member's code, and count files that it leaves open."""
        before = lowest_free()
        try:
            return action()
        finally:
            self.left[name] += lowest_free() - before

    def exhausted_by(self, name: str) -> bool:
        """Return whether a member has leaked files and the limit is almost reached."""
        return self.left[name] >= LEAK_FILES and lowest_free() > _limit() - MARGIN

    def make_room(self, name: str) -> None:
        """Close files of an ended member; if they stay open, raise the soft limit as far as possible, by at most `RAISED_BY`."""
        del self.left[name]
        gc.collect()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if lowest_free() > soft - MARGIN and soft != hard:
            most = soft + RAISED_BY if hard == resource.RLIM_INFINITY else min(soft + RAISED_BY, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def lowest_free() -> int:
    """Return the lowest free descriptor; the limit if none is free."""
    try:
        descriptor = os.dup(2)
    except OSError:
        return _limit()
    os.close(descriptor)
    return descriptor
