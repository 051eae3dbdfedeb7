"""Sums over the samples of a member's training or validation, which give the means in its history, and the digest of the samples."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from argosy.errors import StudyError
from argosy.stream.order import Digest
from argosy.training.device.devices import Backend, DeviceEvent

__all__ = ["Tally", "to_float64", "per_sample", "batch_total", "batch_totals"]


class PendingSums(NamedTuple):
    """Sums of batches that are being copied to the host."""

    name: str
    totals: torch.Tensor
    event: DeviceEvent
    rows: int
    """Number of samples in all batches up to the last of these."""


class Tally:
    """Sums of per-sample values in float64: torch sums each batch, and the batch sums are added in the order of the sequence.

    Each batch leaves one number per value on the device. These numbers are copied together, without stalling the device.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rows: int = 0
        self.digest: Digest = Digest()
        self._sums: dict[str, float] = {}
        self._unread: dict[str, list[torch.Tensor]] = {}
        self._coming: list[PendingSums] = []
        """Sums being copied to the host, in order."""
        self._asked = 0
        """Length of `_coming` when `finite` was last read."""
        self._read_rows = 0
        """Number of samples in the sums that are on the host."""

    def add(self, rows: int, digest: Digest, totals: Mapping[str, torch.Tensor]) -> None:
        """Add a batch, with the `batch_total` each value."""
        for name, total in totals.items():
            self._unread.setdefault(name, []).append(total)
        self.rows += rows
        self.digest = self.digest.plus(digest)

    def bring(self, rows: int, digest: Digest, name: str, totals: torch.Tensor, event: DeviceEvent) -> None:
        """Add batches whose totals of a value, one `batch_total` per batch, are still being copied to the host."""
        self.fetch()
        self.rows += rows
        self.digest = self.digest.plus(digest)
        # After `fetch`, because earlier batches come first in the sum.
        self._coming.append(PendingSums(name, totals, event, self.rows))

    @property
    def sums(self) -> Mapping[str, float]:
        """Sum of each value so far. Waits for an asynchronous device."""
        self.fetch()
        self._read(len(self._coming))
        return self._sums

    @property
    def finite(self) -> bool:
        """Whether all sums are finite, as far as known without waiting for the current steps.

        On the host this covers all batches, on an asynchronous device the batches up to the previous read of this property.
        """
        self.fetch()
        self._read(self._asked if self.backend.apart else len(self._coming))
        self._asked = len(self._coming)
        return all(map(math.isfinite, self._sums.values()))

    def fetch(self) -> None:
        """Start copying the device's sums to the host, after all work issued on the current stream."""
        if self._unread:
            for name, totals in self._unread.items():
                self._coming.append(PendingSums(name, *self.backend.fetch(torch.stack(totals)), self.rows))
            self._unread.clear()

    def _read(self, count: int) -> None:
        """Add the `count` oldest sums in `_coming`."""
        for name, totals, event, rows in self._coming[:count]:
            event.synchronize()
            self._read_rows = rows
            total = self._sums.get(name, 0.0)
            # Added one by one: the sum must not depend on how many batches were fetched together.
            for of_batch in totals.tolist():
                total += of_batch
            self._sums[name] = total
        del self._coming[:count]
        self._asked = max(self._asked - count, 0)

    def means(self, names: Iterable[str]) -> dict[str, float]:
        """Return the mean of each value over the samples so far; NaN if there are none."""
        sums = self.sums
        return {name: sums[name] / self.rows if self.rows else math.nan for name in names}

    def mean_by_now(self, name: str) -> float:
        """Return a value's mean over the samples whose sums are on the host; NaN if there are none. Never waits."""
        self.fetch()
        self._read(sum(1 for _ in itertools.takewhile(lambda coming: coming.event.query(), self._coming)))
        return self._sums[name] / self._read_rows if self._read_rows else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint within an epoch."""
        return {"sums": dict(self.sums), "rows": self.rows, "digest": tuple(self.digest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint's state."""
        self._sums = dict(state["sums"])
        self.rows, self.digest = state["rows"], Digest(*state["digest"])
        self._read_rows = self.rows


def to_float64(value: Any) -> torch.Tensor:
    """Return a number or a tensor as float64; `torch.as_tensor` alone would round Python floats to float32."""
    return value.detach().double() if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)


def batch_total(value: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the sum over a batch in float64, from per-sample values ``[rows, …]`` or from their mean, a scalar."""
    value = to_float64(value)
    return value * rows if value.dim() == 0 else per_sample(value, rows).sum()


def batch_totals(losses: torch.Tensor, samples: int) -> torch.Tensor:
    """Return each member's sum over the samples in float64, from losses ``[members, samples, …]`` or means ``[members]``."""
    sums = losses.reshape(len(losses), -1).sum(1, dtype=torch.float64)
    numbers = losses.numel() // len(losses)
    return sums if numbers == samples else sums * (samples / numbers)


def per_sample(values: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the mean of values ``[rows, …]`` for each sample, ``[rows]``; raises StudyError if there are not `rows` of them."""
    if values.shape == (rows,):
        return values
    if len(values) != rows:
        raise StudyError(
            f"the loss returned a tensor of shape {tuple(values.shape)} for a batch of {rows}; it must return one "
            "value per sample, or their mean as a scalar."
        )
    return values.reshape(rows, -1).double().mean(1)
