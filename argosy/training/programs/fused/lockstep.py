"""Locksteps: the next batch of each of several members, side by side.

Members that cut the same batches share one cutter, so each batch is cut once for all of them and is one tensor. A member gets the
same batches in the same order as alone. Only their pairing depends on the other members.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch

from argosy.stream.batches import Batch, Cutter
from argosy.stream.blocks import Block
from argosy.stream.trees import flatten

__all__ = ["Lockstep", "common_length", "share_cutters", "locksteps"]

Lockstep = tuple[Batch | None, ...]
"""The next batch of each member; None if there is none yet."""
FEW_POSITIONS = 16
"""Number of a cutter's positions that are compared first."""


def share_cutters(cutters: Sequence[Cutter]) -> list[Cutter]:
    """Return the cutters, with cutters of the same batches replaced by the first of them."""
    distinct: dict[tuple[object, ...], list[Cutter]] = {}
    chosen = []
    for cutter in cutters:
        # Of hundreds of bootstraps or folds, only those that agree in a few positions are compared in all of them.
        positions = cutter.positions
        few = None if positions is None else positions[:: len(positions) // FEW_POSITIONS + 1].tobytes()
        others = distinct.setdefault((cutter.batch_size, cutter.length, cutter.position, few), [])
        like = next((other for other in others if other is cutter or other.cuts_alike(cutter)), None)
        if like is None:
            others.append(cutter)
        chosen.append(cutter if like is None else like)
    return chosen


def locksteps(cutters: Sequence[Cutter], block: Block) -> Iterator[Lockstep]:
    """Yield the locksteps that a block completes, after the last committed one."""
    different = {id(cutter): cutter for cutter in cutters}
    numbers = {key: number for number, key in enumerate(different)}
    places = [numbers[id(cutter)] for cutter in cutters]
    for batches in itertools.zip_longest(*(cutter.take(block) for cutter in different.values())):
        yield tuple(batches[place] for place in places)


def common_length(lockstep: Lockstep) -> int | None:
    """Return the number of samples in each member's batch; None if batches differ in shape or a member has none."""
    first = lockstep[0]
    if first is None or not first.rows:
        return None
    if all(batch is first for batch in lockstep):
        return first.rows
    shapes = _shapes(first)
    return first.rows if all(batch is not None and _shapes(batch) == shapes for batch in lockstep) else None


def _shapes(batch: Batch) -> list[torch.Size]:
    return [leaf.shape for leaf in flatten(batch.data)[0]]
