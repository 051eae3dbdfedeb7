"""Weights of a member's last sections, for an ensemble that takes several of one network (Huang et al. 2017)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from argosy.training.member.checkpoint import plain

__all__ = ["MOST", "Snapshots", "unstacked"]

MOST = 32
"""Sections of a member: an ensemble is chosen from those of all members, each of which is run on all validation samples."""
Section = tuple[int, int]
"""Finished epochs before it, and its number in its epoch."""


class Snapshots:
    """The last ones, as many as `most_bytes` hold, in host memory. They are part of the member's state, and so of its checkpoints."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.weights: dict[Section, Mapping[str, Tensor]] = {}
        """The oldest first."""

    def sections(self, each: int) -> int:
        """Return of how many sections weights of so many bytes are kept."""
        return min(self.most_bytes // each, MOST) if each else 0

    def add(self, section: Section, weights: Mapping[str, Any]) -> None:
        """Copy the weights of a section, and drop the oldest for it.

        Of a network that has too many, or a state of more than tensors, none are kept; of one whose state has changed its form, none from before.
        """
        tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
        each = sum(tensor.nbytes for tensor in tensors.values())
        most = self.sections(each)
        if len(tensors) < len(weights) or not most:
            self.weights.clear()
            return
        if self.weights and _form(tensors) != _form(next(iter(self.weights.values()))):
            self.weights.clear()
        self.weights[section] = plain(tensors, host=True)
        for oldest in list(self.weights)[:-most]:
            del self.weights[oldest]

    def stacked(self) -> dict[str, Any]:
        """Return a state for a file, of few tensors: each takes a file time, however small it is."""
        names = next(iter(self.weights.values()), {})
        weights = {name: torch.stack([kept[name] for kept in self.weights.values()]) for name in names}
        return {"sections": [*self.weights], "weights": weights}


def unstacked(state: Mapping[str, Any] | None) -> dict[Section, Mapping[str, Tensor]]:
    """Return the weights of each section of such a state; none of a file that has no state of snapshots."""
    found = {"sections": [], "weights": {}} if state is None else state
    return {
        section: {name: stack[number].clone() for name, stack in found["weights"].items()}
        for number, section in enumerate(found["sections"])
    }


def _form(weights: Mapping[str, Tensor]) -> list[tuple[Any, ...]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in weights.items()]
