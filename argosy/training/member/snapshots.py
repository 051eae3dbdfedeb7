"""Weights of a member's last sections, for an ensemble that takes several of one network (Huang et al. 2017)."""

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["Snapshots"]


class Snapshots:
    """The last ones, as many as `most_bytes` hold, in host memory. They are part of the member's state, and so of its checkpoints."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.weights: dict[str, Mapping[str, Any]] = {}
        """By ``"epoch.section"``, the oldest first."""

    def fits(self, weights: Mapping[str, Any]) -> bool:
        """Whether one of these weights may be kept."""
        return _bytes_of(weights) <= self.most_bytes

    def add(self, section: tuple[int, int], weights: Mapping[str, Any]) -> None:
        """Keep the weights of a section, and drop the oldest for it."""
        self.weights["{}.{}".format(*section)] = weights
        for oldest in list(self.weights)[: -max(self.most_bytes // max(_bytes_of(weights), 1), 1)]:
            del self.weights[oldest]

    def with_section(self, section: tuple[int, int], weights: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return what is kept once the weights of this section are added."""
        found = Snapshots(self.most_bytes)
        found.weights.update(self.weights)
        found.add(section, weights)
        return found.weights


def _bytes_of(weights: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in weights.values() if isinstance(value, torch.Tensor))
