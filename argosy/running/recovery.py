"""A fault, and the way out of it: *regroup*. Every trainer saves its members and lets them go; then the policy is asked anew.

Pure bookkeeping: whom the driver has asked, who is still to answer, and whether more was lost than a run may lose; and into
how many micro-batches to cut what a device could not hold.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from argosy.running.refusals import batches_of, least_part
from argosy.study import Member

__all__ = ["Regrouping", "next_division"]


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
    """One of them, from its cause to the moment when nobody carries a member."""

    waiting_for: set[str] = field(default_factory=set)
    """Trainers that were told to save and let go, and have not said so."""
    under_way: bool = False

    def begin(self, trainers: Iterable[str]) -> None:
        """These carry members."""
        self.waiting_for, self.under_way = set(trainers), True

    def let_go(self, trainer: str) -> None:
        """It carries nobody any more, by its own word or because it is gone."""
        self.waiting_for.discard(trainer)

    @property
    def over(self) -> bool:
        """Whether all that were asked have let go."""
        return self.under_way and not self.waiting_for

    def end(self) -> None:
        """Members start again."""
        self.under_way = False
