"""Pure functions of tensors that combine the outputs of several networks into one prediction."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from argosy.errors import RunError
from argosy.stream.trees import Structure, flatten, format_structure, map_leaves, unflatten

__all__ = [
    "Combine",
    "Combines",
    "as_averaged",
    "averaged_terms",
    "check_same_structure",
    "combine_outputs",
    "combine_per_output",
    "quantiles",
    "stack_outputs",
    "variance",
]

Combine = Literal["probabilities", "logits", "votes", "mean"]
"""How outputs are combined: classes by mean probabilities, by the probabilities of mean logits, or by votes; numbers by their mean."""
Combines = Combine | tuple[Any, ...] | Mapping[Any, Any]
"""One `Combine` for all outputs of a network, or one for each, in the structure of the outputs."""


def stack_outputs(outputs: Mapping[str, Any]) -> Any:
    """Stack the outputs of several networks, given by name, into tensors ``[members, B, …]``; raises RunError if structures differ."""
    leaves, structures = zip(*map(flatten, outputs.values()), strict=True)
    if len({*structures}) > 1:
        check_same_structure(outputs)
    return unflatten([torch.stack(of_one) for of_one in zip(*leaves, strict=True)], structures[0])


def check_same_structure(outputs: Mapping[str, Any]) -> None:
    """Raise RunError if the outputs of several networks, given by name, differ in structure or shape; not to be called during tracing."""
    shapes = {name: repr(map_leaves(lambda leaf: tuple(leaf.shape[1:]), output)) for name, output in outputs.items()}
    if len({*shapes.values()}) > 1:
        described = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise RunError(
            f"members of one ensemble return outputs of different shapes for a sample: {described}. Choose members that "
            "answer the same question, with members=."
        )


def combine_per_output(combine: Combines, structure: Structure) -> list[Combine]:
    """Return how to combine each output of this structure; raises RunError if `combine` has a different one."""
    if structure is None and isinstance(combine, str):
        return [combine]
    if structure is not None:
        keys, parts = structure[1] or range(len(structure[2])), structure[2]
        if isinstance(combine, str):
            return [one for part in parts for one in combine_per_output(combine, part)]
        by_key = combine if isinstance(combine, Mapping) else dict(enumerate(combine))
        if by_key.keys() == {*keys}:
            return [one for key, part in zip(keys, parts, strict=True) for one in combine_per_output(by_key[key], part)]
    raise RunError(
        f"combine={combine!r} does not match the outputs of these networks, {format_structure(structure)}. Pass one word for "
        "all outputs, or one for each in the structure that the networks return: a tuple for a tuple, else a dict."
    )


def combine_outputs(outputs_MB: Tensor, weights_M: Tensor, temperatures_M: Tensor, combine: Combine) -> Tensor:
    """Combine outputs ``[members, B, …]`` into numbers ``[B, …]`` or probabilities ``[B, classes, …]``; the weights sum to one.

    Classes are the first dimension after the batch, as for cross-entropy. Logits are divided by the temperatures first.
    """
    mean = _mean(averaged_terms(outputs_MB, temperatures_M, combine), weights_M)
    return mean.softmax(dim=1) if combine == "logits" else mean


def averaged_terms(outputs_MB: Tensor, temperatures_M: Tensor, combine: Combine) -> Tensor:
    """Return what is averaged over the members: their numbers, or the probabilities, logits or votes of their outputs."""
    if combine == "mean":
        return as_averaged(outputs_MB)
    return member_terms(outputs_MB / _over_members(temperatures_M, outputs_MB), combine)


def as_averaged(outputs: Tensor) -> Tensor:
    """Return whole numbers and flags, whose mean is a fraction, as floats, and other outputs as they are."""
    return outputs if outputs.is_floating_point() or outputs.is_complex() else outputs.to(torch.get_default_dtype())


def member_terms(logits_MBC: Tensor, combine: Combine) -> Tensor:
    """Return each member's term in the weighted sum: its probabilities, logits or vote."""
    if combine == "probabilities":
        return logits_MBC.softmax(dim=2)
    if combine == "votes":
        votes = functional.one_hot(logits_MBC.argmax(dim=2), logits_MBC.shape[2])
        return votes.movedim(-1, 2).to(logits_MBC.dtype)
    return logits_MBC


def variance(outputs_MB: Tensor, weights_M: Tensor) -> Tensor:
    """Return the weighted variance over the members, ``[B, …]``."""
    return _mean((outputs_MB - _mean(outputs_MB, weights_M)) ** 2, weights_M)


def quantiles(outputs_MB: Tensor, weights_M: Tensor, shares: Sequence[float]) -> Tensor:
    """Return, for each share, the smallest output at or below which that share of the weight lies, ``[shares, B, …]``."""
    sorted_MB, order_MB = outputs_MB.sort(dim=0)
    behind_MB = weights_M[order_MB].cumsum(dim=0)
    # Rounding may leave a sum of weights just below its share.
    numbers = [(behind_MB < share - 1e-6).sum(dim=0, keepdim=True) for share in shares]
    last = len(outputs_MB) - 1
    return torch.cat([sorted_MB.gather(0, number.clamp(max=last)) for number in numbers])


def _mean(values_MB: Tensor, weights_M: Tensor) -> Tensor:
    return (values_MB * _over_members(weights_M, values_MB)).sum(dim=0)


def _over_members(numbers_M: Tensor, like_MB: Tensor) -> Tensor:
    """Return one number per member, shaped to broadcast over its outputs."""
    return numbers_M.to(like_MB.dtype).view(-1, *[1] * (like_MB.dim() - 1))
