"""The arithmetic of torch's SGD, Adam, AdamW and Muon on one parameter group of many members, each member a row.

On a CPU, torch's fused kernels make the steps, with the same bits as for a single member (`argosy.training.optim.one_pass`): one call
covers all rows with equal settings, and vector instructions begin and end at the same elements. On other devices the
arithmetic is that of `torch/optim/{sgd,adam}.py`, on all rows at once. For Muon it is that of `torch/optim/_muon.py` everywhere, and each
product covers all rows.

What a step needs from an optimizer is a row of eight numbers, in the order of `argosy.training.device.kernel_forms.OwnKernels.step`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer
from torch.optim._muon import _adjust_lr

from argosy.stream.batches import copy_to_device
from argosy.training.device.recorders import run_in_turn

__all__ = [
    "RATE",
    "RULES",
    "TORCH_KERNELS",
    "Group",
    "Move",
    "Numbers",
    "RowOfNumbers",
    "Steps",
    "Tile",
    "counts_steps",
    "has_momentum",
    "is_decoupled",
    "numbers_of",
    "orthogonal",
    "settings_of",
    "state_names",
]

MOMENTS = "exp_avg", "exp_avg_sq"
"""Names of Adam's moments."""
STATE_NAMES = {SGD: ("momentum_buffer",), Muon: ("momentum_buffer",), Adagrad: ("sum",), Adam: MOMENTS, AdamW: MOMENTS}
"""Names of the state that has the shape of the weights."""
SETTINGS = ("lr", "weight_decay", "momentum", "eps", "nesterov")
"""Options that a step depends on and that schedules may change, besides the betas."""
EPS, RATE = 5, 6
"""Positions in a row of numbers."""
SMALL = 16**3
"""Number of multiplications up to which torch on a CPU computes a matrix product differently alone than in a batch."""
Group = dict[str, Any]
"""A parameter group of an optimizer."""
Move = Callable[[], None]
"""Updates weights and state, and allocates no memory."""
Numbers = npt.NDArray[np.float64]
"""The numbers of steps ``[steps, rows, 8]``."""
Steps = npt.NDArray[np.float32]
"""Numbers of steps made."""


def settings_of(group: Group) -> tuple[Any, ...]:
    """Return the values of `SETTINGS` in a parameter group, None for those that it lacks, and its betas."""
    return (*map(group.get, SETTINGS), *(group.get("betas") or ()))


def has_momentum(group: Group) -> bool:
    """Return whether a parameter group has momentum, as those of SGD and Muon may."""
    return bool(group.get("momentum", 0))


def is_decoupled(kind: type[Optimizer], group: Group) -> bool:
    """Return whether weight decay is decoupled from gradients, as in AdamW."""
    return kind in (AdamW, Muon) or bool(group.get("decoupled_weight_decay"))


def state_names(kind: type[Optimizer], group: Group) -> tuple[str, ...]:
    """Return the names of the state of a group's weights that has their shape: none for SGD without momentum."""
    return () if kind is SGD and not has_momentum(group) else STATE_NAMES[kind]


def counts_steps(kind: type[Optimizer]) -> bool:
    """Return whether the state has step counts, on which a step depends."""
    return kind not in (SGD, Muon)


# ---- numbers


class RowOfNumbers(NamedTuple):
    """What a row of numbers is computed from."""

    kind: type[Optimizer]
    """Type of the optimizer."""
    group: Group
    shape: torch.Size
    """Shape of the first weight, on which Muon's rate depends."""


def numbers_of(rows: Sequence[RowOfNumbers], steps: Steps, count: int) -> Numbers:
    """Return the numbers of the next `count` steps, with the current settings, after as many `steps` of each row."""
    numbers = np.tile(np.array([_numbers(row) for row in rows], np.float64), (count, 1, 1))
    betas = np.array([row.group["betas"] if counts_steps(row.kind) else (0.0, 0.0) for row in rows]).T
    # Computed step by step, so that each has the same bits as alone. For SGD and Muon, whose betas are set to 0, both corrections are 1.
    for own, made in zip(numbers, steps + np.arange(1.0, count + 1)[:, np.newaxis], strict=True):
        first, second = 1 - betas**made
        root = np.sqrt(second)
        own[:, EPS] *= root
        own[:, RATE] *= root / first
    return numbers


def _numbers(row: RowOfNumbers) -> tuple[float, ...]:
    """Return a row's numbers, without Adam's bias corrections."""
    kind, group, shape = row
    lr, decay = group["lr"], group["weight_decay"]
    shrinks, added = (1 - lr * decay, 0.0) if is_decoupled(kind, group) else (1.0, decay)
    if kind is SGD:
        return 0.0, shrinks, added, group["momentum"], float(group["nesterov"]), 0.0, -lr, 0.0
    if kind is Muon:
        rate, momentum = -_adjust_lr(lr, group["adjust_lr_fn"], shape), group["momentum"]
        return 2.0, shrinks, added, 1 - momentum, momentum, float(group["nesterov"]), rate, 0.0
    beta1, beta2 = group["betas"]
    return 1.0, shrinks, added, 1 - beta1, 1 - beta2, group["eps"], -lr, 0.0


# ---- torch's kernels on a CPU


TorchKernel = Callable[[Group, list[Tensor], list[Tensor], Sequence[list[Tensor]], list[Tensor]], object]
"""A fused kernel of torch: steps weights of one group along gradients, with their state and their step counts, which include this step."""


def _sgd_in_torch(group: Group, weights: list[Tensor], gradients: list[Tensor], state: Any, steps: Any) -> None:
    torch._fused_sgd_(
        weights, gradients, state[0] if state else [], weight_decay=group["weight_decay"], momentum=group["momentum"],
        lr=group["lr"], dampening=0.0, nesterov=group["nesterov"], maximize=False,
        is_first_step=False,  # momentum starts from zero, not from the first gradients
    )  # fmt: skip


def _adam_in_torch(
    group: Group, weights: list[Tensor], gradients: list[Tensor], state: Any, steps: Any, *, kind: type[Optimizer]
) -> None:
    kernel = torch._fused_adamw_ if is_decoupled(kind, group) else torch._fused_adam_
    (first, second), (beta1, beta2) = state, group["betas"]
    kernel(
        weights, gradients, first, second, [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
        weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
    )  # fmt: skip


def _adagrad_in_torch(group: Group, weights: list[Tensor], gradients: list[Tensor], state: Any, steps: Any) -> None:
    (sums,) = state
    torch._fused_adagrad_(
        weights, gradients, sums, steps, lr=group["lr"], lr_decay=group["lr_decay"],
        weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
    )  # fmt: skip


TORCH_KERNELS: dict[type[Optimizer], TorchKernel] = {
    SGD: _sgd_in_torch,
    Adagrad: _adagrad_in_torch,
    **{kind: partial(_adam_in_torch, kind=kind) for kind in (Adam, AdamW)},
}


# ---- many members


@dataclass(kw_only=True, slots=True, eq=False)
class Tile:
    """One parameter group of members with optimizers of one kind; of Muon, one matrix of such a group."""

    kind: type[Optimizer]
    """Type of the optimizer that steps the group."""
    groups: Sequence[Group]
    """The parameter group of each row's optimizer."""
    pieces: Sequence[slice]
    """Columns of each weight, relative to the group's first column."""
    shape: torch.Size
    """Shape of the first weight."""
    columns: slice
    weights: Tensor
    """``[rows, columns]``."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """Optimizer state by torch's names: matrices with the shape of `weights`, and ``step`` ``[rows, weights]``."""
    runs: Sequence[slice] | None = None
    """Column ranges that torch's CPU kernels take as one tensor; set by their first call."""
    shown: tuple[Any, Tensor] | None = None
    """The last numbers, with the settings and step counts that they were computed from; cached because they seldom change."""
    equal_rows: "tuple[Sequence[tuple[Any, ...]], Sequence[EqualRows]] | None" = None
    """The last settings, and the rows grouped by them."""

    @property
    def steps(self) -> Steps:
        """Number of steps that each row has made, as a live view; empty if the optimizer does not count steps."""
        return self.state["step"][:, 0].numpy() if "step" in self.state else np.empty(0, np.float32)

    @property
    def momentum(self) -> bool:
        """Whether it has state for momentum."""
        return "momentum_buffer" in self.state

    @property
    def decays(self) -> bool:
        """Whether the weights of some row decay."""
        return any(group["weight_decay"] for group in self.groups)

    def numbers(self, count: int) -> Numbers:
        """Return the numbers of the next steps."""
        rows = [RowOfNumbers(self.kind, group, self.shape) for group in self.groups]
        return numbers_of(rows, self.steps if "step" in self.state else np.zeros(len(rows), np.float32), count)

    def ready(self, gradients: Tensor) -> Move:
        """Return the next step along gradients."""
        if self.kind in TORCH_KERNELS and gradients.device.type == "cpu":
            return self._in_torch(gradients, TORCH_KERNELS[self.kind])
        key = [settings_of(group) for group in self.groups], self.steps.tolist()
        if self.shown is None or self.shown[0] != key:
            numbers = torch.from_numpy(self.numbers(1)[0]).to(self.weights.dtype)
            self.shown = key, copy_to_device(numbers, self.weights.device)
        return self.move(gradients, self.shown[1])

    def move(self, gradients: Tensor, numbers: Tensor) -> Move:
        """Return a step along gradients, which reads its numbers ``[rows, 8]`` from this tensor when it is made."""
        return RULES[self.kind](self, gradients, numbers.unsqueeze(2).unbind(1))

    def decay(self, gradients: Tensor, shrinks: Tensor, added: Tensor) -> None:
        """Decay the weights, or add their decay to the gradients, if some row decays."""
        if not self.decays:
            return
        if is_decoupled(self.kind, self.groups[0]):
            self.weights.mul_(shrinks)
        else:
            gradients.addcmul_(self.weights, added)

    def _in_torch(self, gradients: Tensor, kernel: TorchKernel) -> Move:
        slopes = self._cut(gradients)
        moves = [
            partial(kernel, own.group, own.weights, own.of(slopes), own.state, own.steps) for own in self._by_settings()
        ]
        return partial(run_in_turn, moves)

    def _cut(self, matrix: Tensor) -> Sequence[Sequence[Tensor]]:
        """Return the rows of each run of columns that torch's kernels take as one tensor.

        The kernels round elements after the last whole vector of a tensor differently from those before. For a member alone, each weight
        is one tensor. So that the same elements are affected, a run ends with every weight whose size is no multiple of the vector length.
        """
        if self.runs is None:
            vector = (64 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 32) // matrix.element_size()
            last = self.pieces[-1]
            ends = [piece.stop for piece in self.pieces if (piece.stop - piece.start) % vector or piece is last]
            self.runs = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        return [matrix[:, run].unbind() for run in self.runs]

    def _by_settings(self) -> "Sequence[EqualRows]":
        """Group the rows by their settings; the result is cached until these change."""
        settings = [settings_of(group) for group in self.groups]
        if self.equal_rows is None or self.equal_rows[0] != settings:
            rows: dict[Hashable, list[int]] = {}
            for row, own in enumerate(settings):
                rows.setdefault(own, []).append(row)
            matrices = [matrix for name, matrix in self.state.items() if name != "step"]
            weights, *state = map(self._cut, (self.weights, *matrices))
            # The counts of the first weight stand for all: rows whose weights have made unequal numbers of steps have no kernel.
            steps = [self.state["step"][:, 0].unbind()] * len(weights) if "step" in self.state else []
            self.equal_rows = (
                settings,
                [EqualRows(own, self.groups[own[0]], weights, state, steps) for own in rows.values()],
            )
        return self.equal_rows[1]


class EqualRows:
    """Rows with equal settings, and the arguments of one call of torch's kernel for them."""

    def __init__(
        self, rows: Sequence[int], group: Group, weights: Any, state: Sequence[Any], steps: Sequence[Any]
    ) -> None:
        self._rows = rows
        self.group = group
        self.weights: list[Tensor] = self.of(weights)
        self.state: Sequence[list[Tensor]] = [*map(self.of, state)]
        self.steps: list[Tensor] = self.of(steps)

    def of(self, cut: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return these rows' tensors of each run of columns."""
        return [run[row] for run in cut for row in self._rows]


def _sgd(tile: Tile, gradients: Tensor, numbers: Sequence[Tensor]) -> Move:
    nesterov = tile.groups[0]["nesterov"]
    _, shrinks, added, momentum, _, _, rate, _ = numbers

    def move() -> None:
        tile.decay(gradients, shrinks, added)
        direction = gradients
        if tile.momentum:
            buffer = tile.state["momentum_buffer"].mul_(momentum).add_(direction)
            direction = direction.addcmul_(buffer, momentum) if nesterov else buffer
        tile.weights.addcmul_(direction, rate)

    return move


def _adam(tile: Tile, gradients: Tensor, numbers: Sequence[Tensor]) -> Move:
    _, shrinks, added, fresh, fresh_square, eps, rate, _ = numbers
    first, second = tile.state["exp_avg"], tile.state["exp_avg_sq"]

    def move() -> None:
        tile.decay(gradients, shrinks, added)
        first.lerp_(gradients, fresh)
        second.lerp_(gradients.mul_(gradients), fresh_square)
        # Intermediate results go into the gradients' memory, because allocating as much costs more than all the arithmetic.
        # Numerator and denominator are multiplied by the correction of the second moment, which saves a pass.
        torch.sqrt(second, out=gradients).add_(eps)
        tile.weights.addcmul_(torch.div(first, gradients, out=gradients), rate)

    return move


def _muon(tile: Tile, gradients: Tensor, numbers: Sequence[Tensor]) -> Move:
    _, shrinks, added, fresh, momentum, _, rate, _ = numbers
    group, mean = tile.groups[0], tile.state["momentum_buffer"]
    # All memory is allocated here, before the step changes anything.
    moved = torch.lerp(mean, gradients, fresh)
    directions = gradients.lerp_(moved, momentum) if group["nesterov"] else moved
    update = orthogonal(directions.view(len(directions), *tile.shape), group).flatten(1)

    def move() -> None:
        mean.copy_(moved)
        tile.decay(gradients, shrinks, added)
        tile.weights.addcmul_(update, rate)

    return move


def orthogonal(directions: Tensor, group: Group) -> Tensor:
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


Rule = Callable[[Tile, Tensor, Sequence[Tensor]], Move]
"""How one type of optimizer steps all rows of a tile at once: returns a step along gradients, which reads its numbers, each ``[rows, 1]``,
when it is made."""
RULES: dict[type[Optimizer], Rule] = {SGD: _sgd, Adam: _adam, AdamW: _adam, Muon: _muon}
