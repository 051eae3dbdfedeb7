"""A fault, and the ways out of it: what each of them costs all members, and which trainers a regrouping waits for.

Members of a lost trainer go on from their newest files, and the others of their leg are ahead of these. Either all of them go
*back*: saved, let go, and planned anew from the least position. Or the lost ones get a leg of their own while the others go on:
until they *meet* at the end of a section, where members that are ahead wait, or *apart*, to the end, with a stream that is prepared for
them alone. What a device could not hold is cut into more micro-batches. Pure bookkeeping and arithmetic.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from argosy.running.control.refusals import batches_of, least_part
from argosy.study import Member

__all__ = ["Loss", "Regrouping", "Way", "next_division"]


class Way(StrEnum):
    """How members of a lost trainer go on; of equals the first is taken."""

    APART = "apart"
    MEET = "meet"
    BACK = "back"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What the planner knows when a trainer is lost that others share a stream with."""

    repeated_seconds: float
    """Work of its members that is in no file."""
    restart_seconds: float
    """To save all members, and to load them again."""
    to_meeting: int
    """Samples of the stream from where its members go on to the end of the section that the others are in."""
    to_end: int
    """And to where their limits are; where no rule knows one, to the end of the epoch after this."""
    sample_seconds: float
    """Seconds that all members lose by one sample that is prepared once more."""

    @property
    def costs(self) -> dict[Way, float]:
        """Seconds that all members lose by each way."""
        return {
            Way.APART: self.to_end * self.sample_seconds,
            Way.MEET: self.to_meeting * self.sample_seconds + self.repeated_seconds,
            Way.BACK: self.restart_seconds + self.repeated_seconds,
        }

    @property
    def cheapest(self) -> Way:
        """The way that costs least."""
        costs = self.costs
        return min(costs, key=lambda way: costs[way])


def next_division(member: Member, length: int, now: int, *, batch_norm: bool) -> int | None:
    """Micro-batches for a member whose device could not hold a step in `now` of them: twice as many, where that can be.

    None where they cannot be smaller. With BatchNorm, none of a batch in a split of this length may hold one sample.
    """
    batches, size = batches_of(member, length), member.batch_size
    twice = min(2 * now, size)
    for parts in chain(range(twice, size + 1), range(twice - 1, now, -1)):
        smaller = -(-size // parts) < -(-size // now)
        if smaller and not (batch_norm and any(least_part(rows, parts) == 1 for rows in batches)):
            return parts
    return None


@dataclass(slots=True)
class Regrouping:
    """Trainers that were told to save their members and let them go, until the last of them has."""

    waiting_for: dict[str, float] = field(default_factory=dict)
    """Those that have not said so, and when the time of each is over."""
    under_way: bool = False

    def begin(self, trainers: Iterable[str], *, until: float) -> None:
        """These carry members, and have until then; others may be waited for already."""
        self.waiting_for |= dict.fromkeys(trainers, until)
        self.under_way = True

    def let_go(self, trainer: str) -> None:
        """A trainer has no member any more, as it says or because it is gone."""
        self.waiting_for.pop(trainer, None)

    def late(self, now: float) -> list[str]:
        """Trainers whose time is over, each named once: they are to be ended, and waited for until they are gone."""
        late = [trainer for trainer, until in self.waiting_for.items() if until < now]
        self.waiting_for |= dict.fromkeys(late, math.inf)
        return late

    @property
    def over(self) -> bool:
        """Whether all that were asked have let go."""
        return self.under_way and not self.waiting_for

    def end(self) -> None:
        """Members start again."""
        self.under_way = False
