"""The program of several members of one architecture: one vectorised forward pass, one backward pass, one optimizer step.

Only the forward pass is vectorised over the members (`torch.vmap`); autograd runs as usual, outside of it. The members' losses
are summed, never averaged, so each member gets its own gradient. Weights lie in a `ParameterBuffer` and are stepped by fused
optimizers (`kernels`). An optimizer without a kernel steps its member's views of the buffer, along gradients that are views too.
"""

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from argosy.stream.batches import Batch
from argosy.stream.trees import map_leaves
from argosy.training.device.recorders import InBranches, Uncaptured, run_in_turn
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.member.precision import LossScales, widen_losses
from argosy.training.member.running_average import copy_to_spares, extend_statistics
from argosy.training.member.tally import batch_totals
from argosy.training.optim.kernels import Kernel, optimizer_kind
from argosy.training.optim.parameter_buffer import ParameterBuffer, outside_buffer, restorer
from argosy.training.optim.rules import Move
from argosy.training.programs.fused.average_buffer import AverageBuffer
from argosy.training.programs.fused.compiled import Compilation, Derived, Pass
from argosy.training.programs.fused.forward import Forward, PackInputs
from argosy.training.programs.fused.lockstep import Lockstep
from argosy.training.programs.fused.several import ProgramOfSeveral, not_none
from argosy.training.programs.program import collecting

__all__ = ["Fused", "check_all_derived"]


@dataclass(frozen=True, slots=True)
class Part:
    """A lockstep of all members, between `begin` and `finish`."""

    totals: Tensor
    """Each member's sum of losses over the batch, float64 ``[members]``."""
    gradients: Tensor
    """``[members, columns]``."""
    idle: frozenset[str]
    """Weights that the losses do not use, which optimizers skip."""


class Fused(ProgramOfSeveral):
    """The `ProgramOfSeveral` for members of one architecture."""

    def __init__(
        self,
        lives: Sequence[LiveMember],
        forward: Forward,
        parameter_buffer: ParameterBuffer,
        kernels: Sequence[Kernel],
        compilation: Compilation | None,
        lengths: BatchLengths | None,
    ) -> None:
        super().__init__(lives, lengths)
        self._forward = forward
        self.parameter_buffer: ParameterBuffer = parameter_buffer
        """The members' weights and buffers."""
        self._scales = LossScales.of([live.loss_scale for live in lives], lives[0].backend.device)
        self._compilation = compilation
        self._kernels = kernels
        self._limits = _clip_limits(lives, parameter_buffer)
        pieces = {piece.name: piece for piece in parameter_buffer.pieces}
        self._in_order = [pieces[name] for name, _ in lives[0].model.named_parameters() if name in pieces]
        self._even = True
        """Whether all weights of each member have made equally many steps, as kernels require."""
        self._watched = {
            row for row, live in enumerate(lives) if live.has_batch_schedule or live.loss_scale is not None
        }
        """Rows of members with a loss scale, or a schedule per step."""
        self._averages = AverageBuffer.of(lives, parameter_buffer)
        self._spares: dict[str, Tensor] = {}
        """Memory for the frozen weights, which a pass with averaged weights may change."""

    @classmethod
    def of(
        cls, lives: Sequence[LiveMember], compilation: Compilation | None = None, lengths: BatchLengths | None = None
    ) -> "Fused":
        """Return the program of members that passed the equivalence check, or of one; with a `compilation`, their pass is compiled.

        Members step as one on batches of these `lengths`, or of any length if None.
        """
        # The warning is about an operator that torch runs for one member after another, which needs no action from the user.
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        kinds: dict[Any, list[LiveMember]] = {}
        for live in lives:
            kinds.setdefault(optimizer_kind(live.optimizer), []).append(live)
        # A kernel steps adjacent rows.
        ordered = [live for alike in kinds.values() for live in alike]
        models = [live.model for live in ordered]
        forward = Forward.of(models, ordered[0].member, ordered[0].backend.device)
        parameter_buffer = ParameterBuffer.of(models, [live.optimizer for live in ordered])
        kernels, first = [], 0
        for alike in kinds.values():
            kernels.append(Kernel.of([live.optimizer for live in alike], parameter_buffer, first))
            first += len(alike)
        usable = [kernel for kernel in kernels if kernel is not None]
        return cls(ordered, forward, parameter_buffer, usable, compilation, lengths)

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels that step all members at once; empty once some weights have made fewer steps than others."""
        return self._kernels if self._even else ()

    @property
    def weights(self) -> Tensor:
        """All trained weights ``[members, columns]``."""
        return self.parameter_buffer.weights

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """Implement `ProgramOfSeveral.buffers`."""
        return self.parameter_buffer.buffers

    def gradients(self, row: int) -> dict[str, Tensor]:
        """Implement `ProgramOfSeveral.gradients`."""
        gradients, idle = self._passed.gradients[row], self._passed.idle
        return {piece.name: piece.of(gradients) for piece in self.parameter_buffer.pieces if piece.name not in idle}

    def _train(self, mode: bool) -> None:
        self._forward.train(mode)

    def _samples(self, lockstep: Lockstep) -> PackInputs:
        data = self.inputs(lockstep)
        self._recompute(data)
        self._undoing.append(restorer(self.parameter_buffer.moving()))
        return data

    def _finish_as_one(self, passed: Part) -> Tensor:
        self._make_steps(passed)
        return passed.totals

    def _step_apart(self, row: int, batch: Batch) -> int:
        self._solos[row].begin(batch)
        if batch.rows:  # else the member makes no step
            parameters = self.parameter_buffer.parameters[row]
            self._even = self._even and all(weight.grad is not None for weight in parameters)
        return self._solos[row].finish()

    def _outside(self, row: int) -> contextlib.AbstractContextManager[None]:
        return outside_buffer(self.parameter_buffer.parameters[row])

    def _dissolve(self) -> None:
        for kernel in self._kernels:
            kernel.dissolve()
        if self._averages is not None:
            self._averages.dissolve()
        self._spares = {}
        self.parameter_buffer.dissolve()

    def _recompute(self, data: PackInputs) -> None:
        """Pass a training batch through the averaged weights that need it for their statistics."""
        if self._averages is None or not self._forward.norms:
            return
        averages = [live.average for live in self.members if live.average is not None and live.average.recomputes]
        if not averages:
            return
        self._undoing.append(self._averages.statistics_restorer())
        if len({average.batches for average in averages}) > 1:  # some had a broken batch, or were interrupted
            for row, solo in enumerate(self._solos):
                own = map_leaves(itemgetter(row), data.tree) if data.apart else data.tree
                with self._own(row), self._states[row].active(keep=True):
                    solo.recompute(own, data.samples)
            return
        drawn, buffers = self.marks(), self._averages.buffers
        # A forward pass may change frozen weights, such as those of a momentum encoder, with which training goes on.
        copy_to_spares(self.parameter_buffer.fixed, self._spares)
        named = self._averages.named | self._spares
        for part in data.pieces(self.members[0].member.accumulate):
            with torch.no_grad(), extend_statistics(self._forward.norms, averages[0].batches):
                self._forward.values(named, buffers, part, self._states, lambda output: None)
            for average in averages:
                average.batches += 1
        self.go_back(drawn)  # raw weights are trained as they would be without averages

    def evaluated(self, data: PackInputs, in_branches: InBranches = run_in_turn) -> tuple[Tensor, Any]:
        """Implement `ProgramOfSeveral.evaluated` in one pass."""
        return self._values(data)

    def _evaluate(self, lockstep: Lockstep) -> None:
        """Evaluate the members in one pass, and their averages in another."""
        data = self.inputs(lockstep, augment=False)
        before = self.marks()
        rows = [row for row, live in enumerate(self.members) if live.half_validated is None]
        if rows:
            self._validate(lockstep, rows, self._found(data), [live.val for live in self.members])
        averaged = [row for row, live in enumerate(self.members) if live.averaged is not None]
        if self._averages is None or not averaged:
            return
        for row in rows:  # also one whose average has yet to begin: all repeat an interrupted batch
            self.members[row].half_validated = before[row]
        drawn = self.marks()
        self.go_back([not_none(live.half_validated) for live in self.members])  # averages draw what raw weights drew
        named, buffers = self._averages.named, self._averages.buffers
        try:
            values = self._forward.values(named, buffers, data, self._states, lambda output: None)
            self._validate(lockstep, averaged, values, [live.average_val for live in self.members])
        finally:
            self.go_back(drawn)  # raw weights are validated as they would be without averages
        for live in self.members:
            live.half_validated = None

    # ---- a lockstep

    def _for_kernels(self, passed: Part) -> tuple[Tensor, Tensor]:
        check_all_derived(passed.idle)
        self._clip(passed)
        return passed.totals, passed.gradients

    def _differentiated(self, data: PackInputs, in_branches: InBranches = run_in_turn) -> Part:
        """Compute losses and gradients of the members, over all micro-batches of a batch."""
        totals, weights = list[Tensor](), self.parameter_buffer.weights
        sums: Sequence[Tensor | None] = [None] * len(self.parameter_buffer.pieces)
        for part in data.pieces(self.members[0].member.accumulate):
            losses, gradients = self._derived(part, part.samples / data.samples)
            pairs = zip(sums, gradients, strict=True)
            sums = [other if one is None else one if other is None else one + other for one, other in pairs]
            totals.append(batch_totals(losses.detach(), part.samples))
        idle = frozenset(
            piece.name for piece, own in zip(self.parameter_buffer.pieces, sums, strict=True) if own is None
        )
        whole = [own.view(len(own), -1) for own in sums if own is not None and own.is_contiguous()]
        if len(whole) == len(sums):
            return Part(sum(totals[1:], totals[0]), torch.cat(whole, 1), idle)
        # Those of transposed products are copied to their columns at once.
        gathered = weights.new_zeros(weights.shape) if idle else weights.new_empty(weights.shape)
        for piece, own in zip(self.parameter_buffer.pieces, sums, strict=True):
            if own is not None:
                piece.over(gathered).copy_(own)
        return Part(sum(totals[1:], totals[0]), gathered, idle)

    def _derived(self, part: PackInputs, share: float) -> Derived:
        """Compute losses and gradients of the members on a `share` of a batch, by compiled code if there is any."""
        plainly = partial(self._by_autograd, part, share)
        if self._compilation is None or self._foreseen.pending:  # labels are checked by the networks' own code
            return plainly()
        factors = self.parameter_buffer.weights.new_full((len(self.members),), share)
        if self._scales is not None:
            factors = self._scales.times(factors)
        made_of = Pass(forward=self._forward, parameter_buffer=self.parameter_buffer, data=part, factors=factors)
        member = self.members[0].member
        usual = part.samples == -(-member.batch_size // member.accumulate)
        return self._compilation.derive(made_of, plainly, usual=usual)

    def _by_autograd(self, data: PackInputs, share: float) -> Derived:
        losses = self._values(data)[0]
        if self._scales is not None:
            losses = widen_losses(losses)
        shares = self._share(losses, share)
        if self._scales is not None:
            shares = self._scales.times(shares)
        leaves = tuple(self.parameter_buffer.named[piece.name] for piece in self.parameter_buffer.pieces)
        # The core of `torch.autograd.grad`, without its checks, which take a twentieth of a small pack's step.
        return losses, _engine_run_backward((losses,), (shares,), False, False, leaves, True, accumulate_grad=False)

    def _values(self, data: PackInputs) -> tuple[Tensor, Any]:
        buffer = self.parameter_buffer
        return self._forward.values(buffer.named, buffer.buffers, data, self._states, self._foreseen.check_output)

    # ---- the optimizers' steps

    @torch.no_grad()
    def _make_steps(self, part: Part) -> None:
        self._even = self._even and not part.idle
        # All memory is allocated before the first kernel moves weights, so a lockstep is either made or undone as a whole.
        ready = [(kernel.rows, self._ready(kernel, part)) for kernel in self.kernels]
        stepped: set[int] = set()
        for rows, move in ready:
            if move is not None:
                move()
                stepped.update(range(rows.start, rows.stop))
        for row, live in enumerate(self.members):
            if row in stepped and row not in self._watched:
                continue
            with collecting(self._faults, live.member.name):
                if row not in stepped:
                    self._step_itself(row, part)
                    continue
                if live.loss_scale is not None:
                    live.loss_scale.follow(overflowed=False)
                live.step_batch_schedule()

    def _ready(self, kernel: Kernel, part: Part) -> Move | None:
        """Return a kernel's step along unscaled and clipped gradients; None, with these unchanged, if its members step themselves."""
        gradients = part.gradients[kernel.rows]
        if not kernel.fits or (self._scales is not None and not self._scales.divide(gradients, kernel.rows)):
            return None
        self._clip(part, kernel.rows)
        return kernel.ready(gradients)

    @torch.no_grad()
    def _clip(self, part: Part, rows: slice = slice(None)) -> None:
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
        parameters = self.parameter_buffer.parameters[row]
        for piece, parameter in zip(self.parameter_buffer.pieces, parameters, strict=True):
            parameter.grad = None if piece.name in part.idle else piece.of(part.gradients[row])
        with self.members[row].randomness.active(), torch.enable_grad():
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
