"""Puts what a user's functions hold on an accelerator: modules, and tensors and networks that partials bind.

Members' functions and `Data.on_device` are written without knowing the device on which they are called.
"""

import functools
import operator
from collections.abc import MutableMapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from argosy.stream.copied import copy_network

__all__ = ["COPIES", "copy_held", "move_own", "note_placement"]

COPIES: MutableMapping[Any, dict[torch.device, Any]] = WeakIdKeyDictionary()
"""Copies of tensors and networks by device; all functions that are called there share them. A run in the caller's process clears it."""

MIXED = ("same device", "not on the expected device", "device type for generator", "and weight type (")
"""Texts of torch's errors for tensors of the host among those of a device."""


def move_own(module: nn.Module, device: torch.device) -> None:
    """Move a member's own copy of a module to a device; its weights are those of the caller's module, and are copied."""
    for part in module.modules():
        # `to` would move the caller's weights, which members on other devices use too.
        for name, weight in part._parameters.items():
            setattr(part, name, copy_held(weight, device))
    module.to(device)


def copy_held(value: Any, device: torch.device, lists: dict[int, Any] | None = None) -> Any:
    """Return a tensor's or a network's copy on a device, which stays the same; of a partial, list or method, one that holds such copies.

    `lists` has the copies of lists and dicts by the ids of their originals, all within the outermost value: functions that share one share its copy.
    """
    lists = {} if lists is None else lists
    there = functools.partial(copy_held, device=device, lists=lists)
    if isinstance(value, functools.partial):
        keywords = {key: there(argument) for key, argument in value.keywords.items()}
        return functools.partial(there(value.func), *map(there, value.args), **keywords)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, there(value.__self__))
    if type(value) in (list, tuple, dict):
        if id(value) not in lists:
            held = list(value.values() if isinstance(value, dict) else value)
            copied = list(map(there, held))
            is_same = all(map(operator.is_, copied, held))  # such as a list that collects results
            whole = dict(zip(value, copied, strict=True)) if isinstance(value, dict) else type(value)(copied)
            lists[id(value)] = value if is_same else whole
        return lists[id(value)]
    if not isinstance(value, Tensor | nn.Module):
        return value
    tensors = [value] if isinstance(value, Tensor) else [*value.parameters(), *value.buffers()]
    if all(tensor.device == device for tensor in tensors):
        return value
    copies = COPIES.setdefault(value, {})
    if device not in copies:
        copy: Any = value.detach().to(device) if isinstance(value, Tensor) else copy_network(value).to(device)
        copies[device] = nn.Parameter(copy, value.requires_grad) if isinstance(value, nn.Parameter) else copy
    return copies[device]


def note_placement(error: BaseException, device: torch.device) -> None:
    """Note on an error of members' code that mixes tensors of the host with those of an accelerator how to place them."""
    if device.type != "cpu" and any(words in str(error) for words in MIXED):
        error.add_note(
            f"batches and networks are on {device}: make tensors there (device=x.device), register_buffer those that a network "
            "holds, and bind those of other functions with functools.partial"
        )
