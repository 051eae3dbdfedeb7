"""Steps of torch's SGD, Adam and AdamW for many members at once, on the rows of an parameter_buffer.

Hyper-parameters are read from the members' own optimizers at every step, so torch's schedules work as ever. The state is
theirs as well: `optimizer.state` holds views of the matrices here, of the form that torch gives them, so that any step may
as well be made by the optimizer itself. The arithmetic is that of `torch/optim/{sgd,adam}.py`.

What the host reads of the optimizers for a step are its numbers, apart from what the device does with them: a step that is
captured (`argosy.training.programs.graphed.graphed`) takes them from memory that stays where it is.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

from argosy.training.optim.parameter_buffer import ParameterBuffer, Piece

__all__ = ["Kernel", "Numbers", "is_unusual", "kind_of", "sent"]

UNUSUAL = ("maximize", "amsgrad", "capturable", "differentiable", "dampening")
"""Options of which an optimizer makes its steps itself."""
Move = Callable[[], None]
"""What moves weights and state, and takes no memory for that."""
Numbers = Sequence[tuple[float, ...]]
"""Of each row, what a step takes of its optimizer; equally many, and one less where nothing decays."""


def kind_of(optimizer: Optimizer) -> Hashable:
    """Optimizers of one kind take one kernel; None for those that make their steps themselves."""
    if type(optimizer) not in RULES or is_unusual(optimizer):
        return None
    groups = optimizer.param_groups
    return (
        type(optimizer),
        *((group.get("nesterov"), _has_momentum(group), _decoupled(optimizer)) for group in groups),
    )


def is_unusual(optimizer: Optimizer) -> bool:
    """Whether an optimizer of torch does something beside its arithmetic, or otherwise than most."""
    groups = optimizer.param_groups
    return (
        any(group.get(option) for group in groups for option in UNUSUAL)
        or any(isinstance(group["lr"], Tensor) or _counts_on_device(group) for group in groups)
        or bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        or bool(torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks)
        or _steps_otherwise(optimizer)
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
    shown: list[tuple[Numbers, Tensor]] = field(default_factory=list)
    """The numbers that were placed last, and where: they seldom change."""

    @property
    def steps(self) -> Sequence[float]:
        """That each row will have made after the coming one."""
        return [step + 1 for step in self.state["step"][:, 0].tolist()]

    def placed(self, numbers: Numbers) -> Tensor:
        """``[rows, numbers]`` where the weights are."""
        if not self.shown or self.shown[0][0] != numbers:
            self.shown[:] = [(numbers, sent(numbers, self.weights))]
        return self.shown[0][1]


def sent(numbers: Sequence[float] | Numbers, like: Tensor) -> Tensor:
    """Numbers of the type of a tensor where that is, without the host's waiting for what was asked for before."""
    # Pinned memory, which torch keeps until the copy has passed.
    apart = like.device.type == "cuda"
    return torch.tensor(numbers, dtype=like.dtype, pin_memory=apart).to(like.device, non_blocking=apart)


class Kernel:
    """Steps the members in some rows of an parameter_buffer whose optimizers are of one kind."""

    def __init__(self, optimizers: Sequence[Optimizer], rows: slice, tiles: Sequence[Tile]) -> None:
        self._optimizers = optimizers
        self.rows = rows
        self._tiles = tuple(tiles)
        self._rule = RULES[type(optimizers[0])]
        self._of_momentum = type(optimizers[0]) is SGD
        self._stepped = False

    @classmethod
    def of(cls, optimizers: Sequence[Optimizer], parameter_buffer: ParameterBuffer, first: int) -> "Kernel | None":
        """The kernel of these optimizers, of the rows from `first`; their state lies in its matrices from here on.

        None where they make their steps themselves: also where a member's weights have not made equally many steps.
        """
        rows = slice(first, first + len(optimizers))
        usual = parameter_buffer.weights.dtype in (torch.float32, torch.float64) and kind_of(optimizers[0]) is not None
        if not usual or any(_steps_differ(optimizer) for optimizer in optimizers):
            return None
        tiles = []
        for number, pieces in enumerate(parameter_buffer.groups):
            if pieces:
                groups = [optimizer.param_groups[number] for optimizer in optimizers]
                columns = slice(pieces[0].start, pieces[-1].stop)
                weights = parameter_buffer.weights[rows, columns]
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
        if self._changed:
            return None
        moves = [self._rule.ready(tile, gradients[:, tile.columns]) for tile in self._tiles]

        def move() -> None:
            self.note_step()
            for of_tile in moves:
                of_tile()

        return move

    @property
    def _changed(self) -> bool:
        return self._of_momentum and any(_has_momentum(g) != tile.momentum for tile in self._tiles for g in tile.groups)

    def numbers(self) -> Sequence[Numbers] | None:
        """Of the coming step, by group of the optimizers; None where a schedule has changed what the kernel is for."""
        return None if self._changed else [self._rule.numbers(tile) for tile in self._tiles]

    def move(self, gradients: Tensor, numbers: Sequence[Tensor]) -> None:
        """What the device does in a step, and that alone: along gradients ``[rows, columns]``, which it may write into.

        Numbers are by group, each ``[rows, numbers]``.
        """
        for tile, own in zip(self._tiles, numbers, strict=True):
            self._rule.move(tile, gradients[:, tile.columns], own)()

    def note_step(self) -> None:
        """What the host does in a step. Without torch's own note, schedules warn that they were called too early."""
        for tile in self._tiles:
            if "step" in tile.state:
                tile.state["step"].add_(1)
        if not self._stepped:
            self._stepped = True
            for optimizer in self._optimizers:
                optimizer._opt_called = True  # type: ignore[attr-defined]

    @property
    def moved(self) -> Sequence[Tensor]:
        """What a step moves on the device beside the weights."""
        return [matrix for tile in self._tiles for name, matrix in tile.state.items() if name != "step"]

    def dissolve(self) -> None:
        """Give the optimizers' state memory of its own, one matrix after another: each is gone before the next is copied."""
        names = {name: None for tile in self._tiles for name in tile.state}
        self._tiles = ()
        for name in names:
            for state in [state for optimizer in self._optimizers for state in optimizer.state.values()]:
                if isinstance(state.get(name), Tensor):
                    state[name] = state[name].clone()


class Rule(NamedTuple):
    """How optimizers of one type step."""

    numbers: Callable[[Tile], Numbers]
    """Of the coming step."""
    move: Callable[[Tile, Tensor, Tensor], Move]
    """Along gradients, with numbers that are read when it moves."""
    ready: Callable[[Tile, Tensor], Move]
    """Along gradients, with the numbers of the coming step."""


def _sgd_numbers(tile: Tile) -> Numbers:
    decays = _decays(tile, lambda group: group["weight_decay"])
    return [(-group["lr"], group["momentum"], *decay) for group, decay in zip(tile.groups, decays, strict=True)]


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


def _adam_decays(tile: Tile) -> Numbers:
    if tile.decoupled:
        return _decays(tile, lambda group: 1 - group["lr"] * group["weight_decay"])
    return _decays(tile, lambda group: group["weight_decay"])


def _adam_numbers(tile: Tile) -> Numbers:
    """Every row has its own."""
    own = []
    for group, step, decay in zip(tile.groups, tile.steps, _adam_decays(tile), strict=True):
        lr, (beta1, beta2) = group["lr"], group["betas"]
        root = (1 - beta2**step) ** 0.5
        own.append((1 - beta1, 1 - beta2, group["eps"] * root, -lr / (1 - beta1**step) * root, *decay))
    return own


def _adam(tile: Tile, gradients: Tensor, numbers: Tensor) -> Move:
    fresh, fresh_square, eps, rate, *decay = numbers.unsqueeze(2).unbind(1)
    first, second = tile.state["exp_avg"], tile.state["exp_avg_sq"]

    def move() -> None:
        _adam_decay(tile, gradients, decay)
        first.lerp_(gradients, fresh)
        second.lerp_(gradients.mul_(gradients), fresh_square)
        # The gradients' memory serves for what is left: more of that size would cost more than all the arithmetic. Both
        # sides of the quotient are multiplied by the correction of the second moment, which spares a pass.
        torch.sqrt(second, out=gradients).add_(eps)
        tile.weights.addcmul_(torch.div(first, gradients, out=gradients), rate)

    return move


def _adam_ready(tile: Tile, gradients: Tensor) -> Move:
    groups = tile.groups
    alike = len({(*group["betas"], group["eps"], step) for group, step in zip(groups, tile.steps, strict=True)}) == 1
    if not alike or gradients.device.type != "cpu" or not gradients.is_contiguous():
        return _adam(tile, gradients, tile.placed(_adam_numbers(tile)))
    (lr, weight_decay), *others = {(group["lr"], group["weight_decay"]) for group in groups}
    if not others and tile.weights.is_contiguous():
        return _adam_of_torch(tile, tile.weights, gradients, lr=lr, weight_decay=weight_decay)
    # Torch's kernel has one rate for all: it moves zeros at a rate of one, and they are the way to go.
    way = torch.zeros_like(gradients)
    adam = _adam_of_torch(tile, way, gradients, lr=1.0, weight_decay=0.0)
    numbers = [(group["lr"], *decay) for group, decay in zip(groups, _adam_decays(tile), strict=True)]
    rate, *decay = tile.placed(numbers).unsqueeze(2).unbind(1)

    def move() -> None:
        _adam_decay(tile, gradients, decay)
        adam()
        tile.weights.addcmul_(way, rate)

    return move


def _adam_of_torch(tile: Tile, weights: Tensor, gradients: Tensor, *, lr: float, weight_decay: float) -> Move:
    """Torch's own kernel for a CPU, which passes over everything once: of rows that differ in nothing that it reads."""
    (beta1, beta2), eps = tile.groups[0]["betas"], tile.groups[0]["eps"]
    return partial(
        torch._fused_adamw_ if tile.decoupled else torch._fused_adam_,
        *([weights], [gradients], [tile.state["exp_avg"]], [tile.state["exp_avg_sq"]], [], [tile.state["step"][0, 0]]),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def _adam_decay(tile: Tile, gradients: Tensor, decay: Sequence[Tensor]) -> None:
    for by in decay:
        if tile.decoupled:
            tile.weights.mul_(by)
        else:
            gradients.addcmul_(tile.weights, by)


def _decays(tile: Tile, of_group: Callable[[dict[str, Any]], float]) -> Numbers:
    """Of each row by what it decays; nothing where none does."""
    if not any(group["weight_decay"] for group in tile.groups):
        return [()] * len(tile.groups)
    return [(of_group(group),) for group in tile.groups]


def _sgd_ready(tile: Tile, gradients: Tensor) -> Move:
    return _sgd(tile, gradients, tile.placed(_sgd_numbers(tile)))


RULES: dict[type[Optimizer], Rule] = {
    SGD: Rule(_sgd_numbers, _sgd, _sgd_ready),
    Adam: Rule(_adam_numbers, _adam, _adam_ready),
    AdamW: Rule(_adam_numbers, _adam, _adam_ready),
}


def _has_momentum(group: dict[str, Any]) -> bool:
    return bool(group.get("momentum", 0))


def _steps_otherwise(optimizer: Optimizer) -> bool:
    """Whether the object has a `step` of its own, and not one that torch's schedules have put around that of its class."""
    own = vars(optimizer).get("step")
    return own is not None and getattr(own, "__wrapped__", None) is not type(optimizer).step


def _counts_on_device(group: dict[str, Any]) -> bool:
    """Whether the state has its steps where the host would have to wait for them."""
    return bool(group.get("fused")) and any(weight.device.type != "cpu" for weight in group["params"])


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
