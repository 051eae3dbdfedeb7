"""Which programs' steps can be captured as a whole, and how each of them is adapted to that."""

from typing import Any

import torch

from argosy.training.optim.kernels import kind_of
from argosy.training.programs.fused.fingerprint import obstacle
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.graphed.several import Several, Unlike
from argosy.training.programs.graphed.single import Single
from argosy.training.programs.graphed.whole import Whole
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

__all__ = ["obstacle_to", "whole_of"]


def obstacle_to(program: Program[Any]) -> str | None:
    """Return why the steps of a program cannot be made as a whole; None where they can."""
    lives = program.members
    if isinstance(program, Fused):
        stepped = sum(kernel.rows.stop - kernel.rows.start for kernel in program.kernels)
        reason = None if stepped == len(lives) else "an optimizer makes its steps itself"
    elif isinstance(program, Grouped):
        reason = None
        if any(kind_of(live.optimizer) is None for live in lives):
            reason = "an optimizer makes its steps itself"
        if any(live.member.clip_grad_norm is not None for live in lives):
            reason = "gradients of unlike members are clipped one after another"
        if any(
            weight.dtype not in (torch.float32, torch.float64) for live in lives for weight in live.model.parameters()
        ):
            reason = "unlike members are stepped in 32 or 64 bits alone"
        if program.waves.memory is None:
            reason = "its device has no kernel that steps unlike members"
    elif isinstance(program, Solo):
        reason = obstacle(lives[0])
        if reason is None and kind_of(lives[0].optimizer) is None:
            reason = "its optimizer makes its steps itself"
    else:
        reason = "it is on several devices"
    if reason is None and any(live.member.precision not in ("float32", "bfloat16") for live in lives):
        reason = "the host has to see whether gradients have overflowed"
    if reason is None and any(live.randomness.uses_others for live in lives):
        reason = "its steps draw from numpy or random, on the host"
    if reason is None and len({live.member.batch_size for live in lives}) > 1:
        reason = "its members have batches of different lengths"
    return reason


def whole_of(program: Program[Any]) -> Whole:
    """Return the adapter of a program without obstacles; raises Uncaptured where weights have made unequal numbers of steps."""
    if isinstance(program, Fused):
        return Several(program)
    if isinstance(program, Grouped):
        return Unlike.of(program)
    assert isinstance(program, Solo)
    return Single.of(program)
