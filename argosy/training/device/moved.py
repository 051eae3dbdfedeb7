"""Puts what a user's functions hold on an accelerator: modules, and tensors and networks that partials bind.

Members' functions and `Data.on_device` are written without knowing the device on which they are called.
"""

import functools
from collections.abc import MutableMapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from argosy.stream.copied import copy_network

__all__ = ["COPIES", "copy_held", "move_own"]

COPIES: MutableMapping[Any, dict[torch.device, Any]] = WeakIdKeyDictionary()
"""Copies of tensors and networks by device; all functions that are called there share them. A run in the caller's process clears it."""


def move_own(module: nn.Module, device: torch.device) -> None:
    """Move a member's own copy of a module to a device; its weights are those of the caller's module, and are copied."""
    for part in module.modules():
        for (
            name,
            weight,
        ) in part._parameters.items():  # `to` would move the caller's weights, which members on other devices use too
            setattr(part, name, copy_held(weight, device))
    module.to(device)


def copy_held(value: Any, device: torch.device) -> Any:
    """Return a tensor's or a network's copy on a device, which stays the same; of a partial or a method, one that holds such copies."""
    if isinstance(value, functools.partial):
        arguments = [copy_held(argument, device) for argument in value.args]
        keywords = {key: copy_held(argument, device) for key, argument in value.keywords.items()}
        return functools.partial(copy_held(value.func, device), *arguments, **keywords)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, copy_held(value.__self__, device))
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
