"""Functions of torch that have a better form for all members at once than the one that `torch.vmap` has for them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from argosy.training.vectorised import Level

__all__ = ["FORMS"]


def _linear(level: Level, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """One product of matrices for each member, to which the biases are added in passing; torch adds them apart."""
    weights, of_weights = level.stacked(weight)
    inputs, of_inputs = level.stacked(input)
    if bias is None or of_weights != 0 or input.dim() < 2:
        return None
    biases, of_biases = level.stacked(bias)
    if of_biases != 0:
        return None
    rows = inputs
    if of_inputs != 0:
        rows = inputs.expand(len(weights), *inputs.shape) if of_inputs is None else inputs.movedim(of_inputs, 0)
    if input.dim() == 2:
        return level.one(torch.baddbmm(biases.unsqueeze(1), rows, weights.mT))
    made = torch.baddbmm(biases.unsqueeze(1), rows.flatten(1, -2), weights.mT)
    return level.one(made.view(len(weights), *input.shape[:-1], made.shape[2]))


FORMS: Mapping[Any, Callable[..., Tensor | None]] = {functional.linear: _linear}
"""By the function: its form takes the level and what the function takes, and gives None where it does not apply."""
