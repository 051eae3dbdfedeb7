"""The group of a member that several devices carry: its ranks meet, and add up what each of them has computed.

Contract. Every member has a group of its own, formed anew whenever it boards, that is no part of any world of torch's: the
groups of a device know nothing of each other. Ranks find each other at a rendezvous (`argosy.stream.rendezvous`). Whoever steps
members never waits in here: a group is formed in a thread of its own, and a sum is asked whether it is there. A peer may
rightly be busy for long, so no sum has a time limit that could be reached; who is lost, and which sum hangs, the driver
decides. A group of which a peer is seen to be gone is *broken*, and gives no sum any more. Who leaves a group lets its peers
go: their sums break, or never end. To let go of torch's end (`argosy.training.programs.shard.ends`) may take until a sum that
is under way has ended, and so that has a thread, which ends when the peers have left.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from argosy.stream.rendezvous import store_at
from argosy.training.programs.shard.ends import End, Work, meet

__all__ = ["LONG_BYTES", "POLL_SECONDS", "Group", "Sum", "time_sums"]

LOOK_SECONDS = 0.005
"""Between two looks whether all are there."""
PATIENCE_SECONDS = 20.0
"""How long trainers wait for each other to time sums."""
ROUNDS = 5
LONG_BYTES = 4 * 2**20
"""Of the longer sum that is timed."""
POLL_SECONDS = 0.0002
"""Between two looks whether a sum is there."""


class Group:
    """One rank's end. `formed` says when it can add up."""

    def __init__(self, rendezvous: str, rank: int, size: int, on: torch.device) -> None:
        self.rendezvous = rendezvous
        self.rank = rank
        self.size = size
        self.on = on
        """Where the tensors lie that it adds up."""
        self.broken = ""
        """Why nothing comes of it any more."""
        self._ends: list[End] = []
        """torch's end of it, when it is formed."""
        self._left = False

    @classmethod
    def form(cls, rendezvous: str, rank: int, size: int, *, on: torch.device) -> "Group":
        """Begin to form a group of this size, whose ranks all name the same rendezvous, which nobody has used before."""
        group = cls(rendezvous, rank, size, on)
        threading.Thread(target=group._meet, daemon=True).start()
        return group

    @property
    def formed(self) -> bool:
        """Whether all ranks are connected."""
        return bool(self._ends)

    def add_up(self, values: torch.Tensor) -> "Sum":
        """Start to sum a tensor over all ranks, in its place; every rank gets the same bits."""
        try:
            return Sum(self, self._ends[0].add_up(values))
        except RuntimeError as error:
            self.broken = _reason(error)
            return Sum(self, None)

    def leave(self) -> None:
        """Let go of the peers; never waits."""
        self._left = True
        ends, self._ends = self._ends, []
        threading.Thread(target=_close, args=(ends,), daemon=True).start()

    def _meet(self) -> None:
        try:
            end = self._join(store_at(self.rendezvous, self.size))
        except RuntimeError as error:
            self.broken = _reason(error)
            return
        if end is not None:
            self._ends.append(end)
            if self._left:
                self.leave()  # Nobody has let go of this one.

    def _join(self, store: Any) -> End | None:
        """torch's end, when all ranks are there; None where this one has left before."""
        store.set(f"here/{self.rank}", "")
        everybody = [f"here/{rank}" for rank in range(self.size)]
        while not store.check(everybody):
            if self._left:
                return None
            time.sleep(LOOK_SECONDS)
        return meet(store, self.rank, self.size, self.on)


@dataclass(frozen=True, slots=True)
class Sum:
    """On its way."""

    group: Group
    _work: Work | None
    """None where its group was broken."""

    @property
    def done(self) -> bool:
        """Whether it is there; never, where its group broke."""
        if self.group.broken or self._work is None or not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except RuntimeError as error:
            self.group.broken = _reason(error)
            return False
        return True


def time_sums(rendezvous: str, rank: int, size: int, *, on: torch.device) -> tuple[float, float]:
    """Seconds of a sum of one number and of 4 MiB over a group; infinite where the others do not come.

    The least of a few: what else runs on a machine only adds.
    """
    group = Group.form(rendezvous, rank, size, on=on)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        if not _until(lambda: group.formed, deadline):
            return math.inf, math.inf
        return _least(group, 4, deadline), _least(group, LONG_BYTES, deadline)
    finally:
        group.leave()


def _least(group: Group, size: int, deadline: float) -> float:
    """Of the sums of so many bytes after the first."""
    values, found = torch.zeros(size // 4, device=group.on), []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        under_way = group.add_up(values)
        if not _until(lambda: under_way.done, deadline):  # noqa: B023
            return math.inf
        found.append(time.perf_counter() - started)
    return min(found[1:])


def _close(ends: list[End]) -> None:
    for end in ends:
        end.close()
    ends.clear()


def _until(true: Callable[[], bool], deadline: float) -> bool:
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
