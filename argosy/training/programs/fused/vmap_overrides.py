"""Overrides for torch functions that `torch.vmap` batches badly: more slowly, or with other rounding than for each member alone.

On a CPU each override gives every member the bits that torch gives it alone, if torch's kernels round the same for several members
as for one: for products of 400 and more multiplications, and convolutions with multiples of 8 channels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from argosy.training.programs.fused.vectorised import Level

__all__ = ["OVERRIDES", "linear"]


def _linear(level: Level, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Compute `linear` as one batched product that adds the biases, which vmap adds separately; None if it does not apply."""
    weights, of_weights = level.stacked(weight)
    biases, of_biases = (None, 0) if bias is None else level.stacked(bias)
    if of_weights != 0 or of_biases != 0 or input.dim() < 2:
        return None
    rows = _of_each(level, input, len(weights))
    with level.outside():
        return level.one(linear(rows, weights, biases))


def linear(rows: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Compute `linear` of all members from ``[members, …, inputs]``."""
    if rows.dim() == 3:
        return _product(rows, weights, biases)
    return _product(rows.flatten(1, -2), weights, biases).view(*rows.shape[:-1], weights.shape[1])


def _product(rows: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Multiply ``[members, n, inputs]`` by ``[members, outputs, inputs]`` and add ``[members, outputs]`` -> ``[members, n, outputs]``."""
    if torch.is_autocast_enabled(rows.device.type):
        return rows.bmm(weights.mT) if biases is None else torch.baddbmm(biases.unsqueeze(1), rows, weights.mT)
    apply: Callable[..., Tensor] = _Product.apply
    return apply(rows, weights, biases)


class _Product(torch.autograd.Function):
    """A product whose weight gradients have the weights' memory layout. Torch's are transposed, and copying them takes six times as long."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        """Compute `_product`."""
        # Members' code may write into tensors that are not saved.
        ctx.save_for_backward(rows, weights if ctx.needs_input_grad[0] else None)
        return rows.bmm(weights.mT) if biases is None else torch.baddbmm(biases.unsqueeze(1), rows, weights.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Return the gradients of rows, weights and biases."""
        rows, weights = ctx.saved_tensors
        of_biases = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return None if weights is None else gradient.bmm(weights), gradient.mT.bmm(rows), of_biases


def _convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    """Return an override that makes a convolution of all members one with more channels; vmap would add biases separately."""

    def form(
        level: Level, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Tensor | None:  # fmt: skip
        weights, of_weights = level.stacked(weight)
        biases, of_biases = (None, 0) if bias is None else level.stacked(bias)
        if of_weights != 0 or of_biases != 0 or input.dim() != weight.dim():
            return None
        members = len(weights)
        shared = groups == 1 and level.stacked(input)[1] is None
        rows = level.stacked(input)[0] if shared else _beside_channels(level, input, members)
        with level.outside():
            result = function(
                rows, weights.flatten(0, 1), None if biases is None else biases.flatten(), stride, padding, dilation,
                1 if shared else members * groups,
            )  # fmt: skip
        return level.one(result.view(len(result), members, -1, *result.shape[2:]), 1)

    return form


def _batch_norm(
    level: Level, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    """Normalise all members as one with more channels; vmap would scale and shift separately."""
    tensors = [level.stacked(tensor) for tensor in (running_mean, running_var, weight, bias) if tensor is not None]
    if not tensors or any(of_members != 0 for _, of_members in tensors):
        return None
    members = len(tensors[0][0])
    rows = _beside_channels(level, input, members)
    with level.outside():
        # Views, because running statistics are updated in place.
        mean, var = (None if t is None else level.stacked(t)[0].view(-1) for t in (running_mean, running_var))
        scale, shift = (None if t is None else level.stacked(t)[0].flatten() for t in (weight, bias))
        result = functional.batch_norm(rows, mean, var, scale, shift, training, momentum, eps)
    return level.one(result.view(len(result), members, -1, *result.shape[2:]), 1)


def _layer_norm(
    level: Level, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    """Normalise one member after another: torch's kernel fuses scale and shift, so they round differently when applied separately."""
    rows, scales, shifts = (None if tensor is None else _per_member(level, tensor) for tensor in (input, weight, bias))
    if rows is None or rows.device.type != "cpu" or (scales is None and shifts is None):
        return None
    with level.outside():
        columns = [[None] * len(rows) if own is None else own.unbind() for own in (rows, scales, shifts)]
        results = [functional.layer_norm(x, normalized_shape, w, b, eps) for x, w, b in zip(*columns, strict=True)]
        stacked = torch.stack(results)
    return level.one(stacked)


def _beside_channels(level: Level, input: Tensor, members: int) -> Tensor:
    """Return the input of all members as ``[samples, members · channels, …]``."""
    stacked, of_members = level.stacked(input)
    with level.outside():
        if of_members is None:
            stacked = stacked.unsqueeze(1).expand(-1, members, *stacked.shape[1:])
        else:
            stacked = stacked.movedim(of_members, 1)
        return stacked.flatten(1, 2)


def _cross_entropy(
    level: Level, input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor | None:  # fmt: skip
    """Compute the mean cross-entropy of class numbers on a CPU; vmap would sum the samples in another order."""
    if input.device.type != "cpu":
        return None  # bits are promised only on a CPU, and a launch for each member is slow
    usual = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    if not usual or input.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        return None
    known = next((own for own in (_per_member(level, input), _per_member(level, target)) if own is not None), None)
    if known is None:
        return None
    outputs, classes = _of_each(level, input, len(known)), _of_each(level, target, len(known))
    with level.outside():
        mean: Callable[..., Tensor] = _MeanNegativeLikelihood.apply
        result = mean(functional.log_softmax(outputs.flatten(0, 1), 1).view(outputs.shape), classes, ignore_index)
    return level.one(result)


class _MeanNegativeLikelihood(torch.autograd.Function):
    """Torch's `nll_loss` for each member: ``[members, samples, classes]`` at classes ``[members, samples]`` -> means ``[members]``."""

    @staticmethod
    def forward(ctx: Any, logs: Tensor, classes: Tensor, ignored: int) -> Tensor:
        """Compute the means one member after another: no other function sums the samples in that order."""
        results = [torch.ops.aten.nll_loss_forward(*own, None, 1, ignored) for own in zip(logs, classes, strict=True)]
        means, totals = (torch.stack(column) for column in zip(*results, strict=True))
        ctx.ignored = ignored
        ctx.save_for_backward(logs, classes, totals)
        return means

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the log-probabilities, for all samples at once."""
        logs, classes, totals = ctx.saved_tensors
        shares = (gradient / totals).unsqueeze(1).expand(classes.shape).flatten()
        flat = logs.flatten(0, 1), classes.flatten()
        gradients: Tensor = torch.ops.aten.nll_loss_backward(shares, *flat, None, 0, ctx.ignored, totals[0])
        return gradients.view(logs.shape), None, None


def _binary_cross_entropy(
    level: Level, input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """Compute the cross-entropy of each sample by torch's function; vmap would decompose its derivative."""
    plain = weight is None and pos_weight is None and size_average is None and reduce is None
    if not plain or reduction not in ("mean", "none") or input.shape != target.shape:
        return None
    outputs = _per_member(level, input)
    if outputs is None:
        return None
    targets = _of_each(level, target, len(outputs))
    with level.outside():
        result = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    losses = level.one(result)
    return losses.mean() if reduction == "mean" else losses


def _widened(
    function: Callable[..., Tensor], narrow: Callable[..., Tensor | None] = lambda *_, **__: None
) -> Callable[..., Tensor | None]:
    """Return an override that computes a loss for one member after another where torch autocasts it to float32 on a CPU, as vmap does not."""

    def form(level: Level, input: Tensor, target: Tensor, *options: Any, **named: Any) -> Tensor | None:
        if input.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
            return narrow(level, input, target, *options, **named)
        outputs = _per_member(level, input)
        others = [other for other in (*options, *named.values()) if isinstance(other, Tensor)]
        if outputs is None or any(level.stacked(other)[1] is not None for other in others):
            return None
        targets = _of_each(level, target, len(outputs))
        with level.outside():
            stacked = torch.stack([function(*own, *options, **named) for own in zip(outputs, targets, strict=True)])
        return level.one(stacked)

    return form


def _per_member(level: Level, tensor: Tensor) -> Tensor | None:
    """Return all members' tensors ``[members, …]``; None if they share one tensor."""
    return None if level.stacked(tensor)[1] is None else _of_each(level, tensor, 0)


def _of_each(level: Level, tensor: Tensor, members: int) -> Tensor:
    """Return all members' tensors ``[members, …]``, which may be one that they share."""
    stacked, of_members = level.stacked(tensor)
    if of_members == 0:
        return stacked
    with level.outside():
        return stacked.expand(members, *stacked.shape) if of_members is None else stacked.movedim(of_members, 0)


OVERRIDES: Mapping[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    functional.batch_norm: _batch_norm,
    functional.cross_entropy: _widened(functional.cross_entropy, _cross_entropy),
    functional.nll_loss: _widened(functional.nll_loss),
    functional.poisson_nll_loss: _widened(functional.poisson_nll_loss),
    functional.hinge_embedding_loss: _widened(functional.hinge_embedding_loss),
    functional.layer_norm: _layer_norm,
    functional.binary_cross_entropy_with_logits: _binary_cross_entropy,
    **{function: _convolution(function) for function in (torch.conv1d, torch.conv2d, torch.conv3d)},
}
"""Overrides by function: each takes the level and the function's arguments, and returns None if it does not apply."""
