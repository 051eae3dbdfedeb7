"""Makes an ensemble from the outputs of networks for validation samples: computes temperatures, weights and scores."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from argosy.ensembling.calibrate import temperature
from argosy.ensembling.combining import Combine, Combines, combine_outputs, stack_outputs
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.predict import Predicted, Reduced
from argosy.ensembling.scores import disagreement, scores_of_classes, scores_of_numbers
from argosy.ensembling.select import (
    PART,
    How,
    loss_terms,
    losses_of,
    mean_squared_error,
    negative_log_likelihood,
    select_weights,
)
from argosy.errors import RunError
from argosy.stream.trees import flatten, format_structure
from argosy.study import IGNORED

__all__ = [
    "PROBABILITIES",
    "Reducible",
    "Select",
    "make_uniform",
    "make_cross_validated",
    "check_classes_first",
    "make_ensemble",
    "make_reducer",
    "weights_of",
]

Select = How | None
Reducible = Literal["probabilities", "mean"]
"""Ways to combine for which selection needs only one number per target from each network."""
PROBABILITIES = "the mean of report.predict(samples, name).sigmoid() over members"
"""The alternative for networks with one logit, for messages."""
APART = (
    "each member was validated on its own samples, on which others may have been trained, so the ensemble itself has "
    "no score: 'out of fold' scores all members on the samples that they held out; the rows below it score each "
    "member alone"
)
"""Note on the scores of members that were validated on different folds."""


def check_classes_first(predicted: Predicted, *, known: bool) -> None:
    """Raise RunError if the targets show that classes are the last dimension of an output, as for the tokens of a text.

    An ensemble needs classes in the first dimension after the batch. If both are possible, `known` says that the members' losses use the first.
    """
    output, target = predicted.outputs[0], predicted.targets
    if not isinstance(output, Tensor) or target is None or output.dim() < 3 or target.is_floating_point():
        return
    shape, either = output.shape, target.shape == output.shape[:1] + output.shape[2:]
    if target.shape == shape[:-1] and not (known and either):
        raise RunError(
            f"outputs of the members have shape {list(shape[1:])} for a sample, and targets {list(target.shape[1:])}: "
            "classes come last, as for tokens, but an ensemble needs them first, as cross-entropy does. Use the mean "
            "of report.predict(samples, name).softmax(-1) over members."
        )


def make_uniform(
    networks: Mapping[str, nn.Module],
    seeds: Sequence[int],
    combine: Combines,
    *,
    note: str,
    scores: Sequence[Mapping[str, Any]] = (),
) -> Ensemble:
    """Return an ensemble of these networks with equal weights."""
    count = len(networks)
    return Ensemble(
        networks,
        combine=combine,
        weights=[1 / count] * count,
        temperatures=[1.0] * count,
        seeds=seeds,
        scores=scores,
        note=note,
    )


def make_cross_validated(
    networks: Mapping[str, nn.Module], seeds: Sequence[int], held_out: Sequence[Predicted], *, combine: Combine
) -> Ensemble:
    """Return an ensemble of networks that were validated on different samples, such as folds; scores are computed on their `held_out` outputs.

    The ensemble itself has no score, because a sample that one network held out may be a training sample of another.
    """
    score, names = scores_of_numbers if combine == "mean" else scores_of_classes, list(networks)
    try:
        answers = [
            _held_out_predictions({name: network}, predicted, combine)
            for (name, network), predicted in zip(networks.items(), held_out, strict=True)
        ]
    except RunError as error:
        return make_uniform(networks, seeds, combine, note=f"no scores: {error}")
    whole = torch.cat([answer for answer, _ in answers]), torch.cat([target for _, target in answers])
    rows: list[dict[str, Any]] = [
        {"network": name, "weight": 1 / len(names), "samples": len(target), **score(answer, target)}
        for name, (answer, target) in zip(["out of fold", *names], [whole, *answers], strict=True)
    ]
    rows[0]["weight"] = None
    return make_uniform(networks, seeds, combine, note=APART, scores=rows)


def _held_out_predictions(
    networks: Mapping[str, nn.Module], predicted: Predicted, combine: Combine
) -> tuple[Tensor, Tensor]:
    """Return one network's predictions for the samples that it held out, and their targets."""
    (output_N,), target_N = _as_combined(
        dict(zip(networks, predicted.outputs, strict=True)), predicted.targets, combine
    )
    return output_N if combine == "mean" else output_N.softmax(dim=1), target_N


def make_reducer(combine: Reducible) -> Reduced:
    """Return a function that reduces a network's output for a batch to what `weights_of` needs; it raises RunError if outputs cannot be combined."""
    return lambda output, target: loss_terms(*_as_combined({"it": output}, target, combine), combine)[0]


def weights_of(reduced_outputs: Sequence[Tensor], combine: Reducible, how: How) -> list[float]:
    """Return the weights that selection gives networks, given their `make_reducer` outputs for all samples; temperatures are not applied."""
    return select_weights(
        torch.stack([*reduced_outputs]), mean_squared_error if combine == "mean" else negative_log_likelihood, how
    )


def make_ensemble(
    networks: Mapping[str, nn.Module],
    seeds: Sequence[int],
    predicted: Predicted,
    *,
    combine: Combine,
    select: Select,
    calibrate: bool,
    weights: Sequence[float] = (),
) -> Ensemble:
    """Return an ensemble of the networks with these weights, or select them here if none are given; raises RunError if it is impossible."""
    outputs_MN, target_N = _as_combined(dict(zip(networks, predicted.outputs, strict=True)), predicted.targets, combine)
    temperatures = [temperature(output, target_N) if calibrate else 1.0 for output in outputs_MN]
    temperatures_M = torch.tensor(temperatures, dtype=outputs_MN.dtype)
    # With many classes, a copy of all outputs may exceed memory, so avoid it if possible.
    cooled_MN = outputs_MN / temperatures_M.view(-1, *[1] * (outputs_MN.dim() - 1)) if calibrate else outputs_MN
    count = len(networks)
    if not weights:
        weights = [1 / count] * count
        if select is not None:
            weights = select_weights(loss_terms(cooled_MN, target_N, combine), losses_of(target_N, combine), select)
    kept = [number for number, weight in enumerate(weights) if weight]
    names = list(networks)
    return Ensemble(
        {names[number]: networks[names[number]] for number in kept},
        combine=combine,
        weights=[weights[number] for number in kept],
        temperatures=[temperatures[number] for number in kept],
        seeds=[seeds[number] for number in kept],
        scores=_scores(names, cooled_MN, target_N, weights, combine),
        note=f"scores are computed on {len(predicted.indices):,} validation samples that all members share",
    )


def _scores(
    names: Sequence[str], outputs_MN: Tensor, target_N: Tensor, weights: Sequence[float], combine: Combine
) -> list[dict[str, Any]]:
    """Return the scores of the ensemble, and of each network alone with its weight.

    Networks of weight 0 are left out of the ensemble's own row, because their outputs may be NaN.
    """
    numbers = combine == "mean"
    score = scores_of_numbers if numbers else scores_of_classes
    weights_M = outputs_MN.new_tensor(weights)
    chosen_MN, weights_M = outputs_MN if all(weights) else outputs_MN[weights_M > 0], weights_M[weights_M > 0]
    parts_MN = chosen_MN.chunk(chosen_MN.numel() // PART + 1, dim=1)
    parts = [combine_outputs(part_MN, weights_M, torch.ones_like(weights_M), combine) for part_MN in parts_MN]
    together = score(torch.cat(parts), target_N)
    if not numbers:
        together["disagreement"] = disagreement(chosen_MN)
    rows = [{"network": "ensemble", "weight": 1.0, **together}]
    for name, weight, output in zip(names, weights, outputs_MN, strict=True):
        alone = score(output if numbers else output.softmax(dim=1), target_N)
        rows.append({"network": name, "weight": weight, **alone})
    return rows


def _as_combined(outputs: Mapping[str, Any], targets: Any, combine: Combine) -> tuple[Tensor, Tensor]:
    """Return the outputs of all networks and the targets, in the shapes in which they are combined."""
    outputs_MN = _single_output(outputs)
    return _as_numbers(outputs_MN, targets) if combine == "mean" else _as_classes(outputs_MN, targets)


def _as_numbers(outputs_MN: Tensor, target: Any) -> tuple[Tensor, Tensor]:
    """Return outputs ``[M, N, …]`` and targets ``[N, …]``."""
    if target is None or target.shape != outputs_MN.shape[1:]:
        raise RunError(
            f"outputs of the members have shape {tuple(outputs_MN.shape[1:])}, but targets of the validation samples "
            f"{_shape(target)}; the mean of numbers needs one shape for both. Change the shape in the network or in "
            "the dataset."
        )
    return outputs_MN.double(), target.double()


def _as_classes(outputs_MNC: Tensor, target: Any) -> tuple[Tensor, Tensor]:
    """Return logits ``[M, N, classes]`` and class numbers ``[N]``; each pixel with a class counts as one of the N samples."""
    shape, wanted = outputs_MNC.shape, outputs_MNC.shape[1:2] + outputs_MNC.shape[3:]
    whole = target is not None and not target.is_floating_point() and not target.is_complex()
    if not (whole and outputs_MNC.dim() > 2 and target.shape == wanted):
        raise RunError(
            f"outputs of the members have shape {tuple(shape[1:])}, and targets of the validation samples "
            f"{_shape(target)}; to combine probabilities, they must be class logits and class numbers. For numbers, "
            f"pass combine='mean'. For one logit for two classes, use {PROBABILITIES}."
        )
    target_N = target.long().reshape(-1)
    known_N = target_N != IGNORED
    outputs_MNC, target_N = outputs_MNC.movedim(2, -1).reshape(shape[0], -1, shape[2]), target_N[known_N]
    if not known_N.all():
        outputs_MNC = outputs_MNC[:, known_N]
    if wrong := int(((target_N < 0) | (target_N >= shape[2])).sum()):
        raise RunError(
            f"{wrong:,} of {len(target_N):,} targets of the validation samples are not among the {shape[2]} classes "
            f"that the networks distinguish, 0 to {shape[2] - 1}. Number classes from 0, and use {IGNORED} for tokens "
            "and pixels without a class."
        )
    return outputs_MNC.double(), target_N


def _single_output(by_network: Mapping[str, Any]) -> Tensor:
    """Return outputs ``[M, N, …]``; raises RunError if a network has several outputs, or if the networks' outputs differ in shape."""
    outputs = stack_outputs(by_network)
    if isinstance(outputs, Tensor):
        return outputs
    raise RunError(
        f"each network has several outputs, {format_structure(flatten(outputs)[1])}, but scores, select= and calibrate= need "
        "a single one. Remove select= and calibrate=, or return one output in eval()."
    )


def _shape(target: Tensor | None) -> str:
    return "are not one tensor" if target is None else f"are {target.dtype} of shape {tuple(target.shape)}"
