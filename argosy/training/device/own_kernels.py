"""Kernels of our own, for what torch would launch one kernel per member: dropout masks, and optimizer steps of unlike members.

They are written in Triton, which torch's builds for CUDA bring along, and can be captured. Where there is none, or where it draws other
numbers than this version of torch, members draw and step one after another.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch.nn import functional

from argosy.training.device.kernel_forms import Drawn, OwnKernels

__all__ = ["KERNELS", "kernels_of"]

KERNELS: dict[str, Callable[[torch.device], OwnKernels | None]] = {}
"""By type of device."""


def kernels_of(device: torch.device) -> OwnKernels | None:
    """Return the kernels of a device; None where it has none."""
    return KERNELS[device.type](device) if device.type in KERNELS else None


@functools.cache
def _of_cuda(device: torch.device) -> OwnKernels | None:
    """Return the kernels in Triton, if they draw what this torch's dropout draws on this device."""
    if torch.version.cuda is None or find_spec("triton") is None:
        return None
    from argosy.training.device.triton_kernels import TritonKernels

    kernels = TritonKernels(device)
    before = torch.cuda.get_rng_state(device)
    try:
        return kernels if all(_as_torch(kernels, count, device) for count in (1001, 1_500_002, 6_500_004)) else None
    finally:
        torch.cuda.set_rng_state(before, device)


def _as_torch(kernels: OwnKernels, count: int, device: torch.device) -> bool:
    seed, offset, kept = 1234567890123, 8, 0.7
    state = torch.tensor([seed, offset])
    torch.cuda.set_rng_state(state.view(torch.uint8), device)
    wanted, found = functional.dropout(torch.ones(count, device=device), 1 - kept), torch.empty(count, device=device)
    kernels.masks(found, [(Drawn(0, 0, count, kept), 0)], state.to(device).unsqueeze(0))
    moved = int(torch.cuda.get_rng_state(device).view(torch.int64)[1]) - offset
    return bool(torch.equal(wanted, found)) and moved == kernels.increment(count)


KERNELS["cuda"] = _of_cuda
