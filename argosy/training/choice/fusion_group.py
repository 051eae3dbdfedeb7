"""FusionGroup: members of one device that may be one program, how many of them a program steps, and of which kind it is. Pure.

Whatever steps them, they train the same, so every candidate is tried on steps that count: some rounds of a few turns each, of
which the median is its cost. What is not known is measured, one after another first; then what is cheapest stays. Those that are
not far from it are tried again until the two lowest costs agree, and the lowest of each counts: a neighbour who is busy for half
a second makes steps dearer, never cheaper. It is asked again when somebody joins or half of them have left: by then a size that
is near enough is known from what was tried before.

A size that memory is not expected to hold is not tried: what steps took of it is measured in the same rounds, and more
members take as much more. Nor are captured steps, where memory would not hold those of all members at once.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

__all__ = ["ALONE", "TURNS", "ProgramCandidate", "FusionGroup", "Kind", "divided"]

GAIN = 0.03
"""Part of the cost that a candidate must spare against simpler ones: it is never to be slower than one member after another."""
HEADROOM = 0.1
"""Part of the memory at hand that no program is expected to need."""
TURNS = 8
"""Of a round."""
MOST_ROUNDS = 5
APART = 2.0
"""A candidate that costs so many times the cheapest is tried once: somebody busy on the same core cannot do as much."""
AGREE = 0.05
"""Part of the lowest cost by which another one is higher, and confirms it."""
MOST_TRIES = 4
"""Of each candidate, at different moments."""
SECONDS = 0.25
"""In rounds after the first one, from which on a cost is known."""
MIB = 2**20

Item = TypeVar("Item")
Kind = Literal["plain", "graphed", "compiled"]
"""How a program makes its steps: operator by operator, as a captured whole, or by code that was made for its architecture."""


class ProgramCandidate(NamedTuple):
    """What can step members alike."""

    size: int
    """Members of each program, at most."""
    kind: Kind = "plain"


ALONE = ProgramCandidate(1)
"""One after another."""


@dataclass(kw_only=True, slots=True, eq=False)
class FusionGroup:
    """What is known of members that were admitted together."""

    now: ProgramCandidate = ALONE
    """What steps them at present."""
    kinds: Sequence[Kind] = ("plain",)
    """That their programs may be of, simplest first."""
    refused: dict[str, str] = field(default_factory=dict)
    """Kinds that were found not to be for them, and why."""
    fits: int = sys.maxsize
    """Members of a program at most: more were too many for the memory; 1 where a program of several has raised."""
    foreseen: int | None = None
    """Members of a program that memory is expected to hold at most, if nothing else does; None where nobody knows."""
    reason: str = ""
    """Why there are no more in one."""
    costs: dict[ProgramCandidate, float] = field(default_factory=dict)
    """Seconds of a member's sample: the least that a try came to."""
    tries: dict[ProgramCandidate, list[float]] = field(default_factory=dict)
    """What each of them came to."""
    needs: dict[ProgramCandidate, int] = field(default_factory=dict)
    """Bytes that a step takes for each member."""
    weight_bytes: int = 0
    """Of a member; a program of several has each gradient twice for a moment."""
    settled_for: int = 0
    """Members there were when a candidate was chosen."""
    _rounds: list[float] = field(default_factory=list)
    _seconds: float = 0.0

    def asks(self, count: int) -> bool:
        """Whether so many members are too few or too many for what was settled."""
        return not self.settled_for < 2 * count <= 2 * self.settled_for

    def note(self, seconds: float, samples: int, need: int | None = None) -> None:
        """A round of the present candidate is over, whose steps took so many bytes for each member; the first one warms up."""
        if not samples:
            return
        if self._rounds:
            self._seconds += seconds
            if need is not None:
                self.needs[self.now] = max(need, self.needs.get(self.now, 0))
        self._rounds.append(seconds / samples)
        timed = self._rounds[1:]
        if timed and (self._seconds > SECONDS or len(timed) == MOST_ROUNDS):
            tries = self.tries.setdefault(self.now, [])
            tries.append(statistics.median(timed))
            self.costs[self.now] = min(tries)
            self.forget_rounds()

    def foresee(self, count: int, room: int | None) -> None:
        """Before a candidate is chosen, with so many bytes at hand between steps: how many members of a program they will hold.

        It stands until what was chosen is asked again: rounds of a smaller size are not to make a larger one of it.
        """
        if self.settled_for:
            self.settled_for, self.foreseen = 0, None
            self.reason = self.reason if self.fits < sys.maxsize else ""
        if self.foreseen is not None or room is None or not self.needs:
            return
        nearest = min(self.needs, key=lambda known: (known.kind != "plain", abs(known.size - count)))
        need = max(self.needs[nearest] + self.weight_bytes * (nearest.size == 1), 1)
        self.foreseen = max(int((1 - HEADROOM) * room) // need, 1)
        if "graphed" in self.kinds and count * need > (1 - HEADROOM) * room:
            # Each captured step has memory of its own for good.
            self.refused["graphed"] = (
                f"captured, steps of {count} would keep {count * need / MIB:,.1f} MiB, of {room / MIB:,.1f} that are left"
            )
        if self.foreseen < min(count, self.fits):
            self.reason = f"{count} in a program would take {count * need / MIB:,.1f} MiB for a step, of {room / MIB:,.1f} that are left"

    def restrict(self, fits: int, reason: str) -> None:
        """So many in a program at most from here on; what is best is asked again."""
        self.fits, self.reason, self.settled_for = fits, reason, 0
        self.forget_rounds()

    def refuse(self, kind: Kind, reason: str) -> None:
        """No programs of this kind from here on; what is best is asked again."""
        self.refused[kind], self.settled_for = reason, 0
        self.forget_rounds()

    def go_on_with(self, candidate: ProgramCandidate) -> None:
        """That is what steps them from here on."""
        if self.now != candidate:
            self.now = candidate
            self.forget_rounds()

    def forget_rounds(self) -> None:
        """Those of the present candidate count no longer."""
        self._rounds.clear()
        self._seconds = 0.0

    def measures(self, count: int) -> bool:
        """Whether the cost of what steps so many members at present is still to be found out."""
        largest = self._largest(count)
        return self._present(largest) in self._to_try(largest)

    def next(self, count: int) -> ProgramCandidate:
        """What so many members go on with: what is to be tried, or else the cheapest."""
        largest = self._largest(count)
        if to_try := self._to_try(largest):
            return to_try[0]
        simplest_first = self._candidates(largest)
        if len(simplest_first) == 1:
            return simplest_first[0]
        least = min(map(self.cost, simplest_first))
        return next(candidate for candidate in simplest_first if (1 - GAIN) * self.cost(candidate) <= least)

    def cost(self, candidate: ProgramCandidate) -> float:
        """Seconds of a member's sample in programs of about that size; infinite where nobody knows."""
        near = self._near(candidate)
        return math.inf if near is None else self.costs[near]

    def _near(self, wanted: ProgramCandidate) -> ProgramCandidate | None:
        """The candidate of the nearest size that says what this one costs."""

        def says(known: ProgramCandidate) -> bool:
            both_several = 1 < known.size < 2 * wanted.size and 1 < wanted.size < 2 * known.size
            return known.kind == wanted.kind and (known.size == wanted.size or both_several)

        return min(filter(says, self.costs), key=lambda known: abs(known.size - wanted.size), default=None)

    def _candidates(self, largest: int) -> Sequence[ProgramCandidate]:
        """Simplest first. Code is made for one size of programs only: that takes long."""
        kinds = [kind for kind in self.kinds if kind not in self.refused]
        sizes = dict.fromkeys((1, largest))
        return [
            ProgramCandidate(size, kind) for kind in kinds for size in sizes if size == largest or kind != "compiled"
        ]

    def _present(self, largest: int) -> ProgramCandidate:
        """What steps them at present, among the candidates."""
        return ProgramCandidate(1 if self.now.size == 1 else largest, self.now.kind)

    def _to_try(self, largest: int) -> Sequence[ProgramCandidate]:
        """What to measure, first things first: one of which nothing is known, the try under way, then at another moment."""
        candidates, present = self._candidates(largest), self._present(largest)
        if len(candidates) == 1:
            return ()
        known = {candidate: near for candidate in candidates if (near := self._near(candidate)) is not None}
        present_first = sorted(candidates, key=lambda candidate: candidate != present)
        if len(known) < len(candidates):
            return [candidate for candidate in present_first if candidate not in known]
        within = APART * min(self.costs[near] for near in known.values())
        rivals = [candidate for candidate in candidates if self.costs[known[candidate]] < within]
        if len(rivals) == 1:
            return ()
        in_order = present_first if self._rounds else [*filter(present.__ne__, candidates), present]
        return [one for one in in_order if one in rivals and not self._confirmed(known[one])]

    def _confirmed(self, known: ProgramCandidate) -> bool:
        """Whether another try would say nothing new of its cost."""
        least, *others = sorted(self.tries[known])
        return len(others) + 1 == MOST_TRIES or any(cost <= (1 + AGREE) * least for cost in others)

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
