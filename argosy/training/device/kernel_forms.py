"""Interface of Argosy's own kernels (`argosy.training.device.own_kernels`): dropout masks, and optimizer steps of different members."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

__all__ = ["STEPS_AHEAD", "DRAWS_PER_THREAD", "BLOCK", "NUMBERS_PER_STEP", "MaskDraw", "OwnKernels"]

STEPS_AHEAD = 64
"""Captured steps whose numbers are copied to the device at once: copying those of one step takes the host as long as a small network's
step takes the device."""

BLOCK = 1024
"""Elements of a weight that one block of the step kernel processes; each weight's memory is a multiple of it."""
NUMBERS_PER_STEP = 8
"""Numbers that describe a member's step; see `OwnKernels.step`."""
DRAWS_PER_THREAD = 4
"""Random numbers that a thread of torch's kernels draws at once."""


class MaskDraw(NamedTuple):
    """A dropout mask of one member, drawn as torch draws it."""

    row: int
    """Row of the member, and of its generator's state."""
    start: int
    """Index of its first element in the memory of all masks."""
    size: int
    kept: float
    """Share of elements that are kept; 1 if nothing is drawn."""


class OwnKernels(Protocol):
    """The kernels on one device."""

    def masks(
        self, into: Tensor, drawn: Sequence[tuple[MaskDraw, int]], states: Tensor, tables: dict[Any, Any]
    ) -> None:
        """Write masks, each equal to `torch.nn.functional.dropout` of ones.

        `drawn` pairs each mask with the offset of its draws, relative to the offset in its member's state. `states` are the seeds and offsets
        of the members' generators, int64 ``[members, 2]``. Device tables built from `drawn` are cached in `tables`, which must live as long
        as a recording of this call.
        """

    def step(
        self, weights: Tensor, gradients: Tensor, moments: tuple[Tensor, Tensor], numbers: Tensor, owners: Tensor
    ) -> None:
        """Step many weights along their gradients, all ``[blocks * BLOCK]``; `owners` holds each block's row in `numbers`, int32 ``[blocks]``.

        A row of `numbers` ``[rows, 8]`` starts with the kind (0 for SGD, 1 for Adam, 2 for Muon), the factor on weights, and the decay that is
        added to gradients. Four numbers follow: for Adam 1 - beta1, 1 - beta2, epsilon and the rate (the last two corrected for bias); for SGD
        momentum, 1 for Nesterov, 0 and the rate; for Muon 1 - momentum, momentum, 1 for Nesterov and the rate. The last number is always 0.
        For Muon's matrices the direction is written into `gradients`; the caller orthogonalizes it and makes the step.
        """

    def increment(self, size: int) -> int:
        """Return by how much a mask of this size advances the offset of a generator."""
