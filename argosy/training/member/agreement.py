"""Comparison of tensors that were computed in two ways, up to rounding."""

import torch
from torch import Tensor

__all__ = ["agree", "largest"]


def largest(numbers: Tensor) -> float:
    """Return the largest absolute value; 0 for an empty tensor."""
    return float(numbers.double().abs().max()) if numbers.numel() else 0.0


def agree(one: Tensor, other: Tensor, *, within: float) -> bool:
    """Whether two tensors differ nowhere by more than `within`; NaN equals NaN alone."""
    return torch.allclose(one.double(), other.double(), rtol=0.0, atol=within, equal_nan=True)
