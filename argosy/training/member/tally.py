"""Sums over the samples of a member's training or validation: means for its history, and the digest of the samples."""

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
    """Sums of batches that are being copied to the host."""

    name: str
    totals: torch.Tensor
    event: DeviceEvent
    rows: int
    """Samples in all batches up to the last of these."""


class Tally:
    """Per-sample values summed in float64: over each batch by torch, over the batches in the order of the sequence.

    A batch leaves one number per value on the device. Numbers are copied together, without stalling the device.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rows: int = 0
        self.digest: Digest = Digest()
        self._sums: dict[str, float] = {}
        self._unread: dict[str, list[torch.Tensor]] = {}
        self._coming: list[Coming] = []
        """Coming sums, in order."""
        self._asked = 0
        """Length of `_coming` when `finite` was last read."""
        self._told = 0
        """Samples in the sums that are on the host."""

    def add(self, rows: int, digest: Digest, totals: Mapping[str, torch.Tensor]) -> None:
        """Add a batch, with the `total_of` each value."""
        for name, total in totals.items():
            self._unread.setdefault(name, []).append(total)
        self.rows += rows
        self.digest = self.digest.plus(digest)

    def bring(self, rows: int, digest: Digest, name: str, totals: torch.Tensor, event: DeviceEvent) -> None:
        """Add batches; their totals of a value, one `total_of` each, are still being copied to the host."""
        self.fetch()
        self.rows += rows
        self.digest = self.digest.plus(digest)
        self._coming.append(Coming(name, totals, event, self.rows))

    @property
    def sums(self) -> Mapping[str, float]:
        """Sum of each value so far. Waits for an asynchronous device."""
        self.fetch()
        self._read(len(self._coming))
        return self._sums

    @property
    def finite(self) -> bool:
        """Whether all sums are finite, as far as that is known without waiting for the current steps.

        On the host that covers all batches, on an asynchronous device those up to the previous read of this property.
        """
        self.fetch()
        self._read(self._asked if self.backend.apart else len(self._coming))
        self._asked = len(self._coming)
        return all(map(math.isfinite, self._sums.values()))

    def fetch(self) -> None:
        """Start copying the device's sums to the host, after all work issued on the current stream."""
        if self._unread:
            for name, totals in self._unread.items():
                self._coming.append(Coming(name, *self.backend.fetch(torch.stack(totals)), self.rows))
            self._unread.clear()

    def _read(self, count: int) -> None:
        """Add the `count` oldest of the coming sums."""
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
        """Return the mean of each value over the samples so far; NaN where there are none."""
        sums = self.sums
        return {name: sums[name] / self.rows if self.rows else math.nan for name in names}

    def mean_by_now(self, name: str) -> float:
        """Return a value's mean over the samples with sums on the host; NaN where there are none. Never waits."""
        self.fetch()
        self._read(sum(1 for _ in itertools.takewhile(lambda coming: coming.event.query(), self._coming)))
        return self._sums[name] / self._told if self._told else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint within an epoch."""
        return {"sums": dict(self.sums), "rows": self.rows, "digest": tuple(self.digest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state."""
        self._sums = dict(state["sums"])
        self.rows, self.digest = state["rows"], Digest(*state["digest"])
        self._told = self.rows


def double(value: Any) -> torch.Tensor:
    """Return a number or a tensor as float64: `torch.as_tensor` alone would round Python's floats to float32."""
    return value.detach().double() if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)


def total_of(value: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the sum over a batch in float64, from per-sample values ``[rows, …]`` or from their mean, a scalar."""
    value = double(value)
    return value * rows if value.dim() == 0 else per_sample(value, rows).sum()


def totals_of(losses: torch.Tensor, samples: int) -> torch.Tensor:
    """Return each member's sum over the samples in float64, from losses ``[members, samples, …]`` or means ``[members]``."""
    sums = losses.reshape(len(losses), -1).sum(1, dtype=torch.float64)
    numbers = losses.numel() // len(losses)
    return sums if numbers == samples else sums * (samples / numbers)


def per_sample(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the means of values ``[rows, …]`` over each sample, ``[rows]``; raises StudyError where there are not `rows`."""
    if values.shape == (rows,):
        return values
    if len(values) != rows:
        raise StudyError(
            f"the loss gave a tensor of shape {tuple(values.shape)} for a batch of {rows}; let it give one value per sample, "
            "or their mean as a scalar."
        )
    return values.reshape(rows, -1).double().mean(1)
