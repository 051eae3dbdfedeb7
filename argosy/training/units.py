"""What a trainer steps: a unit is one program, with its members' places aboard.

A unit follows the stream as one, so that its members stand at the same section of the same epoch; how far they are within
it is their own. Where members come or go, or are stepped by another program, other units take the place of theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from argosy.commands import Seat
from argosy.stream.blocks import Block, Place
from argosy.training.aboard import Aboard
from argosy.training.parallel import Group
from argosy.training.program import Program
from argosy.training.shard import Shard
from argosy.training.solo import Solo

__all__ = ["Unit"]


@dataclass(kw_only=True, slots=True, eq=False)
class Unit:
    """One program of a trainer."""

    program: Program[Any]
    crew: tuple[Aboard, ...]
    """Its members, in the order in which they came aboard."""
    samples: int = 0
    """Stepped on since it is there, summed over its members."""

    @classmethod
    def solo(cls, aboard: Aboard) -> "Unit":
        """A member by itself."""
        return cls(program=Solo(aboard.live), crew=(aboard,))

    @classmethod
    def seated(cls, aboard: Aboard, seat: Seat) -> "Unit":
        """A device's share of a member that several carry; their group begins to form."""
        group = Group.form(seat.meeting, seat.rank, len(seat.shares))
        return cls(program=Shard(aboard.live, group, seat.shares, number=seat.number), crew=(aboard,))

    @property
    def shard(self) -> Shard | None:
        """Its program, where that is a share of a split member."""
        return self.program if isinstance(self.program, Shard) else None

    @property
    def names(self) -> tuple[str, ...]:
        """Of its members."""
        return tuple(aboard.name for aboard in self.crew)

    @property
    def words(self) -> str:
        """Its members, for somebody who asks what is being done."""
        return f"member{'s' * (len(self.crew) > 1)} {', '.join(map(repr, self.names))}"

    def follow(self, place: Place) -> bool:
        """Go with the stream into another epoch; False for a block that its members have behind them."""
        followed = [aboard.follow(place) for aboard in self.crew]
        return all(followed)

    def step(self, block: Block, called: Callable[[], bool]) -> bool:
        """Run the steps that a training block completes; False where it was `called` after one of them."""
        program = self.program
        with program.active():
            for batch in program.cut(block):
                program.begin(batch)
                self.samples += program.finish()
                if called():
                    return False
        return True

    def evaluate(self, block: Block, called: Callable[[], bool]) -> bool:
        """The same with the batches of a block of validation samples."""
        with self.program.active(keep=True):
            for _ in self.program.evaluate(block):
                if called():
                    return False
        return True
