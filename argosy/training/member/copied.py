"""Copies of what a member trains: `copy.deepcopy`, completed where a step needs more."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from argosy.training.member.own import OwnOptimizers
from argosy.training.optim.optimizer_list import OptimizerList

__all__ = ["copies_of", "own_augment"]

Augment = Callable[[Any], Any]


def copies_of(model: nn.Module, optimizer: Any, schedule: Any) -> tuple[nn.Module, Any, Any]:
    """Return copies that refer to one another, and share nothing with the originals."""
    # deepcopy refuses non-leaf tensors, as weights under the old parametrisation or pruning are.
    held = [value for module in model.modules() for value in (*vars(module).values(), *module._buffers.values())]
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}
    made: tuple[nn.Module, Any, Any] = copy.deepcopy((model, optimizer, schedule), memo)
    # Torch's optimizers copy only what a file needs, and none of their other attributes.
    for original, copied in zip(_several(optimizer), _several(made[1]), strict=True):
        # A `step` among the attributes is a schedule's wrapper of the class's, bound to the original.
        for name in vars(original).keys() - vars(copied).keys() - {"step"}:
            setattr(copied, name, copy.deepcopy(getattr(original, name), memo))
    return made


def own_augment(augment: Augment | None) -> Augment | None:
    """Return a member's own copy of its augmentation, so that no neighbour moves what it counts, or draws from. Functions are as they are.

    What cannot be copied stays shared.
    """
    # What a partial binds as a tensor, an array or a network is data, as a bank of noise or a teacher: one for all members, as it may be large.
    memo = {id(value): value for value in _bound(augment) if isinstance(value, Tensor | np.ndarray | nn.Module)}
    try:
        return copy.deepcopy(augment, memo)
    except Exception:  # boundary to a user's object, which may hold an open file or a lock
        return augment


def _bound(augment: Any) -> Iterator[Any]:
    """Yield what partials bind, those in partials too."""
    if isinstance(augment, functools.partial):
        for value in (augment.func, *augment.args, *augment.keywords.values()):
            yield from _bound(value)
        yield from (*augment.args, *augment.keywords.values())


def _several(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, OwnOptimizers):
        return list(optimizer.by_name.values())
    return [optimizer, *optimizer.parts] if isinstance(optimizer, OptimizerList) else [optimizer]
