"""Mixed precision: autocast, and the loss scales that float16 needs.

Small gradients underflow in float16. Losses are therefore scaled up before the backward pass, and gradients scaled down after it. A
member whose gradients overflow skips the step and halves its scale. Each member has its own scale, which follows the rules of
`torch.amp.GradScaler`, even if several members are stepped as one.
"""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from argosy.errors import StudyError
from argosy.stream.batches import copy_to_device
from argosy.study import Member

__all__ = ["LossScale", "LossScales", "autocast", "autocast_dtype", "widen_losses"]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST_SCALE = 2.0**16
MIN_SCALE = 2.0**-16
"""Smallest scale: with a smaller one, all finite gradients are zero in float16."""
GROWTH_INTERVAL = 2000
"""Steps without overflow after which a scale doubles."""


def autocast_dtype(member: Member) -> torch.dtype:
    """Return the dtype in which a member's network computes under autocast."""
    return DTYPES.get(member.precision, torch.float32)


def autocast(member: Member, device: torch.device, *, cached: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which torch autocasts to the member's precision; if `cached`, it casts each weight only once."""
    if member.precision == "float32":
        return contextlib.nullcontext()  # entered for every batch; a disabled autocast costs ten times as much
    return torch.autocast(device.type, DTYPES[member.precision], cache_enabled=cached)


def widen_losses(losses: Tensor) -> Tensor:
    """Return float16 losses as float32: their gradient, the scale, may exceed float16's range."""
    return losses.float() if losses.dtype == torch.float16 else losses


@dataclass(slots=True)
class LossScale:
    """Loss scale of one member."""

    member: str
    value: float = FIRST_SCALE
    steps: int = 0
    """Steps since the scale last changed."""

    def divide(self, gradients: Iterable[Tensor]) -> bool:
        """Divide the gradients of a scaled loss by the scale; returns False if one has overflowed. Waits for the device."""
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        sound = not values or bool(nn.utils.get_total_norm(values, math.inf).isfinite())
        torch._foreach_mul_(values, 1 / self.value)
        return sound

    def follow(self, *, overflowed: bool) -> None:
        """Update the scale after a step, or after one that was skipped as `overflowed`. Raises StudyError if no scale helps."""
        if overflowed:
            self.value, self.steps = self.value / 2, 0
        elif self.steps + 1 < GROWTH_INTERVAL:
            self.steps += 1
        elif self.value * 2 <= torch.finfo(torch.float32).max:
            self.value, self.steps = self.value * 2, 0
        if self.value < MIN_SCALE:
            raise StudyError(
                f"member {self.member!r}: its gradients keep overflowing in float16, most recently with a loss "
                f"scale of {self.value * 2:g}, and each of these steps was skipped. Set precision='bfloat16', or "
                "look for a division by zero in its network and loss."
            )


class LossScales:
    """Loss scales of members that are stepped as one, by row."""

    def __init__(self, scales: Sequence[LossScale], device: torch.device) -> None:
        self._scales = scales
        self._device = device

    @classmethod
    def of(cls, scales: Iterable[LossScale | None], device: torch.device) -> "LossScales | None":
        """Collect the scales of members of one precision, so that either all have one or none has."""
        present = [scale for scale in scales if scale is not None]
        return cls(present, device) if present else None

    def times(self, shares: Tensor) -> Tensor:
        """Return gradients of losses ``[members, …]``, each row multiplied by its scale."""
        values = [scale.value for scale in self._scales]
        return shares * self._column(values, shares).view(-1, *[1] * (shares.dim() - 1))

    def divide(self, gradients: Tensor, rows: slice) -> bool:
        """Divide the gradients ``[members, columns]`` of members in these rows by their scales; returns False, with nothing done, if some overflowed.

        Waits for the device.
        """
        sound = bool(gradients.isfinite().all())
        if sound:
            gradients.mul_(self._column([1 / scale.value for scale in self._scales[rows]], gradients))
        return sound

    def _column(self, values: Sequence[float], like: Tensor) -> Tensor:
        """Return ``[members, 1]``."""
        return copy_to_device(torch.tensor(values, dtype=like.dtype), self._device).unsqueeze(1)
