"""Makes an ensemble of networks from what they make of validation samples: temperatures, weights, and what it is worth."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from argosy.ensembling.calibrate import temperature
from argosy.ensembling.combining import Combine, combined
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.predict import Predicted
from argosy.ensembling.scores import class_scores, disagreement, number_scores
from argosy.ensembling.select import greedy
from argosy.errors import RunError

__all__ = ["Select", "alike", "make"]

Select = Literal["greedy"] | None


def alike(networks: Mapping[str, nn.Module], seeds: Sequence[int], combine: Combine) -> Ensemble:
    """All of them with the same weight; nothing is known of what it is worth."""
    count = len(networks)
    return Ensemble(networks, combine=combine, weights=[1 / count] * count, temperatures=[1.0] * count, seeds=seeds)


def make(
    networks: Mapping[str, nn.Module],
    seeds: Sequence[int],
    predicted: Predicted,
    *,
    combine: Combine,
    select: Select,
    calibrate: bool,
) -> Ensemble:
    """An ensemble of the networks, or of those that are selected. Raises RunError where they cannot be one."""
    outputs_MN, target_N = _numbers(networks, predicted) if combine == "mean" else _classes(networks, predicted)
    temperatures = [temperature(output, target_N) if calibrate else 1.0 for output in outputs_MN]
    temperatures_M = torch.tensor(temperatures, dtype=outputs_MN.dtype)
    cooled_MN = outputs_MN / temperatures_M.view(-1, *[1] * (outputs_MN.dim() - 1))
    count = len(networks)
    weights = greedy(cooled_MN, target_N, combine) if select == "greedy" else [1 / count] * count
    kept = [number for number, weight in enumerate(weights) if weight]
    names = list(networks)
    return Ensemble(
        {names[number]: networks[names[number]] for number in kept},
        combine=combine,
        weights=[weights[number] for number in kept],
        temperatures=[temperatures[number] for number in kept],
        seeds=[seeds[number] for number in kept],
        scores=_scores(names, cooled_MN, target_N, weights, combine),
    )


def _scores(
    names: Sequence[str], outputs_MN: Tensor, target_N: Tensor, weights: Sequence[float], combine: Combine
) -> list[dict[str, Any]]:
    """A row for the ensemble, and one for each network alone, with its weight.

    What has no weight is no part of the former: it may be NaN.
    """
    numbers = combine == "mean"
    score = number_scores if numbers else class_scores
    weights_M = outputs_MN.new_tensor(weights)
    chosen_MN, weights_M = outputs_MN[weights_M > 0], weights_M[weights_M > 0]
    together = score(combined(chosen_MN, weights_M, torch.ones_like(weights_M), combine), target_N)
    if not numbers:
        together["disagreement"] = disagreement(chosen_MN)
    rows = [{"network": "ensemble", "weight": 1.0, **together}]
    for name, weight, output in zip(names, weights, outputs_MN, strict=True):
        alone = score(output if numbers else output.softmax(dim=1), target_N)
        rows.append({"network": name, "weight": weight, **alone})
    return rows


def _numbers(networks: Mapping[str, nn.Module], predicted: Predicted) -> tuple[Tensor, Tensor]:
    """Outputs ``[M, N, …]`` and targets of the same shape."""
    outputs_MN, target = _stacked(networks, predicted), predicted.targets
    if target is None or target.shape != outputs_MN.shape[1:]:
        raise RunError(
            f"outputs of the members have shape {tuple(outputs_MN.shape[1:])}, and targets of the validation samples "
            f"{_shape(target)}; the mean of numbers needs the same of both. Let the network, or the dataset, give that shape."
        )
    return outputs_MN.double(), target.double()


def _classes(networks: Mapping[str, nn.Module], predicted: Predicted) -> tuple[Tensor, Tensor]:
    """Logits ``[M, N, classes]`` and class numbers ``[N]``; where a sample has several, as pixels, each counts."""
    outputs_MNC, target = _stacked(networks, predicted), predicted.targets
    shape, wanted = outputs_MNC.shape, outputs_MNC.shape[1:2] + outputs_MNC.shape[3:]
    whole = target is not None and not target.is_floating_point() and not target.is_complex()
    fits = whole and outputs_MNC.dim() > 2 and target.shape == wanted
    if not fits or target.min() < 0 or target.max() >= shape[2]:
        raise RunError(
            f"outputs of the members have shape {tuple(shape[1:])}, and targets of the validation samples {_shape(target)}; "
            "to combine probabilities they must be logits of classes and numbers of classes. Of numbers, say combine='mean'."
        )
    return outputs_MNC.double().movedim(2, -1).reshape(shape[0], -1, shape[2]), target.long().reshape(-1)


def _stacked(networks: Mapping[str, nn.Module], predicted: Predicted) -> Tensor:
    shapes = {output.shape[1:] for output in predicted.outputs}
    if len(shapes) > 1:
        found = ", ".join(
            f"{name!r} {tuple(output.shape[1:])}" for name, output in zip(networks, predicted.outputs, strict=True)
        )
        raise RunError(
            f"members that are to be one ensemble give outputs of different shapes for a sample: {found}. Choose members "
            "that answer the same question, with members=."
        )
    return torch.stack(predicted.outputs)


def _shape(target: Tensor | None) -> str:
    return "are not one tensor" if target is None else f"are {target.dtype} of shape {tuple(target.shape)}"
