"""Networks for rows of a table, and the loss of networks that return the outputs of several copies."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["TabM", "LossOfCopies", "Mlp", "ResNet"]


class Mlp(nn.Sequential):
    """Hidden layers, one after another."""

    def __init__(self, inputs: int, outputs: int, *, width: int, depth: int, dropout: float) -> None:
        sizes = [inputs, *[width] * depth]
        hidden = [
            layer
            for before, after in pairwise(sizes)
            for layer in (nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout))
        ]
        super().__init__(*hidden, nn.Linear(width, outputs))


class ResidualBlock(nn.Module):
    """Two layers on the normalised input, whose output is added to the input (Gorishniy et al. 2021)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.added: nn.Sequential = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width)
        )

    def forward(self, x_BH: Tensor) -> Tensor:
        """Return the sum."""
        added_BH: Tensor = self.added(x_BH)
        return x_BH + added_BH


class ResNet(nn.Sequential):
    """Residual blocks behind a layer that gives them their width."""

    def __init__(self, inputs: int, outputs: int, *, width: int, depth: int, dropout: float) -> None:
        blocks = [ResidualBlock(width, dropout) for _ in range(depth)]
        super().__init__(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs))


class Scaled(nn.Module):
    """A layer whose weights all copies share; each scales its inputs and outputs, and has a bias of its own (Wen et al. 2020)."""

    def __init__(self, inputs: int, outputs: int, copies: int, *, first: bool) -> None:
        super().__init__()
        self.shared: nn.Linear = nn.Linear(inputs, outputs, bias=False)
        # Only signs of the first layer's inputs tell copies apart at first.
        signs = torch.randint(0, 2, (copies, inputs)) * 2.0 - 1 if first else torch.ones(copies, inputs)
        self.before: nn.Parameter = nn.Parameter(signs)
        self.behind: nn.Parameter = nn.Parameter(torch.ones(copies, outputs))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(copies, outputs))

    def forward(self, x_BKI: Tensor) -> Tensor:
        """Return the outputs of each copy, ``[B, copies, outputs]``."""
        scaled: Tensor = self.shared(x_BKI * self.before) * self.behind + self.bias
        return scaled


class TabM(nn.Module):
    """An MLP in copies that share most weights and have heads of their own (TabM, Gorishniy et al. 2025).

    In training it returns each copy's outputs, ``[B, copies, outputs]``; otherwise their mean, for classes as log probabilities.
    """

    def __init__(
        self, inputs: int, outputs: int, *, width: int, depth: int, dropout: float, copies: int, of_classes: bool
    ) -> None:
        super().__init__()
        self.copies = copies
        self.of_classes = of_classes
        sizes = [inputs, *[width] * depth]
        self.hidden: nn.Sequential = nn.Sequential(
            *(
                layer
                for number, size in enumerate(sizes[:-1])
                for layer in (Scaled(size, width, copies, first=number == 0), nn.ReLU(), nn.Dropout(dropout))
            )
        )
        self.heads: nn.Parameter = nn.Parameter((torch.rand(copies, width, outputs) * 2 - 1) / width**0.5)
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(copies, outputs))

    def forward(self, x_BI: Tensor) -> Tensor:
        """Return the outputs."""
        hidden_BKH = self.hidden(x_BI[:, None].expand(-1, self.copies, -1))
        said_BKO = torch.einsum("bkh,kho->bko", hidden_BKH, self.heads) + self.bias
        if self.training:
            return said_BKO
        if not self.of_classes:
            return said_BKO.mean(dim=1)
        return said_BKO.log_softmax(dim=2).logsumexp(dim=1) - math.log(self.copies)


class LossOfCopies(nn.Module):
    """The mean loss of the copies, for each sample ``[B]``; where they are one answer, `TabM` in validation, its loss."""

    def __init__(self, *, of_classes: bool) -> None:
        super().__init__()
        self.of_classes = of_classes

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the losses."""
        answers_BKO = output if output.dim() == 3 else output[:, None]
        if self.of_classes:
            targets_BK = target[:, None].expand(answers_BKO.shape[:2])
            return functional.cross_entropy(answers_BKO.transpose(1, 2), targets_BK, reduction="none").mean(dim=1)
        return (answers_BKO - target[:, None]).pow(2).mean(dim=(1, 2))
