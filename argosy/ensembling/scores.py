"""Scores of predictions and the disagreement of networks, each as one number over a set of samples."""

from typing import Any

import torch
from torch import Tensor

from argosy.errors import RunError

__all__ = ["class_scores", "disagreement", "scores_of_classes", "scores_of_numbers"]

BINS = 15
"""Number of equally wide bins of confidence, as in Guo et al. 2017."""


SUM_OFF = 0.01
"""Tolerance for the sum of a sample's probabilities, because bfloat16 rounds by that much."""


def class_scores(probabilities_NC: Tensor, target_N: Any) -> dict[str, float]:
    """Return accuracy, negative log-likelihood, Brier score and expected calibration error of class probabilities.

    Targets are class numbers. Raises RunError for other shapes or targets, for rows with NaN, and for rows that do not sum to 1.
    """
    target_N = torch.as_tensor(target_N)
    if probabilities_NC.dim() != 2 or target_N.shape != probabilities_NC.shape[:1]:
        raise RunError(
            f"class_scores was given probabilities of shape {list(probabilities_NC.shape)} and targets of shape "
            f"{list(target_N.shape)}; it needs [samples, classes] and one class number per sample. For a column of "
            "targets, pass target.flatten()."
        )
    nan_N = probabilities_NC.isnan().any(dim=1)
    if lacking := int(nan_N.sum()):
        raise RunError(
            f"class_scores was given {lacking:,} of {len(nan_N):,} rows with NaN: samples that no network has "
            "predicted, or a network that diverged. Remove these rows from both, predicted[known] and target[known], "
            "and report how many they are."
        )
    sums_N = probabilities_NC.double().sum(dim=1)
    if wrong := int(((sums_N - 1).abs() > SUM_OFF).sum()):
        raise RunError(
            f"class_scores was given {wrong:,} of {len(sums_N):,} rows that do not sum to 1; it needs probabilities. "
            "For logits, which networks return, pass output.softmax(dim=1)."
        )
    classes = probabilities_NC.shape[1]
    if wrong := int(((target_N < 0) | (target_N >= classes) | (target_N != target_N.long())).sum()):
        raise RunError(
            f"class_scores was given {wrong:,} of {len(target_N):,} targets that are not among the {classes} classes, "
            f"0 to {classes - 1}. Number classes from 0, like the study's targets, and remove rows without a class."
        )
    return scores_of_classes(probabilities_NC, target_N.long())


def scores_of_classes(probabilities_NC: Tensor, target_N: Tensor) -> dict[str, float]:
    """Return `class_scores` without its checks, for example for a network that has diverged."""
    probabilities_NC = probabilities_NC.double()
    truth_NC = torch.zeros_like(probabilities_NC).scatter_(1, target_N[:, None], 1.0)
    confidence_N, said_N = probabilities_NC.max(dim=1)
    right_N = ((said_N == target_N) & ~confidence_N.isnan()).double()
    return {
        "accuracy": right_N.mean().item(),
        "nll": -(probabilities_NC * truth_NC).sum(dim=1).log().mean().item(),
        "brier": ((probabilities_NC - truth_NC) ** 2).sum(dim=1).mean().item(),
        "ece": _calibration_error(confidence_N, right_N),
    }


def scores_of_numbers(predicted_N: Tensor, target_N: Tensor) -> dict[str, float]:
    """Return the root mean squared error and the mean absolute error."""
    errors_N = predicted_N.double() - target_N.double()
    return {"rmse": errors_N.pow(2).mean().sqrt().item(), "mae": errors_N.abs().mean().item()}


def disagreement(outputs_MNC: Tensor) -> float:
    """Return the fraction of samples for which two members predict different classes, averaged over all pairs of members."""
    members, samples, classes = outputs_MNC.shape
    pairs = samples * members * (members - 1)
    named_NM = outputs_MNC.argmax(dim=2).T
    # Thousands of members form millions of pairs, so count the agreeing pairs from the number of members per class.
    count_NC = named_NM.new_zeros(samples, classes).scatter_add_(1, named_NM, torch.ones_like(named_NM))
    agreeing = (count_NC * (count_NC - 1)).sum().item()
    return (pairs - agreeing) / pairs if pairs else 0.0


def _calibration_error(confidence_N: Tensor, right_N: Tensor) -> float:
    """Return the difference between mean confidence and accuracy in each bin of confidence, averaged with weights by samples."""
    bins_N = (confidence_N * BINS).ceil().long().clamp(1, BINS) - 1
    excess = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins_N, confidence_N - right_N)
    return (excess.abs().sum() / len(confidence_N)).item()
