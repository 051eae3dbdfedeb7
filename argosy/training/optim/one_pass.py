"""Single-pass CPU steps of torch's SGD, Adam, AdamW and Adagrad for one member, by torch's fused kernels.

These are the kernels of ``fused=True``, called without the overhead of `Optimizer.step`, which for a small network takes longer than the
backward pass. The arithmetic is done in another order, so weights differ from the optimizer's own by rounding. They are equal, bit for
bit, to those of the same member in a program of several (`argosy.training.optim.rules`). The state is that of the optimizer, which makes
the step itself if the kernels cannot.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from argosy.training.optim.kernels import is_unusual, mark_stepped
from argosy.training.optim.optimizer_list import OptimizerList
from argosy.training.optim.rules import TORCH_KERNELS, Group, counts_steps, state_names

__all__ = ["apply_moves", "prepare_moves", "step_in_one_pass", "can_step_in_one_pass"]

States = dict[Tensor, dict[str, Any]]
Move = Callable[[], object]


def can_step_in_one_pass(optimizer: Any) -> bool:
    """Return whether `step_in_one_pass` may make the steps of an optimizer, or of some optimizers of a list."""
    if isinstance(optimizer, OptimizerList):
        of_kernels = [part for part in optimizer.parts if type(part) in TORCH_KERNELS]
        return bool(of_kernels) and not is_unusual(optimizer) and all(map(can_step_in_one_pass, of_kernels))
    if type(optimizer) not in TORCH_KERNELS or is_unusual(optimizer):
        return False
    places = {(weight.device.type, weight.dtype) for group in optimizer.param_groups for weight in group["params"]}
    return places in ({("cpu", torch.float32)}, {("cpu", torch.float64)})


@torch.no_grad()
def step_in_one_pass(optimizer: Optimizer) -> bool:
    """Make a step; returns False, with nothing done, if the optimizer must make it itself."""
    if isinstance(optimizer, OptimizerList):
        for part in optimizer.parts:
            if not (type(part) in TORCH_KERNELS and step_in_one_pass(part)):
                part.step()
        mark_stepped([optimizer])
        return True
    moves = prepare_moves(optimizer)
    if moves is None:
        return False
    apply_moves(optimizer, moves)
    return True


def prepare_moves(optimizer: Optimizer) -> Sequence[Move] | None:
    """Return the step along the present gradients, for `apply_moves`; None if the optimizer must make it itself.

    The step may be repeated as long as weights, gradients and states are the same tensors; hyper-parameters are read each time.
    """
    kind, moves = type(optimizer), list[Move]()
    if kind not in TORCH_KERNELS:
        return None
    for group in optimizer.param_groups:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            continue
        gradients = [weight.grad for weight in weights]
        # The kernels process elements in memory order.
        if not all(w.is_contiguous() and _dense(g) for w, g in zip(weights, gradients, strict=True)):
            return None
        moves += _moves(kind, group, weights, gradients, optimizer.state)
    return moves


@torch.no_grad()
def apply_moves(optimizer: Optimizer, moves: Sequence[Move]) -> None:
    """Make a step that `prepare_moves` returned."""
    for move in moves:
        move()
    mark_stepped([optimizer])


def _dense(gradient: Tensor) -> bool:
    return gradient.layout is torch.strided and gradient.is_contiguous()


def _moves(
    kind: type[Optimizer], group: Group, weights: list[Tensor], gradients: list[Tensor], states: States
) -> Sequence[Move]:
    """Return the step of one parameter group."""
    names, moves, steps = state_names(kind, group), list[Move](), list[Tensor]()
    own = [states[weight] for weight in weights] if names else []  # torch keeps no empty state either
    if counts_steps(kind):
        steps, count = _counting(own)
        moves.append(count)  # first, because the kernel takes counts that include this step
    state = [[_of(each, name, weight) for each, weight in zip(own, weights, strict=True)] for name in names]
    return [*moves, partial(TORCH_KERNELS[kind], group, weights, gradients, state, steps)]


def _counting(states: Sequence[dict[str, Any]]) -> tuple[list[Tensor], Move]:
    """Return the step counts of some weights, and a function that adds one to each.

    The counts become views of one tensor, because adding to several tensors takes longer than a small network's whole step. Counts that are
    already views of a program's memory (`argosy.training.optim.kernels`) are left as they are.
    """
    steps = [_of(state, "step", None) for state in states]
    if all(step._base is None for step in steps):
        steps = list(torch.stack(steps).unbind())
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
    base = steps[0]._base
    if base is None or base.numel() != len(steps) or any(step._base is not base for step in steps):
        return steps, partial(torch._foreach_add_, steps, 1)
    return steps, partial(base.add_, 1)


def _of(state: dict[str, Any], name: str, weight: Tensor | None) -> Tensor:
    """Return a tensor of a weight's state (a scalar without a weight), created as zeros before the first step.

    From zeros the kernels compute the same first step as the optimizer.
    """
    value: Tensor | None = state.get(name)
    if value is None:
        value = torch.zeros((), device="cpu") if weight is None else torch.zeros_like(weight)
        state[name] = value
    return value
