"""Copies of what a member trains: `copy.deepcopy`, completed where a step needs more."""

import copy
from typing import Any

from torch import Tensor, nn

from argosy.training.member.own import OwnOptimizers
from argosy.training.optim.optimizer_list import OptimizerList

__all__ = ["copies_of"]


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


def _several(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, OwnOptimizers):
        return list(optimizer.by_name.values())
    return [optimizer, *optimizer.parts] if isinstance(optimizer, OptimizerList) else [optimizer]
