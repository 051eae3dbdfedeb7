"""Turns: the next batch of each of several members, side by side.

Members that cut the same batches share one cutter, so that a batch is cut once for all of them, and is one tensor. A member gets
the same batches in the same order as alone; only how they are paired depends on the neighbours.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy

from argosy.stream.batches import Batch, Cutter
from argosy.stream.blocks import Block

__all__ = ["Turn", "equally_long", "own", "shared", "turns"]

Turn = tuple[Batch | None, ...]
"""The next batch of each member; None where there is none yet."""


def shared(cutters: Sequence[Cutter]) -> list[Cutter]:
    """Return the cutters, with one in place of all that cut the same batches."""
    found: list[Cutter] = []
    chosen = []
    for cutter in cutters:
        like = next((other for other in found if other is cutter or other.same(cutter)), cutter)
        if like is cutter and not any(other is cutter for other in found):
            found.append(cutter)
        chosen.append(like)
    return chosen


def own(cutters: Sequence[Cutter]) -> list[Cutter]:
    """Return a cutter of its own for each member."""
    return [deepcopy(cutter) for cutter in cutters]


def turns(cutters: Sequence[Cutter], block: Block) -> Iterator[Turn]:
    """Yield the turns that a block completes, after the last committed one."""
    numbers = {id(cutter): number for number, cutter in enumerate({id(cutter): cutter for cutter in cutters}.values())}
    different = {id(cutter): cutter for cutter in cutters}.values()
    places = [numbers[id(cutter)] for cutter in cutters]
    for batches in itertools.zip_longest(*(cutter.take(block) for cutter in different)):
        yield tuple(batches[place] for place in places)


def equally_long(turn: Turn) -> Collection[Sequence[int]]:
    """Group the rows by the number of samples in their batches, without empty batches."""
    first = turn[0]
    if first is not None and first.rows and all(batch is first for batch in turn):
        return [range(len(turn))]
    lengths: dict[int, list[int]] = {}
    for row, batch in enumerate(turn):
        if batch is not None and batch.rows:
            lengths.setdefault(batch.rows, []).append(row)
    return lengths.values()
