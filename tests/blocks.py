"""Blocks with the memory layout that a feeder gives them."""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from argosy.stream.blocks import ALIGNMENT, Block, Layout, Place

__all__ = ["blocks"]


def blocks(
    order: np.ndarray,
    size: int,
    *,
    arrays: Sequence[torch.Tensor] | None = None,
    width: int = 3,
    split: str = "train",
    epoch: int = 0,
    start: int = 0,
    stop: int | None = None,
    holes: Collection[int] = (),
) -> list[Block]:
    """Return elements start … stop-1 of an order in blocks of a size; without arrays every row holds its sample's index."""
    numbers = torch.arange(len(order))
    arrays = arrays or (numbers[:, None].expand(-1, width).float(), numbers)
    layout, stop = Layout.of(type(arrays)(array[0] for array in arrays)), len(order) if stop is None else stop
    found = []
    for low in range(start, stop, size):
        rows = min(size, stop - low)
        place = Place(leg=0, split=split, epoch=epoch, section=0, start=low, rows=rows, last=low + rows == stop)
        memory = np.empty(layout.block_bytes(rows) + ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % ALIGNMENT :]
        block, indices = layout.block(place, memory), order[low : low + rows]
        block.indices[:] = indices
        block.sound[:] = ~np.isin(indices, list(holes))
        for leaf, array in zip(block.leaves, arrays, strict=True):
            leaf.copy_(array[torch.from_numpy(indices)])
        found.append(layout.block(place, memory))
    return found
