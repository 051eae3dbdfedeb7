"""Rows that stay on an accelerator: they are copied there once, and gathered by their sample indices in every later epoch.

Contract. Only `fixed` blocks have such rows. The ring still carries every block, so that rows can be freed at any time, and other or
restarted trainers do not depend on them. Rows are written and read on the current stream, one block after another. They may use a share of
the memory that remains after a section of steps has shown what it needs. If memory runs out, all rows are freed for good.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.stream.blocks import Block, select_rows, signed
from argosy.training.device.devices import Backend, memory_left

__all__ = ["ResidentRows"]

MEMORY_DIVISOR = 4
"""Rows of a split may use at most 1 / MEMORY_DIVISOR of the memory that is left."""
DTYPES = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)
"""Types that every accelerator can gather."""


@dataclass(slots=True)
class _Split:
    """Rows of one split, by sample index."""

    leaves: list[Tensor]
    """Tensors on the device, each ``[samples, …]``."""
    here: npt.NDArray[np.bool_]
    """Whether each sample is on the device."""


@dataclass(slots=True)
class ResidentRows:
    """Rows of all splits on one device."""

    backend: Backend
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Number of samples of each split whose rows may stay; empty until a section of steps has shown how much memory it needs."""
    _splits: dict[str, _Split | None] = field(default_factory=dict)
    """None for a split that does not fit."""
    _refused: bool = False
    """Whether memory has run out."""

    def allow(self, lengths: Mapping[str, int]) -> None:
        """Allow rows of these splits, given with their numbers of samples, to stay from now on."""
        if not self._refused:
            self.lengths = lengths

    def has(self, block: Block) -> bool:
        """Return whether all rows of the block are on the device."""
        split = self._splits.get(block.place.split)
        return split is not None and block.fixed and bool(split.here[block.indices].all())

    def reserve(self, block: Block) -> bool:
        """Return whether the block's rows will stay; allocates memory for its split if it fits. Raises if memory runs out."""
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
        """Keep the rows of a block that `reserve` has accepted; the index and the leaves are on the device."""
        split = self._splits[block.place.split]
        assert split is not None
        for rows, leaf in zip(split.leaves, leaves, strict=True):
            signed(rows).index_copy_(0, index, signed(leaf))
        split.here[block.indices] = True

    def read(self, block: Block, index: Tensor) -> list[Tensor]:
        """Return the leaves of a block whose rows are all on the device, in new memory."""
        split = self._splits[block.place.split]
        assert split is not None
        return [select_rows(rows, index) for rows in split.leaves]

    def give_back(self, detail: str) -> bool:
        """Free all rows after memory has run out, and keep none from now on; returns whether there were any."""
        any_rows = any(self._splits.values())
        self._splits.clear()
        self.lengths, self._refused = {}, True
        if any_rows:
            with contextlib.suppress(OSError):  # the worker's log may be on a full disk
                print(f"from now on, samples are sent to {self.backend.name} in each epoch: {detail}", flush=True)
        return any_rows

    def _fits(self, block: Block, length: int) -> bool:
        used = self.backend.peak_memory()
        if used is None or any(leaf.dtype not in DTYPES for leaf in block.leaves):
            return False
        needed = length * sum(leaf[0].numel() * leaf.itemsize for leaf in block.leaves)
        return needed * MEMORY_DIVISOR <= memory_left(self.backend, max(used, self.backend.memory_in_use() or 0))


def _rows(leaf: Tensor, length: int, backend: Backend) -> Tensor:
    return torch.empty((length, *leaf.shape[1:]), dtype=leaf.dtype, device=backend.device)
