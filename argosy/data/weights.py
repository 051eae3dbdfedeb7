"""Weights of samples as multiplicities of a subset, so that how often a member sees each sample is exact, and audited."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from argosy.errors import StudyError
from argosy.errors.checks import check_whole

__all__ = ["by_weight"]


def by_weight(weights: Sequence[float] | Any, *, samples: int) -> list[int]:
    """Return a `Member.subset` in which each sample comes as often as its weight asks for, `samples` in all.

    In place of ``torch.utils.data.WeightedRandomSampler(weights, samples)``: not drawn, but each sample's share of `samples`, rounded
    down, and one more for those with the largest remainders (Hamilton's method), of equal ones for some that are spread over all samples. The
    choice is the same in every epoch of a run, so with fewer `samples` than the weights ask for some are never seen: a larger number, as so many
    times ``len(weights)``, brings more of them in. The order is the study's.

    Raises:
        StudyError: where weights are negative, not finite or all zero.
    """
    check_whole("by_weight: samples", samples, least=1)
    share = np.asarray(weights, dtype=np.float64)
    if share.ndim != 1 or not len(share) or not np.isfinite(share).all() or (share < 0).any() or not share.any():
        raise StudyError(
            "by_weight: weights must be finite numbers from 0 up, one for each training sample, and not all 0. Give as many as there are "
            "samples, as 1 / counts[labels]."
        )
    exact = share / share.sum() * samples
    often = np.floor(exact).astype(np.int64)
    left = samples - int(often.sum())
    # Rows are often sorted, by class or site: ties broken by their numbers would leave out whole ones.
    ties = np.random.RandomState(0).permutation(len(share))
    often[np.lexsort((ties, often - exact))[:left]] += 1
    return np.repeat(np.arange(len(share)), often).tolist()
