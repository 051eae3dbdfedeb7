"""Optimizer steps of a turn: each member's gradients are clipped, and its optimizer makes a step along them.

Where all members of a program are stepped at once, that is one step of each kernel; else optimizers step themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from argosy.training.member.live import LiveMember
from argosy.training.member.precision import LossScales
from argosy.training.optim.kernels import Kernel
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.forward import Rows

__all__ = ["FusedSteps", "Part"]


@dataclass(slots=True)
class Part:
    """The members of a turn that are stepped together, between `begin` and `finish`."""

    rows: Rows
    totals: Tensor
    """Each member's sum of losses over the batch, float64 ``[rows]``."""
    gradients: Tensor
    """``[rows, columns]``."""
    idle: frozenset[str]
    """Weights unused by the losses, which optimizers leave alone."""
    overflowed: frozenset[int] = frozenset()
    """Rows with overflowed gradients, which make no step."""


class FusedSteps:
    """Clips and steps the members of one program."""

    def __init__(
        self,
        lives: Sequence[LiveMember],
        parameter_buffer: ParameterBuffer,
        kernels: Sequence[Kernel],
        scales: LossScales | None,
    ) -> None:
        self._lives = lives
        self._parameter_buffer = parameter_buffer
        self._kernels = kernels
        self._scales = scales
        self._limits = _clip_limits(lives, parameter_buffer)
        self._even = True
        """Whether all weights of a member have made equally many steps, as kernels require."""
        self._watched = {
            row
            for row, live in enumerate(lives)
            if live.loss_scale is not None or (live.schedule is not None and live.member.schedule_per == "step")
        }
        """Rows of members with a loss scale, or a schedule per step."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels that step all members at once; none once some weights have made fewer steps than others."""
        return self._kernels if self._even else ()

    def prepare(self, part: Part) -> None:
        """Unscale and clip a part's gradients."""
        if self._scales is not None:
            part.overflowed = self._scales.divide(part.gradients, part.rows)
        self._clip(part)

    @torch.no_grad()
    def make(self, part: Part) -> dict[str, Exception]:
        """Step the part's members; returns errors of members' own code, by member."""
        faults: dict[str, Exception] = {}
        self._even = self._even and not part.idle
        stepped: set[int] = set()
        if self._even and len(part.rows) == len(self._lives) and not part.overflowed:
            # All memory is allocated before the first kernel moves, so a turn is either made or undone as a whole.
            for kernel, move in [(kernel, kernel.ready(part.gradients[kernel.rows])) for kernel in self._kernels]:
                if move is not None:
                    move()
                    stepped.update(range(kernel.rows.start, kernel.rows.stop))
        for number, row in enumerate(part.rows):
            if row in stepped and row not in self._watched:
                continue
            live = self._lives[row]
            try:
                if row in part.overflowed:
                    live.optimizer._opt_called = True  # for its schedule, as in `Solo`
                elif row not in stepped:
                    self._step_itself(row, part.gradients[number], part.idle)
                if live.loss_scale is not None:
                    live.loss_scale.follow(overflowed=row in part.overflowed)
                if live.schedule is not None and live.member.schedule_per == "step":
                    live.schedule.step()
            except Exception as error:  # boundary between a member's code and ours
                faults[live.member.name] = error
        return faults

    def release(self) -> None:
        """Give the optimizers their states back."""
        for kernel in self._kernels:
            kernel.dissolve()

    @torch.no_grad()
    def _clip(self, part: Part) -> None:
        """Clip each member's gradients as `clip_grad_norm_` does."""
        if self._limits is None:
            return
        limits = self._limits
        if len(part.rows) < len(self._lives):
            limits = limits[torch.tensor(part.rows, device=limits.device)]
        factors = (limits / (part.gradients.norm(dim=1) + 1e-6)).clamp(max=1.0)
        part.gradients.mul_(torch.where(limits.isinf(), torch.ones_like(factors), factors).unsqueeze(1))

    def _step_itself(self, row: int, gradients: Tensor, idle: frozenset[str]) -> None:
        """Make a step of the member's own optimizer, on its views."""
        live, parameters = self._lives[row], self._parameter_buffer.parameters[row]
        for piece, parameter in zip(self._parameter_buffer.pieces, parameters, strict=True):
            parameter.grad = None if piece.name in idle else piece.of(gradients)
        with live.randomness.active(), torch.enable_grad():
            live.optimizer.step()
            if type(live.optimizer).zero_grad is not Optimizer.zero_grad:
                live.optimizer.zero_grad(set_to_none=True)
        for parameter in parameters:
            parameter.grad = None


def _clip_limits(lives: Sequence[LiveMember], parameter_buffer: ParameterBuffer) -> Tensor | None:
    """Return the norm to which each member's gradient is clipped ``[members]``, infinity for none; None if no member clips."""
    limits = [live.member.clip_grad_norm for live in lives]
    if all(limit is None for limit in limits):
        return None
    return parameter_buffer.weights.new_tensor([math.inf if limit is None else limit for limit in limits])
