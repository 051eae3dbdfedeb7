"""Copy networks with `copy.deepcopy`, and correct the copy: references to the original, and attributes that its layers need."""

import contextlib
import copy
import operator
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from argosy.readings import is_own

__all__ = ["begin_copy", "finish_copy", "copy_network"]

Copied = TypeVar("Copied", bound=nn.Module)


def begin_copy(copied: Any) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy` of a network or another object, with copies of the tensors that it refuses."""
    # Non-leaf tensors, such as weights under the old parametrisation or pruning, and sparse CSR ones; also in lists, dicts and objects.
    copies, seen, left = dict[int, Any](), set[int](), [copied]
    while left:
        value = left.pop()
        if isinstance(value, Tensor) and not (value.is_leaf and value.layout is torch.strided):
            copies[id(value)] = value.detach().clone()
        elif id(value) not in seen:
            seen.add(id(value))
            own = isinstance(value, nn.Module) or is_own(type(value))
            held = getattr(value, "__dict__", value) if own else value
            left += held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()
    return copies


def copy_network(network: Copied) -> Copied:
    """Return a copy of a network."""
    memo = begin_copy(network)
    copied = copy.deepcopy(network, memo)
    finish_copy(network, memo)
    return copied


def finish_copy(network: nn.Module, memo: dict[int, Any]) -> None:
    """Complete the copy of a network, given the memo of its `deepcopy`."""
    for weight in network.parameters():  # torch copies only the values, not attributes such as muP's `infshape`
        if id(weight) in memo:
            vars(memo[id(weight)]).update(copy.deepcopy(vars(weight), memo))
    _rebind(memo.get(id(network), network), memo)


def _rebind(network: nn.Module, memo: dict[int, Any]) -> None:
    """Let hooks, other functions and weak references of a copied network refer to the copy; `deepcopy`, whose memo this is, does not change them.

    Otherwise a hook such as `lambda layer, inputs, output: self.seen.append(output)` in the copy would write into the original.
    """
    for module in network.modules():
        for held in (vars(module), *[one for one in vars(module).values() if isinstance(one, dict)]):
            held.update(
                {key: _rebind_value(one, memo) for key, one in held.items() if isinstance(one, FunctionType | ref)}
            )
    # Lists at any depth, such as that of the weights that a moving average of torch_ema follows; one that is its own copy is shared.
    for several in [one for key, one in memo.items() if isinstance(one, list) and key != id(one)]:
        several[:] = [_rebind_value(one, memo) if isinstance(one, ref) else one for one in several]


def _rebind_value(value: Any, memo: dict[int, Any]) -> Any:
    """Return the copy of a copied object, or a function or weak reference rebuilt to refer to copies; other values unchanged."""
    if isinstance(value, ref):
        return ref(memo[id(value())]) if id(value()) in memo else value
    if isinstance(value, MethodType) and id(value.__self__) in memo:
        return MethodType(value.__func__, memo[id(value.__self__)])
    if id(value) in memo or not isinstance(value, FunctionType):
        return memo.get(id(value), value)
    memo[id(value)] = value  # for a function that calls itself
    parts = value.__closure__ or (), value.__defaults__ or ()
    cells, defaults = tuple(_cell(cell, memo) for cell in parts[0]), tuple(_rebind_value(one, memo) for one in parts[1])
    if any(map(operator.is_not, (*cells, *defaults), (*parts[0], *parts[1]))):
        memo[id(value)] = copied = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
        copied.__kwdefaults__ = value.__kwdefaults__
        vars(copied).update(vars(value))
    return memo[id(value)]


def _cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    with contextlib.suppress(ValueError):  # an empty cell
        content = _rebind_value(cell.cell_contents, memo)
        return cell if content is cell.cell_contents else CellType(content)
    return cell
