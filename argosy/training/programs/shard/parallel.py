"""The group of a split member: its ranks meet, and sum their gradients.

Contract. Every split member has its own group, formed anew whenever the member is assigned, outside of torch's default process group,
so the groups of a device are independent. Ranks find each other at a rendezvous (`argosy.stream.rendezvous`). Nothing here blocks
steps: a thread forms the group, and sums are polled. A peer may legitimately be busy for a long time, so sums have no effective
timeout; the driver decides which ranks are lost and which sums hang. A group with a lost peer is *broken* and completes no further
sum. When a rank leaves, its peers' sums fail or never end. Closing torch's end (`argosy.training.programs.shard.ends`) may wait for a
sum in progress, so it runs in a thread, which ends when the peers have left.
"""

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from argosy.stream.rendezvous import open_store
from argosy.training.programs.shard.ends import GroupConnection, Work, connect_peers

__all__ = ["LONG_BYTES", "POLL_SECONDS", "Group", "Sum", "time_sums"]

MEET_SECONDS = 0.005
"""Seconds between two checks whether all ranks have met."""
PATIENCE_SECONDS = 20.0
"""Seconds that trainers wait for each other when they time sums."""
ROUNDS = 5
LONG_BYTES = 4 * 2**20
"""Size of the longer timed sum."""
POLL_SECONDS = 0.0002
"""Seconds between two polls of a sum."""
CLOSE_SECONDS = 10.0
"""Seconds that an exiting process waits for its ends to close: NCCL aborts a process whose device disappears during that."""
_CLOSING: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


class Group:
    """One rank's side of a group, which can sum once it is `formed`."""

    def __init__(self, rendezvous: str, rank: int, size: int, on: torch.device) -> None:
        self.rendezvous = rendezvous
        self.rank = rank
        self.size = size
        self.on = on
        """Device of the tensors to sum."""
        self.broken: str = ""
        """Why the group is broken; empty while it is not."""
        self._ends: list[GroupConnection] = []
        """The connection, once the group is formed."""
        self._left = False

    @classmethod
    def form(cls, rendezvous: str, rank: int, size: int, *, on: torch.device) -> "Group":
        """Begin to form a group of this size; all ranks give the same rendezvous, which must not have been used before."""
        group = cls(rendezvous, rank, size, on)
        threading.Thread(target=group._meet, daemon=True).start()
        return group

    @property
    def formed(self) -> bool:
        """Whether all ranks are connected."""
        return bool(self._ends)

    def add_up(self, values: torch.Tensor) -> "Sum":
        """Start to sum a tensor over all ranks, in place; every rank gets the same bits."""
        try:
            return Sum(self, self._ends[0].add_up(values))
        except RuntimeError as error:
            self.broken = _reason(error)
            return Sum(self, None)

    def leave(self) -> None:
        """Leave the group without waiting."""
        self._left = True
        ends, self._ends = self._ends, []
        closing = threading.Thread(target=_close, args=(ends,), daemon=True)
        _CLOSING.add(closing)
        closing.start()

    def _meet(self) -> None:
        try:
            end = self._join(open_store(self.rendezvous, self.size))
        except RuntimeError as error:
            self.broken = _reason(error)
            return
        if end is not None:
            self._ends.append(end)
            if self._left:
                self.leave()  # `leave` was called before this end existed

    def _join(self, store: Any) -> GroupConnection | None:
        """Wait for all ranks and return the connection; None if this rank has left meanwhile."""
        store.set(f"here/{self.rank}", "")
        all_ranks = [f"here/{rank}" for rank in range(self.size)]
        while not store.check(all_ranks):
            if self._left:
                return None
            time.sleep(MEET_SECONDS)
        return connect_peers(store, self.rank, self.size, self.on)


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum in progress."""

    group: Group
    _work: Work | None
    """None if the group was broken."""

    @property
    def done(self) -> bool:
        """Whether the sum is complete; never true in a broken group."""
        if self.group.broken or self._work is None or not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except RuntimeError as error:
            self.group.broken = _reason(error)
            return False
        return True


def time_sums(rendezvous: str, rank: int, size: int, *, on: torch.device) -> tuple[float, float]:
    """Return the seconds of a sum of one number and of 4 MiB over a group; infinite if ranks do not join.

    Each is the minimum of a few measurements, since other load only adds time.
    """
    group = Group.form(rendezvous, rank, size, on=on)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        if not _wait_until(lambda: group.formed, deadline):
            return math.inf, math.inf
        return _min_seconds(group, 4, deadline), _min_seconds(group, LONG_BYTES, deadline)
    finally:
        group.leave()


def _min_seconds(group: Group, size: int, deadline: float) -> float:
    """Return the minimum seconds of several sums of `size` bytes."""
    values, seconds = torch.zeros(size // 4, device=group.on), []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        under_way = group.add_up(values)
        if not _wait_until(lambda: under_way.done, deadline):  # noqa: B023
            return math.inf
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def _close(ends: list[GroupConnection]) -> None:
    for end in ends:
        end.close()
    ends.clear()


@atexit.register
def _closed() -> None:
    until = time.monotonic() + CLOSE_SECONDS
    for closing in list(_CLOSING):
        closing.join(max(until - time.monotonic(), 0.0))


def _wait_until(true: Callable[[], bool], deadline: float) -> bool:
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
