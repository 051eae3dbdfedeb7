"""Ways to recover from a lost trainer, what each of them costs, and which trainers a regrouping waits for. Pure bookkeeping and arithmetic.

Members of a lost trainer continue from their latest checkpoints, behind the other members of their leg. Either all members go *back*:
they are saved, released and planned again from the least position. Or the lost members get a leg of their own while the others continue:
until they *meet* at the end of a section, where the others wait, or *apart*, to the end, with a stream that is prepared for them alone.
Batches that a device could not hold are split into more micro-batches.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from argosy.running.control.refusals import batch_sizes, smallest_micro_batch
from argosy.study import Member

__all__ = ["Loss", "Regrouping", "RecoveryWay", "next_micro_batches"]


class RecoveryWay(StrEnum):
    """How members of a lost trainer continue; among equally cheap ways, the first is chosen."""

    APART = "apart"
    MEET = "meet"
    BACK = "back"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What the planner knows about the loss of a trainer whose stream other members share."""

    repeated_seconds: float
    """Work of its members since their latest checkpoints."""
    restart_seconds: float
    """Time to save all members and load them again."""
    to_meeting: int
    """Stream samples from the position of its members to the end of the current section of the others."""
    to_end: int
    """Stream samples to their limits, or to the end of the next epoch if there is no limit."""
    sample_seconds: float
    """Seconds that all members together lose if a sample is prepared once more."""

    @property
    def costs(self) -> dict[RecoveryWay, float]:
        """Seconds that all members together lose, by way."""
        return {
            RecoveryWay.APART: self.to_end * self.sample_seconds,
            RecoveryWay.MEET: self.to_meeting * self.sample_seconds + self.repeated_seconds,
            RecoveryWay.BACK: self.restart_seconds + self.repeated_seconds,
        }

    @property
    def cheapest(self) -> RecoveryWay:
        """The cheapest way."""
        costs = self.costs
        return min(costs, key=lambda way: costs[way])


def next_micro_batches(member: Member, length: int, now: int, *, batch_norm: bool) -> int | None:
    """Return the next number of micro-batches for a member whose device could not hold a step in `now` of them: twice as many, if possible.

    None if they cannot be smaller. With BatchNorm, no micro-batch in a split of this length may hold a single sample.
    """
    batches, size = batch_sizes(member, length), member.batch_size
    twice = min(2 * now, size)
    # Rather more than that than fewer, because each number that does not fit costs a regrouping.
    for parts in chain(range(twice, size + 1), range(twice - 1, now, -1)):
        smaller = -(-size // parts) < -(-size // now)
        if smaller and not (batch_norm and any(smallest_micro_batch(rows, parts) == 1 for rows in batches)):
            return parts
    return None


@dataclass(slots=True)
class Regrouping:
    """Trainers that were told to save and release their members, until all have."""

    waiting_for: dict[str, float] = field(default_factory=dict)
    """Trainers that have not released their members yet, with their deadlines."""
    under_way: bool = False

    def begin(self, trainers: Iterable[str], *, until: float) -> None:
        """Wait for trainers until a deadline, in addition to those already waited for."""
        self.waiting_for |= dict.fromkeys(trainers, until)
        self.under_way = True

    def mark_released(self, trainer: str) -> None:
        """Note that a trainer has no members any more, because it reported so or is lost."""
        self.waiting_for.pop(trainer, None)

    def take_overdue(self, now: float) -> list[str]:
        """Return trainers past their deadline, each once; they are killed, and waited for until they are gone."""
        late = [trainer for trainer, until in self.waiting_for.items() if until < now]
        self.waiting_for |= dict.fromkeys(late, math.inf)
        return late

    @property
    def over(self) -> bool:
        """Whether all trainers have released their members."""
        return self.under_way and not self.waiting_for

    def end(self) -> None:
        """End the regrouping, so that members start again."""
        self.under_way = False
