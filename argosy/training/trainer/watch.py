"""Finds members that begin to write into their input late, in ways that torch does not count: through `.data` or a NumPy view.

Members share the blocks of the stream. Writes during a member's first batches are found when it is measured, and the member then gets
private copies. Writes that torch counts show in `Block.touched`. To find other writes, an instance sometimes gets a copy instead of the
block, as often as this costs at most `WATCHING_SHARE` of the time of its steps: for every block if steps take long, and for one in some hundreds if
they are as fast as reading their samples. If the copy differs from the block afterwards, the instance has written into it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from argosy.errors import MemberError
from argosy.stream.blocks import Block, Place, byte_view, same_bits

__all__ = ["WATCHING_SHARE", "InputWatch"]

WATCHING_SHARE = 0.005
"""Share of the CPU time of an instance's steps that copies and comparisons may take; wall time would depend on other load."""
BYTES_PER_SECOND = 1e9
"""Assumed speed of a copy and a comparison, until they were measured."""
CALL_SECONDS = 5e-5


@dataclass(slots=True)
class InputWatch:
    """Watches an instance's input."""

    stepping_seconds: float = 0.0
    seconds: float = 0.0
    """CPU time of copies and comparisons so far."""
    bytes: int = 0
    """Bytes copied and compared in that time."""
    shared_from: Place | None = None
    """The first block since the last comparison that was not compared."""
    compared_from: Place | None = None
    """The first block from which on all blocks were compared, and found unchanged."""
    _began: float = 0.0
    _copying: float = 0.0
    """CPU seconds of the last copy."""
    _before: list[Tensor] | None = None
    """Earlier content of the block, if the instance gets the block itself."""

    def shown(self, block: Block, *, apart: bool) -> Block:
        """Return the block for an instance's steps: a copy, if time allows.

        On a device with its own memory (`apart`), the copy is made on the host and the instance gets the block itself, which saves device
        memory. No other instance may then step before `restore_if_written` is called.
        """
        self._before = None
        if self.seconds + self._expected(block) > WATCHING_SHARE * self.stepping_seconds:
            self.shared_from, self.compared_from = self.shared_from or block.place, None
            return block
        started, shown = time.thread_time(), block
        if apart:
            self._before = [byte_view(leaf).to("cpu", copy=True) for leaf in block.leaves]
        else:
            shown = block.private()
        self._copying = time.thread_time() - started
        return shown

    def __enter__(self) -> None:
        """Time the instance's steps inside."""
        self._began = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.stepping_seconds += time.thread_time() - self._began

    def restore_if_written(self, shown: Block, block: Block) -> bool:
        """Return whether the instance has detectably written into the block that it was `shown`; if so, restore the block."""
        before = self._before
        if shown is block and before is None:
            return False
        started = time.thread_time()
        wrote = not (same_bits(shown.leaves, block.leaves) if before is None else _restore(block, before))
        self.seconds += time.thread_time() - started + self._copying
        self.bytes += _bytes(block)
        if not wrote:
            self.shared_from, self.compared_from = None, self.compared_from or block.place
        return wrote

    def refuse(self, member: str) -> None:
        """Raise MemberError for a member that wrote, with a description of the possible effect on other members."""
        # Earlier blocks may have been written into as well, because a write does not have to change every block.
        if self.shared_from is not None:
            neighbours = (
                "this time it had a copy, but other members may have trained on its changes since "
                f"{_format_place(self.shared_from)} or earlier"
            )
        else:
            since = "" if self.compared_from is None else f" since {_format_place(self.compared_from)}"
            neighbours = f"other members have seen none of its changes{since}"
        raise MemberError(
            f"member {member!r} wrote into its input, which members share, although it did not on its first "
            f"batches; {neighbours}. Clone the input before changing it."
        )

    def _expected(self, block: Block) -> float:
        """Return the expected CPU seconds of copying and comparing a block."""
        if not self.bytes:
            return CALL_SECONDS + _bytes(block) / BYTES_PER_SECOND
        return self.seconds / self.bytes * _bytes(block)


def _format_place(place: Place) -> str:
    return f"sample {place.start} of {place.split} epoch {place.epoch + 1}"


def _bytes(block: Block) -> int:
    return sum(leaf.nbytes for leaf in block.leaves)


def _restore(block: Block, before: Sequence[Tensor]) -> bool:
    """Restore a block's earlier content; returns whether the block was unchanged."""
    same = True
    for leaf, bits in zip(block.leaves, before, strict=True):
        if not torch.equal(byte_view(leaf).cpu(), bits):
            same = False
            byte_view(leaf.data).copy_(bits)
    return same
