"""Chooses the members of an ensemble and their weights by greedy selection, plain or bagged (Caruana et al. 2004)."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from argosy.ensembling.combining import Combine, member_terms
from argosy.training.member.answers import NO_CLASS

__all__ = [
    "PART",
    "How",
    "Losses",
    "bagged_weights",
    "greedy_weights",
    "losses_of",
    "mean_squared_error",
    "negative_log_likelihood",
    "select_weights",
    "loss_terms",
]

How = Literal["greedy", "bagged"]
Losses = Callable[[Tensor], Tensor]
"""Function from means of `loss_terms` ``[M, N, …]`` to the loss of each, ``[M]``."""

ROUNDS = 50
"""Number of rounds; each adds a member, and the best ensemble of all rounds is taken."""
BAGS, FEW = 8, 8
"""Number of random halves, and the smallest number of networks for which bagging is used."""
PART = 2**22
"""Largest number of values, over members and samples, that are combined in memory at once."""


def select_weights(terms_MN: Tensor, losses: Losses, how: How) -> list[float]:
    """Return weights that sum to one, given the `loss_terms` of each member and the losses of their means.

    With fewer than `FEW` networks, whose random halves would leave little to choose from, ``bagged_weights`` selects like ``greedy``.
    """
    sound_M = terms_MN.flatten(1).isfinite().all(dim=1)
    if how == "greedy" or int(sound_M.sum()) < FEW:
        return greedy_weights(terms_MN, losses)
    weights_M = torch.zeros(len(terms_MN), dtype=torch.float64)
    weights_M[sound_M] = torch.tensor(bagged_weights(terms_MN[sound_M], losses, seed=0), dtype=torch.float64)
    return [float(weight) for weight in weights_M]


def greedy_weights(terms_MN: Tensor, losses: Losses) -> list[float]:
    """Return weights that sum to one, in proportion to how often greedy selection adds each member.

    Each round adds the member with which the ensemble has the lowest loss: the negative log-likelihood of the targets, for votes the
    error rate, for numbers the mean squared error. A member may be added several times. Ties go to the earliest ensemble and the first
    member. On these samples the ensemble is never worse than the best member alone.
    """
    rows = max(PART // max(terms_MN[0].numel(), 1), 1)
    parts = [terms_MN[start : start + rows] for start in range(0, len(terms_MN), rows)]
    total, counts = torch.zeros_like(terms_MN[0]), [0] * len(terms_MN)
    best, best_counts = math.inf, counts
    for size in range(1, ROUNDS + 1):
        losses_M = torch.cat([losses((total + part) / size) for part in parts])
        losses_M = losses_M.nan_to_num(nan=math.inf)  # a diverged network has NaN
        added = int(losses_M.argmin())
        total = total + terms_MN[added]
        counts[added] += 1
        if losses_M[added] < best or size == 1:
            best, best_counts = float(losses_M[added]), counts.copy()
    return [count / sum(best_counts) for count in best_counts]


def bagged_weights(terms_MN: Tensor, losses: Losses, seed: int) -> list[float]:
    """Return the mean of the weights `greedy_weights` from several random halves (bagged selection, Caruana et al. 2004, §2.3).

    In halves that lack the best networks, others get a chance.
    """
    draws, total_M = np.random.RandomState(seed % 2**32), np.zeros(len(terms_MN))
    for _ in range(BAGS):
        bag = draws.permutation(len(terms_MN))[: max(len(terms_MN) // 2, 1)]
        total_M[bag] += greedy_weights(terms_MN[torch.from_numpy(bag)], losses)
    return [float(weight) for weight in total_M / BAGS]


def negative_log_likelihood(probability_MN: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of each row of probabilities of the right class, ``[M]``, ignoring `NO_CLASS`."""
    flat_MN = probability_MN.flatten(1)
    known_MN = flat_MN < (1 + NO_CLASS) / 2
    return -(flat_MN.log() * known_MN).sum(dim=1) / known_MN.sum(dim=1)


def mean_squared_error(error_MN: Tensor) -> Tensor:
    """Return the mean squared error of each row, ``[M]``."""
    return error_MN.pow(2).flatten(1).mean(dim=1)


def loss_terms(outputs_MN: Tensor, target_N: Tensor, combine: Combine) -> Tensor:
    """Return the members' terms in the weighted sum, reduced to what `losses_of` needs."""
    if combine == "mean":
        return outputs_MN - target_N
    said_MNC = member_terms(outputs_MN, combine)
    if combine == "probabilities":
        return said_MNC.gather(2, target_N[:, None].expand(len(said_MNC), -1, -1)).squeeze(2)
    return said_MNC


def losses_of(target_N: Tensor, combine: Combine) -> Losses:
    """Return the function that computes the loss from means of `loss_terms`."""
    if combine == "mean":
        return mean_squared_error
    if combine == "probabilities":
        return negative_log_likelihood
    if combine == "logits":
        return lambda logits_MNC: torch.stack([functional.cross_entropy(one, target_N) for one in logits_MNC])
    return lambda votes_MNC: (votes_MNC.argmax(dim=2) != target_N).double().mean(dim=1)
