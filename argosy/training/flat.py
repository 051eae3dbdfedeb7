"""What the ranks of a split member add up at each step: its gradient and a few figures beside it, in one flat tensor.

The figures: of each weight how many ranks have a gradient of it, since an optimizer leaves alone what nobody has one of; the sum
of the losses; and the digest of what was stepped on, in pieces of 16 bits, whose sums float32 holds exactly.
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

    def __init__(self, parameters: Iterable[Tensor], on: torch.device) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        double = any(parameter.dtype == torch.float64 for parameter in self.parameters)
        sizes = [parameter.numel() for parameter in self.parameters]
        figures = len(sizes) + 2 + 2 * PIECES
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
        self._figures.copy_(torch.tensor([*there, 0.0, digest.elements, *words], dtype=torch.float64))
        if losses is not None:
            self._figures[len(there)] = losses.double().sum()

    def take(self) -> Summed:
        """Give the weights the gradients of the sum; they are good until the next `fill`."""
        count = len(self.parameters)
        figures = self._figures.tolist()
        for parameter, gradient, there in zip(self.parameters, self._gradients, figures, strict=False):
            parameter.grad = gradient.view_as(parameter).to(parameter) if there else None
        losses, elements, *words = figures[count:]
        digest = Digest(int(elements), _word(words[:PIECES]), _word(words[PIECES:]))
        return Summed(losses, digest)


def _pieces(word: int) -> list[int]:
    return [word >> PIECE_BITS * number & (1 << PIECE_BITS) - 1 for number in range(PIECES)]


def _word(pieces: Iterable[float]) -> int:
    return sum(int(piece) << PIECE_BITS * number for number, piece in enumerate(pieces)) % WORD
