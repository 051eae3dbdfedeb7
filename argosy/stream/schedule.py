"""Which blocks go through the stream, one after another: the training samples of a section, then all validation samples."""

from collections.abc import Iterator, Mapping

from argosy.protocol.feeder import Leg
from argosy.stream.blocks import Layout, Place
from argosy.stream.order import Indices, split_order

__all__ = ["Orders", "choose_block_size", "places", "section_start", "section_stop"]

BLOCK_BYTES = 4 * 2**20


def section_start(section: int, length: int, per_epoch: int) -> int:
    """Element of its epoch's order at which a section of the stream begins; an epoch of n elements has so many of them."""
    return section % per_epoch * length // per_epoch


def section_stop(section: int, length: int, per_epoch: int) -> int:
    """Element of its epoch's order behind the section's last one."""
    return length if (section + 1) % per_epoch == 0 else section_start(section + 1, length, per_epoch)


def places(leg: Leg, section: int, lengths: Mapping[str, int], per_epoch: int, block_size: int) -> Iterator[Place]:
    """The blocks of one section of a leg, in order; its first one may begin before the section does."""
    epoch, length = section // per_epoch, lengths["train"]
    first = leg.position if section == leg.section else section_start(section, length, per_epoch)
    stop = section_stop(section, length, per_epoch)
    for split in lengths:
        low, high = (first, stop) if split == "train" else (0, lengths[split])
        # Where nobody misses a sample any more, and no validation follows, an empty block says that the section ends.
        for start in range(low, high if "val" in lengths else max(high, low + 1), block_size):
            rows = max(min(block_size, high - start), 0)
            last = start + rows >= high
            yield Place(leg=leg.number, split=split, epoch=epoch, section=section, start=start, rows=rows, last=last)


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
