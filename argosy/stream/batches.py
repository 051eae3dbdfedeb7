"""Cuts a member's batches out of the blocks of its stream: a view where it can be, a copy where it must be.

Batch j is elements j·b … (j+1)·b-1 of the member's sequence, so batches depend neither on the block size nor on anybody
else (DESIGN.md §3.1, 3). A batch inside one block is a view of the block; one across blocks is gathered in memory of
its own, so that a block can be released before the next one comes and no batch size can deadlock the ring.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from argosy.stream.blocks import ALIGNMENT, Block
from argosy.stream.order import WORD, Digest, Indices, Selection, running_sums, used_elements
from argosy.stream.trees import flatten, unflatten

__all__ = ["Batch", "Cutter"]


class Batch(NamedTuple):
    """What one step of a member gets. A tuple, because one is made for every step of every member."""

    data: Any
    """The samples, stacked: the pytree of a sample, each leaf ``[rows, …]``."""
    rows: int
    """Samples in it; fewer than the batch size at the end of an epoch, and where samples were broken."""
    digest: Digest


class Cutter:
    """Cuts one epoch of one member; `position` elements of the sequence are already behind it."""

    def __init__(
        self, *, selection: Selection, order: Indices, batch_size: int, drop_last: bool, position: int = 0
    ) -> None:
        self.positions = selection.positions(order)
        self.batch_size = batch_size
        self.length = used_elements(selection.length, batch_size, drop_last=drop_last)
        self.position = position
        self._open: _Gathering | None = None

    @property
    def done(self) -> bool:
        """Whether every batch of the epoch was cut."""
        return self.position >= self.length

    def take(self, block: Block, *, private: bool = False) -> Iterator[Batch]:
        """The batches that this block completes; with `private`, none of them is a view of the block."""
        elements = _Elements(self.positions, block)
        start = self.position + (self._open.elements if self._open else 0)
        assert elements.first <= start or self.done, f"the stream skipped elements {start} to {elements.first}"
        stop = min(elements.stop, self.length)
        while start < stop:
            end = min(self.position + self.batch_size, self.length)
            cut = min(end, stop)
            if start == self.position and cut == end:
                batch: Batch | None = elements.batch(start, cut, private=private)
            else:
                self._open = self._open or _Gathering(block, end - self.position)
                self._open.add(elements.batch(start, cut, private=False), cut - start)
                batch = self._open.close() if cut == end else None
            if batch is not None:
                self._open = None
                self.position = end
                yield batch
            start = cut


class _Elements:
    """The elements of a member's sequence that lie in one block."""

    def __init__(self, positions: Indices | None, block: Block) -> None:
        place = block.place
        self.block = block
        self.rows: Indices | None = None
        if positions is None:
            self.first, self.stop = place.start, place.start + place.rows
            self.sums = block.sums
        else:
            first, stop = np.searchsorted(positions, [place.start, place.start + place.rows])
            self.first, self.stop = int(first), int(stop)
            self.rows = positions[first:stop] - place.start
            sound = block.sound[self.rows]
            self.sums = running_sums(block.indices[self.rows], np.arange(first, stop, dtype=np.int64), sound)
        self.sound = block.sound if self.rows is None else sound

    def batch(self, start: int, stop: int, *, private: bool) -> Batch:
        """Elements start … stop-1 as one batch, broken samples left out."""
        low, high = start - self.first, stop - self.first
        rows = high - low if self.block.whole else int(self.sound[low:high].sum())
        if self.rows is None and rows == high - low:
            leaves = [_slice(leaf, low, high, private=private) for leaf in self.block.leaves]
        else:
            numbers = np.arange(low, high) if self.rows is None else self.rows[low:high]
            index = torch.from_numpy(numbers[self.sound[low:high]])
            leaves = [leaf.index_select(0, index.to(leaf.device)) for leaf in self.block.leaves]
        by_index, by_position = self.sums
        digest = Digest(rows, (by_index[high] - by_index[low]) % WORD, (by_position[high] - by_position[low]) % WORD)
        return Batch(unflatten(leaves, self.block.tree), rows, digest)


class _Gathering:
    """A batch across blocks, in memory of its own."""

    def __init__(self, block: Block, size: int) -> None:
        self.tree = block.tree
        self.leaves = [leaf.new_empty((size, *leaf.shape[1:])) for leaf in block.leaves]
        self.elements = 0
        self.rows = 0
        self.digest = Digest()

    def add(self, piece: Batch, elements: int) -> None:
        """Copy a piece behind what is there."""
        for target, leaf in zip(self.leaves, flatten(piece.data)[0], strict=True):
            target[self.rows : self.rows + piece.rows].copy_(leaf)
        self.rows += piece.rows
        self.elements += elements
        self.digest = self.digest.plus(piece.digest)

    def close(self) -> Batch:
        """The batch."""
        return Batch(unflatten([leaf[: self.rows] for leaf in self.leaves], self.tree), self.rows, self.digest)


def _slice(leaf: torch.Tensor, low: int, high: int, *, private: bool) -> torch.Tensor:
    view = leaf[low:high]
    return view.clone() if private or view.data_ptr() % ALIGNMENT else view
