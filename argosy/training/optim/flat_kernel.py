"""Optimizer steps of different members on an accelerator: torch's SGD, Adam, AdamW and Muon, in one kernel for all weights of all members.

Weights, gradients and moments are one tensor each, in which every block belongs to one weight (`argosy.training.device.own_kernels`).
Muon's matrices of one shape are orthogonalized together if they are adjacent. Hyper-parameters are read from the members' own
optimizers, whose states are views of the moments.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer
from torch.optim._muon import _adjust_lr

from argosy.training.device.kernel_forms import BLOCK, OwnKernels
from argosy.training.device.own_kernels import find_kernels
from argosy.training.device.recorders import InBranches
from argosy.training.optim.kernels import (
    OF_MUON,
    Settings,
    adopt_state,
    mark_stepped,
    parts_of,
    settings_of,
    steps_differ,
)
from argosy.training.optim.rules import RULES, Numbers, Steps, orthogonal

__all__ = ["FlatKernel", "FlatMemory"]

EPS, RATE = 5, 6
"""Positions in a row of numbers."""


class FlatMemory:
    """Memory for all weights of some members in one tensor and all gradients in another, so that one kernel can step them.

    Each weight starts at a multiple of `BLOCK` elements.
    """

    def __init__(self, like: Tensor, counts: Sequence[int]) -> None:
        blocks = sum(-(-count // BLOCK) for count in counts)
        self.weights, self.gradients = (like.detach().new_zeros(blocks * BLOCK) for _ in range(2))
        self._taken = 0

    def rows(self, count: int, size: int) -> tuple[Tensor, Tensor]:
        """Return memory for `count` weights of this size, and for their gradients, each ``[weights, size]``."""
        each = -(-size // BLOCK) * BLOCK
        start, self._taken = self._taken, self._taken + count * each
        parts = [of[start : self._taken].view(count, each)[:, :size] for of in (self.weights, self.gradients)]
        return parts[0], parts[1]


class RowOfNumbers(NamedTuple):
    """The weights that a row of numbers belongs to: those of a parameter group, or one matrix of Muon, which has its own rate."""

    kind: type[Optimizer]
    group: dict[str, Any]
    first: int
    """Index of its first weight."""
    matrix: nn.Parameter | None


class MatrixRun(NamedTuple):
    """Adjacent matrices of Muon with one shape, ``[matrices, m, n]``."""

    weights: Tensor
    gradients: Tensor
    rows: Tensor
    """Each matrix's row of numbers."""
    group: dict[str, Any]


class FlatKernel:
    """Steps members whose optimizers have an `optimizer_kind`; holds the state of these optimizers."""

    rows = slice(None)

    def __init__(self, optimizers: Sequence[Optimizer], memory: FlatMemory, kernels: OwnKernels) -> None:
        self._optimizers = optimizers
        self._kernels = kernels
        self._weights = memory.weights
        self._moments = torch.zeros_like(memory.weights), torch.zeros_like(memory.weights)
        count = sum(len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups)
        self._steps = torch.zeros(count)
        """Number of steps that each weight has made."""
        self._rows: list[RowOfNumbers] = []
        owners = torch.zeros(len(memory.weights) // BLOCK, dtype=torch.int32)
        number = 0
        for optimizer in optimizers:
            for kind, group, weights in _divided(optimizer):
                self._rows.append(RowOfNumbers(kind, group, number, weights[0] if kind is Muon else None))
                for weight in weights:
                    owners[_blocks(weight)] = len(self._rows) - 1
                    self._take(kind, group, optimizer.state, weight, self._steps[number])
                    number += 1
        self._owners = owners.to(memory.weights.device)
        self._firsts = [row.first for row in self._rows]
        self._momentum = [bool(row.group.get("momentum")) for row in self._rows]
        self._runs = list(self._side_by_side(memory))

    @classmethod
    def of(cls, optimizers: Sequence[Optimizer], memory: FlatMemory) -> "FlatKernel | None":
        """Return the kernel of these optimizers; None if the device has none, or if weights of one group have made unequal numbers of steps."""
        kernels = find_kernels(memory.weights.device)
        if kernels is None or any(map(steps_differ, optimizers)):
            return None
        mark_stepped(optimizers)
        return cls(optimizers, memory, kernels)

    @property
    def moved(self) -> Sequence[Tensor]:
        """The moments, each as one row."""
        return [moment.unsqueeze(0) for moment in self._moments]

    @property
    def allocates(self) -> bool:
        """Whether a step may run out of memory after it has changed some weights."""
        return bool(self._runs)

    @property
    def settings(self) -> Settings:
        """Current hyper-parameters in the optimizers' parameter groups."""
        return [settings_of(row.group) for row in self._rows]

    @property
    def steps(self) -> Steps:
        """Number of steps that each weight has made."""
        counts: Steps = self._steps.numpy()
        return counts

    def numbers(self, count: int) -> Sequence[Numbers] | None:
        """Return the numbers of the next steps ``[count, rows, numbers]`` (`OwnKernels.step`), with the current settings.

        Returns None if a schedule has switched momentum on or off.
        """
        if [bool(row.group.get("momentum")) for row in self._rows] != self._momentum:
            return None
        tiled = np.tile(np.array([_numbers(row) for row in self._rows]), (count, 1, 1))
        betas = np.array([row.group["betas"] if RULES[row.kind].counts else (0.0, 0.0) for row in self._rows]).T
        # Computed step by step, so that each has the same bits as alone. For SGD and Muon, whose betas are set to 0, both corrections are 1.
        for own, steps in zip(tiled, self.steps[self._firsts] + np.arange(1.0, count + 1)[:, np.newaxis], strict=True):
            first, second = 1 - betas**steps
            root = np.sqrt(second)
            own[:, EPS] *= root
            own[:, RATE] *= root / first
        return [tiled]

    def move(self, gradients: Tensor, numbers: Sequence[Tensor], in_branches: InBranches) -> None:
        """Do the device's part of a step."""
        (own,) = numbers
        self._kernels.step(self._weights, gradients[0], self._moments, own, self._owners)
        if self._runs:
            in_branches([partial(_orthogonally, run, own) for run in self._runs])

    def note_step(self) -> None:
        """Do the host's part of a step."""
        self._steps.add_(1)

    def dissolve(self) -> None:
        """Give the optimizers' states their own memory."""
        for state in [state for optimizer in self._optimizers for state in optimizer.state.values()]:
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()

    def _take(self, kind: type[Optimizer], group: dict[str, Any], states: Any, weight: Tensor, steps: Tensor) -> None:
        """Make an optimizer's state of a weight views of the moments."""
        if kind is SGD and not group["momentum"]:
            return  # it has no state
        state = states[weight]
        place = slice(weight.storage_offset(), weight.storage_offset() + weight.numel())
        for name, moment in zip(RULES[kind].moments, self._moments, strict=False):
            adopt_state(state, name, moment[place].view(weight.shape))
        if RULES[kind].counts:
            steps.fill_(float(state.get("step", 0)))
            state["step"] = steps

    def _side_by_side(self, memory: FlatMemory) -> Iterator[MatrixRun]:
        """Yield the runs of Muon's matrices that are adjacent in memory."""
        matrices = [(row.matrix, number, row.group) for number, row in enumerate(self._rows) if row.matrix is not None]
        matrices.sort(key=lambda one: int(one[0].storage_offset()))
        while matrices:
            (first, _, group), blocks = matrices[0], _blocks(matrices[0][0])
            apart, own = (blocks.stop - blocks.start) * BLOCK, 0
            for weight, _, other in matrices:
                after = weight.storage_offset() == first.storage_offset() + own * apart
                if not after or weight.shape != first.shape or any(other[name] != group[name] for name in OF_MUON):
                    break
                own += 1
            sizes, strides = (own, *first.shape), (apart, first.shape[1], 1)
            start, of = int(first.storage_offset()), (memory.weights, memory.gradients)
            weights, gradients = (tensor.as_strided(sizes, strides, start) for tensor in of)
            rows = torch.tensor([number for _, number, _ in matrices[:own]], device=memory.weights.device)
            yield MatrixRun(weights, gradients, rows, group)
            del matrices[:own]


def _divided(optimizer: Optimizer) -> Iterator[tuple[type[Optimizer], dict[str, Any], Sequence[nn.Parameter]]]:
    """Yield the weights of each row of numbers, with their type of optimizer and parameter group."""
    for part in parts_of(optimizer):
        for group in part.param_groups:
            if isinstance(part, Muon):
                yield from ((Muon, group, [weight]) for weight in group["params"])
            elif group["params"]:
                yield type(part), group, group["params"]


def _blocks(weight: Tensor) -> slice:
    first = int(weight.storage_offset()) // BLOCK
    return slice(first, first - (-weight.numel() // BLOCK))  # rounded up


def _orthogonally(run: MatrixRun, numbers: Tensor) -> None:
    """Move matrices along their orthogonalized gradients, with their rates."""
    rates = numbers.index_select(0, run.rows)[:, RATE].view(-1, 1, 1)
    run.weights.addcmul_(orthogonal(run.gradients, run.group), rates)


def _numbers(row: RowOfNumbers) -> tuple[float, ...]:
    """Return a row's numbers, without Adam's bias corrections."""
    kind, group = row.kind, row.group
    lr, decay = group["lr"], group["weight_decay"]
    if kind is SGD:
        return 0.0, 1.0, decay, group["momentum"], float(group["nesterov"]), 0.0, -lr, 0.0
    if row.matrix is not None:
        rate = -_adjust_lr(lr, group["adjust_lr_fn"], row.matrix.shape)
        momentum = group["momentum"]
        return 2.0, 1 - lr * decay, 0.0, 1 - momentum, momentum, float(group["nesterov"]), rate, 0.0
    beta1, beta2 = group["betas"]
    decoupled = kind is AdamW or group["decoupled_weight_decay"]
    shrinks, added = (1 - lr * decay, 0.0) if decoupled else (1.0, decay)
    return 1.0, shrinks, added, 1 - beta1, 1 - beta2, group["eps"], -lr, 0.0
