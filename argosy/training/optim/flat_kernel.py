"""Optimizer steps of different members on an accelerator: torch's SGD, Adam, AdamW and Muon, in one kernel for all weights of all members.

Weights, gradients and moments are one tensor each, in which every block belongs to one weight (`argosy.training.device.own_kernels`).
Muon's matrices of one shape are orthogonalized together if they are adjacent. Hyper-parameters are read from the members' own
optimizers, whose states are views of the moments.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Muon, Optimizer

from argosy.training.device.kernel_forms import BLOCK, OwnKernels
from argosy.training.device.own_kernels import find_kernels
from argosy.training.device.recorders import InBranches
from argosy.training.optim.kernels import (
    OF_MUON,
    Settings,
    adopt_state,
    mark_stepped,
    parts_of,
    separate_state,
    steps_differ,
)
from argosy.training.optim.rules import (
    RATE,
    Numbers,
    RowOfNumbers,
    Steps,
    counts_steps,
    has_momentum,
    numbers_of,
    orthogonal,
    settings_of,
    state_names,
)

__all__ = ["FlatKernel", "FlatMemory"]


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
        self._firsts: list[int] = []
        """Index of the first weight of each row."""
        owners, matrices = torch.zeros(len(memory.weights) // BLOCK, dtype=torch.int32), []
        number = 0
        for optimizer in optimizers:
            for part, group, weights in _divided(optimizer):
                kind = type(part)
                if kind is Muon:
                    matrices.append((weights[0], len(self._rows), group))
                self._rows.append(RowOfNumbers(kind, group, weights[0].shape))
                self._firsts.append(number)
                for weight in weights:
                    owners[_blocks(weight)] = len(self._rows) - 1
                    self._take(kind, group, part.state, weight, self._steps[number])
                    number += 1
        self._owners = owners.to(memory.weights.device)
        self._runs = list(_side_by_side(matrices, memory))

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

    @property
    def form(self) -> Hashable:
        """What decides which operations make a step."""
        return tuple(has_momentum(row.group) for row in self._rows)

    def numbers(self, count: int) -> Numbers:
        """Return the numbers of the next steps ``[count, rows, 8]``, with the current settings."""
        return numbers_of(self._rows, self.steps[self._firsts], count)

    def move(self, gradients: Tensor, numbers: Tensor, in_branches: InBranches) -> None:
        """Do the device's part of a step."""
        self._kernels.step(self._weights, gradients[0], self._moments, numbers, self._owners)
        if self._runs:
            in_branches([partial(_orthogonally, run, numbers) for run in self._runs])

    def note_step(self) -> None:
        """Do the host's part of a step."""
        self._steps.add_(1)

    def dissolve(self) -> None:
        """Give the optimizers' states their own memory."""
        separate_state(self._optimizers)

    def _take(self, kind: type[Optimizer], group: dict[str, Any], states: Any, weight: Tensor, steps: Tensor) -> None:
        """Make an optimizer's state of a weight views of the moments."""
        place = slice(weight.storage_offset(), weight.storage_offset() + weight.numel())
        for name, moment in zip(state_names(kind, group), self._moments, strict=False):
            adopt_state(states[weight], name, moment[place].view(weight.shape))
        if counts_steps(kind):
            steps.fill_(float(states[weight].get("step", 0)))
            states[weight]["step"] = steps


def _side_by_side(matrices: list[tuple[nn.Parameter, int, dict[str, Any]]], memory: FlatMemory) -> Iterator[MatrixRun]:
    """Yield the runs of Muon's matrices, given with their rows of numbers and groups, that are adjacent in memory."""
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


def _divided(optimizer: Optimizer) -> Iterator[tuple[Optimizer, dict[str, Any], Sequence[nn.Parameter]]]:
    """Yield the weights of each row of numbers, with their optimizer and parameter group."""
    for part in parts_of(optimizer):
        for group in part.param_groups:
            if isinstance(part, Muon):
                yield from ((part, group, [weight]) for weight in group["params"])
            elif group["params"]:
                yield part, group, group["params"]


def _blocks(weight: Tensor) -> slice:
    first = int(weight.storage_offset()) // BLOCK
    return slice(first, first - (-weight.numel() // BLOCK))  # rounded up


def _orthogonally(run: MatrixRun, numbers: Tensor) -> None:
    """Move matrices along their orthogonalized gradients, with their rates."""
    rates = numbers.index_select(0, run.rows)[:, RATE].view(-1, 1, 1)
    run.weights.addcmul_(orthogonal(run.gradients, run.group), rates)
