"""The flat tensor that the ranks of a split member sum at each step: its gradient and a few figures.

The figures are:

* for each weight, how many ranks have a gradient for it, since an optimizer skips a weight without one;
* each rank's sum of losses, in two parts that together hold the digits of a float64; the other ranks have zero in their place;
* the digest of the samples, in pieces of 16 bits.

Their sums are exact in float32.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from argosy.stream.batches import copy_to_device
from argosy.stream.order import WORD, Digest

__all__ = ["FlatGradient", "StepSums"]

PIECES, PIECE_BITS = 4, 16
"""Number of pieces in each of a digest's two words, and their bits."""


class StepSums(NamedTuple):
    """Sums of a step over all ranks, except the gradient."""

    losses: float
    """Sum of the losses over the samples."""
    digest: Digest


class FlatGradient:
    """The flat tensor of one member on one rank, on its group's device; float64 if any weight is float64, else float32."""

    def __init__(self, parameters: Iterable[Tensor], on: torch.device, *, rank: int, size: int) -> None:
        self.parameters: list[Tensor] = [parameter for parameter in parameters if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in self.parameters]
        self._losses = slice(len(sizes) + 2 * rank, len(sizes) + 2 * rank + 2)
        self._rest = len(sizes) + 2 * size
        figures = self._rest + 1 + 2 * PIECES
        double = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        dtype = torch.float64 if double else torch.float32
        self.values: Tensor = torch.zeros(sum(sizes) + figures, dtype=dtype, device=on)
        *self._gradients, self._figures = torch.split_with_sizes(self.values, [*sizes, figures])

    def fill(self, losses: Tensor | None, digest: Digest) -> None:
        """Fill in this rank's gradients from its weights; `losses` are per sample, or None if it has no samples."""
        present = [parameter.grad is not None for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(parameter.grad.reshape(-1))
        words = (*_pieces(digest.indices), *_pieces(digest.positions))
        no_losses = [0.0] * (self._rest - len(present))
        figures = torch.tensor([*present, *no_losses, digest.elements, *words], dtype=torch.float64)
        self._figures.copy_(copy_to_device(figures, self._figures.device))
        if losses is not None:
            total = losses.double().sum()
            # In float32 one part cannot hold all digits.
            high = total.to(self._figures.dtype)
            self._figures[self._losses] = torch.stack((high.double(), total - high)).to(self._figures)

    def take(self) -> StepSums:
        """Set the weights' gradients to the sums, valid until the next `fill`; returns the other sums."""
        count = len(self.parameters)
        figures = self._figures.tolist()
        for parameter, gradient, is_present in zip(self.parameters, self._gradients, figures, strict=False):
            parameter.grad = gradient.view_as(parameter).to(parameter) if is_present else None
        elements, *words = figures[self._rest :]
        digest = Digest(int(elements), _word(words[:PIECES]), _word(words[PIECES:]))
        return StepSums(sum(figures[count : self._rest]), digest)


def _pieces(word: int) -> list[int]:
    return [word >> PIECE_BITS * number & (1 << PIECE_BITS) - 1 for number in range(PIECES)]


def _word(pieces: Iterable[float]) -> int:
    return sum(int(piece) << PIECE_BITS * number for number, piece in enumerate(pieces)) % WORD
