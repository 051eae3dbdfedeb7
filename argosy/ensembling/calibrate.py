"""Calibration of a network's confidence: temperature scaling (Guo et al. 2017)."""

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["temperature"]

SPAN = 20.0
"""Temperatures lie between 1 / SPAN and SPAN: the best one of a network that is never wrong would be 0."""
HALVINGS = 50


def temperature(logits_NC: Tensor, target_N: Tensor, *, doubt: float = 0.0) -> float:
    """Return the temperature that, dividing the logits, gives the least negative log-likelihood of these targets.

    The likelihood is convex in β = 1 / temperature, and its derivative, the mean of Σ p z - z_target with p = softmax(β z),
    rises with β, so bisection finds the β where it is zero. Logits of -inf rule out classes; where the likelihood of the
    targets is not finite, the temperature is 1. With `doubt`, a target is another class than is said with that probability, so that few
    samples that are all right do not make a network sure (as the targets of Platt 1999).
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
