"""FusionGroup: members of one device that may be one program. It chooses how many of them a program steps, and its kind. Pure.

All candidates train equally well, so each is measured on real training steps, in rounds of a few steps; the median round is its
cost. If the last bits of results show which candidate made a step, copies make the measured steps (`rehearsal.py`). Unknown
candidates are measured first, starting with members one after another; then the cheapest is kept. Candidates close to it are
measured again until their two lowest costs agree. The lowest cost counts, because a neighbour that is busy for half a second makes
steps slower, never faster. The choice is made anew when the group grows or half of it has left; by then costs of similar sizes
may be known.

On a CPU most members have the same bits in any program (`BatchLengths`), so the choice shows in no result. For the others it does,
and the choice of an earlier run is reused without measuring.

Sizes that memory is not expected to hold are not tried: the memory of a step is measured in the same rounds, and grows in proportion
to the members. Captured steps are not tried if memory would not hold those of all members at once.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from argosy.errors.wording import format_bytes
from argosy.training.member.live import BatchLengths

__all__ = ["ALONE", "ROUND_SECONDS", "STEPS", "ProgramCandidate", "FusionGroup", "Kind", "divide_evenly"]

MIN_GAIN = 0.03
"""Share of the cost that a candidate must save over simpler ones, so that it is never slower than one member after another."""
HEADROOM = 0.1
"""Share of the available memory that programs must leave free."""
STEPS = 8
"""Steps in a round, unless they take longer than `ROUND_SECONDS`."""
ROUND_SECONDS = 0.25
"""Time after which a round makes no further step: with large networks it has one or two, so that measuring takes little of a short run."""
MAX_ROUNDS = 5
TRY_ONCE_FACTOR = 2.0
"""A candidate that costs this many times the cheapest is tried only once: other load on the core does not explain that much."""
CONFIRMING_SHARE = 0.05
"""Share by which another try may exceed the lowest and still confirm it."""
MAX_TRIES = 4
"""Tries of each candidate, at different times."""
SECONDS = 0.25
"""Measured time of rounds of training steps, without the first, after which a cost is known."""

Item = TypeVar("Item")
Kind = Literal["plain", "graphed", "compiled", "grouped"]
"""How a program makes its steps: operator by operator, captured, by code compiled for its architecture, or, for different members,
grouped (and captured if possible)."""


class ProgramCandidate(NamedTuple):
    """A way to step the members."""

    size: int
    """Members of each program, at most."""
    kind: Kind = "plain"


ALONE = ProgramCandidate(1)
"""Members one after another."""


@dataclass(kw_only=True, slots=True, eq=False)
class FusionGroup:
    """Members that passed the equivalence check together."""

    alike: bool = True
    """Whether they are of one architecture."""
    now: ProgramCandidate = ALONE
    """The candidate that steps them at present."""
    kinds: Sequence[Kind] = ("plain",)
    """Possible kinds of their programs, simplest first."""
    refused: dict[str, str] = field(default_factory=dict)
    """Kinds that were ruled out, and why."""
    fits: int = sys.maxsize
    """Largest number of members of a program: more ran out of memory; 1 if a program of several has raised."""
    foreseen: int | None = None
    """Largest number of members of a program that memory is expected to hold; None if unknown."""
    reason: str = ""
    """Why a program has no more members."""
    tries: dict[ProgramCandidate, list[float]] = field(default_factory=dict)
    """Seconds per member and sample in each try, by candidate."""
    needs: dict[ProgramCandidate, int] = field(default_factory=dict)
    """Bytes that a step takes per member."""
    lengths: BatchLengths | None = None
    """Batches that a program makes as one with the bits that each member has alone; None if it rounds differently."""
    weight_bytes: int = 0
    """Size of a member's weights, since a program of several briefly holds each gradient twice."""
    chosen: Mapping[int, ProgramCandidate] = field(default_factory=dict)
    """Choices of earlier runs by number of members, used instead of measuring."""
    try_seconds: float = SECONDS
    """Measured time of rounds, without the first, after which a cost is known."""
    settled_for: int = 0
    """Number of members when a candidate was chosen; 0 while none is chosen."""
    _rounds: list[float] = field(default_factory=list)
    _seconds: float = 0.0

    @property
    def costs(self) -> Mapping[ProgramCandidate, float]:
        """Seconds per member and sample, by candidate: the lowest of its tries."""
        return {candidate: min(tries) for candidate, tries in self.tries.items()}

    @property
    def shows(self) -> bool:
        """Whether other programs would give the members results that differ in the last bits."""
        return self.lengths is None or len(self.kinds) > 1

    @property
    def warms_up(self) -> bool:
        """Whether the next round of the present candidate is its first one, which does not count."""
        return not self._rounds

    def needs_choice(self, count: int) -> bool:
        """Return whether the choice must be made anew for `count` members: there are more than it was made for, or at most half as many."""
        return count > self.settled_for or 2 * count <= self.settled_for

    def note(self, seconds: float, samples: int, need: int | None = None) -> None:
        """Record a round of the present candidate, and the bytes that its steps took per member. The first round is a warm-up."""
        if not samples:
            return
        if self._rounds:
            self._seconds += seconds
            if need is not None:
                self.needs[self.now] = max(need, self.needs.get(self.now, 0))
        self._rounds.append(seconds / samples)
        timed = self._rounds[1:]
        if timed and (self._seconds > self.try_seconds or len(timed) == MAX_ROUNDS):
            self.tries.setdefault(self.now, []).append(statistics.median(timed))
            self.forget_rounds()

    def estimate_fit(self, count: int, room: int | None) -> None:
        """Estimate, before a candidate is chosen, how many members of a program fit into `room`, the bytes that are free between steps.

        The estimate holds until the next choice, so that rounds of a smaller size do not enlarge it.
        """
        if self.settled_for:
            self.settled_for, self.foreseen = 0, None
            self.reason = self.reason if self.fits < sys.maxsize else ""
        if self.foreseen is not None or room is None or not self.needs:
            return
        nearest = min(self.needs, key=lambda known: (known.kind != "plain", abs(known.size - count)))
        need = max(self.needs[nearest] + self.weight_bytes * (nearest.size == 1), 1)
        self.foreseen = max(int((1 - HEADROOM) * room) // need, 1)
        taken, free = format_bytes(count * need), format_bytes(room)
        if "graphed" in self.kinds and count * need > (1 - HEADROOM) * room:
            # Each captured step keeps its own memory.
            self.refused["graphed"] = f"captured, steps of {count} members would keep {taken}; {free} are free"
        if self.foreseen < min(count, self.fits):
            self.reason = f"{count} members in a program would take {taken} for a step; {free} are free"

    def restrict(self, fits: int, reason: str) -> None:
        """Limit programs to `fits` members, and choose anew."""
        self.fits, self.reason, self.settled_for = fits, reason, 0
        self.forget_rounds()

    def refuse(self, kind: Kind, reason: str) -> None:
        """Rule out a kind of program, and choose anew."""
        self.refused[kind], self.settled_for = reason, 0
        self.forget_rounds()

    def switch_to(self, candidate: ProgramCandidate) -> None:
        """Make this the present candidate."""
        if self.now != candidate:
            self.now = candidate
            self.forget_rounds()

    def forget_rounds(self) -> None:
        """Drop the rounds of the present candidate."""
        self._rounds.clear()
        self._seconds = 0.0

    def is_undecided(self, count: int) -> bool:
        """Return whether some candidate still has to be measured for `count` members."""
        return self._chosen(count) is None and bool(self._to_try(self._largest(count)))

    def needs_measuring(self, count: int) -> bool:
        """Return whether the present candidate still has to be measured for `count` members."""
        largest = self._largest(count)
        return self._chosen(count) is None and self._present(largest) in self._to_try(largest)

    def next(self, count: int) -> ProgramCandidate:
        """Return the next candidate for `count` members: one to measure, or else the cheapest."""
        largest, chosen = self._largest(count), self._chosen(count)
        if chosen is not None:
            return chosen
        if to_try := self._to_try(largest):
            return to_try[0]
        simplest_first = self._candidates(largest)
        if len(simplest_first) == 1:
            return simplest_first[0]
        least = min(map(self.cost, simplest_first))
        return next(candidate for candidate in simplest_first if (1 - MIN_GAIN) * self.cost(candidate) <= least)

    def cost(self, candidate: ProgramCandidate) -> float:
        """Return the seconds per member and sample in programs of about that size; infinite if unknown."""
        return min(self._tries_near(candidate), default=math.inf)

    def _tries_near(self, wanted: ProgramCandidate) -> Sequence[float]:
        """Return the tries of the nearest measured candidate that applies to `wanted`; none if it is unknown."""

        def says(known: ProgramCandidate) -> bool:
            both_several = 1 < known.size < 2 * wanted.size and 1 < wanted.size < 2 * known.size
            return known.kind == wanted.kind and (known.size == wanted.size or both_several)

        near = min(filter(says, self.tries), key=lambda known: abs(known.size - wanted.size), default=None)
        return () if near is None else self.tries[near]

    def _chosen(self, count: int) -> ProgramCandidate | None:
        """Return the choice of earlier runs for about `count` members; None unless they had more than half and less than twice as many."""
        near = [known for known in self.chosen if known < 2 * count and count < 2 * known]
        if not near:
            return None
        before = min(near, key=lambda known: (abs(known - count), known))
        size, kind = self.chosen[before]
        if kind in self.refused:
            return None
        return ProgramCandidate(min(count if size == before > 1 else size, self._largest(count)), kind)

    def _candidates(self, largest: int) -> Sequence[ProgramCandidate]:
        """Return candidates, simplest first. Only the largest size is compiled, because compiling is slow."""
        kinds = [kind for kind in self.kinds if kind not in self.refused]
        if not self.alike:
            together = [] if largest == 1 or "grouped" in self.refused else [ProgramCandidate(largest, "grouped")]
            return [*(ProgramCandidate(1, kind) for kind in kinds), *together]
        sizes = dict.fromkeys((1, largest))
        candidates = (ProgramCandidate(size, kind) for kind in kinds for size in sizes)
        return [one for one in candidates if one.size == largest or one.kind != "compiled"]

    def _present(self, largest: int) -> ProgramCandidate:
        """Return the present candidate with its size adjusted to `largest`."""
        return ProgramCandidate(1 if self.now.size == 1 else largest, self.now.kind)

    def _to_try(self, largest: int) -> Sequence[ProgramCandidate]:
        """Return what to measure, in order: unknown candidates, the try in progress, then further tries at other times."""
        candidates, present = self._candidates(largest), self._present(largest)
        if len(candidates) == 1:
            return ()
        present_first = sorted(candidates, key=present.__ne__)
        if unknown := [candidate for candidate in present_first if not self._tries_near(candidate)]:
            return unknown
        within = TRY_ONCE_FACTOR * min(map(self.cost, candidates))
        in_order = present_first if self._rounds else sorted(candidates, key=present.__eq__)
        rivals = [candidate for candidate in in_order if self.cost(candidate) < within]
        return [one for one in rivals if not self._confirmed(one)] if len(rivals) > 1 else ()

    def _confirmed(self, candidate: ProgramCandidate) -> bool:
        """Return whether the candidate's cost needs no further try."""
        least, *others = sorted(self._tries_near(candidate))
        return len(others) + 1 == MAX_TRIES or any(cost <= (1 + CONFIRMING_SHARE) * least for cost in others)

    def _largest(self, count: int) -> int:
        """Return the largest program size when `count` members are divided evenly among as few programs as possible."""
        most = self.fits if self.foreseen is None else min(self.fits, self.foreseen)
        parts = max(-(-count // most), 1)
        return -(-count // parts)


def divide_evenly(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Divide items into parts of at most `size`, as equal as possible."""
    parts = -(-len(items) // size)
    ends = [len(items) * part // parts for part in range(parts + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(ends)]
