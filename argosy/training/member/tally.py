"""Sums over what a member has stepped on or was evaluated on: means for its history, and the digest that proves it."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from argosy.errors import StudyError
from argosy.stream.order import Digest
from argosy.training.device.devices import Backend, DeviceEvent

__all__ = ["Tally", "double", "per_sample", "total_of", "totals_of"]


class Coming(NamedTuple):
    """Sums of batches on their way to the host."""

    name: str
    totals: torch.Tensor
    event: DeviceEvent
    rows: int
    """Samples of all batches up to the last of these."""


class Tally:
    """Per-sample values summed in float64: over each batch by torch, over the batches in the order of the sequence.

    A batch leaves one number on the device for each value. They are read together, and without holding up the device.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rows = 0
        self.digest = Digest()
        self._sums: dict[str, float] = {}
        self._unread: dict[str, list[torch.Tensor]] = {}
        self._coming: list[Coming] = []
        """In the order of the sequence."""
        self._asked = 0
        """How many of them there were when `finite` was asked last."""
        self._told = 0
        """Samples in the sums that the host has."""

    def add(self, rows: int, digest: Digest, totals: Mapping[str, torch.Tensor]) -> None:
        """Add a batch: of each value its `total_of` the batch."""
        for name, total in totals.items():
            self._unread.setdefault(name, []).append(total)
        self.rows += rows
        self.digest = self.digest.plus(digest)

    def bring(self, rows: int, digest: Digest, name: str, totals: torch.Tensor, event: DeviceEvent) -> None:
        """Add batches of which a value is on its way to the host: one `total_of` each."""
        self.fetch()
        self.add(rows, digest, {})
        self._coming.append(Coming(name, totals, event, self.rows))

    @property
    def sums(self) -> Mapping[str, float]:
        """Sum of each value so far. Waits for a device that computes on its own."""
        self.fetch()
        self._read(len(self._coming))
        return self._sums

    @property
    def finite(self) -> bool:
        """Whether all sums are numbers, as far as that is known without waiting for the steps at hand.

        That is up to here on the host, and up to the last time that this was asked on a device that computes on its own.
        """
        self.fetch()
        self._read(self._asked if self.backend.apart else len(self._coming))
        self._asked = len(self._coming)
        return all(map(math.isfinite, self._sums.values()))

    def fetch(self) -> None:
        """Let the device bring what it has summed, behind all that was asked for on the stream at hand."""
        for name, totals in self._unread.items():
            self._coming.append(Coming(name, *self.backend.fetch(torch.stack(totals)), self.rows))
        self._unread.clear()

    def _read(self, count: int) -> None:
        """Add up the oldest of what comes."""
        for name, totals, event, rows in self._coming[:count]:
            event.synchronize()
            self._told = rows
            total = self._sums.get(name, 0.0)
            for of_batch in totals.tolist():
                total += of_batch
            self._sums[name] = total
        del self._coming[:count]
        self._asked = max(self._asked - count, 0)

    def means(self, names: Iterable[str]) -> dict[str, float]:
        """Mean of each value over the samples so far; NaN where there are none."""
        sums = self.sums
        return {name: sums[name] / self.rows if self.rows else math.nan for name in names}

    def mean_by_now(self, name: str) -> float:
        """Mean of a value over the samples whose sums are on the host; NaN where there are none. Never waits."""
        self.fetch()
        self._read(sum(1 for _ in itertools.takewhile(lambda coming: coming.event.query(), self._coming)))
        return self._sums[name] / self._told if self._told else math.nan

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint within an epoch."""
        return {"sums": dict(self.sums), "rows": self.rows, "digest": tuple(self.digest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._sums = dict(state["sums"])
        self.rows, self.digest = state["rows"], Digest(*state["digest"])
        self._told = self.rows


def double(value: Any) -> torch.Tensor:
    """A number or a tensor as float64: `torch.as_tensor` alone would round Python's floats to float32."""
    return value.detach().double() if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)


def total_of(value: torch.Tensor, rows: int) -> torch.Tensor:
    """The sum over a batch, float64: of per-sample values ``[rows, …]``, or of their mean, a scalar."""
    value = double(value)
    return value * rows if value.dim() == 0 else per_sample(value, rows).sum()


def totals_of(losses: torch.Tensor, samples: int) -> torch.Tensor:
    """Of members, losses ``[members, samples, …]`` or means over the samples ``[members]`` -> sums over the samples, float64."""
    sums = losses.reshape(len(losses), -1).sum(1, dtype=torch.float64)
    numbers = losses.numel() // len(losses)
    return sums if numbers == samples else sums * (samples / numbers)


def per_sample(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Values ``[rows, …]`` -> their means over each sample ``[rows]``; raises StudyError where they are not so many."""
    if values.shape == (rows,):
        return values
    if len(values) != rows:
        raise StudyError(
            f"the loss gave a tensor of shape {tuple(values.shape)} for a batch of {rows}; let it give one value per sample, "
            "or their mean as a scalar."
        )
    return values.reshape(rows, -1).double().mean(1)
