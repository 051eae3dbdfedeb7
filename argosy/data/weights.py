"""Sample weights as multiplicities of a subset, so that the number of times a member sees each sample is exact and audited."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from argosy.errors import StudyError
from argosy.errors.checks import check_whole
from argosy.errors.warned import warn_caller

__all__ = ["by_weight"]


def by_weight(weights: Sequence[float] | Any, *, samples: int) -> list[int]:
    """Return a `Member.subset` of `samples` elements in which each sample is repeated in proportion to its weight.

    Use it in place of ``torch.utils.data.WeightedRandomSampler(weights, samples)``. Nothing is drawn: each sample's share of `samples` is rounded
    down, and the samples with the largest remainders get one more (Hamilton's method). Among equal remainders the samples that get one more are
    spread over the whole data set. The choice is the same in every epoch of a run, so if a sample's share is below 1 it may never be seen; a warning
    says how many there are, and which `samples` includes all of them. The study determines the order.

    Raises:
        StudyError: if weights are negative, not finite or all zero.
    """
    check_whole("by_weight: samples", samples, least=1)
    share = np.asarray(weights, dtype=np.float64)
    if share.ndim != 1 or not len(share) or not np.isfinite(share).all() or (share < 0).any() or not share.any():
        raise StudyError(
            "by_weight: weights must be finite, non-negative and not all 0. Pass one for each training sample, for "
            "example 1 / counts[labels]."
        )
    exact = share / share.sum() * samples
    often = np.floor(exact).astype(np.int64)
    left = samples - int(often.sum())
    # Rows are often sorted by class or site: breaking ties by row number would leave out whole classes or sites.
    ties = np.random.RandomState(0).permutation(len(share))
    often[np.lexsort((ties, often - exact))[:left]] += 1
    missing = int(((share > 0) & (often == 0)).sum())
    if missing:
        every = math.ceil(share.sum() / share[share > 0].min())
        warn_caller(
            f"by_weight: {missing} of {int((share > 0).sum())} samples with a weight above 0 are in no epoch of the run, "
            f"because their shares of samples={samples} are below 1. samples={every} includes all of them."
        )
    return np.repeat(np.arange(len(share)), often).tolist()
