"""Twins of what a member trains: `copy.deepcopy`, where it stops short of what a step needs."""

import copy
from typing import Any

from torch import Tensor, nn

from argosy.training.member.own import OwnOptimizers

__all__ = ["twins"]


def twins(model: nn.Module, optimizer: Any, schedule: Any) -> tuple[nn.Module, Any, Any]:
    """Copies that refer to one another as these do, and to nothing of theirs."""
    # A tensor that was computed refuses to be copied: weights that are parametrised in the old way or pruned are such.
    held = [value for module in model.modules() for value in (*vars(module).values(), *module._buffers.values())]
    copied: dict[int, Any] = {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}
    made: tuple[nn.Module, Any, Any] = copy.deepcopy((model, optimizer, schedule), copied)
    # Torch's optimizers let be copied what a file needs, and not what else they keep.
    for one, twin in zip(_several(optimizer), _several(made[1]), strict=True):
        # A `step` of the object's own is what a schedule has put around that of its class, and calls the first one's.
        for name in vars(one).keys() - vars(twin).keys() - {"step"}:
            setattr(twin, name, copy.deepcopy(getattr(one, name), copied))
    return made


def _several(optimizer: Any) -> list[Any]:
    return list(optimizer.by_name.values()) if isinstance(optimizer, OwnOptimizers) else [optimizer]
