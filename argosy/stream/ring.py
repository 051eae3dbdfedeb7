"""Pass blocks from one feeder to all trainers of a node in shared memory, without copying.

Contract. The ring is one anonymous memory file (memfd): it has no name and cannot leak, because it disappears with its last mapping. It
has a fixed number of slots. The feeder owns a free slot and lends it to its loader workers, which write the block. A
notice hands the slot to every reader. A reader releases it when its last view of the block is freed (autograd may still
hold the batch). A slot is free again when every live reader has released it: this back-pressure is the entire
flow control. At most one notice and one release per slot and reader are in transit. The death of a reader is seen as an
end-of-file, which releases all its slots.
"""

import mmap
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import ALIGNMENT, Block, Layout, Place
from argosy.stream.memory import memory_file
from argosy.stream.wire import Peer

__all__ = ["Ring", "RingReader"]

Memory = npt.NDArray[np.uint8]


class Ring:
    """The memory as used by the feeder and its loader workers."""

    def __init__(self, *, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        # A multiple, so that the leaves of every slot are aligned.
        self.slot_bytes: int = -(-slot_bytes // ALIGNMENT) * ALIGNMENT
        self.descriptor: int = memory_file("argosy-ring", slots * self.slot_bytes)
        self._memory = _map(self.descriptor)

    def slot(self, number: int) -> Memory:
        """Return the bytes of one slot, writable."""
        return self._memory[number * self.slot_bytes : (number + 1) * self.slot_bytes]

    def lend(
        self, peer: Peer, layouts: dict[str, Layout], lengths: Mapping[str, int], shards: Sequence[int] = ()
    ) -> None:
        """Send a reader the memory and what it needs to read it. A dead reader is noticed by its end-of-file."""
        # cloudpickle: a sample may be a named tuple defined in the user's script.
        message = cloudpickle.dumps((self.slots, self.slot_bytes, layouts, dict(lengths), tuple(shards)))
        peer.send(message, [self.descriptor])


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a slot while a reader holds it. A subclass, because ndarray itself does not support weak references."""


class RingReader:
    """A trainer's end. `pin` prepares the memory for copies to a device and returns a function that undoes this."""

    def __init__(self, peer: Peer, *, pin: Callable[[Memory], Callable[[], None]] | None = None) -> None:
        self.peer = peer
        words, *self._notices = peer.wait()
        self.slots: int
        self.slot_bytes: int
        self.layouts: dict[str, Layout]
        self.lengths: dict[str, int]
        self.shards: tuple[int, ...]
        self.slots, self.slot_bytes, self.layouts, self.lengths, self.shards = cloudpickle.loads(words)
        descriptor = peer.descriptors.popleft()
        self._memory = _map(descriptor)
        os.close(descriptor)
        self._unpin = pin(self._memory) if pin is not None else None

    def blocks(self) -> list[tuple[Block, int]]:
        """Return the blocks that have arrived, possibly none, each with its assignment. Raises EOFError if the feeder is gone."""
        early, self._notices = self._notices, []
        notices = early or self.peer.receive()
        return [
            (self._block(slot, place, fixed, marks), assignment) for slot, place, assignment, fixed, marks in notices
        ]

    def _block(self, slot: int, place: Place, fixed: bool, marks: tuple[ShardMark, ...]) -> Block:
        lease: _Lease = self._memory[slot * self.slot_bytes : (slot + 1) * self.slot_bytes].view(_Lease)
        # Fires when the last array or tensor derived from the lease is freed.
        # If the feeder is gone, `send` does nothing, and nothing has to be released.
        weakref.finalize(lease, self.peer.send, slot).atexit = False
        layout: Layout = self.layouts[place.split]
        block = layout.block(place, lease)
        block.fixed, block.marks = fixed, marks
        return block

    def close(self) -> None:
        """Close the connection. The host can still read blocks that are alive; no copy to a device may be in progress."""
        if self._unpin is not None:
            self._unpin()
            self._unpin = None
        self.peer.close()


def _map(descriptor: int) -> Memory:
    # NumPy's frombuffer exports the buffer, so the mapping outlives every view; torch.frombuffer would not.
    return np.frombuffer(mmap.mmap(descriptor, 0), dtype=np.uint8)
