"""Moves what a user's functions hold to an accelerator: modules, and tensors and networks that partials bind.

Members' functions and `Data.on_device` are written without knowing the device on which they are called.
"""

import functools
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from argosy.stream.copied import copy_network

__all__ = ["copy_bound", "move_modules"]

COPIES: MutableMapping[Any, dict[torch.device, Any]] = WeakIdKeyDictionary()
"""Copies of tensors and networks by device; all functions that are called there share them."""


def move_modules(called: Any, device: torch.device) -> Any:
    """Move a module, or the one whose method is given, and return a partial with copies of what it binds; return other functions unchanged."""
    if isinstance(called, functools.partial):
        arguments = [copy_bound(value, device) for value in called.args]
        keywords = {key: copy_bound(value, device) for key, value in called.keywords.items()}
        return functools.partial(move_modules(called.func, device), *arguments, **keywords)
    owner = getattr(called, "__self__", called)
    if isinstance(owner, nn.Module):
        owner.to(device)
    return called


def copy_bound(value: Any, device: torch.device) -> Any:
    """Return a tensor's or a network's copy on a device, which stays the same; of a partial, one with such copies."""
    if not isinstance(value, Tensor | nn.Module):
        return move_modules(value, device)
    copies = COPIES.setdefault(value, {})
    if device not in copies:
        copies[device] = (value.detach() if isinstance(value, Tensor) else copy_network(value)).to(device)
    return copies[device]
