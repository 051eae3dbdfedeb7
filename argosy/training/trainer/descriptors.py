"""Open files of the members of a trainer, which have one process's limit together: one that leaves them open ends, and no other."""

import gc
import os
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Descriptors"]

LEAKED = 16
"""Files that a member must have left open to be blamed."""
MARGIN = 32
"""Files that the others are to be able to open still."""
ROOM = 256
"""Files by which the limit is raised where those of a member that has ended stay open."""


class Descriptors:
    """Of one trainer. The lowest free descriptor stands for the number of open files: to ask for it costs a microsecond."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()
        """Open files that each member's own code has added."""

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Inside, a member's own code runs."""
        before = _lowest_free()
        try:
            yield
        finally:
            self.left[name] += _lowest_free() - before

    def exhausted_by(self, name: str) -> bool:
        """Whether a member has left files open, and hardly any more can be opened."""
        return self.left[name] >= LEAKED and _lowest_free() > _limit() - MARGIN

    def make_room(self, name: str) -> None:
        """Close what a member that has ended held; where its files stay open, let the process have more, as far as it may."""
        del self.left[name]
        gc.collect()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if _lowest_free() > soft - MARGIN and soft != hard:
            most = soft + ROOM if hard == resource.RLIM_INFINITY else min(soft + ROOM, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _lowest_free() -> int:
    """The limit where there is none."""
    try:
        descriptor = os.dup(2)
    except OSError:
        return _limit()
    os.close(descriptor)
    return descriptor
