"""One network that is stepped and saved as in a hand-written loop, without Argosy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class ByHand:
    """One network with its optimizer."""

    def __init__(self, name: str, model: Callable[[], nn.Module], optimizer: Callable[[Any], Any]) -> None:
        self.name = name
        self.model = model()
        self.optimizer = optimizer(self.model.parameters())
        self.loss = torch.zeros((), dtype=torch.float64)

    def step(self, batch: Any) -> None:
        """Take one step on inputs and class numbers."""
        x, y = batch
        self.optimizer.zero_grad(set_to_none=True)
        losses = functional.cross_entropy(self.model(x), y, reduction="none")
        losses.mean().backward()
        self.optimizer.step()
        self.loss += losses.detach().double().sum()

    def save(self, folder: Path) -> None:
        """Write its state."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / f"{self.name}.pt")
