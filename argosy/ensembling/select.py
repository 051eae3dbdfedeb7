"""Chooses the members of an ensemble and their weights: greedy selection (Caruana et al. 2004)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from argosy.ensembling.combining import Combine, said

__all__ = ["greedy"]

ROUNDS = 50
"""Each round adds a member; the best ensemble of all rounds is taken."""


def greedy(outputs_MN: Tensor, target_N: Tensor, combine: Combine) -> list[float]:
    """Return weights that sum to one: how often each member was added, each time the one that makes the ensemble best.

    Best is the least negative log-likelihood of the targets, for votes the least share of wrong ones, for numbers the least mean
    squared error; ties go to the earliest ensemble and the first member. A member may be added again. On these samples the
    ensemble is never worse than the best member alone.
    """
    said_MN, loss = _terms(outputs_MN.double(), target_N, combine)
    total, counts = torch.zeros_like(said_MN[0]), [0] * len(said_MN)
    best, chosen = math.inf, counts
    for size in range(1, ROUNDS + 1):
        losses = [_or_inf(loss((total + one) / size).item()) for one in said_MN]
        added = losses.index(min(losses))
        total = total + said_MN[added]
        counts[added] += 1
        if losses[added] < best or size == 1:
            best, chosen = losses[added], counts.copy()
    return [count / sum(chosen) for count in chosen]


def _terms(outputs_MN: Tensor, target_N: Tensor, combine: Combine) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the members' terms of the sum, reduced to what the loss of their mean needs, and that loss."""
    if combine == "mean":
        return outputs_MN - target_N, lambda errors_N: errors_N.pow(2).mean()
    said_MNC = said(outputs_MN, combine)
    if combine == "probabilities":
        of_target_MN = said_MNC.gather(2, target_N[:, None].expand(len(said_MNC), -1, -1)).squeeze(2)
        return of_target_MN, lambda probability_N: -probability_N.log().mean()
    if combine == "logits":
        return said_MNC, lambda logits_NC: functional.cross_entropy(logits_NC, target_N)
    return said_MNC, lambda votes_NC: (votes_NC.argmax(dim=1) != target_N).double().mean()


def _or_inf(loss: float) -> float:
    """Return infinity for NaN, the loss of a network that has diverged."""
    return math.inf if math.isnan(loss) else loss
