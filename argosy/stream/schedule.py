"""Which blocks go through the stream, one after another: the training samples of an epoch, then its validation samples."""

import itertools
from collections.abc import Iterator, Mapping

from argosy.commands import Leg
from argosy.stream.blocks import Layout, Place
from argosy.stream.order import Indices, split_order

__all__ = ["Orders", "choose_block_size", "places"]

BLOCK_BYTES = 4 * 2**20


def places(leg: Leg, lengths: Mapping[str, int], block_size: int) -> Iterator[Place]:
    """The blocks of a leg, in order."""
    epochs = itertools.count(leg.epoch) if leg.until is None else range(leg.epoch, leg.until)
    for epoch in epochs:
        for split, length in lengths.items():
            first = leg.position if split == "train" and epoch == leg.epoch else 0
            for start in range(first, length, block_size):
                rows = min(block_size, length - start)
                last = start + rows == length
                yield Place(leg=leg.number, split=split, epoch=epoch, start=start, rows=rows, last=last)


class Orders:
    """The order of the epoch at hand of each split; asked for blocks in the order of a leg."""

    def __init__(self, seed: int, lengths: Mapping[str, int]) -> None:
        self.seed = seed
        self.lengths = lengths
        self._at_hand: dict[str, tuple[int, Indices]] = {}

    def epoch(self, split: str, epoch: int) -> Indices:
        """The whole order, int64 ``[length]``."""
        if self._at_hand.get(split, (None,))[0] != epoch:
            self._at_hand[split] = (epoch, split_order(self.seed, split, epoch, self.lengths[split]))
        return self._at_hand[split][1]

    def block(self, place: Place) -> Indices:
        """The samples of one block."""
        return self.epoch(place.split, place.epoch)[place.start : place.start + place.rows]


def choose_block_size(layout: Layout) -> int:
    """Samples per block: about 4 MiB, a multiple of 64 from 64 to 4096."""
    fitting = BLOCK_BYTES // max(layout.sample_bytes, 1)
    return min(max(fitting // 64 * 64, 64), 4096)
