"""Kin: members of one device that may be one program, and how many of them a program steps. Pure.

However many do, they train the same, so every size is tried on steps that count: some rounds of a few turns each, of which
the median is its cost. What is not known is measured, one after another first; then a program stays that is cheaper. Where the
two are not far apart, both are tried once more and the lower cost of each counts: a neighbour who is busy for half a second makes
steps dearer, never cheaper. It is asked again when somebody joins or half of them have left: by then a size that is near enough
is known from what was tried before.

A size that memory is not expected to hold is not tried: what steps took of it is measured in the same rounds, and more
members take as much more.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["TURNS", "Kin", "divided"]

GAIN = 0.03
"""Part of the cost that a program must spare: it is never to be slower than one member after another."""
HEADROOM = 0.1
"""Part of the memory at hand that no program is expected to need."""
TURNS = 8
"""Of a round."""
MOST_ROUNDS = 5
TRIES = 2
"""Of each size, at different moments, where ..."""
APART = 2.0
"""... the dearer one costs less than so many times the other: as much as somebody busy on the same core can do."""
SECONDS = 0.25
"""In rounds after the first one, from which on a cost is known."""
MIB = 2**20

Item = TypeVar("Item")


@dataclass(kw_only=True, slots=True, eq=False)
class Kin:
    """What is known of members that were admitted together."""

    size: int = 1
    """Members that a program steps at present, at most."""
    fits: int = sys.maxsize
    """Members of a program at most: more were too many for the memory; 1 where a program of several has raised."""
    foreseen: int | None = None
    """Members of a program that memory is expected to hold at most, if nothing else does; None where nobody knows."""
    reason: str = ""
    """Why there are no more in one."""
    costs: dict[int, float] = field(default_factory=dict)
    """Seconds of a member's sample by size: the least that a try came to."""
    tries: dict[int, int] = field(default_factory=dict)
    needs: dict[int, int] = field(default_factory=dict)
    """Bytes that a step takes for each member, by size."""
    weight_bytes: int = 0
    """Of a member; a program of several has each gradient twice for a moment."""
    settled_for: int = 0
    """Members there were when a size was chosen."""
    _rounds: list[float] = field(default_factory=list)
    _seconds: float = 0.0

    def asks(self, count: int) -> bool:
        """Whether so many members are too few or too many for what was settled."""
        return not self.settled_for < 2 * count <= 2 * self.settled_for

    def note(self, seconds: float, samples: int, need: int | None = None) -> None:
        """A round of the present size is over, whose steps took so many bytes for each member; the first one warms up."""
        if not samples:
            return
        if self._rounds:
            self._seconds += seconds
            if need is not None:
                self.needs[self.size] = max(need, self.needs.get(self.size, 0))
        self._rounds.append(seconds / samples)
        timed = self._rounds[1:]
        if timed and (self._seconds > SECONDS or len(timed) == MOST_ROUNDS):
            self.costs[self.size] = min(statistics.median(timed), self.costs.get(self.size, math.inf))
            self.tries[self.size] = self.tries.get(self.size, 0) + 1
            self.forget_rounds()

    def foresee(self, count: int, room: int | None) -> None:
        """Before a size is chosen, with so many bytes at hand between steps: how many members of a program they will hold.

        It stands until what was chosen is asked again: rounds of a smaller size are not to make a larger one of it.
        """
        if self.settled_for:
            self.settled_for, self.foreseen = 0, None
            self.reason = self.reason if self.fits < sys.maxsize else ""
        if self.foreseen is not None or room is None or not self.needs:
            return
        nearest = min(self.needs, key=lambda size: abs(size - count))
        need = max(self.needs[nearest] + self.weight_bytes * (nearest == 1), 1)
        self.foreseen = max(int((1 - HEADROOM) * room) // need, 1)
        if self.foreseen < min(count, self.fits):
            self.reason = f"{count} in a program would take {count * need / MIB:,.1f} MiB for a step, of {room / MIB:,.1f} that are left"

    def restrict(self, fits: int, reason: str) -> None:
        """So many in a program at most from here on; what is best is asked again."""
        self.fits, self.reason, self.settled_for = fits, reason, 0
        self.forget_rounds()

    def forget_rounds(self) -> None:
        """Those of the present size count no longer."""
        self._rounds.clear()
        self._seconds = 0.0

    def measures(self, count: int) -> bool:
        """Whether the cost of the present size is still to be found out."""
        largest = self._largest(count)
        return largest > 1 and (1 if self.size == 1 else largest) in self._to_try(largest)

    def next(self, count: int) -> int:
        """The size with which so many members go on: one that is to be tried, or else the cheaper one."""
        largest = self._largest(count)
        if to_try := self._to_try(largest):
            return to_try[0]
        return 1 if largest == 1 or self.cost(largest) >= (1 - GAIN) * self.cost(1) else largest

    def cost(self, size: int) -> float:
        """Seconds of a member's sample in programs of about so many; infinite where nobody knows."""
        near = self._near(size)
        return math.inf if near is None else self.costs[near]

    def _near(self, size: int) -> int | None:
        """The nearest size that says what this one costs."""
        near = [known for known in self.costs if known == size or (1 < known < 2 * size and 1 < size < 2 * known)]
        return min(near, key=lambda known: abs(known - size), default=None)

    def _to_try(self, largest: int) -> Sequence[int]:
        """What to measure, first things first: a size of which nothing is known, the try under way, then at another moment."""
        if largest == 1:
            return ()
        present, other = (1, largest) if self.size == 1 else (largest, 1)
        known = {size: near for size in (1, largest) if (near := self._near(size)) is not None}
        if len(known) < 2:
            return [size for size in (present, other) if size not in known]
        cheap, dear = sorted(self.costs[near] for near in known.values())
        if dear >= APART * cheap:
            return ()
        in_order = (present, other) if self._rounds else (other, present)
        return [size for size in in_order if self.tries[known[size]] < TRIES]

    def _largest(self, count: int) -> int:
        """Members of a program at most, where they are divided evenly."""
        most = self.fits if self.foreseen is None else min(self.fits, self.foreseen)
        parts = max(-(-count // most), 1)
        return -(-count // parts)


def divided(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Items in parts of so many at most, which are equally large as far as can be."""
    parts = -(-len(items) // size)
    ends = [len(items) * part // parts for part in range(parts + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(ends)]
