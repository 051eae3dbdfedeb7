"""The average of one member's trained weights, as its rule has it (`argosy.averages`).

Contract. Programs call `step` after each of the member's optimizer steps, and the member itself `end_epoch` after the last step of an
epoch. Tensors stay the same objects, and may be views of a program's memory (`argosy.training.programs.fused.average_buffer`).
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from argosy.averages import EMA, SWA, Average, LastK

__all__ = ["RunningAverage"]


class RunningAverage:
    """What is averaged are the weights that want a gradient; all else of the network belongs to raw and averaged weights alike."""

    def __init__(self, rule: Average, model: nn.Module) -> None:
        self._rule = rule
        self.share: float | None = 1 - rule.decay if isinstance(rule, EMA) else None
        """How far a step moves the average towards the weights; None where only ends of epochs do."""
        self.weights: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
        """The member's own."""
        self.values: list[Tensor] = [weight.detach().clone() for weight in self.weights]
        """The average of each of them, of use once there is a `count`."""
        self.count: int = 0
        """Number of steps, or of ends of epochs, that it was brought up to date with."""
        self._last: list[list[Tensor]] = []
        """Weights at the ends of the last epochs, for `LastK`."""

    @property
    def copies(self) -> int:
        """How many times the weights it comes to hold, on their device."""
        return 1 + (self._rule.epochs if isinstance(self._rule, LastK) else 0)

    def step(self) -> None:
        """Follow the weights after a step."""
        if self.share is None:
            return
        with torch.no_grad():
            if self.count:
                torch._foreach_lerp_(self.values, self.weights, self.share)
            else:
                torch._foreach_copy_(self.values, self.weights)
        self.count += 1

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> None:
        """Take in the weights at the end of an epoch."""
        if isinstance(self._rule, SWA) and epoch + 1 >= self._rule.from_epoch:
            self._take(self.weights, self.count)
            self.count += 1
        elif isinstance(self._rule, LastK):
            self._last = [*self._last, [weight.detach().clone() for weight in self.weights]][-self._rule.epochs :]
            for number, weights in enumerate(self._last):
                self._take(weights, number)
            self.count += 1

    def _take(self, weights: list[Tensor], number: int) -> None:
        """Add weights to the mean of `number` earlier ones."""
        if number:
            torch._foreach_lerp_(self.values, weights, 1 / (number + 1))
        else:
            torch._foreach_copy_(self.values, weights)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the network hold the average instead of its weights inside."""
        own = [weight.data for weight in self.weights]
        try:
            _put(self.values, self.weights)
            yield
        finally:
            _put(own, self.weights)

    @torch.no_grad()
    def double(self) -> None:
        """Become the average of a network that became float64."""
        self.values = [value.double() for value in self.values]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"values": self.values, "count": self.count, "last": self._last}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state."""
        torch._foreach_copy_(self.values, state["values"])
        self.count = state["count"]
        self._last = [[t.to(w, copy=True) for t, w in zip(last, self.weights, strict=True)] for last in state["last"]]


def _put(values: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.data = value
