"""Finds members that may be one program: they do the same computation with different weights, and have no obstacle.

It reads members without running them. `argosy.training.choice.fused_check` runs the equivalence check.
"""

import functools
import hashlib
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from argosy.readings import closure_variables
from argosy.training.member.copied import may_thaw, moded_optimizers_of
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.draws import rate_of

__all__ = ["Fingerprint", "has_hooks", "hooks_of", "obstacle", "token", "watch_behaviour"]

STRUCTURE = {"_parameters", "_buffers", "_modules", "training"}
"""Attributes of every module that are compared separately, or that programs set."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PLAIN = (
    bool,
    int,
    str,
    bytes,
    type(None),
    type,
    types.BuiltinFunctionType,
    types.ModuleType,
    torch.dtype,
    torch.device,
    torch.Size,
)
Seen = dict[int, tuple[Any, Any]]
"""Values met before, by id: their token, and the value itself, kept alive so that its id stays valid."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What members must have in common to be one program, as names and values."""

    aspects: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, live: LiveMember) -> "Fingerprint":
        """Return a member's fingerprint."""
        member = live.member
        settings = {
            "loss": member.loss,
            "step": member.step,
            "metrics": dict(member.metrics),
            "precision": member.precision,
            "batch_size": member.batch_size,
            "eval_batch_size": member.eval_batch_size or member.batch_size,
            "accumulate": member.accumulate,
            "average": type(member.average),
            "the device": live.backend.device,
        }
        tokens = ((name, token(value)) for name, value in settings.items())
        return cls((*attributes(live.model).items(), *_weight_aspects(live), *tokens))

    def difference(self, other: "Fingerprint") -> str:
        """Return the first aspect in which another fingerprint differs."""
        mine, theirs = dict(self.aspects), dict(other.aspects)
        names = [*mine, *(name for name in theirs if name not in mine)]
        return next(name for name in names if name not in mine or name not in theirs or mine[name] != theirs[name])


def obstacle(live: LiveMember) -> str | None:
    """Return why a member cannot share a program with others; None if it can."""
    return next(_obstacles(live), None)


def _obstacles(live: LiveMember) -> Iterator[str]:
    model, optimizer, schedule = live.model, live.optimizer, live.schedule
    if live.member.optimizers is not None:
        yield "its own step updates the weights"
    if live.member.validate is not None or (live.member.step is not None and live.member.metrics):
        yield "its own step decides what is validated"
    if moded_optimizers_of(optimizer):
        yield "its optimizer steps from other weights than those that are validated"
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS):
            yield f"layer {name!r} has hooks, which would see all members at once"
        # A copy of a module that was compiled in place is not compiled.
        for key in vars(module).keys() - {"_compiled_call_impl"}:
            if hasattr(vars(module)[key], "_torchdynamo_orig_callable"):
                yield f"{key!r} of {f'layer {name!r}' if name else 'the network'} is compiled by torch.compile"
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = set(map(id, stepped))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        if has_hooks(parameter):
            yield f"the weight {name!r} has hooks, which would never be called"
        elif id(parameter) not in numbers:
            yield f"the weight {name!r} requires a gradient but is not in any parameter group of the optimizer"
        elif not parameter.is_contiguous():
            yield f"the weight {name!r} has its own memory format (channels_last?)"
    yield from _overlaps(model)
    if len({parameter.dtype for parameter in trained.values()}) != 1:
        yield "its trained weights have several dtypes"
    if own := may_thaw(optimizer, schedule):
        yield f"{own} is not from torch, so it could freeze or unfreeze weights"
    if live.private:
        yield "it writes into its input"


def _overlaps(model: nn.Module) -> Iterator[str]:
    """Yield an obstacle for each pair of tensors in the same memory, as by `nn.Parameter(other.weight)`: a program gives each its own."""
    tensors = [
        (name, t) for name, t in (*model.named_parameters(), *model.named_buffers()) if t.layout is torch.strided
    ]
    spans = sorted(
        (t.data_ptr(), t.data_ptr() + _extent(t), name, t.requires_grad) for name, t in tensors if t.data_ptr()
    )
    last = (0, 0, "", False)
    for span in spans:
        if span[0] < last[1] and (span[3] or last[3]):
            yield f"{last[2]!r} and {span[2]!r} share memory"
        last = max(last, span, key=lambda one: one[1])


def _extent(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((count - 1) * stride for count, stride in steps)) * tensor.itemsize


def hooks_of(model: nn.Module) -> list[Any]:
    """Return the forward and backward hooks of a network's layers."""
    return [hook for module in model.modules() for kind in HOOKS for hook in getattr(module, kind).values()]


def has_hooks(weight: Tensor) -> bool:
    """Return whether a weight has gradient hooks, which copies do not have."""
    return bool(weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None))


# ---- aspects


def attributes(model: nn.Module) -> dict[str, Any]:
    """Return tokens of layers' attributes other than weights and buffers, by description."""
    named = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
    seen: Seen = {id(part): ((type(part), name), part) for name, part in named}
    described = {}
    for name, module in model.named_modules():
        where = f"layer {name!r}" if name else "the network"
        described[f"the class of {where}"] = _class(module)
        skipped = {*STRUCTURE, rate_of(module)}
        own_attributes = {
            key: value for key, value in vars(module).items() if key not in skipped and not key.endswith("_hooks")
        }
        described |= {f"{key!r} of {where}": token(value, seen) for key, value in own_attributes.items()}
    return described


def watch_behaviour(live: LiveMember, *, layers: bool = True) -> Callable[[], str]:
    """Return a function that names something that steps have changed since, other than weights and buffers; empty if nothing.

    It may be the loss, the own step, or, with `layers`, an attribute of a layer.
    """

    def tokens() -> dict[str, Any]:
        own = {"its loss": token(live.member.loss), "its step": token(live.member.step)}
        return {**(attributes(live.model) if layers else {}), **own}

    before = tokens()
    return lambda: next((what for what, value in tokens().items() if before.get(what) != value), "")


def _weight_aspects(live: LiveMember) -> Iterator[tuple[str, Any]]:
    """Yield each tensor's shape, and the parameter group of trained ones; tied weights have two names and one number."""
    groups = {id(p): number for number, group in enumerate(live.optimizer.param_groups) for p in group["params"]}
    numbers: dict[int, int] = {}
    weights = live.model.named_parameters(remove_duplicate=False)
    for name, tensor in (*weights, *live.model.named_buffers(remove_duplicate=False)):
        number = numbers.setdefault(id(tensor), len(numbers))
        group = groups.get(id(tensor)) if tensor.requires_grad else None
        yield f"the weight {name!r}", (tuple(tensor.shape), tensor.dtype, tensor.requires_grad, group, number)


def _class(module: nn.Module) -> Any:
    """Return a module's class, without the subclass that parametrisation generates."""
    kind = type(module)
    return kind.__mro__[1] if parametrize.is_parametrized(module) else kind


def token(value: Any, seen: Seen | None = None) -> Any:
    """Return a value that equals the token of another value if both behave the same: functions by code, tensors by content.

    Opaque objects are represented by their identity, so two of them always differ.
    """
    seen = {} if seen is None else seen
    if isinstance(value, PLAIN):
        return (type(value), value)
    if isinstance(value, float):
        return (type(value), repr(value))
    if id(value) in seen:
        return ("again", seen[id(value)][0])
    seen[id(value)] = (len(seen), value)
    return (type(value), _inner(value, seen))


def _inner(value: Any, seen: Seen) -> Any:
    def tokens(values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(token(item, seen) for item in values)

    if isinstance(value, torch.Tensor):
        # A tensor of one element counts as contiguous even with stride 0, so it is copied.
        whole = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return _content(whole.view(-1).view(torch.uint8).numpy(), value)
    if isinstance(value, np.ndarray):
        return _content(value, value)
    if isinstance(value, tuple | list):
        return tokens(value)
    if isinstance(value, set | frozenset):
        return frozenset(tokens(value))
    if isinstance(value, Mapping):
        return tokens(value.keys()), tokens(value.values())
    if isinstance(value, functools.partial):
        return tokens((value.func, value.args, value.keywords))
    if isinstance(value, types.FunctionType):
        return (value.__code__, *tokens((value.__defaults__, value.__kwdefaults__, closure_variables(value))))
    if isinstance(value, types.MethodType):
        return tokens((value.__func__, value.__self__))
    if isinstance(value, weakref.ref):
        return token(value(), seen)
    return token(vars(value), seen) if hasattr(value, "__dict__") else id(value)


def _content(array: npt.NDArray[Any], like: torch.Tensor | npt.NDArray[Any]) -> tuple[Any, ...]:
    return (tuple(like.shape), str(like.dtype), hashlib.sha256(array.tobytes()).hexdigest())
