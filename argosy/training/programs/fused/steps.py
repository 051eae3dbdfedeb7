"""Optimizer steps of a lockstep: each member's gradients are clipped, and its optimizer steps along them.

Each kernel makes one step for all its members; optimizers without a kernel make their own.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from argosy.training.device.recorders import Uncaptured
from argosy.training.member.live import LiveMember
from argosy.training.member.precision import LossScales
from argosy.training.optim.kernels import Kernel
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.optim.rules import Move
from argosy.training.programs.program import collecting
from argosy.training.programs.solo import Solo

__all__ = ["FusedSteps", "Part", "check_all_derived"]


@dataclass(frozen=True, slots=True)
class Part:
    """A lockstep of all members, between `begin` and `finish`."""

    totals: Tensor
    """Each member's sum of losses over the batch, float64 ``[members]``."""
    gradients: Tensor
    """``[members, columns]``."""
    idle: frozenset[str]
    """Weights that the losses do not use, which optimizers skip."""


class FusedSteps:
    """Clips and steps the members of one program."""

    def __init__(
        self,
        solos: Sequence[Solo],
        parameter_buffer: ParameterBuffer,
        kernels: Sequence[Kernel],
        scales: LossScales | None,
    ) -> None:
        self._solos = solos
        self._lives = lives = [solo.live for solo in solos]
        self._parameter_buffer = parameter_buffer
        self._kernels = kernels
        self._scales = scales
        self._limits = _clip_limits(lives, parameter_buffer)
        pieces = {piece.name: piece for piece in parameter_buffer.pieces}
        self._in_order = [pieces[name] for name, _ in lives[0].model.named_parameters() if name in pieces]
        self._even = True
        """Whether all weights of each member have made equally many steps, as kernels require."""
        self._watched = {
            row for row, live in enumerate(lives) if live.has_batch_schedule or live.loss_scale is not None
        }
        """Rows of members with a loss scale, or a schedule per step."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels that step all members at once; empty once some weights have made fewer steps than others."""
        return self._kernels if self._even else ()

    @torch.no_grad()
    def make(self, part: Part) -> dict[str, BaseException]:
        """Step the part's members; returns errors of members' own code, by member."""
        faults: dict[str, BaseException] = {}
        self._even = self._even and not part.idle
        # All memory is allocated before the first kernel moves weights, so a lockstep is either made or undone as a whole.
        ready = [(kernel.rows, self._ready(kernel, part)) for kernel in self.kernels]
        stepped: set[int] = set()
        for rows, move in ready:
            if move is not None:
                move()
                stepped.update(range(rows.start, rows.stop))
        for row, live in enumerate(self._lives):
            if row in stepped and row not in self._watched:
                continue
            with collecting(faults, live.member.name):
                if row not in stepped:
                    self._step_itself(row, part)
                    continue
                if live.loss_scale is not None:
                    live.loss_scale.follow(overflowed=False)
                if live.has_batch_schedule:
                    live.schedule.step()
        return faults

    def note_idle(self, row: int) -> None:
        """Record whether some weights of a member have no gradient in its coming step."""
        self._even = self._even and all(weight.grad is not None for weight in self._parameter_buffer.parameters[row])

    def release(self) -> None:
        """Give the optimizers their states back."""
        for kernel in self._kernels:
            kernel.dissolve()

    def _ready(self, kernel: Kernel, part: Part) -> Move | None:
        """Return a kernel's step along unscaled and clipped gradients; None, with these unchanged, if its members step themselves."""
        gradients = part.gradients[kernel.rows]
        if not kernel.fits or (self._scales is not None and not self._scales.divide(gradients, kernel.rows)):
            return None
        self.clip(part, kernel.rows)
        return kernel.ready(gradients)

    @torch.no_grad()
    def clip(self, part: Part, rows: slice = slice(None)) -> None:
        """Clip the gradients of members in these rows as `clip_grad_norm_` does, with the same bits."""
        if self._limits is None or len(part.idle) == len(self._in_order):
            return
        limits, gradients = self._limits[rows], part.gradients[rows]
        by_weight = self._by_weight(gradients, part.idle)
        norms = [torch.linalg.vector_norm(torch.stack(torch._foreach_norm(own))) for own in by_weight]
        factors = ((torch.stack(norms) + 1e-6).reciprocal() * limits).clamp(max=1.0)
        gradients.mul_(torch.where(limits.isinf(), torch.ones_like(factors), factors).unsqueeze(1))

    def _by_weight(self, gradients: Tensor, idle: Collection[str]) -> Iterator[tuple[Tensor, ...]]:
        """Yield each row's gradients in the order of its network's weights."""
        columns = [piece.over(gradients).unbind() for piece in self._in_order if piece.name not in idle]
        return zip(*columns, strict=True)

    def _step_itself(self, row: int, part: Part) -> None:
        """Step a member along its gradients as it does alone, on its views."""
        parameters = self._parameter_buffer.parameters[row]
        for piece, parameter in zip(self._parameter_buffer.pieces, parameters, strict=True):
            parameter.grad = None if piece.name in part.idle else piece.of(part.gradients[row])
        with self._lives[row].randomness.active(), torch.enable_grad():
            self._solos[row].move()


def check_all_derived(idle: Collection[str]) -> None:
    """Raise Uncaptured for weights without a gradient, because a captured step moves all weights."""
    if idle:
        raise Uncaptured(f"the weight {min(idle)!r} gets no gradient, so its optimizer skips it")


def _clip_limits(lives: Sequence[LiveMember], parameter_buffer: ParameterBuffer) -> Tensor | None:
    """Return the norm to which each member's gradient is clipped ``[members]``, infinite for no clipping; None if no member clips."""
    limits = [live.member.clip_grad_norm for live in lives]
    if all(limit is None for limit in limits):
        return None
    return parameter_buffer.weights.new_tensor([math.inf if limit is None else limit for limit in limits])
