"""Single-pass CPU steps of torch's SGD, Adam, AdamW and Adagrad for one member, by torch's fused kernels.

They are the kernels of ``fused=True``, called without the overhead of `Optimizer.step`, which takes a small network longer than its
backward pass. The arithmetic is the same in another order: weights differ from the optimizer's own by rounding. The state is the
optimizer's, which makes the step itself where kernels cannot, as the first one, before there is state.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from argosy.training.optim.kernels import is_unusual

__all__ = ["one_pass", "takes_one_pass"]

Weights = list[Tensor]
Group = dict[str, Any]
States = list[dict[str, Any]]
Move = Callable[[], None]


def takes_one_pass(optimizer: Any) -> bool:
    """Whether `one_pass` may make steps of an optimizer."""
    if type(optimizer) not in RULES or is_unusual(optimizer):
        return False
    places = {(weight.device.type, weight.dtype) for group in optimizer.param_groups for weight in group["params"]}
    return places in ({("cpu", torch.float32)}, {("cpu", torch.float64)})


@torch.no_grad()
def one_pass(optimizer: Optimizer) -> bool:
    """Make a step; False, with nothing done, where the optimizer has to make it itself."""
    rule, moves = RULES[type(optimizer)], []
    for group in optimizer.param_groups:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            continue
        gradients = [weight.grad for weight in weights]
        # The kernels run through memory in its order.
        if not all(w.is_contiguous() and _dense(g) for w, g in zip(weights, gradients, strict=True)):
            return False
        move = rule(group, weights, gradients, [optimizer.state.get(weight, {}) for weight in weights])
        if move is None:
            return False
        moves.append(move)
    for move in moves:
        move()
    optimizer._opt_called = True  # type: ignore[attr-defined]  # schedules check it
    return True


def _dense(gradient: Tensor) -> bool:
    return gradient.layout is torch.strided and gradient.is_contiguous()


def _sgd(group: Group, weights: Weights, gradients: Weights, states: States) -> Move | None:
    momentum = group["momentum"]
    if momentum and any(state.get("momentum_buffer") is None for state in states):
        return None
    buffers = [state["momentum_buffer"] for state in states] if momentum else []

    def move() -> None:
        torch._fused_sgd_(
            weights, gradients, buffers, weight_decay=group["weight_decay"], momentum=momentum, lr=group["lr"], dampening=0.0,
            nesterov=group["nesterov"], maximize=False, is_first_step=False,
        )  # fmt: skip

    return move


def _adam(
    group: Group, weights: Weights, gradients: Weights, states: States, *, decoupled: bool = False
) -> Move | None:
    if not all(states):
        return None
    steps, (beta1, beta2) = [state["step"] for state in states], group["betas"]
    decoupled = decoupled or group.get("decoupled_weight_decay", False)
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def move() -> None:
        torch._foreach_add_(steps, 1)
        kernel(
            weights, gradients, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [], steps, lr=group["lr"],
            beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip

    return move


def _adagrad(group: Group, weights: Weights, gradients: Weights, states: States) -> Move | None:
    if not all(states):
        return None
    steps = [state["step"] for state in states]

    def move() -> None:
        torch._foreach_add_(steps, 1)
        torch._fused_adagrad_(
            weights, gradients, [state["sum"] for state in states], steps, lr=group["lr"], lr_decay=group["lr_decay"],
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip

    return move


RULES: dict[type[Optimizer], Callable[[Group, Weights, Weights, States], Move | None]] = {
    SGD: _sgd,
    Adagrad: _adagrad,
    Adam: _adam,
    AdamW: partial(_adam, decoupled=True),
}
