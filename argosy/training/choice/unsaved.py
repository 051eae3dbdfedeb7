"""Finds state that steps change and no checkpoint has, by comparing what a copy of a member holds before and after steps."""

import copy
import itertools
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from io import IOBase
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.utils.weak import WeakIdKeyDictionary

from argosy.stream.blocks import Block, same_bits
from argosy.stream.own_generators import own_generator_states, variables_of
from argosy.stream.trees import flatten
from argosy.training.choice.copies import ShownBatch
from argosy.training.device.attempts import attempt
from argosy.training.member.copied import (
    CALLED,
    called_objects,
    called_state,
    is_plain_module,
    optimizers_of,
    shared_data,
)
from argosy.training.member.live import LiveMember
from argosy.training.member.own import load_optimizer_state, optimizer_state
from argosy.training.member.weights import load_weights
from argosy.training.programs.fused.fingerprint import hooks_of, token
from argosy.training.programs.solo import Solo

__all__ = ["LOADED", "RESET", "TOGETHER", "VALIDATING", "changed_by_validations", "training_code", "UnsavedState"]

INSPECTIONS = itertools.count()
"""Numbers the inspections of iterators, and the tensors that are seen."""
TENSORS: MutableMapping[Any, int] = WeakIdKeyDictionary()
"""The number of each tensor."""
MAX_BYTES = 32 << 20
"""Bytes above which an array counts as data and is not inspected."""
NUMBERS = (bool, int, float)
MAX_VALUES = 2000
"""Most values inspected in one attribute."""
RESET = "is not in any checkpoint and is reset when the run resumes"
MOVING = (
    f"steps change {{}}, which {RESET}: keep it in a persistent "
    "buffer (register_buffer), in a layer if it is a network, or in an optimizer's state; pass a schedule as schedule=; "
    "give an object that is no network state_dict() and load_state_dict()"
)
TOGETHER = "which all members with that function share"
AROUND = (
    f"steps change the outer variable {{}}, {TOGETHER} and no checkpoint contains: keep it in the network or, "
    "unless it holds weights, in an object with __call__, which is copied for each member"
)
LOADED = "a network that is loaded from its file has a different validation loss"
BOUND = (
    f"steps change a tensor, array, network or iterator that its {{}} holds, {TOGETHER} and no checkpoint contains: "
    "keep it in the network"
)
DRAWING = f"{{}} draws from its own generator, whose state {RESET}: draw from torch's default generator"
VALIDATING = "so weights depend on validation samples, and on how often they are validated"


class UnsavedState:
    """What a copy of a member holds that no checkpoint has: as built, after its first step, and after further ones.

    A schedule that has been taken from the copy is given apart.
    """

    def __init__(self, live: LiveMember) -> None:
        self._built = _own_state(live, live.schedule)
        self._stepped: Mapping[str, Any] = {}
        self._once: list[str] = []
        """Sentences about state that the first step changed; mostly caches."""
        self._moving: list[str] = []
        """Sentences about state that further steps changed."""

    def note_first_step(self, live: LiveMember, schedule: Any) -> None:
        """Note what the first step has changed."""
        own = _own_state(live, schedule)
        self._once = [where for where in own if self._built.get(where) != own[where]]
        self._stepped = _unsaved_state(live, own)

    def note_further_steps(self, live: LiveMember, schedule: Any) -> None:
        """Note what steps have changed since the first one."""
        now = _unsaved_state(live, _own_state(live, schedule))
        self._moving = [where for where, value in now.items() if self._stepped.get(where) != value]

    def warnings(self, trial: Solo, live: LiveMember, block: Block, size: int) -> list[str]:
        """Return the warnings: all if a loaded network validates differently, else the first.

        State that only the first step changes is reported only if a network loaded without it validates or trains differently, for example
        without the flag by which the first batch sets weights.
        """
        if not self._moving and not self._once:
            return []
        try:
            behind = _resume_copy(live, trial)
        except (RuntimeError, ValueError, KeyError):
            # The network has other tensors than it was built with, which is reported when it is saved or loaded.
            return self._moving[:1]
        # Each on a copy of its own, because a validation may move a carried hidden state too; one copy at a time, to save memory.
        tried = itertools.chain((Solo(trial.live.trial()) for _ in range(2)), [behind])
        if size and _only_third_differs(_validation_results(one, block, size) for one in tried):
            # One sentence for all layers with an attribute of this name.
            named = {where.partition(" of ")[0]: where for where in reversed(self._moving or self._once)}
            return [f"{LOADED}, because {where}" for where in named.values()]
        if self._moving:
            return self._moving[:1]
        trained = itertools.chain((_resume_copy(live, trial) for _ in range(2)), [trial])
        differs = False
        with attempt() as stepped:  # an optimizer may raise without what its first step sets
            differs = _only_third_differs(_training_results(one, block) for one in trained)
        return self._once[:1] if differs or (stepped.error and not stepped.memory) else []


def _unsaved_state(live: LiveMember, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokens of state in no checkpoint, by sentence: the member's `own` (see `_own_state`), variables around its functions, generators."""
    states: dict[str, Any] = {}
    for one in training_code(live):
        for key, marks in _variable_tokens(variables_of(one)):
            # Several modules may have a variable of this name.
            states.setdefault(AROUND.format(repr(key)), []).append(marks)
    for hook in hooks_of(live.model):
        for key, value in variables_of(hook).items():
            if type(value) in NUMBERS:  # other variables of a hook mostly belong to the network
                states.setdefault(AROUND.format(repr(key)), []).append(value)
    # With `keep_vars`, because the values without it are other objects than those that functions hold.
    saved = {id(one) for one in live.model.state_dict(keep_vars=True).values()}
    for name in CALLED:
        called = getattr(live.member, name)
        arguments = (*called.args, *called.keywords.values()) if isinstance(called, partial) else ()
        bound = [*shared_data(called), *(one for one in arguments if isinstance(one, Iterator))]
        states[BOUND.format(name)] = [_versions(one) for one in bound if id(one) not in saved]
    for what, part in {"network": live.model, **called_objects(live.member)}.items():
        states[DRAWING.format(f"its {what}")] = own_generator_states(part)
    return {**states, **own}


def _own_state(live: LiveMember, schedule: Any) -> dict[str, Any]:
    """Return tokens of a member's own numbers, arrays and leaf tensors in no checkpoint, by sentence; passes recompute other tensors."""
    states: dict[str, Any] = {}
    held_there, optimizers = live.model.state_dict(keep_vars=True), optimizers_of(live.optimizer)
    schedules = getattr(schedule, "by_name", {}).values()  # such as the stand-in for a LightningModule's trainer
    kept = (*held_there.values(), *flatten(optimizer_state(live.optimizer))[0], *optimizers, *schedules)
    saved, called = {id(one) for one in kept}, called_state(live.member, live.model)
    for what, part in {"network": live.model, **called_objects(live.member)}.items():
        if what in called and not is_plain_module(part):
            continue  # its `state_dict` is saved
        for name, module in part.named_modules() if isinstance(part, nn.Module) else [("", part)]:
            if isinstance(module, nn.Module) and (
                type(module).get_extra_state is not nn.Module.get_extra_state  # it saves its own state
                or _is_metric(module)
            ):
                continue
            where = f"layer {name!r}" if name else f"the {what}"
            states |= {MOVING.format(f"{key!r} of {where}"): value for key, value in _unsaved(module, saved)}
    for name, weight in live.model.named_parameters():  # such as `weight.org` of binarized networks
        states |= {MOVING.format(f"{key!r} of {name!r}"): value for key, value in _unsaved(weight, saved)}
    for optimizer in optimizers:
        saves_itself = type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
        unsaved = [] if saves_itself else _unsaved(optimizer, saved)
        states |= {
            MOVING.format(f"{key!r} of its optimizer {type(optimizer).__name__}"): value for key, value in unsaved
        }
    return states


def _is_metric(module: nn.Module) -> bool:
    """Return whether a layer is a metric, as those of torchmetrics are, on which no weights depend."""
    return hasattr(module, "update") and hasattr(module, "compute")


def training_code(live: LiveMember) -> list[Any]:
    """Return the functions called in training and the classes of layers and optimizers, all of which may draw for the first time after measuring."""
    kinds = {*map(type, live.model.modules()), *map(type, optimizers_of(live.optimizer))}
    return [*kinds, *(getattr(live.member, name) for name in CALLED)]


def _unsaved(holder: Any, saved: Collection[int]) -> Iterator[tuple[str, Any]]:
    """Yield tokens of the numbers, arrays and leaf tensors that an object holds, except those in `saved`, which has ids."""
    attributes = {} if isinstance(holder, FunctionType) else dict(getattr(holder, "__dict__", {}))
    attributes.pop("_opt_called", None)  # torch's flag to detect a schedule that was stepped before its optimizer
    if isinstance(holder, torch.optim.Optimizer):
        in_file = "param_groups", "state", "defaults"
        attributes = {key: value for key, value in attributes.items() if key not in in_file}
    if isinstance(holder, nn.Module):
        attributes = {
            key: value for key, value in attributes.items() if key not in ("_parameters", "_buffers", "_modules")
        }
        attributes |= {key: holder._buffers.get(key) for key in holder._non_persistent_buffers_set}
        for hook in holder._forward_pre_hooks.values():  # recomputed by each pass, as in torch.nn.utils.weight_norm
            attributes.pop(getattr(hook, "name", getattr(hook, "_tensor_name", None)), None)
    for key, value in attributes.items():
        tokens = [token(leaf) for leaf in _state_in(value, saved)]
        if tokens:
            yield key, tokens


def _variable_tokens(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield numbers, versions of tensors and contents of arrays from variables around functions, by name; networks count by their weights.

    Only numbers that are a variable or a value of a dict count. Numbers in lists and objects are mostly for display.
    """
    for key, value in variables.items():
        tensors = _versions(value)
        numbers = [one for one in (value.values() if isinstance(value, dict) else [value]) if type(one) in NUMBERS]
        if tensors or numbers:
            yield key, (numbers, tensors)


def _versions(value: Any) -> list[Any]:
    """Return a list that differs once the tensors, arrays or networks in a value change, without copying them."""
    parts = [one for one in _state_in(value, ()) if isinstance(one, torch.Tensor | str)]
    weights = [_sum(one) for one in parts if isinstance(one, nn.Parameter)]
    return [
        one if isinstance(one, str) else (_number(one), one.is_inference() or one._version) for one in parts
    ] + weights


def _number(one: torch.Tensor) -> int:
    """Return a number that no other tensor has; its `id` may be that of one that is gone."""
    if one not in TENSORS:
        TENSORS[one] = next(INSPECTIONS)
    return TENSORS[one]


def _sum(leaf: torch.Tensor) -> str:
    """Return the sum of a weight as text, because writing to `.data`, as moving averages do, changes no version."""
    return "" if leaf.is_meta or not leaf.is_floating_point() else repr(leaf.detach().sum(dtype=torch.float64).item())


def _state_in(value: Any, saved: Collection[int]) -> Iterator[Any]:
    """Yield the numbers and tensors in a value, in its lists, dicts, deques and attributes of objects, except those in `saved`, which has ids.

    A leaf tensor is yielded itself. Other tensors, which most passes recompute, are yielded as True, so that a growing list of them shows.
    An array is yielded as text of its content, a network as the sums of its weights, an iterator as a text that differs each time.
    """
    todo, seen = [value], set[int]()
    while todo and len(seen) < MAX_VALUES:
        one = todo.pop()
        if type(one) in NUMBERS:
            yield one
        elif id(one) not in seen and id(one) not in saved:
            seen.add(id(one))
            if isinstance(one, torch.Tensor):
                yield one if one.is_leaf and one.layout is torch.strided else True
            elif isinstance(one, np.ndarray):  # NumPy counts no versions
                if one.nbytes <= MAX_BYTES and not one.dtype.hasobject:
                    yield f"{one.shape} {zlib.crc32(one.tobytes())}"
            elif one is value and isinstance(one, Iterator) and not isinstance(one, IOBase):
                yield f"turn {next(INSPECTIONS)}"  # such as a loader's: its position cannot be read
            elif isinstance(one, list | tuple | deque | dict):
                todo += one.values() if isinstance(one, dict) else one
            elif isinstance(one, nn.Module):
                leaves = [leaf for leaf in one.state_dict(keep_vars=True).values() if isinstance(leaf, torch.Tensor)]
                yield from [_sum(leaf) for leaf in leaves if id(leaf) not in saved]
            elif not isinstance(one, type | FunctionType | ModuleType | BasePruningMethod):  # its mask is a buffer
                todo += getattr(one, "__dict__", {}).values()


def changed_by_validations(trial: Solo, block: Block, size: int) -> list[str]:
    """Return a sentence if validations change what a checkpoint holds, as a step does that moves an average in validation too.

    What a second validation leaves as it is, such as weights that each pass masks, training would have changed as well.
    """
    before, changed = _sums(trial), set[str]()
    for _ in range(2):
        _validation_results(trial, block, size)
        after = _sums(trial)
        changed = {name for name, value in after.items() if before.get(name) != value}
        if not changed:
            return []
        before = after
    return [
        f"its validation changes {min(changed)}, with which training goes on, {VALIDATING}: change it only if model.training, in a loss only "
        "if torch.is_grad_enabled(), or pass a validate= that does not"
    ]


def _sums(trial: Solo) -> dict[str, str]:
    """Return the sums of saved tensors that steps use, because copies would need as much memory."""
    live = trial.live
    states = {"network": live.model.state_dict(), **called_state(live.member, live.model)}
    metrics = tuple(f"{name}." for name, module in live.model.named_modules() if _is_metric(module))
    leaves = {
        f"{key!r} of the {what}": one
        for what, state in states.items()
        if not what.startswith("validate") and isinstance(state, Mapping)
        for key, one in state.items()
        if isinstance(one, torch.Tensor) and one.layout is torch.strided and not (one.is_meta or one.is_quantized)
        if not str(key).startswith(metrics)
    }
    return {
        where: repr(one.detach().sum(dtype=None if one.is_complex() else torch.float64).item())
        for where, one in leaves.items()
    }


def _only_third_differs(results: Iterable[list[torch.Tensor]]) -> bool:
    """Return whether the first two of three results are equal and the third differs."""
    once, twice, other = results
    return same_bits(once, twice) and not same_bits(once, other)


def _training_results(solo: Solo, block: Block) -> list[torch.Tensor]:
    """Return the losses and gradients of a training batch of a block, and the weights after a step."""
    batch = ShownBatch(block, solo.live.usual_batch)
    solo.drop_gradients()
    solo.live.schedule = None  # one that is stepped with each batch may have no further steps
    weights = list(solo.live.model.parameters())
    with solo.active():
        losses = solo.gradients(batch.data, batch.rows, of=batch.rows)
        derived = _copies([losses, *(weight.grad for weight in weights if weight.grad is not None)])
        solo.move()
    return derived + _copies(weights)


def _copies(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [one.detach().clone(memory_format=torch.contiguous_format) for one in tensors if one.layout is torch.strided]


def _resume_copy(live: LiveMember, trial: Solo) -> Solo:
    """Return the member as it would resume from a checkpoint of the trial."""
    behind = Solo(live.trial())
    weights = trial.live.model.state_dict()
    late = weights.keys() - behind.live.model.state_dict().keys()
    load_weights(behind.live.model, weights, live.backend.device, late=late)
    load_optimizer_state(behind.live.optimizer, copy.deepcopy(optimizer_state(trial.live.optimizer)))
    behind.live.load_called_state(copy.deepcopy(called_state(trial.live.member, trial.live.model)))
    behind.live.randomness = trial.live.randomness.copy()
    return behind


def _validation_results(solo: Solo, block: Block, size: int) -> list[torch.Tensor]:
    """Return the losses and outputs of a member on a validation batch of a block."""
    solo.live.begin_validation()
    with solo.active(keep=True):
        return solo.answers(ShownBatch(block, size).data)
