"""Copy networks with `copy.deepcopy`, and correct the copy: references to the original, and attributes that its layers need."""

import contextlib
import copy
import operator
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from argosy.readings import is_own

__all__ = ["begin_copy", "finish_copy", "copy_network", "parts_of"]

Copied = TypeVar("Copied", bound=nn.Module)


def begin_copy(copied: Any) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy` of a network or another object, with copies of the tensors that it refuses.

    These are sparse CSR tensors and those with a graph, such as weights under the old parametrisation or pruning.
    """
    tensors = [one for one in parts_of(copied) if isinstance(one, Tensor)]
    return {id(one): one.detach().clone() for one in tensors if not (one.is_leaf and one.layout is torch.strided)}


def parts_of(held: Any) -> Iterator[Any]:
    """Yield what an object holds at any depth of lists, dicts, partials, methods, networks and a user's objects."""
    seen, left = set[int](), [held]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, partial):
            left += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            left.append(value.__self__)
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif not isinstance(value, Tensor) and (isinstance(value, nn.Module) or is_own(type(value))):
            left += getattr(value, "__dict__", {}).values()
        else:
            yield value


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
