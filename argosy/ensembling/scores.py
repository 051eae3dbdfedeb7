"""Scores of predictions, and the disagreement of networks, each one number over a set of samples."""

import itertools

import torch
from torch import Tensor

__all__ = ["class_scores", "disagreement", "number_scores"]

BINS = 15
"""Bins of confidence, all of one width, as in Guo et al. 2017."""


def class_scores(probabilities_NC: Tensor, target_N: Tensor) -> dict[str, float]:
    """Return accuracy, negative log-likelihood, Brier score and expected calibration error of class probabilities."""
    probabilities_NC = probabilities_NC.double()
    truth_NC = torch.zeros_like(probabilities_NC).scatter_(1, target_N[:, None], 1.0)
    confidence_N, said_N = probabilities_NC.max(dim=1)
    right_N = (said_N == target_N).double()
    return {
        "accuracy": right_N.mean().item(),
        "nll": -(probabilities_NC * truth_NC).sum(dim=1).log().mean().item(),
        "brier": ((probabilities_NC - truth_NC) ** 2).sum(dim=1).mean().item(),
        "ece": _calibration_error(confidence_N, right_N),
    }


def number_scores(predicted_N: Tensor, target_N: Tensor) -> dict[str, float]:
    """Return the root mean squared error and the mean absolute error."""
    errors_N = predicted_N.double() - target_N.double()
    return {"rmse": errors_N.pow(2).mean().sqrt().item(), "mae": errors_N.abs().mean().item()}


def disagreement(outputs_MNC: Tensor) -> float:
    """Return the share of samples for which two members predict different classes, as a mean over all pairs of members."""
    named = list(outputs_MNC.argmax(dim=2))
    pairs = [(one != other).double().mean() for one, other in itertools.combinations(named, 2)]
    return torch.stack(pairs).mean().item() if pairs else 0.0


def _calibration_error(confidence_N: Tensor, right_N: Tensor) -> float:
    """Return the distance of mean confidence from accuracy over bins of confidence, weighted by samples."""
    bins_N = (confidence_N * BINS).ceil().long().clamp(1, BINS) - 1
    excess = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins_N, confidence_N - right_N)
    return (excess.abs().sum() / len(confidence_N)).item()
