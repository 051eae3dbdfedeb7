"""Overrides for functions of torch that `torch.vmap` batches badly."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from argosy.training.programs.fused.vectorised import Level

__all__ = ["FORMS"]


def _linear(level: Level, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Compute `linear` as one batched product with the biases, which vmap adds apart; None where it does not apply."""
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
    with level.outside():
        if input.dim() == 2:
            made = _product(rows, weights, biases)
        else:
            made = _product(rows.flatten(1, -2), weights, biases).view(*rows.shape[:-1], weights.shape[1])
    return level.one(made)


def _product(rows: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """Multiply ``[members, n, inputs]`` by ``[members, outputs, inputs]`` and add ``[members, outputs]`` -> ``[members, n, outputs]``."""
    if torch.is_autocast_enabled(rows.device.type):
        return torch.baddbmm(biases.unsqueeze(1), rows, weights.mT)
    apply: Callable[..., Tensor] = _Product.apply
    return apply(rows, weights, biases)


class _Product(torch.autograd.Function):
    """A product with weight gradients in the weights' memory layout. Torch's are transposed; copying those takes six times as long."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        """Compute `_product`."""
        # Members' code may write into what is not saved.
        ctx.save_for_backward(rows, weights if ctx.needs_input_grad[0] else None)
        return torch.baddbmm(biases.unsqueeze(1), rows, weights.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the three gradients."""
        rows, weights = ctx.saved_tensors
        return None if weights is None else gradient.bmm(weights), gradient.mT.bmm(rows), gradient.sum(1)


FORMS: Mapping[Any, Callable[..., Tensor | None]] = {functional.linear: _linear}
"""Overrides by function: each takes the level and the function's arguments, and returns None where it does not apply."""
