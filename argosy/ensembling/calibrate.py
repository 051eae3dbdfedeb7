"""How sure a network should be of what it says: temperature scaling (Guo et al. 2017)."""

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["temperature"]

SPAN = 20.0
"""Temperatures lie between its inverse and this: of a network that is never wrong the best one would be 0."""
HALVINGS = 50


def temperature(logits_NC: Tensor, target_N: Tensor) -> float:
    """The temperature by which logits are divided for the least negative log-likelihood of these targets.

    With β for its inverse that is convex, and its derivative, the mean of Σ p z - z_target with p = softmax(β z), rises with β: so
    the β where it is zero is found by bisection. Classes may be ruled out by -inf; where
    the likelihood of the targets is not finite at all, the temperature is 1.
    """
    logits_NC = logits_NC.double()
    if not functional.cross_entropy(logits_NC, target_N).isfinite():
        return 1.0
    of_target_N = logits_NC.gather(1, target_N[:, None]).squeeze(1)
    low, high = -math.log(SPAN), math.log(SPAN)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        said_NC = (logits_NC * math.exp(middle)).softmax(dim=1)
        expected_N = torch.where(said_NC > 0, said_NC * logits_NC, 0.0).sum(dim=1)
        too_high = (expected_N - of_target_N).mean().item() > 0
        low, high = (low, middle) if too_high else (middle, high)
    return math.exp(-low)
