"""Copies of a member's network, optimizer, schedule and functions: `copy.deepcopy`, plus the parts that it leaves out and a step needs."""

import copy
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from argosy.bindings import bound_arguments, unwrap_partials
from argosy.readings import instructions_of, is_own
from argosy.stream.copied import begin_copy, finish_copy, parts_of
from argosy.study import Member
from argosy.training.device.moved import copy_held, move_own
from argosy.training.member.own import OwnOptimizers, optimizers_inside

__all__ = [
    "CALLED",
    "DATA_BYTES",
    "called_objects",
    "called_state",
    "copy_together",
    "is_plain_module",
    "move_called",
    "moded_optimizers_of",
    "shared_data",
    "optimizers_of",
    "schedules_of",
    "may_thaw",
    "with_own_buffers",
    "with_own_callables",
    "ensure_own_memory",
]

CALLED = ("loss", "step", "validate", "augment")
"""Fields of a member that are called during training, and may hold state such as counters or random generators."""
FACTORIES = ("model", "optimizer", "optimizers", "schedule")
"""Fields of a member that are called when it is built."""
DATA_BYTES = 1 << 20
"""Bytes above which a tensor counts as data."""


def copy_together(
    member: Member, model: nn.Module, optimizer: Any, schedule: Any
) -> tuple[Member, nn.Module, Any, Any]:
    """Return copies that refer to each other and share no state with the originals; of the member, the functions that it calls are copied."""
    memo, own = begin_copy(model), {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    shared = [value for name in CALLED for value in shared_data(getattr(member, name)) if id(value) not in own]
    memo.update({id(value): value for value in shared})
    copies: tuple[nn.Module, Any, Any] = copy.deepcopy((model, optimizer, schedule), memo)
    calling = with_own_callables(member, memo)
    finish_copy(model, memo)
    # Torch's optimizers copy only the state that a file needs, and no other attributes.
    for original in optimizers_of(optimizer):
        copied = memo[id(original)]
        # A `step` in the attributes is a schedule's wrapper of the class's method, bound to the original; a `__getstate__` may return it.
        vars(copied).pop("step", None)
        for name in vars(original).keys() - vars(copied).keys() - {"step"}:
            setattr(copied, name, copy.deepcopy(getattr(original, name), memo))
    return calling, *copies


def with_own_callables(member: Member, memo: dict[int, Any]) -> Member:
    """Return the member with its own copies of the objects that it calls, so that other members do not change their state.

    Plain functions, weights, and what cannot be copied stay shared. If a factory or metric is a method of a copied object, it
    becomes the method of the copy: the step may use references to the network that the factory has stored there.
    """
    own = copy.copy(member)
    for name in CALLED:
        called = getattr(member, name)
        known = begin_copy(called) | {id(value): value for value in shared_data(called)} | memo
        tried = dict(known)
        if not (copied := _deepcopy(called, tried)):
            tried = known | {id(one): one for one in parts_of(called) if not _deepcopy(one, dict(known))}
            copied = _deepcopy(called, tried)
        if copied:
            object.__setattr__(own, name, *copied)
            memo.setdefault(id(memo), []).append(tried.pop(id(tried), None))  # the objects that deepcopy keeps alive
            memo.update(tried)  # so that two methods of one object stay methods of one copy
    for name in FACTORIES:
        object.__setattr__(own, name, _of_copies(getattr(member, name), memo))
    metrics = {name: _of_copies(metric, memo) for name, metric in member.metrics.items()}
    object.__setattr__(own, "metrics", metrics)
    return own


def move_called(member: Member, device: torch.device) -> None:
    """Put what a member calls on an accelerator: modules, such as a loss with weights of classes, and tensors and networks that partials bind."""
    if device.type == "cpu":
        return
    calls = {name: getattr(member, name) for name in CALLED}
    for called in calls.values():
        owner = getattr(unwrap_partials(called), "__self__", called)
        if isinstance(owner, nn.Module):
            move_own(owner, device)
    # At once, so that functions which share a list share its copy.
    for name, held in copy_held(calls, device).items():
        object.__setattr__(member, name, held)


def _deepcopy(value: Any, memo: dict[int, Any]) -> tuple[Any, ...]:
    """Return the copy of a user's object, alone in a tuple, or nothing if it cannot be copied."""
    try:
        return (copy.deepcopy(value, memo),)
    except Exception:  # boundary to a user's object, which may hold an open file or a lock
        return ()


def called_objects(member: Member) -> dict[str, Any]:
    """Return the functions that are called as a member trains, for a bound method its object, and a user's objects that partials bind."""
    calls = {name: getattr(member, name) for name in CALLED}
    functions = {name: unwrap_partials(called) for name, called in calls.items()}
    partials = {name: called for name, called in calls.items() if isinstance(called, functools.partial)}
    return {name: getattr(function, "__self__", function) for name, function in functions.items()} | {
        f"{name}'s {key}": value
        for name, called in partials.items()
        for key, value in bound_arguments(called).items()
        if is_own(type(value)) and not isinstance(value, nn.Module | Dataset)  # which all members share
    }


def called_state(member: Member, model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the state of the objects that a member calls: of a module its buffers, of another object what its `state_dict` returns.

    A module's weights are not included: all members share them. Neither are buffers of the member's network, in whose state they are.
    """
    states, own = {}, {id(buffer) for buffer in model.buffers()}
    for name, held in called_objects(member).items():
        if is_plain_module(held):
            state = held.state_dict(keep_vars=True)
            states[name] = {
                key: one for key, one in state.items() if not isinstance(one, nn.Parameter) and id(one) not in own
            }
        elif hasattr(held, "state_dict") and hasattr(held, "load_state_dict"):
            states[name] = held.state_dict()
    return states


def is_plain_module(held: Any) -> bool:
    """Return whether an object is a module whose `state_dict` is torch's."""
    return isinstance(held, nn.Module) and type(held).state_dict is nn.Module.state_dict


def _of_copies(factory: Any, memo: dict[int, Any]) -> Any:
    """Rebind a method of a copied object to its copy, also inside a partial; return other callables unchanged."""
    if isinstance(factory, functools.partial):
        return functools.partial(_of_copies(factory.func, memo), *factory.args, **factory.keywords)
    of = getattr(factory, "__self__", None)
    return MethodType(factory.__func__, memo[id(of)]) if isinstance(factory, MethodType) and id(of) in memo else factory


def with_own_buffers(model: nn.Module, registered: Collection[int], build: Callable[[], nn.Module]) -> nn.Module:
    """Return the network, or a copy with the same weights if buffers in it existed before the factory's call.

    These belong to a module that the factory did not make, such as a global BatchNorm without weights, and all members would change them. Of the
    copy, only buffers above `DATA_BYTES` stay shared.
    """
    foreign = {id(buffer) for buffer in model.buffers()}.difference(registered)
    if not foreign or foreign.isdisjoint(map(id, build().buffers())):
        return model
    memo, large = begin_copy(model), [buffer for buffer in model.buffers() if _is_large(buffer)]
    memo.update({id(one): one for one in (*model.parameters(), *large)})
    copied = copy.deepcopy(model, memo)
    finish_copy(model, memo)
    return copied


def ensure_own_memory(model: nn.Module, build: Callable[[], nn.Module], *, frozen: bool = False) -> None:
    """Give trained, or `frozen`, weights, and buffers, their own memory if the factory makes them from tensors that existed before its call.

    Otherwise all members would change these, for example with `Embedding.from_pretrained(vectors, freeze=False)` or
    `load_state_dict(state, assign=True)`.
    """
    weights = [one for one in model.parameters() if one.requires_grad is not frozen and one.layout is torch.strided]
    if not any(map(_shares_memory, weights)):
        return
    again = build()
    # 0 is the address of empty and of sparse tensors.
    places = {_address(tensor) for tensor in (*again.parameters(), *again.buffers())} - {0}
    for weight in weights:
        if _address(weight) in places:
            weight.data = weight.data.clone()
    copies = {id(buffer): buffer.clone() for buffer in model.buffers() if _address(buffer) in places}
    for module in model.modules():
        module._buffers.update({key: copies.get(id(buffer), buffer) for key, buffer in module._buffers.items()})


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def _shares_memory(tensor: Tensor) -> bool:
    """Return whether other tensors, or an array, may share its memory."""
    storage = tensor.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count > 2 or not storage.resizable()  # two are the tensor and `storage`


def shared_data(called: Any) -> Iterator[Any]:
    """Yield objects that all members share because they may be large.

    These are tensors, arrays and networks bound by partials (for example a noise bank or a teacher), weights of other networks, and datasets
    and large tensors or arrays held as attributes.
    """
    if isinstance(called, functools.partial):
        for value in (called.func, *called.args, *called.keywords.values()):
            yield from [value] if isinstance(value, Tensor | np.ndarray | nn.Module) else shared_data(value)
        return
    owner = getattr(called, "__self__", called)
    for value in (owner, *getattr(owner, "__dict__", {}).values()):
        if isinstance(value, nn.Module):
            yield from value.parameters()
        elif isinstance(value, Dataset) or (isinstance(value, Tensor | np.ndarray) and _is_large(value)):
            yield value


def _is_large(value: Tensor | np.ndarray[Any, Any]) -> bool:
    return math.prod(value.shape) * value.itemsize > DATA_BYTES  # a sparse tensor has no `nbytes`


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the torch optimizers of which a member's optimizer consists, including itself, each before those that it holds."""
    several = isinstance(optimizer, OwnOptimizers)
    inside = optimizer.by_name if several else optimizers_inside(optimizer)
    return ([] if several else [optimizer]) + [each for one in inside.values() for each in optimizers_of(one)]


def schedules_of(schedule: Any) -> Iterator[Any]:
    """Yield a schedule and, recursively, the parts of torch's composed schedules."""
    yield schedule
    for part in getattr(schedule, "_schedulers", ()):
        yield from schedules_of(part)


def may_thaw(optimizer: Any, schedule: Any) -> str:
    """Return what is not torch's and called in or after steps, where it may freeze or unfreeze weights: a hook of the optimizer, an optimizer
    whose code sets `requires_grad`, or a schedule, also one inside of a torch schedule. Empty if there is none."""
    for one in optimizers_of(optimizer):
        if one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks:
            return "a hook of its optimizer"
        if any(map(_turns_weights, type(one).__mro__)):
            return f"its optimizer {type(one).__name__}"
    for one in () if schedule is None else schedules_of(schedule):
        if not isinstance(one, LRScheduler) or not type(one).__module__.startswith("torch."):
            return f"its schedule {type(one).__name__}"
    return ""


def _turns_weights(kind: type) -> bool:
    """Return whether methods of an optimizer's class that is not torch's set `requires_grad`; `zero_grad` does so for gradients."""
    if kind.__module__.startswith("torch."):
        return False
    methods = [method for name, method in vars(kind).items() if name not in ("__init__", "zero_grad")]
    return any(
        one.argval == "requires_grad_" or (one.argval == "requires_grad" and one.opname == "STORE_ATTR")
        for method in methods
        if isinstance(method, FunctionType)
        for one in instructions_of(inspect.unwrap(method).__code__)  # such as one under torch.no_grad()
    )


def moded_optimizers_of(optimizer: Any) -> list[Any]:
    """Return those with modes of their own, such as schedule-free ones: their trained weights differ from those that are validated and saved."""
    return [one for one in optimizers_of(optimizer) if hasattr(one, "train") and hasattr(one, "eval")]
