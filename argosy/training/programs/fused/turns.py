"""Batches of several members side by side: what comes next for each of them is a turn.

Members that cut the same batches share one cutter, so that a batch is cut once for all of them, and is one tensor. Which
batches a member gets, and in which order, is what it would be alone; only how they are paired depends on the neighbours.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy

from argosy.stream.batches import Batch, Cutter
from argosy.stream.blocks import Block

__all__ = ["Turn", "equally_long", "own", "shared", "turns"]

Turn = tuple[Batch | None, ...]
"""Of each member its next batch; None where there is none yet."""


def shared(cutters: Sequence[Cutter]) -> list[Cutter]:
    """The same with one cutter in place of all that cut the same."""
    found: list[Cutter] = []
    chosen = []
    for cutter in cutters:
        like = next((other for other in found if other is cutter or other.same(cutter)), cutter)
        if like is cutter and not any(other is cutter for other in found):
            found.append(cutter)
        chosen.append(like)
    return chosen


def own(cutters: Sequence[Cutter]) -> list[Cutter]:
    """The same with a cutter for each member that shared one."""
    return [deepcopy(cutter) for cutter in cutters]


def turns(cutters: Sequence[Cutter], block: Block) -> Iterator[Turn]:
    """The turns that a block completes, behind the last one that was committed."""
    numbers = {id(cutter): number for number, cutter in enumerate({id(cutter): cutter for cutter in cutters}.values())}
    different = {id(cutter): cutter for cutter in cutters}.values()
    places = [numbers[id(cutter)] for cutter in cutters]
    for batches in itertools.zip_longest(*(cutter.take(block) for cutter in different)):
        yield tuple(batches[place] for place in places)


def equally_long(turn: Turn) -> Collection[Sequence[int]]:
    """The members whose batches have equally many samples, for each number of samples but none."""
    first = turn[0]
    if first is not None and first.rows and all(batch is first for batch in turn):
        return [range(len(turn))]
    lengths: dict[int, list[int]] = {}
    for row, batch in enumerate(turn):
        if batch is not None and batch.rows:
            lengths.setdefault(batch.rows, []).append(row)
    return lengths.values()
