"""What several networks say together, from what each of them says: pure functions of tensors."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Combine", "combined", "quantiles", "variance"]

Combine = Literal["probabilities", "logits", "votes", "mean"]
"""How classes are told: by the mean of the members' probabilities, by the probabilities of their mean logits, or by votes. Numbers
are told by their mean."""


def combined(outputs_MB: Tensor, weights_M: Tensor, temperatures_M: Tensor, combine: Combine) -> Tensor:
    """Of outputs ``[members, B, …]`` and weights that sum to one: numbers ``[B, …]``, or probabilities ``[B, classes, …]``.

    Classes are in the first dimension behind the batch, where cross-entropy has them; their logits are divided by temperatures.
    """
    if combine == "mean":
        return _mean(outputs_MB, weights_M)
    logits_MBC = outputs_MB / _over_members(temperatures_M, outputs_MB)
    if combine == "logits":
        return _mean(logits_MBC, weights_M).softmax(dim=1)
    return _mean(said(logits_MBC, combine), weights_M)


def said(logits_MBC: Tensor, combine: Combine) -> Tensor:
    """What each member adds to the sum: its probabilities, its logits, or its vote."""
    if combine == "probabilities":
        return logits_MBC.softmax(dim=2)
    if combine == "votes":
        votes = functional.one_hot(logits_MBC.argmax(dim=2), logits_MBC.shape[2])
        return votes.movedim(-1, 2).to(logits_MBC.dtype)
    return logits_MBC


def variance(outputs_MB: Tensor, weights_M: Tensor) -> Tensor:
    """How far members are apart: the weighted mean of their squared distances from the mean, ``[B, …]``."""
    return _mean((outputs_MB - _mean(outputs_MB, weights_M)) ** 2, weights_M)


def quantiles(outputs_MB: Tensor, weights_M: Tensor, shares: Sequence[float]) -> Tensor:
    """For each share the least output that so much of the weight lies at or below, ``[shares, B, …]``."""
    sorted_MB, order_MB = outputs_MB.sort(dim=0)
    behind_MB = weights_M[order_MB].cumsum(dim=0)
    # Sums of weights may miss their share by a rounding.
    found = [(behind_MB < share - 1e-6).sum(dim=0, keepdim=True) for share in shares]
    last = len(outputs_MB) - 1
    return torch.cat([sorted_MB.gather(0, number.clamp(max=last)) for number in found])


def _mean(values_MB: Tensor, weights_M: Tensor) -> Tensor:
    return (values_MB * _over_members(weights_M, values_MB)).sum(dim=0)


def _over_members(numbers_M: Tensor, like_MB: Tensor) -> Tensor:
    """One number for each member, beside its outputs."""
    return numbers_M.to(like_MB.dtype).view(-1, *[1] * (like_MB.dim() - 1))
