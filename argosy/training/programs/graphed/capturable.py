"""Decides which programs' steps can be captured as a whole, and prepares these programs."""

from collections.abc import Iterator

import torch

from argosy.training.device.recorders import has_recorder
from argosy.training.optim.kernels import optimizer_kind
from argosy.training.programs.fused.fingerprint import obstacle
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.single import Single
from argosy.training.programs.graphed.whole import Whole
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

__all__ = ["as_whole", "why_not_captured"]


def why_not_captured(program: Program) -> str | None:
    """Return why the steps of a program cannot be captured; None if capturing may be tried."""
    return next(_obstacles(program), None)


def _obstacles(program: Program) -> Iterator[str]:
    lives = program.members
    if not has_recorder(lives[0].backend):
        yield "its device cannot capture steps"
    if isinstance(program, Fused):
        if sum(kernel.rows.stop - kernel.rows.start for kernel in program.kernels) != len(lives):
            yield "one of its optimizers has no kernel"
    elif isinstance(program, Grouped):
        if program.waves.memory is None:
            yield "its device has no kernel that steps different members"
        if {weight.dtype for live in lives for weight in live.model.parameters()} - {torch.float32, torch.float64}:
            yield "different members can be stepped only in 32 or 64 bits"
        if any(live.member.clip_grad_norm is not None for live in lives):
            yield "gradients of different members are clipped one after another"
        if any(optimizer_kind(live.optimizer) is None for live in lives):
            yield "one of its optimizers has no kernel"
    elif isinstance(program, Solo):
        if (reason := obstacle(program.live)) is not None:
            yield reason
        if optimizer_kind(program.live.optimizer) is None:
            yield "its optimizer has no kernel"
    else:
        yield "it is on several devices"
    if any(live.member.precision not in ("float32", "bfloat16") for live in lives):
        yield "the host has to check whether gradients have overflowed"
    if any(live.randomness.uses_others for live in lives):
        yield "its steps draw from numpy or random, on the host"


def as_whole(program: Program) -> Whole:
    """Prepare a program without obstacles; raises Uncaptured if weights have made unequal numbers of steps."""
    if isinstance(program, Grouped):
        program.gather_states()
    if isinstance(program, Fused | Grouped):
        return program
    assert isinstance(program, Solo)
    return Single.of(program)
