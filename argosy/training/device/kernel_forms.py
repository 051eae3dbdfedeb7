"""What kernels of our own compute (`argosy.training.device.own_kernels`): dropout masks of members, and steps of unlike ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

__all__ = ["AHEAD", "AT_ONCE", "BLOCK", "OF_A_STEP", "Drawn", "OwnKernels"]

AHEAD = 64
"""Captured steps whose numbers are brought to the device at once: to bring those of one takes a host as long as a small network's step
takes the device."""

BLOCK = 1024
"""Numbers of a member's weight that a step takes at once; each weight's memory is a multiple of it."""
OF_A_STEP = 8
"""Numbers of a member's step: see `OwnKernels.step`."""
AT_ONCE = 4
"""Numbers that a thread of torch's kernels draws at once."""


class Drawn(NamedTuple):
    """A dropout mask of one member, as torch draws it."""

    row: int
    """Of the member, and of its state."""
    start: int
    """Its first number in the memory of all masks."""
    size: int
    kept: float
    """Share of numbers that is kept; 1 where nothing is drawn."""


class OwnKernels(Protocol):
    """What a device has of these kernels."""

    def masks(self, into: Tensor, drawn: Sequence[tuple[Drawn, int]], states: Tensor, tables: dict[Any, Any]) -> None:
        """Write masks: each what `torch.nn.functional.dropout` makes of ones.

        `drawn` has with each mask the offset of its draws from that in its member's state; `states` are seeds and offsets of the members'
        generators, int64 ``[members, 2]``. What is made of `drawn` is kept in `tables`, which have to live as long as a recording of this.
        """

    def step(
        self, weights: Tensor, gradients: Tensor, moments: tuple[Tensor, Tensor], numbers: Tensor, owners: Tensor
    ) -> None:
        """Step many weights along gradients, all ``[blocks * BLOCK]``; `owners` has each block's row of numbers, int32 ``[blocks]``.

        Numbers ``[rows, 8]`` are: 1 for Adam, 0 for SGD and 2 for Muon, what weights are multiplied by, decay that is added to gradients;
        then for Adam 1 - beta1, 1 - beta2, epsilon and the rate, corrected for bias, for SGD momentum, 1 for Nesterov's, 0 and the rate,
        and for Muon 1 - momentum, momentum, 1 for Nesterov's and the rate; the last is always 0. Of Muon's matrices the direction is written
        into `gradients`, which the caller makes orthogonal and steps along.
        """

    def increment(self, size: int) -> int:
        """Return by how much a mask of so many numbers moves the offset of a generator."""
