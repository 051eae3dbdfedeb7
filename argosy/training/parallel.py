"""The group of a member that several devices carry: its ranks meet, and add up what each of them has computed.

Contract. Every member has a group of its own, formed anew whenever it boards, that is no part of any world of torch's: the
groups of a device know nothing of each other. Ranks find each other at a meeting (`argosy.stream.meeting`). Whoever steps
members never waits in here: a group is formed in a thread of its own, and a sum is asked whether it is there. A peer may
rightly be busy for long, so no sum has a time limit that could be reached; who is lost, and which sum hangs, the driver decides.
A group of which a peer is gone is *broken*, and gives no sum any more. Who leaves a group lets its peers go: their sums break. The
destructor waits for a sum that is still under way, without the interpreter's lock, and so it has a thread, which ends when the
peers have left.
"""

import datetime
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from argosy.stream.meeting import FORMING, store_at

__all__ = ["LONG_BYTES", "POLL_SECONDS", "Group", "Sum", "time_sums"]

NEVER = datetime.timedelta(days=365)
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

    def __init__(self, meeting: str, rank: int, size: int) -> None:
        self.meeting = meeting
        self.rank = rank
        self.size = size
        self.broken = ""
        """Why nothing comes of it any more."""
        self._ends: list[Any] = []
        """torch's end of it, when it is formed."""
        self._left = False

    @classmethod
    def form(cls, meeting: str, rank: int, size: int) -> "Group":
        """Begin to form a group of this size, whose ranks all name the same meeting, which nobody has used before."""
        group = cls(meeting, rank, size)
        threading.Thread(target=group._meet, daemon=True).start()
        return group

    @property
    def formed(self) -> bool:
        """Whether all ranks are connected."""
        return bool(self._ends)

    def add_up(self, values: torch.Tensor) -> "Sum":
        """Start to sum a tensor of the host over all ranks, in its place; every rank gets the same bits."""
        options = dist.AllreduceOptions()
        options.timeout = NEVER
        try:
            return Sum(self, self._ends[0].allreduce([values], options))
        except RuntimeError as error:
            self.broken = _reason(error)
            return Sum(self, None)

    def leave(self) -> None:
        """Let go of the peers; never waits."""
        self._left = True
        ends, self._ends = self._ends, []
        threading.Thread(target=ends.clear, daemon=True).start()

    def _meet(self) -> None:
        try:
            end = self._join(store_at(self.meeting, self.size))
        except RuntimeError as error:
            self.broken = _reason(error)
            return
        if end is not None and not self._left:
            self._ends.append(end)

    def _join(self, store: Any) -> Any:
        """torch's end, when all ranks are there; None where this one has left before."""
        store.set(f"here/{self.rank}", "")
        everybody = [f"here/{rank}" for rank in range(self.size)]
        while not store.check(everybody):
            if self._left:
                return None
            time.sleep(LOOK_SECONDS)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return dist.ProcessGroupGloo(store, self.rank, self.size, FORMING)


@dataclass(frozen=True, slots=True)
class Sum:
    """On its way."""

    group: Group
    _work: Any

    @property
    def done(self) -> bool:
        """Whether it is there; never, where its group broke."""
        if self.group.broken or not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except RuntimeError as error:
            self.group.broken = _reason(error)
            return False
        return True


def time_sums(meeting: str, rank: int, size: int) -> tuple[float, float]:
    """Seconds of a sum of one number and of 4 MiB over a group; infinite where the others do not come.

    The least of a few: what else runs on a machine only adds.
    """
    group = Group.form(meeting, rank, size)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        if not _until(lambda: group.formed, deadline):
            return math.inf, math.inf
        return _least(group, 4, deadline), _least(group, LONG_BYTES, deadline)
    finally:
        group.leave()


def _least(group: Group, size: int, deadline: float) -> float:
    """Of the sums of so many bytes after the first."""
    values, found = torch.zeros(size // 4), []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        under_way = group.add_up(values)
        if not _until(lambda: under_way.done, deadline):  # noqa: B023
            return math.inf
        found.append(time.perf_counter() - started)
    return min(found[1:])


def _until(true: Callable[[], bool], deadline: float) -> bool:
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
