"""Prepared samples that are kept: where the validation samples are the training samples again, each is prepared once an epoch.

That is so where `Data` has one Dataset as both, for folds of a cross-validation. What a sample becomes is a function of (seed, split,
epoch, index), and where nothing was drawn for it, of its index alone. Such a sample is kept whenever it was prepared, and
validation takes it from here.

Contract. The memory is anonymous, and shared by the feeder and the loader workers that it forks. A row is written by the process that
prepared its sample, and is marked as sound after that; all writers of a row write the same. A feeder hands out validation samples
when the training samples before them are answered.
"""

import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.order import Indices

__all__ = ["Kept"]


class Kept:
    """Kept samples, by index, of indices below `rows`."""

    def __init__(self, layout: Layout, rows: int) -> None:
        # Pages take memory when they are written to.
        memory = np.frombuffer(mmap.mmap(-1, layout.block_bytes(rows)), dtype=np.uint8)
        place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=rows, last=True)
        self.rows = rows
        self._block = layout.block(place, memory)

    def keep(self, index: int, leaves: Sequence[torch.Tensor]) -> None:
        """Keep a sample, if there is room for it."""
        if index < self.rows:
            for kept, leaf in zip(self._block.leaves, leaves, strict=True):
                kept[index].copy_(leaf)
            self._block.sound[index] = True

    def copy(self, block: Block, low: int, indices: Indices) -> npt.NDArray[np.bool_]:
        """Copy those of these samples that are kept into rows low, low+1, … of a block; return which they are."""
        here = indices < self.rows
        here[here] = self._block.sound[indices[here]]
        rows, found = np.flatnonzero(here) + low, indices[here]
        for target, kept in zip(block.leaves, self._block.leaves, strict=True):
            target[torch.from_numpy(rows)] = kept[torch.from_numpy(found)]
        block.indices[rows], block.sound[rows] = found, True
        return here
