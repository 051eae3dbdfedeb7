"""Forward passes in fewer bits than the weights have: what torch casts there, and the loss scales that float16 needs.

Its smallest numbers are so large that gradients would become nothing. So losses are scaled up before the backward pass, and
gradients down again behind it. A member whose gradients overflow for that makes no step, and halves its scale. All that is each
member's own, by the rules of `torch.amp.GradScaler`, also where several members are stepped as one.
"""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from argosy.errors import StudyError
from argosy.study import Member

__all__ = ["LossScale", "LossScales", "autocast", "scale_of", "widened"]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST = 2.0**16
LEAST = 2.0**-16
"""Of a scale: with a smaller one, gradients that are numbers at all are nothing in float16."""
INTERVAL = 2000
"""Steps without overflow after which a scale doubles."""


def autocast(member: Member, device: torch.device, *, cached: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Inside, torch computes in the member's precision what bears it; `cached`, it casts each weight once."""
    if member.precision == "float32":
        return contextlib.nullcontext()  # entered for every batch, and a tenth of what a disabled autocast costs
    return torch.autocast(device.type, DTYPES[member.precision], cache_enabled=cached)


def widened(losses: Tensor) -> Tensor:
    """Losses that a scale of float16's own largest number and more can be the gradient of."""
    return losses.float() if losses.dtype == torch.float16 else losses


@dataclass(slots=True)
class LossScale:
    """Of one member."""

    member: str
    value: float = FIRST
    steps: int = 0
    """Made since it was changed."""

    def divide(self, gradients: Iterable[Tensor]) -> bool:
        """Divide the gradients of a scaled loss by it; False where one has overflowed. Waits for the device."""
        found = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        sound = not found or bool(nn.utils.get_total_norm(found, math.inf).isfinite())
        torch._foreach_mul_(found, 1 / self.value)
        return sound

    def follow(self, *, overflowed: bool) -> None:
        """A step was made, or left out for that. Raises StudyError where no scale would help."""
        if overflowed:
            self.value, self.steps = self.value / 2, 0
        elif self.steps + 1 < INTERVAL:
            self.steps += 1
        elif self.value * 2 <= torch.finfo(torch.float32).max:
            self.value, self.steps = self.value * 2, 0
        if self.value < LEAST:
            raise StudyError(
                f"member {self.member!r}: its gradients overflow in float16 again and again, the last time with a loss scale of "
                f"{self.value * 2:g}, and each time its step was left out. Give it precision='bfloat16', or look in its network "
                "and loss for what divides by nothing."
            )


def scale_of(member: Member) -> LossScale | None:
    """A member's at its beginning; None in precisions that need none."""
    return LossScale(member.name) if member.precision == "float16" else None


class LossScales:
    """Those of members that are stepped as one, by row."""

    def __init__(self, scales: Sequence[LossScale], device: torch.device) -> None:
        self._scales = scales
        self._device = device

    @classmethod
    def of(cls, scales: Iterable[LossScale | None], device: torch.device) -> "LossScales | None":
        """Members of one precision either have all of them one, or none."""
        found = [scale for scale in scales if scale is not None]
        return cls(found, device) if found else None

    def times(self, shares: Tensor, rows: Sequence[int]) -> Tensor:
        """Gradients of losses ``[rows, …]``, each row's times its scale."""
        values = [self._scales[row].value for row in rows]
        return shares * self._column(values, shares).view(-1, *[1] * (shares.dim() - 1))

    def divide(self, gradients: Tensor, rows: Sequence[int]) -> frozenset[int]:
        """Divide gradients ``[rows, columns]`` by the scales; returns the rows that have overflowed. Waits for the device."""
        sound = torch.linalg.vector_norm(gradients, math.inf, dim=1).isfinite().tolist()
        gradients.mul_(self._column([1 / self._scales[row].value for row in rows], gradients))
        return frozenset(row for row, whole in zip(rows, sound, strict=True) if not whole)

    def _column(self, values: Sequence[float], like: Tensor) -> Tensor:
        """``[rows, 1]``."""
        return torch.tensor(values, dtype=like.dtype, device=self._device).unsqueeze(1)
