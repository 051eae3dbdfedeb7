"""Whether what was computed in two ways agrees but for rounding, which grows with the numbers."""

import torch
from torch import Tensor

__all__ = ["agree", "largest"]


def largest(numbers: Tensor) -> float:
    """The size of the largest of them; nothing where there are none."""
    return float(numbers.double().abs().max()) if numbers.numel() else 0.0


def agree(one: Tensor, other: Tensor, *, within: float) -> bool:
    """Whether two tensors differ nowhere by more than that; what is no number has to be none in both."""
    return torch.allclose(one.double(), other.double(), rtol=0.0, atol=within, equal_nan=True)
