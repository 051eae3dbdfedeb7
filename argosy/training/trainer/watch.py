"""Finds members that write into their input past torch's eyes, through `.data` or a view of NumPy's, and late.

Members share the blocks of the stream. What a member writes on its first batches, it is measured on, and then it gets private
copies; what torch counts, `Block.touched` tells. For the rest, a unit is shown a copy of a block in place of the block, as often
as that costs `SHARE` of its steps: every block where steps take long, one of some hundreds where they take no longer than to read
their samples. A copy that does not hold afterwards what the block holds was written into.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.errors import MemberError
from argosy.stream.blocks import Block, Place
from argosy.training.device.copies import same_bits

__all__ = ["SHARE", "InputWatch"]

SHARE = 0.005
"""Of the CPU time of a unit's steps that copies and comparisons may take: on a busy machine steps last longer by the clock."""
BYTES_PER_SECOND = 1e9
"""Of a copy and a comparison, until some were made."""
CALL_SECONDS = 5e-5


Bits = npt.NDArray[np.uint8]


@dataclass(slots=True)
class InputWatch:
    """Of one unit."""

    stepping_seconds: float = 0.0
    seconds: float = 0.0
    """Of copies and comparisons."""
    bytes: int = 0
    """That were copied and compared in them."""
    shared_from: Place | None = None
    """The first block since the last comparison that was not compared."""
    compared_from: Place | None = None
    """The first block from which on all were compared, and found as they should be."""
    _copying: float = 0.0
    """Seconds that the last copy took."""
    _before: list[Bits] | None = None
    """What the block held, where the unit is shown the block itself."""

    def shown(self, block: Block, *, apart: bool) -> Block:
        """What a unit is to step on: a copy, where there is time for it.

        On a device that lies `apart` the copy is the host's, and the unit has the block itself: the device's memory is the members'.
        So no other unit may step before `wrote` is asked.
        """
        self._before = None
        if self.seconds + self._expected(block) > SHARE * self.stepping_seconds:
            self.shared_from, self.compared_from = self.shared_from or block.place, None
            return block
        started, shown = time.thread_time(), block
        if apart:
            self._before = [_bits(leaf).copy() for leaf in block.leaves]
        else:
            shown = block.private()
        self._copying = time.thread_time() - started
        return shown

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Inside, the unit steps."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.stepping_seconds += time.thread_time() - started

    def wrote(self, shown: Block, block: Block) -> bool:
        """Whether the unit is known to have written into what it was `shown`; the block holds then what it held before."""
        before = self._before
        if shown is block and before is None:
            return False
        started = time.thread_time()
        wrote = not (same_bits(shown.leaves, block.leaves) if before is None else _restored(block, before))
        self.seconds += time.thread_time() - started + self._copying
        self.bytes += _bytes(block)
        if not wrote:
            self.shared_from, self.compared_from = None, self.compared_from or block.place
        return wrote

    def refuse(self, member: str) -> None:
        """End a member that wrote; raises MemberError, whose words say what it has done to others."""
        # Blocks before these may have been written into as well: what is found on one block may not show on another.
        if self.shared_from is not None:
            neighbours = (
                "it had a copy this time, but members beside it may have been trained on what it wrote since "
                f"{_words(self.shared_from)}, or before"
            )
        else:
            since = "" if self.compared_from is None else f" since {_words(self.compared_from)}"
            neighbours = f"its neighbours have seen nothing of it{since}"
        raise MemberError(
            f"member {member!r} wrote into its input, which members share, though it did not on its first batches; {neighbours}. "
            "Clone the input before changing it."
        )

    def _expected(self, block: Block) -> float:
        """Seconds that a copy of a block and its comparison will take."""
        if not self.bytes:
            return CALL_SECONDS + _bytes(block) / BYTES_PER_SECOND
        return self.seconds / self.bytes * _bytes(block)


def _words(place: Place) -> str:
    return f"sample {place.start} of {place.split} epoch {place.epoch}"


def _bytes(block: Block) -> int:
    return sum(leaf.nbytes for leaf in block.leaves)


def _bits(leaf: Tensor) -> Bits:
    """Of a leaf, on the host."""
    found: Bits = leaf.detach().reshape(-1).view(torch.uint8).cpu().numpy()
    return found


def _restored(block: Block, before: Sequence[Bits]) -> bool:
    """Whether a block holds what it held before; it does afterwards."""
    same = True
    for leaf, bits in zip(block.leaves, before, strict=True):
        if not np.array_equal(_bits(leaf), bits):
            same = False
            leaf.data.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(bits))
    return same
