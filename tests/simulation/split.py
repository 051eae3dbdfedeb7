"""Members that several trainers carry: their ranks meet, and a sum is complete when each rank has begun it.

Nothing is summed, but ranks that begin different batches raise AssertionError. A member that diverges on one rank does so on all.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from simulation.counting import CountingBlock, CountingMember

__all__ = ["CountingShard", "Group", "Meeting"]


@dataclass
class Meeting:
    """What the ranks of one rendezvous have done, and when."""

    came: dict[int, float] = field(default_factory=dict)
    gone: dict[int, float] = field(default_factory=dict)
    begun: defaultdict[int, list[tuple[float, Any]]] = field(default_factory=lambda: defaultdict(list))
    """The batches that each rank has begun, with their times."""
    diverged: bool = False


@dataclass
class Group:
    """Replaces `argosy.training.programs.shard.parallel.Group`."""

    world: Any
    rendezvous: str
    rank: int
    size: int
    broken: str = ""

    @property
    def meeting(self) -> Meeting:
        """The meeting of the group's rendezvous."""
        found: Meeting = self.world.meetings[self.rendezvous]
        return found

    @classmethod
    def form(cls, world: Any, rendezvous: str, rank: int, size: int, *, on: Any) -> "Group":
        """See `parallel.Group.form`."""
        group = cls(world, rendezvous, rank, size)
        assert rank not in group.meeting.came, f"rank {rank} joined {rendezvous} twice"
        group.meeting.came[rank] = world.now
        return group

    @property
    def formed(self) -> bool:
        """See `parallel.Group.formed`."""
        came = self.meeting.came
        return len(came) == self.size and max(came.values()) <= self.world.now

    def add_up(self, batch: Any) -> None:
        """Begin the sum of a batch."""
        self.meeting.begun[self.rank].append((self.world.now, batch))

    @property
    def done(self) -> bool:
        """Whether the sum that was begun last is complete; sets `broken` if it never will be."""
        meeting, now = self.meeting, self.world.now
        number = len(meeting.begun[self.rank]) - 1
        here = [begun[number] for rank in range(self.size) if len(begun := meeting.begun[rank]) > number]
        if len(here) == self.size and max(when for when, _ in here) <= now:
            assert len({batch for _, batch in here}) == 1, f"the ranks began different batches: {here}"
            return True
        left = [rank for rank, when in meeting.gone.items() if when <= now and len(meeting.begun[rank]) <= number]
        if left and not self.broken:
            self.broken = f"rank {left[0]} is gone"
        return False

    def leave(self) -> None:
        """See `parallel.Group.leave`."""
        self.meeting.gone.setdefault(self.rank, self.world.now)


class CountingShard:
    """Replaces `argosy.training.programs.shard.shard.Shard`."""

    def __init__(self, live: CountingMember, group: Group, shares: Sequence[float], *, number: int) -> None:
        self.live, self.group, self.number = live, group, number
        bounds = [*accumulate(shares[:-1], initial=0.0), 1.0]
        self._low, self._high = bounds[group.rank], bounds[group.rank + 1]
        self._batch: tuple[int, int] | None = None
        """The start and the rows of the batch that was begun and not finished."""
        self._part_rows = 0
        self._next = (0, 0)
        """The start of the batch after that one, and how many of its elements were gathered."""

    @property
    def members(self) -> tuple[CountingMember, ...]:
        """See `Shard.members`."""
        return (self.live,)

    @property
    def leads(self) -> bool:
        """See `Shard.leads`."""
        return self.group.rank == 0

    @property
    def under_way(self) -> bool:
        """See `Shard.under_way`."""
        return self._batch is not None

    @property
    def waits(self) -> bool:
        """See `Shard.waits`."""
        if self._batch is None:
            return bool(self.group.broken) or not self.group.formed
        return not self.group.done

    def active(self, *, keep: bool = False) -> AbstractContextManager[None]:
        """See `Program.active`."""
        return nullcontext()

    @property
    def _first(self) -> int:
        return self.live.position if self._batch is None else sum(self._batch)

    def ahead(self, block: CountingBlock) -> list[int]:
        """See `Shard.ahead`."""
        stop, first, batch = block.place.start + block.place.rows, self._first, self.live.member.batch_size
        ends = [min(end, self.live.length) for end in range(first + batch, self.live.length + batch, batch)]
        return [end for end in ends if end <= stop]

    def cut(self, block: CountingBlock) -> Iterator[tuple[int, int]]:
        """See `Shard.cut`."""
        live, place, first = self.live, block.place, self._first
        stop = place.start + place.rows
        gathered = live.carried if self._batch is None else self._next[1]
        if place.start > first + gathered:
            raise AssertionError(
                f"{live.member.name} stands at {first}+{gathered}, and is given {place}: samples are missed"
            )
        while (rows := min(live.member.batch_size, live.length - first)) > 0 and first + rows <= stop:
            yield first, rows
            first += rows
        self._next = (first, max(stop - first, 0))
        # Elements that follow a batch under way are not offered for saving: another trainer could not continue with them.
        live.carried = self._next[1] if first == live.position else 0

    def begin(self, batch: tuple[int, int]) -> None:
        """See `Shard.begin`."""
        self._batch, live = batch, self.live
        live.trips(live)
        self._part_rows = round(self._high * batch[1]) - round(self._low * batch[1])
        live.spend(self._part_rows * live.row_seconds)
        self.group.meeting.diverged |= live.diverged
        self.group.add_up((live.stream_epoch, *batch))

    def finish(self) -> int:
        """See `Shard.finish`."""
        batch, self._batch = self._batch, None
        assert batch is not None
        self.live.commit(*batch)
        self.live.diverged = self.group.meeting.diverged
        self.live.carried = self._next[1] if self._next[0] == self.live.position else 0
        return self._part_rows

    def evaluate(self, block: CountingBlock) -> Iterator[None]:
        """See `Shard.evaluate`."""
        return self.live.evaluate(block) if self.leads else iter(())

    def release(self) -> None:
        """See `Shard.release`."""
        self.group.leave()
        self._batch = None
