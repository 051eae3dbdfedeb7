"""Weights of a member's last sections, for an ensemble that may use several sections of one network (Huang et al. 2017)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from argosy.training.member.checkpoint import to_plain

__all__ = ["MAX_SECTIONS", "Snapshots", "unstack_snapshots"]

MAX_SECTIONS = 32
"""Most sections kept per member; each of them costs a pass over all validation samples when an ensemble is chosen."""
Section = tuple[int, int]
"""Number of finished epochs before a section, and its number within its epoch."""


class Snapshots:
    """Snapshots of as many last sections as fit into `most_bytes` of host memory; they are part of the member's state and checkpoints."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.weights: dict[Section, Mapping[str, Tensor]] = {}
        """Weights by section, the oldest first."""

    def sections(self, each: int) -> int:
        """Return how many sections are kept if each takes this many bytes."""
        return min(self.most_bytes // each, MAX_SECTIONS) if each else 0

    def add(self, section: Section, weights: Mapping[str, Any]) -> None:
        """Copy the weights of a section, and drop the oldest ones if needed.

        Nothing is kept if the weights are too large, or if the state holds more than dense tensors. If the form of the state has changed, earlier
        sections are dropped.
        """
        tensors = {n: one for n, one in weights.items() if isinstance(one, Tensor) and one.layout is torch.strided}
        each = sum(tensor.nbytes for tensor in tensors.values())
        most = self.sections(each)
        if len(tensors) < len(weights) or not most:
            self.weights.clear()
            return
        if self.weights and _form(tensors) != _form(next(iter(self.weights.values()))):
            self.weights.clear()
        self.weights[section] = to_plain(tensors, host=True)
        for oldest in list(self.weights)[:-most]:
            del self.weights[oldest]

    def stacked(self) -> dict[str, Any]:
        """Return a state for a checkpoint, stacked into few tensors, because each tensor takes time to write however small it is."""
        names = next(iter(self.weights.values()), {})
        weights = {name: torch.stack([kept[name] for kept in self.weights.values()]) for name in names}
        return {"sections": [*self.weights], "weights": weights}


def unstack_snapshots(state: Mapping[str, Any] | None) -> dict[Section, Mapping[str, Tensor]]:
    """Return the weights by section from a `stacked` state; nothing for a checkpoint without snapshots."""
    stacked = {"sections": [], "weights": {}} if state is None else state
    return {
        section: {name: stack[number].clone() for name, stack in stacked["weights"].items()}
        for number, section in enumerate(stacked["sections"])
    }


def _form(weights: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in weights.items()]
