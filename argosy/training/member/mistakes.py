"""Explains torch's errors on a first batch (dtypes, shapes, kinds of targets) in a sentence that says what to change."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from argosy.bindings import bound_arguments, unwrap_partials
from argosy.errors import StudyError
from argosy.errors.checks import describe_value
from argosy.errors.traces import USER_ERRORS
from argosy.stream.trees import flatten
from argosy.study import Member
from argosy.training.member.checks import takes_classes

__all__ = [
    "explain_forward",
    "explain_lone_sample",
    "explain_loss",
    "naming_part",
    "same_shape",
    "format_given",
    "format_tensor",
]


def explain_forward(member: Member, model: nn.Module, inputs: Any, error: Exception) -> None:
    """Raise StudyError for BatchNorm of one sample or for samples and weights of different dtypes; else note the failing layer and its input."""
    explain_lone_sample(member, error)
    weights = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    others = {leaf.dtype for leaf in flatten(inputs)[0] if isinstance(leaf, Tensor)} - weights
    other = sorted(others, key=lambda dtype: not dtype.is_floating_point)
    if other and len(weights) == 1 and "type" in str(error) and "indices" not in str(error):
        wanted = _name(weights.pop())
        raise StudyError(
            f"member {member.name!r}: its network got samples of {_name(other[0])} but has weights of {wanted}; "
            f"they must have the same dtype. Convert the samples, for example with tensor.to(torch.{wanted}) or "
            f"array.astype({wanted!r}), or in Data.on_device."
        )
    layer = _layer_of(model, error)
    if layer and layer not in getattr(error, "__notes__", ()):
        error.add_note(layer)


@contextmanager
def naming_part(part: str, factory: Any) -> Iterator[None]:
    """Note in an error which part of a member raised it, and which arguments of its factory are text.

    A class of torch leaves none of the user's lines in a traceback.
    """
    try:
        yield
    except USER_ERRORS as error:
        function = unwrap_partials(factory)
        bound = bound_arguments(factory) if isinstance(factory, partial) else {}
        texts = ", ".join(name for name, value in bound.items() if isinstance(value, str))
        name = getattr(function, "__qualname__", type(function).__name__)
        error.add_note(f"raised by its {part}, {name}{f', which was given text as {texts}' if texts else ''}")
        raise


def explain_lone_sample(member: Member, error: Exception) -> None:
    """Raise StudyError if BatchNorm raised because a batch has one sample, which cannot be planned for: lengths cut it so, or others are broken."""
    if not str(error).startswith("Expected more than 1 value per channel"):
        return
    hint = "" if member.batch_tokens is None else f" (batch_tokens={member.batch_tokens} may leave a long sample alone)"
    raise StudyError(
        f"member {member.name!r}: BatchNorm got a batch of 1 sample{hint}, but needs at least 2 to train. Use "
        f"LayerNorm or GroupNorm in the network{', or remove batch_tokens' if hint else ''}."
    )


def _layer_of(model: nn.Module, error: Exception) -> str:
    """Describe the innermost layer that raised in its forward pass, and its input; return an empty string if unknown."""
    # The last frame of a forward pass in the traceback is the innermost one.
    names, described, link = {id(module): name for name, module in model.named_modules()}, "", error.__traceback__
    while link is not None:
        frame, link = link.tb_frame, link.tb_next
        module, arguments = frame.f_locals.get("self"), frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
        if frame.f_code.co_name != "forward" or id(module) not in names or not arguments:
            continue
        argument = frame.f_locals.get(arguments[0])
        if isinstance(module, nn.Module) and isinstance(argument, Tensor):
            name = names[id(module)]
            described = f"{f'layer {name!r}' if name else 'the network'}, {type(module).__name__}({module.extra_repr()}), was given "
            described += f"{format_tensor(argument)}{_channels_last(module, argument)}"
    return described


def _channels_last(module: nn.Module, inputs: Tensor) -> str:
    if isinstance(module, _ConvNd) and inputs.dim() > 2 and inputs.shape[1] != module.in_channels == inputs.shape[-1]:
        return ": its channels are in the last dimension, but torch needs them in the second; use x.movedim(-1, 1)"
    return ""


def explain_loss(member: Member, output: Any, target: Any, error: Exception) -> None:
    """Raise StudyError if a loss raised because its targets do not fit the outputs; else note what it was given."""
    error.add_note(f"its network returns {format_given(output)}, and targets are {format_given(target)}")
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return
    described = f"member {member.name!r}: its network returns {format_tensor(output)}, targets are {format_tensor(target)}, and its loss"
    if takes_classes(member.loss):
        _explain_classes(described, output, target)
    elif output.shape != target.shape and output.numel() == target.numel():
        raise StudyError(f"{described} needs the same shape for both. Use {same_shape(output.shape, target.shape)}.")
    elif output.shape == target.shape and output.dtype != target.dtype and output.is_floating_point():
        dtype = _name(output.dtype)
        raise StudyError(
            f"{described} needs the same dtype for both. Use tensor.to(torch.{dtype}) or array.astype({dtype!r})."
        )


def _explain_classes(described: str, output: Tensor, target: Tensor) -> None:
    described += ", cross-entropy, needs"
    if output.dim() < 2:
        raise StudyError(
            f"{described} one output per class, [batch, classes]. Use a last layer with one output per class; for a "
            "single output, set loss=BCEWithLogitsLoss() and use float targets."
        )
    if target.shape == output.shape and not target.is_floating_point():
        raise StudyError(f"{described} class numbers, or one-hot targets as floats. Use target.argmax(1).")
    if target.shape == (len(output), 1):
        raise StudyError(f"{described} one class number per sample, [batch]. Use target.flatten().")
    if output.dim() > 2 and target.shape == output.shape[:-1]:
        raise StudyError(f"{described} classes in the second dimension. Return x.movedim(-1, 1) from the network.")
    if target.dim() == output.dim() - 1 and target.dtype not in (torch.int64, torch.uint8):
        raise StudyError(f"{described} class numbers as int64. Use tensor.long() or array.astype('int64').")


def same_shape(output: Sequence[int], target: Sequence[int]) -> str:
    """Return code that gives targets the shape of outputs."""
    if tuple(output[: len(target)]) == tuple(target) and math.prod(output[len(target) :]) == 1:
        return f"target.reshape({', '.join(map(str, (-1, *output[1:])))}), or return x.flatten() from the network"
    return "target.reshape_as(output)"


def format_given(value: Any) -> str:
    """Return what a function was given in short: a tensor by `format_tensor`, a tuple or list as its elements, another value by its type."""
    if isinstance(value, tuple | list) and len(value) < 5:
        return f"({', '.join(map(format_given, value))})"
    return format_tensor(value) if isinstance(value, Tensor) else describe_value(value)


def format_tensor(tensor: Tensor) -> str:
    """Return shape and dtype, for example ``[32, 10] of float32``."""
    return f"{list(tensor.shape)} of {_name(tensor.dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
