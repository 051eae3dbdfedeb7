"""Fused optimizer steps: torch's SGD, Adam, AdamW and Muon for many members at once, on the rows of a parameter buffer.

Hyper-parameters are read from the members' own optimizers at every step, so torch's schedules work as usual. `optimizer.state` holds
views of the matrices here, in torch's own shapes, so an optimizer can also make any step itself.

On a CPU, torch's fused kernels make the steps, with the same bits as for a single member (`argosy.training.optim.one_pass`): one call
covers all rows with equal numbers, and vector instructions begin and end at the same elements. On other devices the
arithmetic is that of `torch/optim/{sgd,adam}.py`, on all rows at once. For Muon it is that of `torch/optim/_muon.py` everywhere, and each
product covers all rows.

The host reads the numbers for a step from the optimizers separately from the device's work, because a captured step
(`argosy.training.programs.graphed.graphed`) takes them from static memory.
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
from torch.optim import optimizer as torch_optimizer
from torch.optim._muon import _adjust_lr

from argosy.stream.batches import copy_to_device
from argosy.training.device.recorders import InBranches, run_in_turn
from argosy.training.optim.optimizer_list import OptimizerList
from argosy.training.optim.parameter_buffer import ParameterBuffer, Piece

__all__ = [
    "OF_MUON",
    "Kernel",
    "Numbers",
    "Settings",
    "Steps",
    "adam_numbers",
    "adopt_state",
    "is_unusual",
    "optimizer_kind",
    "mark_stepped",
    "orthogonal",
    "parts_of",
    "settings_of",
    "sgd_numbers",
    "steps_differ",
]

UNUSUAL = ("maximize", "amsgrad", "capturable", "differentiable", "dampening")
"""Options for which no kernel exists; an optimizer with one of them makes its steps itself."""
OF_MUON = ("ns_coefficients", "ns_steps", "eps", "adjust_lr_fn")
"""Options of Muon that must be equal for all rows."""
SETTINGS = ("lr", "weight_decay", "betas", "momentum", "eps", "nesterov")
"""Options that a step depends on and that schedules may change."""
SMALL = 16**3
"""Number of multiplications up to which torch on a CPU computes a matrix product differently alone than in a batch."""
Decays = Sequence[tuple[float, ...]]
Move = Callable[[], None]
"""Updates weights and state, and allocates no memory."""
Numbers = npt.NDArray[np.float64]
"""The numbers of a step from each row's optimizer, ``[rows, numbers]``; the decay is left out if no row decays."""
Steps = npt.NDArray[np.float32]
"""Numbers of steps made."""
Settings = Sequence[tuple[Any, ...]]
"""Hyper-parameters in parameter groups."""


def optimizer_kind(optimizer: Optimizer) -> Hashable:
    """Return the kind of an optimizer; optimizers of one kind share a kernel. None if the optimizer must make its steps itself."""
    if isinstance(optimizer, OptimizerList):
        kinds = [optimizer_kind(part) for part in optimizer.parts]
        return None if None in kinds or is_unusual(optimizer) else tuple(kinds)
    if type(optimizer) not in RULES or is_unusual(optimizer):
        return None
    return type(optimizer), *(_kind_of_group(type(optimizer), group) for group in optimizer.param_groups)


def is_unusual(optimizer: Optimizer) -> bool:
    """Return whether a torch optimizer has unusual options, hooks, or its own `step` attribute."""
    groups = optimizer.param_groups
    return (
        any(group.get(option) for group in groups for option in UNUSUAL)
        or any(isinstance(group["lr"], Tensor) or _counts_on_device(group) for group in groups)
        or bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        or bool(torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks)
        or _steps_otherwise(optimizer)
    )


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


class Kernel:
    """Steps the members in some rows of a parameter buffer, with optimizers of one kind."""

    def __init__(self, optimizers: Sequence[Optimizer], rows: slice, tiles: Sequence[Tile]) -> None:
        self._optimizers = optimizers
        self.rows = rows
        self._tiles = tuple(tiles)

    @classmethod
    def of(cls, optimizers: Sequence[Optimizer], parameter_buffer: ParameterBuffer, first: int) -> "Kernel | None":
        """Return the kernel of these optimizers, for the rows from `first`; it holds their state from then on.

        Returns None if they must make their steps themselves, for example because weights of a member have made unequal numbers of steps.
        """
        rows = slice(first, first + len(optimizers))
        usual = (
            parameter_buffer.weights.dtype in (torch.float32, torch.float64)
            and optimizer_kind(optimizers[0]) is not None
        )
        if not usual or any(steps_differ(optimizer) for optimizer in optimizers):
            return None
        tiles, kinds = [], [type(part) for part in parts_of(optimizers[0]) for _ in part.param_groups]
        for number, (kind, pieces) in enumerate(zip(kinds, parameter_buffer.groups, strict=True)):
            if pieces:
                groups = [optimizer.param_groups[number] for optimizer in optimizers]
                columns = slice(pieces[0].start, pieces[-1].stop)
                weights = parameter_buffer.weights[rows, columns]
                state = _state(kind, optimizers, groups, pieces, weights)
                tiles.append(
                    Tile(
                        kind=kind,
                        groups=groups,
                        momentum=_has_momentum(groups[0]),
                        decoupled=_decoupled(kind, groups[0]),
                        pieces=[slice(piece.start - columns.start, piece.stop - columns.start) for piece in pieces],
                        shapes=[piece.shape for piece in pieces],
                        columns=columns,
                        weights=weights,
                        state=state,
                    )
                )
        mark_stepped(optimizers)
        return cls(optimizers, rows, tiles)

    def ready(self, gradients: Tensor) -> Move | None:
        """Prepare the step of all rows along gradients ``[rows, columns]``, which it may overwrite.

        All memory is allocated here, so an out-of-memory error leaves everything unchanged. Returns None if a schedule has switched
        momentum on or off, because the kernel is built for one case.
        """
        if self._changed:
            return None
        moves = [RULES[tile.kind].ready(tile, gradients[:, tile.columns]) for tile in self._tiles]

        def move() -> None:
            self.note_step()
            for of_tile in moves:
                of_tile()

        return move

    @property
    def _changed(self) -> bool:
        of_momentum = [tile for tile in self._tiles if tile.kind is SGD]
        return any(_has_momentum(group) != tile.momentum for tile in of_momentum for group in tile.groups)

    @property
    def settings(self) -> Settings:
        """Current hyper-parameters in the optimizers' groups; they and `steps` determine `numbers`."""
        return [settings_of(group) for tile in self._tiles for group in tile.groups]

    @property
    def steps(self) -> Steps:
        """Steps made, by parameter group and row; empty for optimizers that do not count steps."""
        return np.concatenate([tile.steps for tile in self._tiles])

    def numbers(self, count: int) -> Sequence[Numbers] | None:
        """Return the numbers of the next steps by parameter group, each ``[count, rows, numbers]``, with the current settings.

        Returns None if a schedule has switched momentum on or off.
        """
        return None if self._changed else [RULES[tile.kind].numbers(tile, count) for tile in self._tiles]

    def move(self, gradients: Tensor, numbers: Sequence[Tensor], in_branches: InBranches = run_in_turn) -> None:
        """Do only the device's part of a step, along gradients ``[rows, columns]``, which it may overwrite.

        `numbers` has one tensor ``[rows, numbers]`` per parameter group.
        """
        for tile, own in zip(self._tiles, numbers, strict=True):
            RULES[tile.kind].move(tile, gradients[:, tile.columns], own)()

    def note_step(self) -> None:
        """Do the host's part of a step."""
        for tile in self._tiles:
            if "step" in tile.state:
                tile.state["step"].add_(1)

    @property
    def allocates(self) -> bool:
        """Whether a step may run out of memory after it has changed some weights."""
        return any(tile.kind is Muon for tile in self._tiles)

    @property
    def moved(self) -> Sequence[Tensor]:
        """The device tensors that a step changes besides the weights."""
        return [matrix for tile in self._tiles for name, matrix in tile.state.items() if name != "step"]

    def dissolve(self) -> None:
        """Copy the optimizers' state out of the matrices, one matrix at a time, so that each is freed before the next is copied."""
        names = {name: None for tile in self._tiles for name in tile.state}
        self._tiles = ()
        for name in names:
            for state in [state for optimizer in self._optimizers for state in optimizer.state.values()]:
                if isinstance(state.get(name), Tensor):
                    state[name] = state[name].clone()


class Rule(NamedTuple):
    """How one type of optimizer steps."""

    numbers: Callable[[Tile, int], Numbers]
    """Returns the numbers of the next steps, ``[count, rows, numbers]``."""
    move: Callable[[Tile, Tensor, Tensor], Move]
    """Returns a step along gradients, which reads its numbers from the given tensor when it is made."""
    fused: Callable[[Tile, Tensor], Move] | None = None
    """Returns a step along gradients on a CPU, by torch's fused kernel, with the next step's numbers."""

    def ready(self, tile: Tile, gradients: Tensor) -> Move:
        """Return the next step along gradients, with its numbers."""
        if self.fused is not None and gradients.device.type == "cpu":
            return self.fused(tile, gradients)
        return self.move(tile, gradients, tile.to_device(self.numbers(tile, 1)[0]))


def settings_of(group: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of `SETTINGS` in a parameter group; None for those that it lacks."""
    return tuple(group.get(name) for name in SETTINGS)


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
        way = gradients
        for by in decay:
            way.addcmul_(tile.weights, by)
        if tile.momentum:
            buffer = tile.state["momentum_buffer"].mul_(momentum).add_(way)
            way = way.addcmul_(buffer, momentum) if nesterov else buffer
        tile.weights.addcmul_(way, rate)

    return move


def _adam_decays(tile: Tile) -> Decays:
    if tile.decoupled:
        return _decays(tile, lambda group: 1 - group["lr"] * group["weight_decay"])
    return _decays(tile, lambda group: group["weight_decay"])


def _adam_numbers(tile: Tile, count: int) -> Numbers:
    rows = [
        (group["lr"], *group["betas"], group["eps"], *own)
        for group, own in zip(tile.groups, _adam_decays(tile), strict=True)
    ]
    lr, beta1, beta2, eps, *decay = np.array(rows, np.float64).T
    made = []
    for steps in tile.steps + np.arange(1.0, count + 1)[:, np.newaxis]:  # one by one, for the same bits as alone
        root = np.sqrt(1 - beta2**steps)
        made.append([1 - beta1, 1 - beta2, eps * root, -lr / (1 - beta1**steps) * root, *decay])
    return np.array(made, np.float64).swapaxes(1, 2)


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
    for own in _alike(tile, adam_numbers, ("exp_avg", "exp_avg_sq")):
        weights, first, second = own.tensors
        moves.append(partial(kernel, weights, own.of(slopes), first, second, [], own.steps, **own.numbers))
    return partial(_all, moves)


def _sgd_fused(tile: Tile, gradients: Tensor) -> Move:
    slopes, moves = _cut(tile, gradients), []
    for own in _alike(tile, sgd_numbers, ("momentum_buffer",) if tile.momentum else ()):
        weights, *buffers = own.tensors
        moves.append(partial(torch._fused_sgd_, weights, own.of(slopes), buffers[0] if buffers else [], **own.numbers))
    return partial(_all, moves)


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
    moved = torch.lerp(mean, gradients, fresh)
    ways = gradients.lerp_(moved, momentum) if group["nesterov"] else moved
    updates = [
        orthogonal(ways[:, columns].view(len(ways), *shape), group).flatten(1)
        for columns, shape in zip(tile.pieces, tile.shapes, strict=True)
    ]

    def move() -> None:
        mean.copy_(moved)
        tile.weights.mul_(decay)
        for columns, update, rate in zip(tile.pieces, updates, rates, strict=True):
            tile.weights[:, columns].addcmul_(update, rate)

    return move


def orthogonal(ways: Tensor, group: dict[str, Any]) -> Tensor:
    """Return matrices ``[rows, m, n]`` orthogonalized by Newton-Schulz in bfloat16, each as torch's Muon does it alone."""
    a, b, c = group["ns_coefficients"]
    tall = ways.size(1) > ways.size(2)
    made = ways.bfloat16().mT if tall else ways.bfloat16()
    made = made / torch.linalg.vector_norm(made, dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = _product(torch.mm, torch.bmm, made, made.mT)
        update = _product(
            partial(torch.addmm, beta=b, alpha=c), partial(torch.baddbmm, beta=b, alpha=c), gram, gram, gram
        )
        made = _product(partial(torch.addmm, beta=a), partial(torch.baddbmm, beta=a), made, update, made)
    return made.mT if tall else made


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
        cut = [_cut(tile, matrix) for matrix in (tile.weights, *(tile.state[name] for name in names))]
        steps = [tile.state["step"][:, 0].unbind()] * len(cut[0]) if "step" in tile.state else []
        made = [Alike(own, numbers[own[0]], [], []) for own in rows.values()]
        tile.alike = numbers, [own._replace(tensors=[*map(own.of, cut)], steps=own.of(steps)) for own in made]
    return tile.alike[1]


def _all(moves: Sequence[Move]) -> None:
    for move in moves:
        move()


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
    SGD: Rule(_sgd_numbers, _sgd, _sgd_fused),
    Adam: Rule(_adam_numbers, _adam, _adam_fused),
    AdamW: Rule(_adam_numbers, _adam, _adam_fused),
    Muon: Rule(_muon_numbers, _muon),
}


def parts_of(optimizer: Any) -> Sequence[Optimizer]:
    """Return the optimizers of an `OptimizerList`, or the single one."""
    return optimizer.parts if isinstance(optimizer, OptimizerList) else (optimizer,)


def _kind_of_group(kind: type[Optimizer], group: dict[str, Any]) -> Hashable:
    of_muon = [group[option] for option in OF_MUON] if kind is Muon else []
    return group.get("nesterov"), _has_momentum(group), _decoupled(kind, group), *of_muon


def _has_momentum(group: dict[str, Any]) -> bool:
    return bool(group.get("momentum", 0))


def _steps_otherwise(optimizer: Optimizer) -> bool:
    """Return whether the object has its own `step` attribute, other than the wrapper that torch's schedules put around the class's method."""
    own = vars(optimizer).get("step")
    return own is not None and getattr(own, "__wrapped__", None) is not type(optimizer).step


def _counts_on_device(group: dict[str, Any]) -> bool:
    """Return whether step counts are on an accelerator, where the host would have to wait for them."""
    return bool(group.get("fused")) and any(weight.device.type != "cpu" for weight in group["params"])


def _decoupled(kind: type[Optimizer], group: dict[str, Any]) -> bool:
    return kind is AdamW or bool(group.get("decoupled_weight_decay"))


def mark_stepped(optimizers: Sequence[Optimizer]) -> None:
    """Mark optimizers as stepped although their own `step` is not called; otherwise schedules would warn."""
    for optimizer in optimizers:
        optimizer._opt_called = True  # type: ignore[attr-defined]


def steps_differ(optimizer: Optimizer) -> bool:
    """Return whether some weights of a group have made more steps than others."""
    return any(
        len({float(optimizer.state.get(p, {}).get("step", 0)) for p in group["params"] if p.requires_grad}) > 1
        for group in optimizer.param_groups
    )


def _state(
    kind: type[Optimizer],
    optimizers: Sequence[Optimizer],
    groups: Sequence[dict[str, Any]],
    pieces: Sequence[Piece],
    weights: Tensor,
) -> dict[str, Tensor]:
    """Return matrices that hold the optimizers' state from now on; existing state is copied in, missing state is zero."""
    state: dict[str, Tensor] = {}
    names = ["momentum_buffer"] if kind is Muon or _has_momentum(groups[0]) else []
    if kind in (Adam, AdamW):
        state["step"] = torch.zeros(len(groups), len(pieces))
        names = ["exp_avg", "exp_avg_sq"]
    state |= {name: torch.zeros_like(weights, memory_format=torch.contiguous_format) for name in names}
    for row, (optimizer, group) in enumerate(zip(optimizers, groups, strict=True)):
        parameters = [p for p in group["params"] if p.requires_grad]
        for number, (parameter, piece) in enumerate(zip(parameters, pieces, strict=True)):
            for name, matrix in state.items():
                start = piece.start - pieces[0].start
                own = matrix[row, number] if name == "step" else matrix[row, start : start + parameter.numel()]
                adopt_state(optimizer.state[parameter], name, own.view(() if name == "step" else piece.shape))
    return state


def adopt_state(state: dict[str, Any], name: str, own: Tensor) -> None:
    """Make this tensor a part of an optimizer's state; the existing value, if any, is copied into it."""
    if state.get(name) is not None:
        own.copy_(state[name])
    state[name] = own
