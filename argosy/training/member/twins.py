"""Copies of what a member trains: `copy.deepcopy`, completed where a step needs more."""

import copy
from typing import Any

from torch import Tensor, nn

from argosy.training.member.own import OwnOptimizers
from argosy.training.optim.optimizer_list import OptimizerList

__all__ = ["twins"]


def twins(model: nn.Module, optimizer: Any, schedule: Any) -> tuple[nn.Module, Any, Any]:
    """Return copies that refer to one another, and share nothing with the originals."""
    # deepcopy refuses non-leaf tensors, as weights under the old parametrisation or pruning are.
    held = [value for module in model.modules() for value in (*vars(module).values(), *module._buffers.values())]
    copied: dict[int, Any] = {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}
    made: tuple[nn.Module, Any, Any] = copy.deepcopy((model, optimizer, schedule), copied)
    # Torch's optimizers copy only what a file needs, and none of their other attributes.
    for one, twin in zip(_several(optimizer), _several(made[1]), strict=True):
        # A `step` among the attributes is a schedule's wrapper of the class's, bound to the original.
        for name in vars(one).keys() - vars(twin).keys() - {"step"}:
            setattr(twin, name, copy.deepcopy(getattr(one, name), copied))
    return made


def _several(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, OwnOptimizers):
        return list(optimizer.by_name.values())
    return [optimizer, *optimizer.parts] if isinstance(optimizer, OptimizerList) else [optimizer]
