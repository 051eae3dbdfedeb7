"""Cut batches of samples of similar length: sort a window of the member's sequence by length, cut it, and shuffle its batches.

A window is a fixed number of elements of the sequence, regardless of blocks, so batches depend on nothing else: windows follow the
published order, lengths are those of the samples, and the order of a window's batches is drawn from (study seed, stream epoch, window).
Each element is still in exactly one batch of its epoch. The samples of a window are copied out of the blocks as they pass, and its batches are
complete together with its last sample. Sorting within windows follows Hugging Face's ``group_by_length``.

Contract. Cutters that cut the same windows share them: the first to see a block copies from it, and a window lives until all of them
have finished its batches. The content of a window never changes, and batches are copies.
"""

import copy
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from weakref import WeakValueDictionary

import numpy as np
import torch

from argosy.stream.batches import Batch, BatchBuffer, Cutter, Elements, PartialBatch, copy_to_device
from argosy.stream.blocks import Block, select_rows
from argosy.stream.order import Digest, Indices, Selection, window_elements, window_order
from argosy.stream.padding import BatchForm, batch_form, lengths_of, max_lengths
from argosy.stream.trees import Structure, unflatten

__all__ = ["ByLengthCutter", "Window"]


class ByLengthCutter(Cutter):
    """Batches of samples of similar length.

    `position` counts the elements of finished windows and of the finished batches in the current window. To continue in the middle of a
    window, the cutter has to see the whole window again, which is too much to carry.
    """

    def __init__(
        self,
        *,
        selection: Selection,
        order: Indices,
        batch_size: int,
        drop_last: bool,
        tokens: int | None = None,
        drawn: tuple[int, int] | None = None,
        position: int = 0,
        windows: "MutableMapping[int, Window] | None" = None,
    ) -> None:
        """Cut batches of at most `batch_size` samples that, padded to the longest, hold at most `tokens` elements.

        The order of a window's batches is `drawn` from a seed and an epoch; if None, batches are in order of length. Cutters that are given the
        same `windows`, by first element, must cut the same batches.
        """
        super().__init__(
            selection=selection, order=order, batch_size=batch_size, drop_last=drop_last, position=position
        )
        self._tokens = tokens
        self._drawn = drawn
        self._size = window_elements(batch_size)
        self._shared = WeakValueDictionary[int, Window]() if windows is None else windows
        self._windows: deque[Window] = deque()
        self._seen = self.position - self.again
        """Number of elements of the sequence that have passed."""

    @property
    def again(self) -> int:
        """Implement `Cutter.again`."""
        return 0 if self.done else self.position % self._size

    def cuts_alike(self, other: Cutter) -> bool:
        """Implement `Cutter.cuts_alike`."""
        assert isinstance(other, ByLengthCutter)  # the members of a program cut the same data
        mine, theirs = ((cutter._tokens, cutter._drawn, cutter._seen) for cutter in (self, other))
        return mine == theirs and super().cuts_alike(other)

    def take(self, block: Block, *, private: bool = False, after: Batch | None = None) -> Iterator[Batch]:
        """Implement `Cutter.take`; every batch is a copy."""
        for window, number in self._completed(block, after):
            yield window.batch(number, block.tree)

    def completions(self, block: Block, after: Batch | None = None) -> list[int]:
        """Implement `Cutter.completions`."""
        ends = [min(window.first + window.size, self.length) for window, _ in self._completed(block, after)]
        return ends if self.positions is None else [int(self.positions[end - 1]) + 1 for end in ends]

    def commit(self, batch: Batch) -> None:
        """Implement `Cutter.commit`."""
        self.position: int = batch.stop
        while self._windows and self._windows[0].first + self._windows[0].size <= self.position:
            self._windows.popleft()

    def __deepcopy__(self, memo: object) -> "ByLengthCutter":
        copied = copy.copy(self)
        copied._windows = self._windows.copy()
        return copied

    def _completed(self, block: Block, after: Batch | None) -> Iterator[tuple["Window", int]]:
        """Yield windows that are complete with this block, and the number of each batch after `after` or after the last committed one."""
        self._gather(block)
        done = self.position if after is None else after.stop
        for window in list(self._windows):
            if window.complete:
                yield from ((window, number) for number, stop in enumerate(window.stops) if stop > done)

    def _gather(self, block: Block) -> None:
        """Copy elements that have not passed before into their windows."""
        elements, stop = Elements(self.positions, block), self.length
        assert elements.first <= self._seen or self._seen >= stop, (
            f"the stream skipped elements {self._seen} to {elements.first}"
        )
        stop = min(stop, elements.stop)
        while self._seen < stop:
            first = self._seen - self._seen % self._size
            if first == self._seen:
                self._windows.append(self._window(first, block))
            window, end = self._windows[-1], min(first + self._size, stop)
            if window.stop < end:
                window.add(elements.piece(window.stop, end), elements.indices(window.stop, end))
                if window.complete:
                    window.cut(batch_form(block.tree), self.batch_size, self._tokens, self._drawn)
            self._seen = end

    def _window(self, first: int, block: Block) -> "Window":
        """Return the window that begins there, which another cutter may have created."""
        window = self._shared.get(first)
        if window is None:
            window = self._shared[first] = Window(first, min(self._size, self.length - first), block)
        return window


class Window:
    """Consecutive elements of a sequence, in memory of their own."""

    def __init__(self, first: int, size: int, like: Block) -> None:
        self.first = first
        self.size = size
        self.gathered: BatchBuffer = BatchBuffer(first, size, like.leaves)
        self.indices: Indices = np.empty(size, np.int64)
        self.batches: list[Indices] = []
        """Elements of each batch, counted from `first`, ascending; set by `cut`."""
        self.stops: list[int] = []
        """Number of elements of the sequence up to the end of each batch."""
        self._row_of: Indices = np.empty(0, np.int64)
        """Row of each element's sample; arbitrary for a broken one."""
        self._lengths: Mapping[int, Indices] = {}

    @property
    def stop(self) -> int:
        """Element after the last one present."""
        return self.first + self.gathered.elements

    @property
    def complete(self) -> bool:
        """Whether all elements are present."""
        return self.gathered.elements == self.size

    def add(self, piece: PartialBatch, indices: Indices) -> None:
        """Append a piece."""
        start = self.gathered.elements
        self.indices[start : start + piece.elements] = indices
        self.gathered.add(piece)

    def cut(self, form: BatchForm | None, batch_size: int, tokens: int | None, drawn: tuple[int, int] | None) -> None:
        """Cut the window into batches, and shuffle these unless `drawn` is None. Waits for the device."""
        gathered = self.gathered
        lengths, self._row_of = np.zeros(self.size, np.int64), np.cumsum(gathered.sound) - 1
        if form is not None:
            self._lengths = lengths_of(gathered.carried().leaves, form)
            lengths[gathered.sound] = np.max(list(self._lengths.values()), axis=0, initial=0)
        # Stable: samples of equal length stay in the order of the sequence, whatever NumPy's other sorts do.
        order = np.argsort(lengths, kind="stable")
        bounds = [0]
        for element, length in enumerate(lengths[order].tolist()):
            count = element - bounds[-1]
            if count == batch_size or (tokens is not None and count and (count + 1) * length > tokens):
                bounds.append(element)
        self.batches = [np.sort(part) for part in np.split(order, bounds[1:])]
        if drawn is not None:
            places = window_order(*drawn, self.first // window_elements(batch_size), len(self.batches))
            self.batches = [self.batches[number] for number in places.tolist()]
        self.stops = (self.first + np.cumsum([len(batch) for batch in self.batches])).tolist()

    def batch(self, number: int, tree: Structure) -> Batch:
        """Return one batch, without broken samples."""
        elements, leaves = self.batches[number], self.gathered.leaves
        sound = self.gathered.sound[elements]
        rows = self._row_of[elements[sound]]
        chosen = copy_to_device(torch.from_numpy(rows), leaves[0].device)
        form = batch_form(tree)
        if form is None:
            data = unflatten([select_rows(leaf, chosen) for leaf in leaves], tree)
        else:
            longest = max_lengths({leaf: lengths[rows] for leaf, lengths in self._lengths.items()})
            data = form.batch(leaves, longest, chosen)
        places = self.first + elements
        digest = Digest.of(self.indices[elements[sound]], places[sound])
        return Batch(data, len(rows), digest, self.stops[number], None if sound.all() else sound, places)
