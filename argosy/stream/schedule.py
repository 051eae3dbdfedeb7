"""The sequence of blocks in the stream: the training samples of a section, then all validation samples."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from argosy.protocol.feeder import Leg
from argosy.stream.blocks import Layout, Place
from argosy.stream.order import Indices, split_order

__all__ = ["Orders", "choose_block_size", "places", "samples_before", "section_start", "section_stop"]

BLOCK_BYTES, MAX_BLOCK_BYTES = 4 * 2**20, 64 * 2**20
"""Sizes of blocks of small and of large samples. A ring has six blocks or more, and trainers copy some, so the larger one is limited."""


def section_start(section: int, length: int, per_epoch: int) -> int:
    """Return the element of its epoch's order at which a section begins. An epoch of `length` elements has `per_epoch` sections."""
    return section % per_epoch * length // per_epoch


def section_stop(section: int, length: int, per_epoch: int) -> int:
    """Return the element of its epoch's order just after the section's last one."""
    return length if (section + 1) % per_epoch == 0 else section_start(section + 1, length, per_epoch)


def samples_before(section: int, length: int, per_epoch: int) -> int:
    """Return the number of training samples of the stream before a section, counted over all epochs."""
    return section * length // per_epoch


def places(leg: Leg, section: int, lengths: Mapping[str, int], per_epoch: int, block_size: int) -> Iterator[Place]:
    """Yield the blocks of one section of a leg, in order. The leg's first block may begin before the section does."""
    epoch, length = section // per_epoch, lengths["train"]
    first = leg.position if section == leg.section else section_start(section, length, per_epoch)
    stop = section_stop(section, length, per_epoch)
    for split in lengths:
        low, high = (first, stop) if split == "train" else (0, lengths[split])
        # If no training sample is left and no validation follows, an empty block marks the end of the section.
        for start in range(low, high if "val" in lengths else max(high, low + 1), block_size):
            rows = max(min(block_size, high - start), 0)
            last = start + rows >= high
            yield Place(leg=leg.number, split=split, epoch=epoch, section=section, start=start, rows=rows, last=last)


class Orders:
    """The order of each split's current epoch, cached for blocks that are requested in the order of a leg."""

    def __init__(
        self, seed: int, lengths: Mapping[str, int], *, shards: Sequence[int] = (), by_length: bool = False
    ) -> None:
        self.seed = seed
        self.lengths = lengths
        self.shards = shards
        """Lengths of the shards from which training samples are read, if the stream is not kept."""
        self.by_length = by_length
        """Whether members cut batches of samples of similar length."""
        self._at_hand: dict[str, tuple[int, Indices]] = {}
        self._windows: dict[tuple[Any, ...], WeakValueDictionary[int, Any]] = {}

    def epoch(self, split: str, epoch: int) -> Indices:
        """Return the whole order of an epoch, int64 ``[length]``."""
        if self._at_hand.get(split, (None,))[0] != epoch:
            self._at_hand[split] = (epoch, split_order(self.seed, split, epoch, self.lengths[split], self.shards))
        return self._at_hand[split][1]

    def windows(self, split: str, epoch: int, *cut_by: int | None) -> MutableMapping[int, Any]:
        """Return the windows of an epoch, by first element, that cutters of all its samples share if they cut with the same values `cut_by`."""
        self._windows = {key: window for key, window in self._windows.items() if key[1] >= epoch}
        return self._windows.setdefault((split, epoch, *cut_by), WeakValueDictionary())

    def block(self, place: Place) -> Indices:
        """Return the sample indices of one block."""
        return self.epoch(place.split, place.epoch)[place.start : place.start + place.rows]


def choose_block_size(layout: Layout) -> int:
    """Return the number of samples per block: about 4 MiB, a multiple of 64 from 64 to 4096, or fewer, down to 4, if 64 take more than 64 MiB."""
    sample_bytes = max(layout.sample_bytes, 1)
    rows = min(max(BLOCK_BYTES // sample_bytes // 64 * 64, 64), 4096)
    return max(min(rows, MAX_BLOCK_BYTES // sample_bytes), 4)  # with fewer, `Data.on_device` is not checked
