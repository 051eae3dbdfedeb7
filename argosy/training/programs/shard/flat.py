"""What the ranks of a split member add up at each step: its gradient and a few figures beside it, in one flat tensor.

The figures: of each weight how many ranks have a gradient of it, since an optimizer leaves alone what no rank has one of; the sum
of the losses of each rank, in two parts that hold the digits of a float64 and are zero on the other ranks; and the digest of what
was stepped on, in pieces of 16 bits. Sums of all these are exact in float32.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from argosy.stream.order import WORD, Digest

__all__ = ["Flat", "Summed"]

PIECES, PIECE_BITS = 4, 16
"""Of each of a digest's two words."""


class Summed(NamedTuple):
    """What all ranks have done together."""

    losses: float
    """Their sum over the samples."""
    digest: Digest


class Flat:
    """Of one member on one rank, where its group adds up; in float64 where a weight is, else in float32."""

    def __init__(self, parameters: Iterable[Tensor], on: torch.device, *, rank: int, size: int) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        double = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        sizes = [parameter.numel() for parameter in self.parameters]
        self._losses = slice(len(sizes) + 2 * rank, len(sizes) + 2 * rank + 2)
        self._rest = len(sizes) + 2 * size
        figures = self._rest + 1 + 2 * PIECES
        self.values = torch.zeros(sum(sizes) + figures, dtype=torch.float64 if double else torch.float32, device=on)
        *self._gradients, self._figures = torch.split_with_sizes(self.values, [*sizes, figures])

    def fill(self, losses: Tensor | None, digest: Digest) -> None:
        """Take this rank's gradients as they are at the weights; `losses` are one per sample, None without any."""
        there = [parameter.grad is not None for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            if parameter.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(parameter.grad.reshape(-1))
        words = (*_pieces(digest.indices), *_pieces(digest.positions))
        no_losses = [0.0] * (self._rest - len(there))
        self._figures.copy_(torch.tensor([*there, *no_losses, digest.elements, *words], dtype=torch.float64))
        if losses is not None:
            total = losses.double().sum()
            high = total.to(self._figures.dtype)
            self._figures[self._losses] = torch.stack((high.double(), total - high)).to(self._figures)

    def take(self) -> Summed:
        """Give the weights the gradients of the sum; they are good until the next `fill`."""
        count = len(self.parameters)
        figures = self._figures.tolist()
        for parameter, gradient, there in zip(self.parameters, self._gradients, figures, strict=False):
            parameter.grad = gradient.view_as(parameter).to(parameter) if there else None
        elements, *words = figures[self._rest :]
        digest = Digest(int(elements), _word(words[:PIECES]), _word(words[PIECES:]))
        return Summed(sum(figures[count : self._rest]), digest)


def _pieces(word: int) -> list[int]:
    return [word >> PIECE_BITS * number & (1 << PIECE_BITS) - 1 for number in range(PIECES)]


def _word(pieces: Iterable[float]) -> int:
    return sum(int(piece) << PIECE_BITS * number for number, piece in enumerate(pieces)) % WORD
