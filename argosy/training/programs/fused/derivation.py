"""Computes the members' losses on a batch, or part of it, and their gradients: by autograd, or by compiled code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from argosy.training.member.live import LiveMember
from argosy.training.member.precision import LossScales, widened
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.compiled import Compilation, Derived, Pass
from argosy.training.programs.fused.forward import Forward, PackInputs

__all__ = ["Derivation"]


@dataclass(eq=False)
class Derivation:
    """Derives losses and gradients of several members."""

    _lives: Sequence[LiveMember]
    _forward: Forward
    _parameter_buffer: ParameterBuffer
    _scales: LossScales | None
    _compilation: Compilation | None
    _shares: dict[tuple[torch.Size, torch.dtype, float], Tensor] = field(default_factory=dict, init=False)

    def of(
        self,
        part: PackInputs,
        share: float,
        losses: Callable[[], Tensor],
        leaves: Sequence[Tensor],
        *,
        plain: bool,
    ) -> Derived:
        """Return losses and gradients of the members on a `part` of a batch, its `share`; `losses` computes them from `leaves`.

        With `plain`, the networks' own code runs.
        """
        plainly = partial(self._by_autograd, share, losses, leaves)
        if self._compilation is None or plain:
            return plainly()
        factors = self._parameter_buffer.weights.new_full((len(self._lives),), share)
        if self._scales is not None:
            factors = self._scales.times(factors)
        made_of = Pass(forward=self._forward, parameter_buffer=self._parameter_buffer, data=part, factors=factors)
        member = self._lives[0].member
        return self._compilation.derive(
            made_of, plainly, usual=part.samples == -(-member.batch_size // member.accumulate)
        )

    def release(self) -> None:
        """Drop the cached tensors."""
        self._shares.clear()

    def _by_autograd(self, share: float, compute: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Derived:
        losses = compute()
        if self._scales is None:
            shares = self._share_of(losses, share)
        else:
            losses = widened(losses)
            shares = self._scales.times(self._share_of(losses, share))
        # The core of `torch.autograd.grad`, without its checks, which take a twentieth of a small pack's step.
        return losses, _engine_run_backward(
            (losses,), (shares,), False, False, tuple(leaves), True, accumulate_grad=False
        )

    def _share_of(self, losses: Tensor, share: float) -> Tensor:
        """Return the gradient of each member's mean loss times its share of the batch, cached."""
        key = (losses.shape, losses.dtype, share)
        if key not in self._shares:
            self._shares[key] = torch.full_like(losses, share * len(losses) / losses.numel())
        return self._shares[key]
