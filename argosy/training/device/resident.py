"""Rows that stay on an accelerator: sent there once, and read there by the indices of their samples in every later epoch.

Contract. Only `fixed` blocks have such rows. The ring carries every block all the same, so that rows can be given back at any moment, and
another trainer, or the same one started anew, needs nothing of them. They are written and read on the current stream, one block after another.
Rows get a share of the memory that a section of steps has left over, and are given back for good where memory ends.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.stream.blocks import Block
from argosy.training.device.devices import Backend, memory_left

__all__ = ["ResidentRows"]

SHARE = 4
"""Rows take at most one part in so many of the memory that is left."""
DTYPES = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)
"""Those that every accelerator can gather."""


@dataclass(slots=True)
class _Split:
    """Rows of one split, by the numbers of its samples."""

    leaves: list[Tensor]
    """On the device, each ``[samples, …]``."""
    here: npt.NDArray[np.bool_]
    """Which samples have been sent."""


@dataclass(slots=True)
class ResidentRows:
    """Rows of all splits on one device."""

    backend: Backend
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Samples of each split that may stay; nothing does before a section of steps has shown what memory they need."""
    _splits: dict[str, _Split | None] = field(default_factory=dict)
    """None for a split without room."""
    _refused: bool = False
    """Whether memory ended."""

    def allow(self, lengths: Mapping[str, int]) -> None:
        """Let rows of splits of these lengths stay from now on."""
        if not self._refused:
            self.lengths = lengths

    def has(self, block: Block) -> bool:
        """Return whether all rows of the block are on the device."""
        split = self._splits.get(block.place.split)
        return split is not None and block.fixed and bool(split.here[block.indices].all())

    def takes(self, block: Block) -> bool:
        """Return whether the block's rows are to stay; room for its split is made where there is enough. Raises where memory ends."""
        name = block.place.split
        if not (block.fixed and block.whole and name in self.lengths):
            return False
        if name not in self._splits:
            self._splits[name] = None
            if self._fits(block, self.lengths[name]):
                self._splits[name] = _Split(
                    [_rows(leaf, self.lengths[name], self.backend) for leaf in block.leaves],
                    np.zeros(self.lengths[name], np.bool_),
                )
        return self._splits[name] is not None

    def keep(self, block: Block, index: Tensor, leaves: list[Tensor]) -> None:
        """Keep rows of a block that it takes; the index and the leaves are on the device."""
        split = self._splits[block.place.split]
        assert split is not None
        for rows, leaf in zip(split.leaves, leaves, strict=True):
            rows.index_copy_(0, index, leaf)
        split.here[block.indices] = True

    def read(self, block: Block, index: Tensor) -> list[Tensor]:
        """Return the leaves of a block that it has, in memory of their own."""
        split = self._splits[block.place.split]
        assert split is not None
        return [rows.index_select(0, index) for rows in split.leaves]

    def give_back(self, detail: str) -> bool:
        """Free all rows after memory has ended, and keep none from now on; returns whether there were any."""
        held = any(self._splits.values())
        self._splits.clear()
        self.lengths, self._refused = {}, True
        if held:
            with contextlib.suppress(OSError):  # the worker's log may lie on a disk that is full
                print(f"samples are sent to {self.backend.name} in each epoch from now on: {detail}", flush=True)
        return held

    def _fits(self, block: Block, length: int) -> bool:
        used = self.backend.peak_memory()
        if used is None or any(leaf.dtype not in DTYPES for leaf in block.leaves):
            return False
        needed = length * sum(leaf[0].numel() * leaf.itemsize for leaf in block.leaves)
        return needed * SHARE <= memory_left(self.backend, max(used, self.backend.memory_in_use() or 0))


def _rows(leaf: Tensor, length: int, backend: Backend) -> Tensor:
    return torch.empty((length, *leaf.shape[1:]), dtype=leaf.dtype, device=backend.device)
