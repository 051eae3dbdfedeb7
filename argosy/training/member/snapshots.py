"""Weights of a member's last sections, for an ensemble that takes several of one network (Huang et al. 2017)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Snapshots", "unstacked"]


class Snapshots:
    """The last ones, as many as `most_bytes` hold, in host memory. They are part of the member's state, and so of its checkpoints."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.weights: dict[str, Mapping[str, Tensor]] = {}
        """By ``"epoch.section"``, the oldest first."""

    def fits(self, weights: Mapping[str, Any]) -> bool:
        """Whether weights may be kept: if they are not too many, and nothing but tensors."""
        return all(isinstance(value, Tensor) for value in weights.values()) and _bytes_of(weights) <= self.most_bytes

    def add(self, section: tuple[int, int], weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of a section, and drop the oldest for it."""
        self.weights["{}.{}".format(*section)] = weights
        for oldest in list(self.weights)[: -max(self.most_bytes // max(_bytes_of(weights), 1), 1)]:
            del self.weights[oldest]

    def stacked(self) -> dict[str, Any]:
        """Return a state for a file, of few tensors: each takes a file time, however small it is."""
        names = next(iter(self.weights.values()), {})
        weights = {name: torch.stack([kept[name] for kept in self.weights.values()]) for name in names}
        return {"sections": [*self.weights], "weights": weights}


def unstacked(state: Mapping[str, Any] | None) -> dict[str, Mapping[str, Tensor]]:
    """Return the weights of each section of such a state; none of a file that has no state of snapshots."""
    found = {"sections": [], "weights": {}} if state is None else state
    return {
        section: {name: stack[number] for name, stack in found["weights"].items()}
        for number, section in enumerate(found["sections"])
    }


def _bytes_of(weights: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for value in weights.values())
