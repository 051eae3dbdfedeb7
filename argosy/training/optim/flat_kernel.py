"""Optimizer steps of unlike members on an accelerator: torch's SGD, Adam and AdamW, by one kernel for all weights of all members.

Weights, gradients and moments each are one tensor, in which a block of numbers is one member's (`argosy.training.device.own_kernels`).
Hyper-parameters are read from the members' own optimizers, whose states are views of the moments.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from argosy.training.device.kernel_forms import OwnKernels
from argosy.training.device.own_kernels import kernels_of
from argosy.training.optim.kernels import Numbers, kind_of, steps_differ

__all__ = ["FlatKernel", "FlatMemory", "steps_along"]

NAMES = {SGD: ("momentum_buffer", ""), Adam: ("exp_avg", "exp_avg_sq"), AdamW: ("exp_avg", "exp_avg_sq")}
"""Names of the moments in optimizers' states."""


def steps_along(optimizer: Any) -> bool:
    """Whether a `FlatKernel` makes the steps of an optimizer: one of these types with usual options and one group."""
    return type(optimizer) in NAMES and kind_of(optimizer) is not None and len(optimizer.param_groups) == 1


class FlatMemory(Protocol):
    """Weights of members, gradients, and each block's member."""

    weights: Tensor
    gradients: Tensor
    owners: list[int]


class FlatKernel:
    """Steps members with `steps_along`; it holds the state of their optimizers."""

    rows = slice(None)

    def __init__(self, optimizers: Sequence[Optimizer], memory: FlatMemory, kernels: OwnKernels) -> None:
        self._optimizers = optimizers
        self._kernels = kernels
        self._weights = memory.weights
        self._owners = torch.tensor(memory.owners, dtype=torch.int32, device=memory.weights.device)
        self._moments = torch.zeros_like(memory.weights), torch.zeros_like(memory.weights)
        weights = [optimizer.param_groups[0]["params"] for optimizer in optimizers]
        *self._firsts, count = itertools.accumulate(map(len, weights), initial=0)
        """Number of each member's first weight."""
        self._steps = torch.zeros(count)
        """Steps that each weight has made."""
        self._begun = False
        for optimizer, own, first in zip(optimizers, weights, self._firsts, strict=True):
            for weight, steps in zip(own, self._steps[first:].unbind(), strict=False):
                self._take(optimizer, weight, steps)

    @classmethod
    def of(cls, optimizers: Sequence[Optimizer], memory: FlatMemory) -> "FlatKernel | None":
        """Return the kernel of these optimizers; None where weights of one have made unequal numbers of steps, or there is no such kernel."""
        kernels = kernels_of(memory.weights.device)
        if kernels is None or any(map(steps_differ, optimizers)):
            return None
        return cls(optimizers, memory, kernels)

    @property
    def moved(self) -> Sequence[Tensor]:
        """The moments, each as one row."""
        return [moment.unsqueeze(0) for moment in self._moments]

    def numbers(self) -> Sequence[Numbers]:
        """Return each member's numbers (`OwnKernels.step`)."""
        made = self._steps[self._firsts].tolist()
        return [[_numbers(optimizer, steps + 1) for optimizer, steps in zip(self._optimizers, made, strict=True)]]

    def move(self, gradients: Tensor, numbers: Sequence[Tensor]) -> None:
        """Do the device's part of a step."""
        self._kernels.step(self._weights, gradients[0], self._moments, numbers[0], self._owners)

    def note_step(self) -> None:
        """Do the host's part of a step. Without `_opt_called`, schedules would warn that they were called too early."""
        self._steps.add_(1)
        if not self._begun:
            self._begun = True
            for optimizer in self._optimizers:
                optimizer._opt_called = True  # type: ignore[attr-defined]

    def dissolve(self) -> None:
        """Give the optimizers' states memory of their own."""
        for optimizer in self._optimizers:
            for weight in optimizer.param_groups[0]["params"]:
                state = optimizer.state.get(weight, {})
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        state[name] = value.clone()

    def _take(self, optimizer: Optimizer, weight: nn.Parameter, steps: Tensor) -> None:
        """Let an optimizer's state of a weight be views of the moments."""
        if isinstance(optimizer, SGD) and not optimizer.param_groups[0]["momentum"]:
            return  # whose state is empty
        state: dict[str, Any] = optimizer.state[weight]
        place = slice(weight.storage_offset(), weight.storage_offset() + weight.numel())
        for name, moment in zip(NAMES[type(optimizer)], self._moments, strict=True):
            if name:
                own = moment[place].view(weight.shape)
                if state.get(name) is not None:
                    own.copy_(state[name])
                state[name] = own
        if type(optimizer) is not SGD:
            if "step" in state:
                steps.copy_(state["step"])
            state["step"] = steps


def _numbers(optimizer: Optimizer, step: float) -> tuple[float, ...]:
    (group,) = optimizer.param_groups
    lr, decay = group["lr"], group["weight_decay"]
    if isinstance(optimizer, SGD):
        return 0.0, 1.0, decay, group["momentum"], float(group["nesterov"]), 0.0, -lr, 0.0
    beta1, beta2 = group["betas"]
    decoupled = isinstance(optimizer, AdamW) or group["decoupled_weight_decay"]
    root = (1 - beta2**step) ** 0.5
    eps, rate = group["eps"] * root, -lr / (1 - beta1**step) * root
    return 1.0, 1 - lr * decay if decoupled else 1.0, 0.0 if decoupled else decay, 1 - beta1, 1 - beta2, eps, rate, 0.0
