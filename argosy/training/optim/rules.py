"""The arithmetic of torch's SGD, Adam, AdamW and Muon on one parameter group of many members, each member a row.

On a CPU, torch's fused kernels make the steps, with the same bits as for a single member (`argosy.training.optim.one_pass`): one call
covers all rows with equal numbers, and vector instructions begin and end at the same elements. On other devices the
arithmetic is that of `torch/optim/{sgd,adam}.py`, on all rows at once. For Muon it is that of `torch/optim/_muon.py` everywhere, and each
product covers all rows.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer
from torch.optim._muon import _adjust_lr

from argosy.stream.batches import copy_to_device
from argosy.training.device.recorders import run_in_turn

__all__ = [
    "RULES",
    "Move",
    "Numbers",
    "Rule",
    "Steps",
    "Tile",
    "adam_numbers",
    "has_momentum",
    "orthogonal",
    "sgd_numbers",
]

MOMENTS = "exp_avg", "exp_avg_sq"
"""Names of Adam's moments."""
SMALL = 16**3
"""Number of multiplications up to which torch on a CPU computes a matrix product differently alone than in a batch."""
Decays = Sequence[tuple[float, ...]]
Move = Callable[[], None]
"""Updates weights and state, and allocates no memory."""
Numbers = npt.NDArray[np.float64]
"""The numbers of a step from each row's optimizer, ``[rows, numbers]``; the decay is left out if no row decays."""
Steps = npt.NDArray[np.float32]
"""Numbers of steps made."""


@dataclass(kw_only=True, slots=True, eq=False)
class Tile:
    """One parameter group of members with optimizers of one kind."""

    kind: type[Optimizer]
    """Type of the optimizer that steps the group."""
    groups: Sequence[dict[str, Any]]
    """The parameter group of each row's optimizer."""
    momentum: bool
    """Whether SGD has momentum."""
    decoupled: bool
    """Whether weight decay is decoupled from gradients, as in AdamW."""
    pieces: Sequence[slice]
    """Columns of each weight, relative to the group's first column."""
    shapes: Sequence[torch.Size]
    """Shape of each weight."""
    columns: slice
    weights: Tensor
    """``[rows, columns]``."""
    state: dict[str, Tensor]
    """Optimizer state by torch's names: matrices with the shape of `weights`, and ``step`` ``[rows, weights]``."""
    runs: Sequence[slice] | None = None
    """Column ranges that torch's CPU kernels take as one tensor; set by their first call."""
    shown: tuple[Numbers, Tensor] | None = None
    """The last numbers and their tensor, cached because they seldom change."""
    alike: "tuple[Sequence[dict[str, Any]], Sequence[Alike]] | None" = None
    """The last numbers, and the rows grouped by them."""

    @property
    def steps(self) -> Steps:
        """Number of steps that each row has made, as a live view; empty if the optimizer does not count steps."""
        return self.state["step"][:, 0].numpy() if "step" in self.state else np.empty(0, np.float32)

    def to_device(self, numbers: Numbers) -> Tensor:
        """Return ``[rows, numbers]`` on the weights' device."""
        if self.shown is None or not np.array_equal(self.shown[0], numbers):
            self.shown = numbers, copy_to_device(torch.from_numpy(numbers).to(self.weights.dtype), self.weights.device)
        return self.shown[1]


class Rule(NamedTuple):
    """How one type of optimizer steps."""

    numbers: Callable[[Tile, int], Numbers]
    """Returns the numbers of the next steps, ``[count, rows, numbers]``."""
    move: Callable[[Tile, Tensor, Tensor], Move]
    """Returns a step along gradients, which reads its numbers from the given tensor when it is made."""
    moments: tuple[str, ...]
    """Names of the state that has the shape of the weights."""
    fused: Callable[[Tile, Tensor], Move] | None = None
    """Returns a step along gradients on a CPU, by torch's fused kernel, with the next step's numbers."""
    counts: bool = False
    """Whether numbers depend on how many steps were made."""

    def ready(self, tile: Tile, gradients: Tensor) -> Move:
        """Return the next step along gradients, with its numbers."""
        if self.fused is not None and gradients.device.type == "cpu":
            return self.fused(tile, gradients)
        return self.move(tile, gradients, tile.to_device(self.numbers(tile, 1)[0]))


def has_momentum(group: dict[str, Any]) -> bool:
    """Return whether a parameter group has momentum, as those of SGD and Muon may."""
    return bool(group.get("momentum", 0))


def _sgd_numbers(tile: Tile, count: int) -> Numbers:
    decays = _decays(tile, lambda group: group["weight_decay"])
    rows = [(-group["lr"], group["momentum"], *own) for group, own in zip(tile.groups, decays, strict=True)]
    return _unchanging(rows, count)


def _unchanging(rows: Sequence[tuple[float, ...]], count: int) -> Numbers:
    """Return numbers that are equal in all steps."""
    return np.tile(np.array(rows, np.float64), (count, 1, 1))


def _sgd(tile: Tile, gradients: Tensor, numbers: Tensor) -> Move:
    nesterov = tile.groups[0]["nesterov"]
    rate, momentum, *decay = numbers.unsqueeze(2).unbind(1)

    def move() -> None:
        direction = gradients
        for by in decay:
            direction.addcmul_(tile.weights, by)
        if tile.momentum:
            buffer = tile.state["momentum_buffer"].mul_(momentum).add_(direction)
            direction = direction.addcmul_(buffer, momentum) if nesterov else buffer
        tile.weights.addcmul_(direction, rate)

    return move


def _adam_decays(tile: Tile) -> Decays:
    if tile.decoupled:
        return _decays(tile, lambda group: 1 - group["lr"] * group["weight_decay"])
    return _decays(tile, lambda group: group["weight_decay"])


def _adam_numbers(tile: Tile, count: int) -> Numbers:
    decays = _adam_decays(tile)
    rows = [(one["lr"], *one["betas"], one["eps"], *own) for one, own in zip(tile.groups, decays, strict=True)]
    lr, beta1, beta2, eps, *decay = np.array(rows, np.float64).T
    by_step = []
    for steps in tile.steps + np.arange(1.0, count + 1)[:, np.newaxis]:  # one by one, for the same bits as alone
        root = np.sqrt(1 - beta2**steps)
        by_step.append([1 - beta1, 1 - beta2, eps * root, -lr / (1 - beta1**steps) * root, *decay])
    return np.array(by_step, np.float64).swapaxes(1, 2)


def _adam(tile: Tile, gradients: Tensor, numbers: Tensor) -> Move:
    fresh, fresh_square, eps, rate, *decay = numbers.unsqueeze(2).unbind(1)
    first, second = tile.state["exp_avg"], tile.state["exp_avg_sq"]

    def move() -> None:
        _adam_decay(tile, gradients, decay)
        first.lerp_(gradients, fresh)
        second.lerp_(gradients.mul_(gradients), fresh_square)
        # Intermediate results go into the gradients' memory, because allocating as much costs more than all the arithmetic.
        # Numerator and denominator are multiplied by the correction of the second moment, which saves a pass.
        torch.sqrt(second, out=gradients).add_(eps)
        tile.weights.addcmul_(torch.div(first, gradients, out=gradients), rate)

    return move


def _adam_fused(tile: Tile, gradients: Tensor) -> Move:
    kernel = torch._fused_adamw_ if tile.decoupled else torch._fused_adam_
    slopes, moves = _cut(tile, gradients), []
    for own in _alike(tile, adam_numbers, MOMENTS):
        weights, first, second = own.tensors
        moves.append(partial(kernel, weights, own.of(slopes), first, second, [], own.steps, **own.numbers))
    return partial(run_in_turn, moves)


def _sgd_fused(tile: Tile, gradients: Tensor) -> Move:
    slopes, moves = _cut(tile, gradients), []
    for own in _alike(tile, sgd_numbers, ("momentum_buffer",) if tile.momentum else ()):
        weights, *buffers = own.tensors
        moves.append(partial(torch._fused_sgd_, weights, own.of(slopes), buffers[0] if buffers else [], **own.numbers))
    return partial(run_in_turn, moves)


def _cut(tile: Tile, matrix: Tensor) -> Sequence[Sequence[Tensor]]:
    """Return the rows of each run of columns that torch's kernels take as one tensor.

    The kernels round elements after the last whole vector of a tensor differently from those before. For a member alone, each weight is one
    tensor. So that the same elements are affected, a run ends with every weight whose size is no multiple of the vector length.
    """
    if tile.runs is None:
        vector = (64 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 32) // matrix.element_size()
        ends = [piece.stop for piece in tile.pieces if (piece.stop - piece.start) % vector or piece is tile.pieces[-1]]
        tile.runs = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
    return [matrix[:, run].unbind() for run in tile.runs]


def _muon_numbers(tile: Tile, count: int) -> Numbers:
    """Return each row's numbers; the last ones are the rates of the weights."""
    own = []
    for group in tile.groups:
        lr, momentum = group["lr"], group["momentum"]
        rates = [-_adjust_lr(lr, group["adjust_lr_fn"], shape) for shape in tile.shapes]
        own.append((1 - momentum, momentum, 1 - lr * group["weight_decay"], *rates))
    return _unchanging(own, count)


def _muon(tile: Tile, gradients: Tensor, numbers: Tensor) -> Move:
    fresh, momentum, decay, *rates = numbers.unsqueeze(2).unbind(1)
    group, mean = tile.groups[0], tile.state["momentum_buffer"]
    # All memory is allocated here, before the step changes anything.
    moved = torch.lerp(mean, gradients, fresh)
    directions = gradients.lerp_(moved, momentum) if group["nesterov"] else moved
    updates = [
        orthogonal(directions[:, columns].view(len(directions), *shape), group).flatten(1)
        for columns, shape in zip(tile.pieces, tile.shapes, strict=True)
    ]

    def move() -> None:
        mean.copy_(moved)
        tile.weights.mul_(decay)
        for columns, update, rate in zip(tile.pieces, updates, rates, strict=True):
            tile.weights[:, columns].addcmul_(update, rate)

    return move


def orthogonal(directions: Tensor, group: dict[str, Any]) -> Tensor:
    """Return matrices ``[rows, m, n]`` orthogonalized by Newton-Schulz in bfloat16, each as torch's Muon does it alone."""
    a, b, c = group["ns_coefficients"]
    tall = directions.size(1) > directions.size(2)
    result = directions.bfloat16().mT if tall else directions.bfloat16()
    result = result / torch.linalg.vector_norm(result, dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = _product(torch.mm, torch.bmm, result, result.mT)
        update = _product(
            partial(torch.addmm, beta=b, alpha=c), partial(torch.baddbmm, beta=b, alpha=c), gram, gram, gram
        )
        result = _product(partial(torch.addmm, beta=a), partial(torch.baddbmm, beta=a), result, update, result)
    return result.mT if tall else result


def _product(one: Callable[..., Tensor], all_rows: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """Return the products of the last two of these matrices ``[rows, m, n]``, each with the same bits as alone."""
    left, right = matrices[-2:]
    if left.device.type == "cpu" and left[0].numel() * right.size(2) <= SMALL:
        return torch.stack([one(*of_row) for of_row in zip(*matrices, strict=True)])
    return all_rows(*matrices)


class Alike(NamedTuple):
    """Rows with equal numbers, and the arguments of one call of torch's kernel for them."""

    rows: Sequence[int]
    numbers: dict[str, Any]
    tensors: Sequence[Sequence[Tensor]]
    """Tensors of the weights, and of each part of the state."""
    steps: Sequence[Tensor]

    def of(self, cut: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return these rows' tensors of each run of columns."""
        return [run[row] for run in cut for row in self.rows]


def _alike(tile: Tile, numbers_of: Callable[[dict[str, Any]], dict[str, Any]], names: Sequence[str]) -> Sequence[Alike]:
    """Group the rows by their numbers; the result is cached until these change."""
    numbers = [numbers_of(group) for group in tile.groups]
    if tile.alike is None or tile.alike[0] != numbers:
        rows: dict[Hashable, list[int]] = {}
        for row, own in enumerate(numbers):
            rows.setdefault(tuple(own.values()), []).append(row)
        parts = [_cut(tile, matrix) for matrix in (tile.weights, *(tile.state[name] for name in names))]
        # The counts of the first weight stand for all: rows whose weights have made unequal numbers of steps have no kernel.
        steps = [tile.state["step"][:, 0].unbind()] * len(parts[0]) if "step" in tile.state else []
        groups = [Alike(own, numbers[own[0]], [], []) for own in rows.values()]
        tile.alike = numbers, [own._replace(tensors=[*map(own.of, parts)], steps=own.of(steps)) for own in groups]
    return tile.alike[1]


def adam_numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a step for torch's fused Adam and AdamW kernels."""
    beta1, beta2 = group["betas"]
    return {
        "lr": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        "weight_decay": group["weight_decay"],
        "eps": group["eps"],
        "amsgrad": False,
        "maximize": False,
    }


def sgd_numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a step for torch's fused SGD kernel; momentum starts from zero, not from the first gradients."""
    return {
        "weight_decay": group["weight_decay"],
        "momentum": group["momentum"],
        "lr": group["lr"],
        "dampening": 0.0,
        "nesterov": group["nesterov"],
        "maximize": False,
        "is_first_step": False,
    }


def _adam_decay(tile: Tile, gradients: Tensor, decay: Sequence[Tensor]) -> None:
    for by in decay:
        if tile.decoupled:
            tile.weights.mul_(by)
        else:
            gradients.addcmul_(tile.weights, by)


def _decays(tile: Tile, of_group: Callable[[dict[str, Any]], float]) -> Decays:
    """Return each row's decay; empty tuples if no row decays."""
    if not any(group["weight_decay"] for group in tile.groups):
        return [()] * len(tile.groups)
    return [(of_group(group),) for group in tile.groups]


RULES: dict[type[Optimizer], Rule] = {
    SGD: Rule(_sgd_numbers, _sgd, ("momentum_buffer",), _sgd_fused),
    Adam: Rule(_adam_numbers, _adam, MOMENTS, _adam_fused, counts=True),
    AdamW: Rule(_adam_numbers, _adam, MOMENTS, _adam_fused, counts=True),
    Muon: Rule(_muon_numbers, _muon, ("momentum_buffer",)),
}
