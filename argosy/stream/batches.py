"""Cut a member's batches out of the blocks of its stream, as views where possible and as copies otherwise.

Batch j is elements j·b … (j+1)·b-1 of the member's sequence, so batches depend neither on the block size nor on other
members (DESIGN.md §3.1, 3). A batch inside one block is a view of the block. A batch across blocks is gathered in memory of
its own, so that a block can be released before the next one arrives and no batch size can deadlock the ring.

`Cutter.position` advances when a batch is committed, not when it is cut: a program that leaves a block and returns to it
gets the batch after the last committed one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from argosy.stream.blocks import ALIGNMENT, Block, select_rows
from argosy.stream.order import WORD, Digest, Hashes, Indices, Selection, running_sums, used_elements
from argosy.stream.padding import make_batch
from argosy.stream.trees import map_leaves

__all__ = ["Batch", "PartialBatch", "Cutter", "Elements", "BatchBuffer", "InOrderCutter", "copy_to_device"]

ONE_GATHER_BYTES = 1 << 20
"""A member's own elements of a block are gathered in one call if they take at most this much."""


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to a device, without waiting for earlier work on the device."""
    if device.type == "cpu":
        return tensor
    # torch keeps the pinned memory until the copy is complete.
    return tensor.pin_memory().to(device, non_blocking=True)


class Batch(NamedTuple):
    """Input of one step of a member. A tuple, because one is created for every step of every member."""

    data: Any
    """The stacked samples: the pytree of a sample, each leaf ``[rows, …]``."""
    rows: int
    """Number of samples; fewer than the batch size at the end of an epoch, and if samples were broken."""
    digest: Digest
    stop: int = 0
    """Number of the element after its last one in the member's sequence."""
    sound: npt.NDArray[np.bool_] | None = None
    """Whether each element is a sample of `data`; None if none was broken."""
    elements: Indices | None = None
    """Numbers of its elements in the member's sequence; None if they are those directly before `stop`."""


class PartialBatch(NamedTuple):
    """The beginning of a batch whose other elements are in later blocks."""

    leaves: Sequence[torch.Tensor]
    """The samples by leaf, each ``[rows, …]``."""
    elements: int
    """Number of elements of the sequence, including broken samples."""
    digest: Digest
    sound: npt.NDArray[np.bool_] | None = None
    """Like `Batch.sound`."""


class Cutter(ABC):
    """Cuts one member's batches in one epoch. The first `position` elements of its sequence are done."""

    def __init__(
        self,
        *,
        selection: Selection,
        order: Indices,
        batch_size: int,
        drop_last: bool,
        position: int = 0,
        carried: PartialBatch | None = None,
    ) -> None:
        """Cut batches of the elements after the first `position`, of which those `carried` are already gathered."""
        self.positions: Indices | None = selection.positions(order)
        self.batch_size = batch_size
        self.length: int = used_elements(selection.length, batch_size, drop_last=drop_last)
        self.position = position
        """Number of elements in the committed batches."""
        self._open: BatchBuffer | None = None
        """The beginning of the next batch, or of the one after the batch in progress."""
        if carried is not None:
            self._open = BatchBuffer(position, self._end(position) - position, carried.leaves)
            self._open.add(carried)

    @property
    def done(self) -> bool:
        """Whether every batch of the epoch was committed."""
        return self.position >= self.length

    @property
    def gathered(self) -> int:
        """Number of elements gathered for the batch at `position`; 0 while an earlier batch is in progress."""
        return self._open.elements if self._open is not None and self._open.first == self.position else 0

    @property
    def carried(self) -> PartialBatch | None:
        """The elements gathered for the next batch, with which another cutter can continue after them."""
        return self._open.carried() if self._open is not None and self._open.first == self.position else None

    @property
    def again(self) -> int:
        """Number of elements before `position` that another cutter has to see again to continue from there."""
        return 0

    def cuts_alike(self, other: "Cutter") -> bool:
        """Return whether both cut the same batches from now on, so that one of them can serve both."""
        mine, theirs = ((one.batch_size, one.length, one.position, one.gathered) for one in (self, other))
        if self.positions is None or other.positions is None:
            return mine == theirs and self.positions is other.positions
        return mine == theirs and np.array_equal(self.positions, other.positions)

    @abstractmethod
    def take(self, block: Block, *, private: bool = False, after: Batch | None = None) -> Iterator[Batch]:
        """Yield the batches that this block completes, after the last committed one. With `private`, they may be written into.

        If a batch `after` is in progress and not committed yet, yield the batches after that one.
        """

    @abstractmethod
    def completions(self, block: Block, after: Batch | None = None) -> list[int]:
        """For each batch that `take` would yield, return the number of elements of the epoch's order that must have been streamed."""

    @abstractmethod
    def commit(self, batch: Batch) -> None:
        """Note that the batch was stepped on."""

    def elements(self, batch: Batch) -> Indices:
        """Return the numbers of a batch's elements in the member's sequence."""
        if batch.elements is not None:
            return batch.elements
        return np.arange((batch.stop - 1) // self.batch_size * self.batch_size, batch.stop)

    def _end(self, first: int) -> int:
        """Return the end of the batch of `batch_size` elements that begins at element `first`."""
        return min(first + self.batch_size, self.length)

    def part(self, batch: Batch, low: float, high: float, order: Indices) -> Batch:
        """Return the samples of a batch between two fractions of its elements; `order` is that of the epoch."""
        whole = self.elements(batch)
        size = len(whole)
        # All ranks round the same bounds, so that shares neither overlap nor leave a sample out.
        start, stop = round(low * size), round(high * size)
        sound = np.ones(size, np.bool_) if batch.sound is None else batch.sound
        before, rows = int(sound[:start].sum()), int(sound[start:stop].sum())
        elements = whole[start:stop][sound[start:stop]]
        indices = order[elements if self.positions is None else self.positions[elements]]
        data = map_leaves(itemgetter(slice(before, before + rows)), batch.data)
        return Batch(data, rows, Digest.of(indices, elements), batch.stop)

    def labels(self, block: Block) -> Indices:
        """Return the class numbers of the rows of a block that become part of batches; broken rows have none."""
        assert block.labels is not None
        place = block.place
        if self.positions is None:
            rows = np.arange(max(min(place.rows, self.length - place.start), 0))
        else:
            first, stop = np.searchsorted(self.positions, [place.start, place.start + place.rows])
            rows = self.positions[first : min(stop, self.length)] - place.start
        return block.labels[rows[block.sound[rows]]]


class InOrderCutter(Cutter):
    """Batches of a fixed size, in the order of the sequence."""

    def take(self, block: Block, *, private: bool = False, after: Batch | None = None) -> Iterator[Batch]:
        """Implement `Cutter.take`."""
        elements = Elements(self.positions, block)
        first = self.position if after is None else after.stop
        start = first + (self._open.elements if self._open is not None and self._open.first == first else 0)
        assert elements.first <= start or start >= self.length, (
            f"the stream skipped elements {start} to {elements.first}"
        )
        stop = min(elements.stop, self.length)
        while start < stop:
            end = self._end(first)
            if end > stop:
                self._gathering(first, end, block).add(elements.piece(start, stop))
            elif start == first:
                yield elements.batch(start, end, private=private)
            else:
                piece = elements.piece(start, end)
                yield self._gathering(first, end, block).completed(piece, block, end, private=private)
            start = first = end

    def completions(self, block: Block, after: Batch | None = None) -> list[int]:
        """Implement `Cutter.completions`."""
        completed, stop = [], block.place.start + block.place.rows
        first = self.position if after is None else after.stop
        while first < self.length:
            first = self._end(first)
            element = first if self.positions is None else int(self.positions[first - 1]) + 1
            if element > stop:
                break
            completed.append(element)
        return completed

    def commit(self, batch: Batch) -> None:
        """Implement `Cutter.commit`."""
        self.position: int = batch.stop
        if self._open is not None and self._open.first < batch.stop:
            self._open = None

    def _gathering(self, first: int, end: int, block: Block) -> "BatchBuffer":
        if self._open is None or self._open.first != first:
            self._open = BatchBuffer(first, end - first, block.leaves)
        return self._open


class Elements:
    """The elements of a member's sequence in one block."""

    def __init__(self, positions: Indices | None, block: Block) -> None:
        place = block.place
        self.block = block
        self.rows: Indices | None = None
        if positions is None:
            self.first: int = place.start
            self.stop: int = place.start + place.rows
            self.sums: tuple[Hashes, Hashes] = block.sums
        else:
            first, stop = np.searchsorted(positions, [place.start, place.start + place.rows])
            self.first, self.stop = int(first), int(stop)
            self.rows = positions[first:stop] - place.start
            sound = block.sound[self.rows]
            self.sums = running_sums(block.indices[self.rows], np.arange(first, stop, dtype=np.int64), sound)
        self.sound: npt.NDArray[np.bool_] = block.sound if self.rows is None else sound

    def batch(self, start: int, stop: int, *, private: bool) -> Batch:
        """Return elements start … stop-1 as one batch, without broken samples."""
        leaves, rows = self._leaves(start, stop, private=private)
        sound = self._sound(start, stop, rows)
        return Batch(make_batch(leaves, self.block.tree), rows, self._digest(start, stop, rows), stop, sound)

    def indices(self, start: int, stop: int) -> Indices:
        """Return the sample index of each of elements start … stop-1."""
        low, high = start - self.first, stop - self.first
        return self.block.indices[slice(low, high) if self.rows is None else self.rows[low:high]]

    def piece(self, start: int, stop: int) -> PartialBatch:
        """Return elements start … stop-1 as a part of a batch."""
        leaves, rows = self._leaves(start, stop, private=False)
        return PartialBatch(leaves, stop - start, self._digest(start, stop, rows), self._sound(start, stop, rows))

    def _leaves(self, start: int, stop: int, *, private: bool) -> tuple[list[torch.Tensor], int]:
        low, high = start - self.first, stop - self.first
        before, end = (low, high) if self.block.whole else (self._counts[low], self._counts[high])
        rows = end - before
        if self.rows is None and rows == high - low:
            return [_slice(leaf, low, high, private=private) for leaf in self.block.leaves], rows
        if self._is_small:
            return [_slice(leaf, before, end, private=False) for leaf in self._gathered], rows
        return self._select(self._sound_rows.narrow(0, before, rows)), rows

    @cached_property
    def _is_small(self) -> bool:
        """Whether the elements are small enough to gather in one call: a call for each batch would take longer than its copy."""
        row_bytes = sum(leaf.nbytes for leaf in self.block.leaves) / max(self.block.place.rows, 1)
        return row_bytes * len(self._sound_rows) <= ONE_GATHER_BYTES

    @cached_property
    def _gathered(self) -> list[torch.Tensor]:
        """All sound elements, gathered in memory of their own."""
        return self._select(self._sound_rows)

    def _select(self, index: torch.Tensor) -> list[torch.Tensor]:
        return [select_rows(leaf, index.to(leaf.device)) for leaf in self.block.leaves]

    @cached_property
    def _counts(self) -> list[int]:
        """Number of sound elements among the first 0 … n."""
        return [0, *np.cumsum(self.sound).tolist()]

    @cached_property
    def _sound_rows(self) -> torch.Tensor:
        """Rows of all sound elements, on the block's device. Sent once, because sending them for each batch would stall the host at each step."""
        rows = np.arange(self.block.place.rows) if self.rows is None else self.rows
        return copy_to_device(torch.from_numpy(rows[self.sound]), self.block.leaves[0].device)

    def _sound(self, start: int, stop: int, rows: int) -> npt.NDArray[np.bool_] | None:
        return None if rows == stop - start else self.sound[start - self.first : stop - self.first].copy()

    def _digest(self, start: int, stop: int, rows: int) -> Digest:
        low, high = start - self.first, stop - self.first
        by_index, by_position = ((sums.item(high) - sums.item(low)) % WORD for sums in self.sums)
        return Digest(rows, by_index, by_position)


class BatchBuffer:
    """Consecutive elements of a sequence from `first` on, gathered from several blocks in memory of their own."""

    def __init__(self, first: int, size: int, like: Sequence[torch.Tensor]) -> None:
        self.first = first
        self.leaves: list[torch.Tensor] = [leaf.new_empty((size, *leaf.shape[1:])) for leaf in like]
        self.sound: npt.NDArray[np.bool_] = np.ones(size, np.bool_)
        self.elements: int = 0
        """Number of elements added, including broken samples, which `digest` does not count."""
        self.digest: Digest = Digest()

    def add(self, piece: PartialBatch) -> None:
        """Append a piece."""
        self._copy(piece)
        self.elements += piece.elements
        self.digest = self.digest.plus(piece.digest)

    def completed(self, piece: PartialBatch, block: Block, stop: int, *, private: bool) -> Batch:
        """Return the batch completed by its last piece. The piece is not added, because it comes again if this batch is never committed."""
        rows = self._copy(piece)
        data = make_batch([_slice(leaf, 0, rows, private=private) for leaf in self.leaves], block.tree)
        sound = None if rows == stop - self.first else self.sound
        return Batch(data, rows, self.digest.plus(piece.digest), stop, sound)

    def carried(self) -> PartialBatch:
        """Return the elements gathered so far."""
        leaves, sound = [leaf[: self.digest.elements] for leaf in self.leaves], self.sound[: self.elements]
        return PartialBatch(leaves, self.elements, self.digest, None if len(sound) == self.digest.elements else sound)

    def _copy(self, piece: PartialBatch) -> int:
        """Copy the rows of a piece behind the others. Returns the number of rows including them."""
        start, stop = self.digest.elements, self.digest.elements + piece.digest.elements
        for target, leaf in zip(self.leaves, piece.leaves, strict=True):
            target[start:stop].copy_(leaf)
        if piece.sound is not None:
            self.sound[self.elements : self.elements + piece.elements] = piece.sound
        return stop


def _slice(leaf: torch.Tensor, low: int, high: int, *, private: bool) -> torch.Tensor:
    # Kernels may round differently on memory of another alignment.
    view = leaf[low:high]
    return view.clone() if private or view.data_ptr() % ALIGNMENT else view
