"""Argosy's own kernels for CPUs, made of torch's operators, for tests of `argosy.training.device.own_kernels` without a GPU."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from argosy.training.device import own_kernels
from argosy.training.device.kernel_forms import BLOCK, MaskDraw

__all__ = ["Plain", "with_kernels"]


class Plain:
    """See `own_kernels.OwnKernels`; masks come from a generator that is seeded with the seed and offset of a state."""

    def masks(
        self, into: Tensor, drawn: Sequence[tuple[MaskDraw, int]], states: Tensor, tables: dict[Any, Any]
    ) -> None:
        """See `OwnKernels.masks`."""
        flat = into.view(-1)
        for one, offset in drawn:
            seed, begun = states[one.row].tolist()
            flat[one.start : one.start + one.size] = mask(seed, begun + offset, one.size, one.kept, into.dtype)

    def step(
        self, weights: Tensor, gradients: Tensor, moments: tuple[Tensor, Tensor], numbers: Tensor, owners: Tensor
    ) -> None:
        """See `OwnKernels.step`."""
        first, second = moments
        kind, shrinks, decay, a, b, eps, rate, _ = numbers[owners.long()].repeat_interleave(BLOCK, 0).unbind(1)
        slopes = gradients + decay * weights
        kept = weights * shrinks
        of_adam, of_muon = kind == 1, kind == 2
        momentum = torch.where(kind > 0, first + a * (slopes - first), a * first + slopes)
        squares = torch.where(of_adam, second + b * (slopes * slopes - second), second)
        ways = torch.where(b == 1, slopes + a * momentum, momentum)
        moved = kept + rate * torch.where(of_adam, momentum / (squares.sqrt() + eps), ways)
        weights.copy_(torch.where(of_muon, kept, moved))
        towards = torch.where(eps == 1, slopes + b * (momentum - slopes), momentum)
        gradients.copy_(torch.where(of_muon, towards, gradients))
        first.copy_(momentum)
        second.copy_(squares)

    def increment(self, size: int) -> int:
        """See `OwnKernels.increment`."""
        return 4 * size


def mask(seed: int, offset: int, size: int, kept: float, dtype: torch.dtype) -> Tensor:
    """Return the dropout mask that `Plain` draws, scaled by 1 / `kept`."""
    if kept in (0, 1):
        return torch.full((size,), float(kept), dtype=dtype)
    generator = torch.Generator().manual_seed((seed + 7919 * offset) % 2**63)
    return (torch.rand(size, generator=generator) < kept).to(dtype) / kept


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give CPU devices these kernels."""
    monkeypatch.setitem(own_kernels.KERNELS, "cpu", lambda device: Plain())
