"""Sums over what a member has stepped on or was evaluated on: means for its history, and the digest that proves it."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from argosy.errors import StudyError
from argosy.stream.order import Digest

__all__ = ["Tally", "per_sample"]


class Tally:
    """Per-sample values summed in float64: over each batch by torch, over the batches in the order of the sequence.

    A batch leaves one number on the device for each value; they are read together, when somebody asks.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.digest = Digest()
        self._sums: dict[str, float] = {}
        self._unread: dict[str, list[torch.Tensor]] = {}

    def add(self, rows: int, digest: Digest, values: Mapping[str, torch.Tensor]) -> None:
        """Add a batch: per-sample values ``[rows, …]``, or means over the batch as scalars."""
        for name, value in values.items():
            self._unread.setdefault(name, []).append(_total(name, value.detach(), rows))
        self.rows += rows
        self.digest = self.digest.plus(digest)

    @property
    def sums(self) -> Mapping[str, float]:
        """Sum of each value so far. Waits for a device that computes on its own."""
        for name, totals in self._unread.items():
            total = self._sums.get(name, 0.0)
            for of_batch in torch.stack(totals).tolist():
                total += of_batch
            self._sums[name] = total
        self._unread.clear()
        return self._sums

    def means(self, names: Iterable[str]) -> dict[str, float]:
        """Mean of each value over the samples so far; NaN where there are none."""
        return {name: self.sums[name] / self.rows if self.rows else float("nan") for name in names}

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint within an epoch."""
        return {"sums": dict(self.sums), "rows": self.rows, "digest": tuple(self.digest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._sums, self._unread = dict(state["sums"]), {}
        self.rows, self.digest = state["rows"], Digest(*state["digest"])


def _total(name: str, value: torch.Tensor, rows: int) -> torch.Tensor:
    """The sum over a batch, float64."""
    if value.dim() == 0:
        return value.double() * rows
    if len(value) != rows:
        raise StudyError(
            f"{name!r} gave a tensor of shape {tuple(value.shape)} for a batch of {rows}; a loss or metric "
            "gives one value per sample, or their mean as a scalar."
        )
    return per_sample(value.double(), rows).sum()


def per_sample(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Values ``[rows, …]`` -> their means over each sample ``[rows]``; raises where they are not so many."""
    return values if values.shape == (rows,) else values.reshape(rows, -1).mean(1)
