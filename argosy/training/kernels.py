"""Steps of torch's SGD, Adam and AdamW for many members at once, on the rows of an arena.

Hyper-parameters are read from the members' own optimizers at every step, so torch's schedules work as ever. The state is
theirs as well: `optimizer.state` holds views of the matrices here, of the form that torch gives them, so that any step may
as well be made by the optimizer itself. The arithmetic is that of `torch/optim/{sgd,adam}.py`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from argosy.training.arena import Arena, Piece

__all__ = ["Kernel", "kind_of"]

UNUSUAL = ("maximize", "amsgrad", "capturable", "differentiable", "fused", "dampening")
"""Options of which an optimizer makes its steps itself."""
Move = Callable[[], None]
"""What moves weights and state, and takes no memory for that."""


def kind_of(optimizer: Optimizer) -> Hashable:
    """Optimizers of one kind take one kernel; None for those that make their steps themselves."""
    groups = optimizer.param_groups
    if type(optimizer) not in STEPS or any(group.get(option) for group in groups for option in UNUSUAL):
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    if any(isinstance(group["lr"], Tensor) for group in groups):
        return None
    return (
        type(optimizer),
        *((group.get("nesterov"), _has_momentum(group), _decoupled(optimizer)) for group in groups),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """What members whose optimizers are of one kind have in one group of these."""

    groups: Sequence[dict[str, Any]]
    """Of each row, its group in its optimizer."""
    momentum: bool
    """Whether there is any, of SGD."""
    decoupled: bool
    """Whether weights decay beside their gradients, as AdamW has it."""
    columns: slice
    weights: Tensor
    """``[rows, columns]``."""
    state: dict[str, Tensor]
    """By torch's names: of the weights' shape, and ``step`` ``[rows, weights]``."""

    def numbers(self, rows: Sequence[tuple[float, ...]]) -> tuple[Tensor, ...]:
        """Some numbers of each row -> each of them ``[rows, 1]``."""
        made = torch.tensor(rows, dtype=self.weights.dtype, device=self.weights.device)
        return made.unsqueeze(2).unbind(1)


class Kernel:
    """Steps the members in some rows of an arena whose optimizers are of one kind."""

    def __init__(self, optimizers: Sequence[Optimizer], rows: slice, tiles: Sequence[Tile]) -> None:
        self._optimizers = optimizers
        self.rows = rows
        self._tiles = tuple(tiles)
        self._step = STEPS[type(optimizers[0])]
        self._of_momentum = type(optimizers[0]) is SGD
        self._stepped = False

    @classmethod
    def of(cls, optimizers: Sequence[Optimizer], arena: Arena, first: int) -> "Kernel | None":
        """The kernel of these optimizers, of the rows from `first`; their state lies in its matrices from here on.

        None where they make their steps themselves: also where a member's weights have not made equally many steps.
        """
        rows = slice(first, first + len(optimizers))
        usual = arena.weights.dtype in (torch.float32, torch.float64) and kind_of(optimizers[0]) is not None
        if not usual or any(_steps_differ(optimizer) for optimizer in optimizers):
            return None
        tiles = []
        for number, pieces in enumerate(arena.groups):
            if pieces:
                groups = [optimizer.param_groups[number] for optimizer in optimizers]
                columns = slice(pieces[0].start, pieces[-1].stop)
                weights = arena.weights[rows, columns]
                state = _state(optimizers, groups, pieces, weights)
                tiles.append(
                    Tile(
                        groups=groups,
                        momentum=_has_momentum(groups[0]),
                        decoupled=_decoupled(optimizers[0]),
                        columns=columns,
                        weights=weights,
                        state=state,
                    )
                )
        return cls(optimizers, rows, tiles)

    def ready(self, gradients: Tensor) -> Move | None:
        """The step of all rows along gradients ``[rows, columns]``, which it may write into.

        It has all the memory that it needs: what runs out of it here has moved nothing. None where a schedule has changed what
        the kernel is for.
        """
        if self._of_momentum and any(_has_momentum(g) != tile.momentum for tile in self._tiles for g in tile.groups):
            return None
        moves = [self._step(tile, gradients[:, tile.columns]) for tile in self._tiles]

        def move() -> None:
            for of_tile in moves:
                of_tile()
            self._note_step()

        return move

    def dissolve(self) -> None:
        """Give the optimizers' state memory of its own, one matrix after another: each is gone before the next is copied."""
        names = {name: None for tile in self._tiles for name in tile.state}
        self._tiles = ()
        for name in names:
            for state in [state for optimizer in self._optimizers for state in optimizer.state.values()]:
                if isinstance(state.get(name), Tensor):
                    state[name] = state[name].clone()

    def _note_step(self) -> None:
        """What torch notes in `step`: without it, schedules warn that they were called too early."""
        if not self._stepped:
            self._stepped = True
            for optimizer in self._optimizers:
                optimizer._opt_called = True  # type: ignore[attr-defined]


def _sgd(tile: Tile, gradients: Tensor) -> Move:
    nesterov = tile.groups[0]["nesterov"]
    numbers = [(-group["lr"], group["momentum"], group["weight_decay"]) for group in tile.groups]
    rate, momentum, decay = tile.numbers(numbers)
    decays = any(own for _, _, own in numbers)

    def move() -> None:
        way = gradients
        if decays:
            way.addcmul_(tile.weights, decay)
        if tile.momentum:
            buffer = tile.state["momentum_buffer"].mul_(momentum).add_(way)
            way = way.addcmul_(buffer, momentum) if nesterov else buffer
        tile.weights.addcmul_(way, rate)

    return move


def _adam(tile: Tile, gradients: Tensor) -> Move:
    groups, weights = tile.groups, tile.weights
    decay = None
    if any(group["weight_decay"] for group in groups):
        decays = [(1 - g["lr"] * g["weight_decay"] if tile.decoupled else g["weight_decay"],) for g in groups]
        (decay,) = tile.numbers(decays)
    steps = [step + 1 for step in tile.state["step"][:, 0].tolist()]
    alike = len({(*group["betas"], group["eps"], step) for group, step in zip(groups, steps, strict=True)}) == 1
    if alike and gradients.is_contiguous() and gradients.device.type == "cpu":
        move_on = _adam_in_one_pass(tile, gradients)
    else:
        move_on = _adam_by_rows(tile, gradients, steps)

    def move() -> None:
        tile.state["step"].add_(1)
        if decay is not None and tile.decoupled:
            weights.mul_(decay)
        elif decay is not None:
            gradients.addcmul_(weights, decay)
        move_on()

    return move


def _adam_in_one_pass(tile: Tile, gradients: Tensor) -> Move:
    """Torch's own kernel for a CPU, which has one rate for all: it moves zeros at a rate of one, and they are the way to go."""
    group, way = tile.groups[0], torch.zeros_like(gradients)
    first, second, step = tile.state["exp_avg"], tile.state["exp_avg_sq"], tile.state["step"][0, 0]
    beta1, beta2 = group["betas"]
    (rate,) = tile.numbers([(group["lr"],) for group in tile.groups])

    def move() -> None:
        torch._fused_adam_(
            [way], [gradients], [first], [second], [], [step], lr=1.0, beta1=beta1, beta2=beta2, weight_decay=0.0,
            eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip
        tile.weights.addcmul_(way, rate)

    return move


def _adam_by_rows(tile: Tile, gradients: Tensor, steps: Sequence[float]) -> Move:
    """Every row with numbers of its own."""
    own = []
    for group, step in zip(tile.groups, steps, strict=True):
        lr, (beta1, beta2) = group["lr"], group["betas"]
        root = (1 - beta2**step) ** 0.5
        own.append((1 - beta1, 1 - beta2, group["eps"] * root, -lr / (1 - beta1**step) * root))
    fresh, fresh_square, eps, rate = tile.numbers(own)
    first, second = tile.state["exp_avg"], tile.state["exp_avg_sq"]

    def move() -> None:
        first.lerp_(gradients, fresh)
        second.lerp_(gradients.mul_(gradients), fresh_square)
        # The gradients' memory serves for what is left: more of that size would cost more than all the arithmetic. Both
        # sides of the quotient are multiplied by the correction of the second moment, which spares a pass.
        torch.sqrt(second, out=gradients).add_(eps)
        tile.weights.addcmul_(torch.div(first, gradients, out=gradients), rate)

    return move


STEPS: dict[type[Optimizer], Callable[[Tile, Tensor], Move]] = {SGD: _sgd, Adam: _adam, AdamW: _adam}


def _has_momentum(group: dict[str, Any]) -> bool:
    return bool(group.get("momentum", 0))


def _decoupled(optimizer: Optimizer) -> bool:
    return type(optimizer) is AdamW or any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)


def _steps_differ(optimizer: Optimizer) -> bool:
    """Whether some weights have made more steps than others."""
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return len({float(optimizer.state.get(parameter, {}).get("step", 0)) for parameter in trained}) > 1


def _state(
    optimizers: Sequence[Optimizer], groups: Sequence[dict[str, Any]], pieces: Sequence[Piece], weights: Tensor
) -> dict[str, Tensor]:
    """Matrices that are the optimizers' state from here on; what they had goes in, and what they had not is nothing."""
    state: dict[str, Tensor] = {}
    names = ["momentum_buffer"] if _has_momentum(groups[0]) else []
    if type(optimizers[0]) is not SGD:
        state["step"] = torch.zeros(len(groups), len(pieces))
        names = ["exp_avg", "exp_avg_sq"]
    state |= {name: torch.zeros_like(weights, memory_format=torch.contiguous_format) for name in names}
    for row, (optimizer, group) in enumerate(zip(optimizers, groups, strict=True)):
        parameters = [p for p in group["params"] if p.requires_grad]
        for number, (parameter, piece) in enumerate(zip(parameters, pieces, strict=True)):
            for name, matrix in state.items():
                start = piece.start - pieces[0].start
                own = matrix[row, number] if name == "step" else matrix[row, start : start + parameter.numel()]
                _adopt(optimizer.state[parameter], name, own.view(() if name == "step" else piece.shape))
    return state


def _adopt(state: dict[str, Any], name: str, own: Tensor) -> None:
    if state.get(name) is not None:
        own.copy_(state[name])
    state[name] = own
