"""Calibration of a network's confidence by temperature scaling (Guo et al. 2017)."""

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["temperature"]

SPAN = 20.0
"""Temperatures are limited to 1 / SPAN … SPAN, because the best one for a network that is never wrong would be 0."""
HALVINGS = 50


def temperature(logits_NC: Tensor, target_N: Tensor, *, doubt: float = 0.0) -> float:
    """Return the temperature by which to divide the logits for the smallest negative log-likelihood of the targets.

    The negative log-likelihood is convex in β = 1 / temperature. Its derivative, the mean of Σ p z - z_target with p = softmax(β z),
    increases with β, so bisection finds the β where it is zero. Logits of -inf rule out classes. If the likelihood of the
    targets is not finite, the temperature is 1. `doubt` smooths the targets: it is the probability with which a target is replaced by a
    random class, so that a few samples, all predicted correctly, do not make a network certain (like the targets of Platt 1999).
    """
    logits_NC = logits_NC.double()
    if not functional.cross_entropy(logits_NC, target_N).isfinite():
        return 1.0
    of_target_N = logits_NC.gather(1, target_N[:, None]).squeeze(1)
    if doubt:
        of_target_N = (1 - doubt) * of_target_N + doubt * logits_NC.mean(dim=1)
    low, high = -math.log(SPAN), math.log(SPAN)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        said_NC = (logits_NC * math.exp(middle)).softmax(dim=1)
        expected_N = torch.where(said_NC > 0, said_NC * logits_NC, 0.0).sum(dim=1)
        too_high = (expected_N - of_target_N).mean().item() > 0
        low, high = (low, middle) if too_high else (middle, high)
    return math.exp(-low)
