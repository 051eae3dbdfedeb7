"""Fused optimizer steps: torch's SGD, Adam, AdamW and Muon for many members at once, on the rows of a parameter buffer.

Hyper-parameters are read from the members' own optimizers at every step, so torch's schedules work as usual. `optimizer.state` holds
views of the matrices here, in torch's own shapes, so an optimizer can also make any step itself.

The host reads the numbers for a step from the optimizers separately from the device's work, because a captured step
(`argosy.training.programs.graphed.graphed`) takes them from static memory.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Muon, Optimizer
from torch.optim import optimizer as torch_optimizer

from argosy.training.device.recorders import InBranches, run_in_turn
from argosy.training.optim.optimizer_list import OptimizerList
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.optim.rules import (
    RULES,
    Move,
    Numbers,
    Steps,
    Tile,
    counts_steps,
    has_momentum,
    is_decoupled,
    settings_of,
    state_names,
)

__all__ = [
    "OF_MUON",
    "Kernel",
    "Settings",
    "adopt_state",
    "is_unusual",
    "optimizer_kind",
    "mark_stepped",
    "parts_of",
    "separate_state",
    "steps_differ",
]

UNUSUAL = ("maximize", "amsgrad", "capturable", "differentiable", "dampening")
"""Options for which no kernel exists; an optimizer with one of them makes its steps itself."""
OF_MUON = ("ns_coefficients", "ns_steps", "eps", "adjust_lr_fn")
"""Options of Muon that must be equal for all rows."""
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
    own_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    hooks = own_hooks or torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks
    return bool(hooks) or _steps_otherwise(optimizer) or any(map(_is_unusual_group, optimizer.param_groups))


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
        real = parameter_buffer.weights.dtype in (torch.float32, torch.float64)
        if not real or optimizer_kind(optimizers[0]) is None or any(map(steps_differ, optimizers)):
            return None
        tiles, by_row = [], [[part for part in parts_of(one) for _ in part.param_groups] for one in optimizers]
        for number, of_group in enumerate(parameter_buffer.groups):
            parts = [own[number] for own in by_row]
            kind, groups = type(parts[0]), [optimizer.param_groups[number] for optimizer in optimizers]
            # Each of Muon's matrices has its own rate.
            for pieces in [[piece] for piece in of_group] if kind is Muon else [of_group] if of_group else []:
                columns = slice(pieces[0].start, pieces[-1].stop)
                tile = Tile(
                    kind=kind,
                    groups=groups,
                    pieces=[slice(piece.start - columns.start, piece.stop - columns.start) for piece in pieces],
                    shape=pieces[0].shape,
                    columns=columns,
                    weights=parameter_buffer.weights[rows, columns],
                )
                at = parameter_buffer.pieces.index(pieces[0])
                _take_state(tile, parts, [own[at : at + len(pieces)] for own in parameter_buffer.parameters[rows]])
                tiles.append(tile)
        mark_stepped(optimizers)
        return cls(optimizers, rows, tiles)

    @property
    def fits(self) -> bool:
        """Whether the kernel can make the next step: it is built for momentum or for none, and a schedule may switch it on or off."""
        of_momentum = [tile for tile in self._tiles if tile.kind is SGD]
        return all(has_momentum(group) == tile.momentum for tile in of_momentum for group in tile.groups)

    def ready(self, gradients: Tensor) -> Move:
        """Prepare the step of all rows along gradients ``[rows, columns]``, which it may overwrite.

        All memory is allocated here, so an out-of-memory error leaves everything unchanged.
        """
        moves = [tile.ready(gradients[:, tile.columns]) for tile in self._tiles]

        def move() -> None:
            # First: torch's fused kernels take counts that include this step.
            self.note_step()
            for of_tile in moves:
                of_tile()

        return move

    @property
    def settings(self) -> Settings:
        """Current hyper-parameters in the optimizers' groups, which schedules change; they and `steps` determine `numbers`."""
        return [settings_of(group) for tile in self._tiles for group in tile.groups]

    @property
    def steps(self) -> Steps:
        """Steps made, by parameter group and row, each of which a step increments; empty if `numbers` do not depend on them."""
        return np.concatenate([tile.steps for tile in self._tiles])

    @property
    def form(self) -> Hashable:
        """What decides which operations make a step; a schedule may change it."""
        return self.fits, *(tile.decays for tile in self._tiles)

    def numbers(self, count: int) -> Numbers:
        """Return the numbers of the next steps with the current settings ``[count, tiles · rows, 8]``."""
        return np.concatenate([tile.numbers(count) for tile in self._tiles], 1)

    def move(self, gradients: Tensor, numbers: Tensor, in_branches: InBranches = run_in_turn) -> None:
        """Do only the device's part of a step, along gradients ``[rows, columns]``, which it may overwrite; independent work runs `in_branches`."""
        for tile, own in zip(self._tiles, torch.split(numbers, len(gradients)), strict=True):
            tile.move(gradients[:, tile.columns], own)()

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
        self._tiles = ()
        separate_state(self._optimizers)


def parts_of(optimizer: Any) -> Sequence[Optimizer]:
    """Return the optimizers of an `OptimizerList`, or the single one."""
    return optimizer.parts if isinstance(optimizer, OptimizerList) else (optimizer,)


def _kind_of_group(kind: type[Optimizer], group: dict[str, Any]) -> Hashable:
    of_muon = [group[option] for option in OF_MUON] if kind is Muon else []
    return group.get("nesterov"), has_momentum(group), is_decoupled(kind, group), *of_muon


def _steps_otherwise(optimizer: Optimizer) -> bool:
    """Return whether the object has its own `step` attribute, other than the wrapper that torch's schedules put around the class's method."""
    own = vars(optimizer).get("step")
    return own is not None and getattr(own, "__wrapped__", None) is not type(optimizer).step


def _is_unusual_group(group: dict[str, Any]) -> bool:
    """Return whether a parameter group has unusual options, tensors as settings, or step counts on an accelerator, for which the host would wait."""
    counts_there = group.get("fused") and any(weight.device.type != "cpu" for weight in group["params"])
    return bool(counts_there) or any(map(group.get, UNUSUAL)) or any(isinstance(v, Tensor) for v in settings_of(group))


def mark_stepped(optimizers: Sequence[Optimizer]) -> None:
    """Mark optimizers as stepped although their own `step` is not called; otherwise schedules would warn."""
    for optimizer in optimizers:
        optimizer._opt_called = True  # type: ignore[attr-defined]


def steps_differ(optimizer: Optimizer) -> bool:
    """Return whether some weights of a group have made more steps than others."""
    return any(
        len({float(part.state.get(p, {}).get("step", 0)) for p in group["params"] if p.requires_grad}) > 1
        for part in parts_of(optimizer)
        for group in part.param_groups
    )


def _take_state(tile: Tile, optimizers: Sequence[Optimizer], parameters: Sequence[Sequence[Tensor]]) -> None:
    """Move the optimizers' state of these weights, by row, into matrices of the tile; missing state is zero."""
    if counts_steps(tile.kind):
        tile.state["step"] = torch.zeros(len(optimizers), len(tile.pieces))
    for name in state_names(tile.kind, tile.groups[0]):
        tile.state[name] = torch.zeros_like(tile.weights, memory_format=torch.contiguous_format)
    for row, (optimizer, of_row) in enumerate(zip(optimizers, parameters, strict=True)):
        for number, (parameter, piece) in enumerate(zip(of_row, tile.pieces, strict=True)):
            for name, matrix in tile.state.items():
                own = matrix[row, number] if name == "step" else matrix[row, piece].view(parameter.shape)
                adopt_state(optimizer.state[parameter], name, own)


def separate_state(optimizers: Sequence[Optimizer]) -> None:
    """Give the optimizers' state its own memory, name by name, so that shared memory is freed before more of it is copied."""
    states = [state for one in optimizers for part in parts_of(one) for state in part.state.values()]
    for name in dict.fromkeys(name for state in states for name in state):
        for state in states:
            if isinstance(state.get(name), Tensor):
                state[name] = state[name].clone()


def adopt_state(state: dict[str, Any], name: str, own: Tensor) -> None:
    """Make this tensor a part of an optimizer's state; the existing value, if any, is copied into it."""
    if state.get(name) is not None:
        own.copy_(state[name])
    state[name] = own
