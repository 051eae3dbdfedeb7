"""The optimizers and schedules of a member with its own step, which have the interface of one and are saved as one."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from argosy.errors import StudyError
from argosy.stopping import Mode
from argosy.study import Member
from argosy.training.member.checks import check_parameters, check_stepped

__all__ = [
    "OwnOptimizers",
    "OwnSchedules",
    "build_own_optimizers",
    "ensure_own_settings",
    "load_optimizer_state",
    "load_schedule_state",
    "optimizer_state",
    "optimizers_inside",
    "schedule_state",
    "step_schedule",
    "strip_given",
]

GIVEN = (FunctionType, Enum)
"""Types of settings in parameter groups that no file can hold and that the factory sets again, for example LARS's filters."""
INSIDE = "inside"
"""Key of the states of optimizers inside an optimizer."""


@dataclass(frozen=True, slots=True)
class OwnOptimizers:
    """Several optimizers with the interface of one."""

    by_name: Mapping[str, Optimizer]
    """The optimizers that the step receives."""
    in_hooks: bool = False
    """Whether hooks of weights may step them in the backward pass; copies of the network have no such hooks."""
    weights: Mapping[str, nn.Parameter] = field(default_factory=dict)
    """The network's weights by name."""
    built: Mapping[str, int] = field(default_factory=dict)
    """Numbers of parameter groups from the factory; steps that unfreeze layers add others."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All parameter groups."""
        return [group for optimizer in self.by_name.values() for group in optimizer.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        for optimizer in self.by_name.values():
            optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        """Do nothing: the member's own step has updated the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return all states, and the names of the weights in groups that steps have added, by optimizer."""
        named = {id(weight): name for name, weight in self.weights.items()}
        added = {
            name: [
                [named.get(id(weight), "") for weight in group["params"]] for group in optimizer.param_groups[count:]
            ]
            for name, count in self.built.items()
            if len((optimizer := self.by_name[name]).param_groups) > count
        }
        states = {"state": {name: optimizer_state(one) for name, one in self.by_name.items()}}
        return {**states, "added": added} if added else states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load all states into optimizers as the factory returns them, or with the groups that steps have added."""
        for name, optimizer in self.by_name.items():
            missing = state.get("added", {}).get(name, [])[len(optimizer.param_groups) - self.built[name] :]
            named = "param_names" in optimizer.param_groups[0]  # torch refuses a group without names beside those with
            for group in missing:
                weights = [(weight, self.weights[weight]) for weight in group]
                optimizer.add_param_group({"params": weights if named else [weight for _, weight in weights]})
            load_optimizer_state(optimizer, state["state"][name])


@dataclass(frozen=True, slots=True)
class OwnSchedules:
    """Several schedules with the interface of one."""

    by_name: Mapping[str, Any]

    def step(self, objective: float = math.nan) -> None:
        """Step all schedules; the objective is known at the end of an epoch."""
        for schedule in self.by_name.values():
            step_schedule(schedule, objective)

    def state_dict(self) -> dict[str, Any]:
        """Return all states, by name."""
        return {name: schedule_state(schedule) for name, schedule in self.by_name.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load all states."""
        for name, schedule in self.by_name.items():
            load_schedule_state(schedule, state[name])


def step_schedule(schedule: Any, objective: float) -> None:
    """Step a schedule at the end of an epoch, with the objective if it follows that."""
    if isinstance(schedule, ReduceLROnPlateau | OwnSchedules):
        schedule.step(objective)
    else:
        schedule.step()


def schedule_state(schedule: Any) -> Any:
    """Return a schedule's state; a schedule inside it, for example the one after a warm-up, is replaced by its state."""
    state = schedule.state_dict()
    for key, value in state.items() if isinstance(state, dict) else ():
        if isinstance(value, LRScheduler):
            state = {**state, key: schedule_state(value)}
    return state


def load_schedule_state(schedule: Any, state: Any) -> None:
    """Load what `schedule_state` returned."""
    present = schedule.state_dict()
    values = present.items() if isinstance(present, dict) else ()
    within = {key: value for key, value in values if isinstance(value, LRScheduler) and key in state}
    for key, value in within.items():
        load_schedule_state(value, state[key])
    schedule.load_state_dict({**state, **within} if within else state)


def optimizer_state(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's state with those of optimizers inside it, such as the one that SAM lets step, which `state_dict` may leave out.

    Weights that are keys, as those of a dict in a group of GrokAdamW, are replaced by names: a file would hold copies of them.
    """
    inside = {name: optimizer_state(one) for name, one in optimizers_inside(optimizer).items()}
    names = {id(weight): name for name, weight in _named_weights(optimizer).items()}
    state: dict[str, Any] = _renamed(optimizer.state_dict(), lambda key: names.get(id(key), key))
    return {**state, INSIDE: inside} if inside else state


def _named_weights(optimizer: Any) -> dict[str, Tensor]:
    weights = [weight for group in getattr(optimizer, "param_groups", ()) for weight in group["params"]]
    return {f"weight {number}": weight for number, weight in enumerate(weights)}


def _renamed(value: Any, name: Callable[[Any], Any]) -> Any:
    """Return a state in which `name` has replaced all keys, also in lists."""
    if isinstance(value, list):
        return [_renamed(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = copy.copy(value)  # of the same type
    renamed.clear()
    renamed.update({name(key): _renamed(item, name) for key, item in value.items()})
    return renamed


def optimizers_inside(optimizer: Any) -> dict[str, Optimizer]:
    """Return the optimizers among an optimizer's attributes, and in lists and dicts there, by name."""
    held = dict(getattr(optimizer, "__dict__", {}))
    for name, box in [*held.items()]:
        items = box.items() if isinstance(box, dict) else enumerate(box) if isinstance(box, list | tuple) else ()
        # Only then as text: the keys of `state` are weights.
        held |= {f"{name}.{key}": one for key, one in items if isinstance(one, Optimizer)}
    return {name: one for name, one in held.items() if isinstance(one, Optimizer) and one is not optimizer}


def load_optimizer_state(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load the state of an optimizer as it was saved.

    Torch casts all tensors of a weight's state, except ``step``, to the dtype of the weight. Values that NAdam and ASGD keep in float32 for
    float64 weights would then round differently, and codes and masks would be numbers.
    """
    if isinstance(optimizer, OwnOptimizers):
        optimizer.load_state_dict(state)
        return
    settings = [{k: v for k, v in group.items() if isinstance(v, GIVEN)} for group in optimizer.param_groups]
    inside, saved = optimizers_inside(optimizer), state.get(INSIDE, {})
    if inside.keys() != saved.keys():
        raise StudyError(
            f"the checkpoint has states of {len(saved)} optimizers inside the member's, which are {len(inside)} now: it was written by an earlier "
            "version of Argosy, or with another optimizer. Resume with that, or train the member again (fresh=, --fresh)."
        )
    held = [(one, one.param_groups, [*one.param_groups], one.state) for one in (*inside.values(), optimizer)]
    optimizer.load_state_dict({key: value for key, value in state.items() if key != INSIDE})
    for name, one in inside.items():
        load_optimizer_state(one, saved[name])
    for one, groups, each, own_state in held:
        _load_into(one, groups, each, own_state)
    optimizer._opt_called = True  # it was, before saving; otherwise a schedule that is stepped first would warn
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    weights = _named_weights(optimizer)
    for holder in (*optimizer.param_groups, optimizer.state):
        inner = {key: item for key, item in holder.items() if item is not holder.get("params")}
        holder.update(_renamed(inner, lambda name: weights.get(name, name)))
    _restore_dtypes(optimizer, state)


def _restore_dtypes(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Give what an optimizer has loaded for each weight the dtypes of the state that was saved, where weights have numbers."""
    for group, saved in zip(optimizer.param_groups, state.get("param_groups", ()), strict=False):
        for weight, number in zip(group["params"], saved["params"], strict=True):
            if weight in optimizer.state and number in state.get("state", {}):
                optimizer.state[weight] = _as_saved(optimizer.state[weight], state["state"][number])


def _as_saved(loaded: Any, saved: Any) -> Any:
    """Return a loaded value with the dtypes of the saved one, also of tensors in lists and dicts."""
    if isinstance(saved, Tensor) and isinstance(loaded, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device, copy=True)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        return {key: _as_saved(value, saved[key]) if key in saved else value for key, value in loaded.items()}
    if isinstance(saved, list | tuple) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
        return type(saved)(map(_as_saved, loaded, saved))
    return saved if isinstance(saved, str) else loaded  # torch loads a text as that of a generator


def _load_into(optimizer: Any, groups: list[dict[str, Any]], each: list[dict[str, Any]], state: dict[Any, Any]) -> None:
    """Put what an optimizer has loaded into the groups and the state that it had; a schedule, or an optimizer around it, may hold these too."""
    loaded, loaded_state = [dict(group) for group in optimizer.param_groups], dict(optimizer.state)
    for group, new in zip(each, loaded, strict=True):
        group.clear()
        group.update(new)
    state.clear()
    state.update(loaded_state)
    groups[:] = each
    # Without effect on an optimizer whose groups and state are properties.
    vars(optimizer).update(param_groups=groups, state=state)


def strip_given(state: Any) -> Any:
    """Return an optimizer's state without values of the types in `GIVEN`."""
    if isinstance(state, list):
        return [strip_given(item) for item in state]
    if not isinstance(state, dict):
        return state
    return {key: strip_given(item) for key, item in state.items() if not isinstance(item, GIVEN)}


def ensure_own_settings(optimizers: Iterable[Optimizer], model: nn.Module) -> None:
    """Copy tensors among the settings of a member's optimizers, such as a learning rate that a factory binds.

    A schedule changes these in place, so other members, and later runs, would have its learning rate.
    """
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for settings in (each for one in optimizers for each in (getattr(one, "defaults", {}), *one.param_groups)):
        leaves = {name: one for name, one in settings.items() if isinstance(one, Tensor) and one.is_leaf}
        settings.update(copy.deepcopy(leaves, memo))


def build_own_optimizers(member: Member, model: nn.Module, mode: Mode) -> tuple[OwnOptimizers, OwnSchedules | None]:
    """Build and check a member's `optimizers` and schedules for its network. Raises StudyError."""
    assert member.optimizers is not None
    by_name = member.optimizers(model)
    is_dict = isinstance(by_name, Mapping)
    if not (is_dict and by_name and all(isinstance(one, Optimizer) for one in by_name.values())):
        classes = sorted({type(one).__name__ for one in by_name.values()}) if is_dict else []
        described = f"a dict of {', '.join(classes) or 'nothing'}" if is_dict else type(by_name).__name__
        raise StudyError(
            f"member {member.name!r}: its optimizers factory returned {described}; it must return a dict of named "
            "torch.optim optimizers, for example {'generator': Adam(model.generator.parameters())}."
        )
    for name, optimizer in by_name.items():
        check_parameters(member, model, f"its optimizer {name!r}", optimizer)
    ensure_own_settings(by_name.values(), model)
    in_hooks = any(weight._post_accumulate_grad_hooks for weight in model.parameters())
    built = {name: len(optimizer.param_groups) for name, optimizer in by_name.items()}
    own = OwnOptimizers(by_name, in_hooks, dict(model.named_parameters()), built)
    return own, None if member.schedule is None else _schedules(member, by_name, mode)


def _schedules(member: Member, optimizers: Mapping[str, Optimizer], mode: Mode) -> OwnSchedules:
    assert member.schedule is not None
    by_name = member.schedule(optimizers)
    if not isinstance(by_name, Mapping):
        raise StudyError(
            f"member {member.name!r}: its schedule factory returned {type(by_name).__name__}; with optimizers= it "
            "must return a dict of named schedulers, for example {'generator': StepLR(optimizers['generator'], "
            "10)}."
        )
    for name, schedule in by_name.items():
        check_stepped(member, f"its schedule {name!r}", schedule, mode)
    return OwnSchedules(by_name)
