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

SIZES = (1001, 65_536 * 96, 1_500_002)
"""Sizes of masks that are compared with torch's: odd ones, and such that a thread draws several times."""
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
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for adjacent in (16 // dtype.itemsize, 4):
                kernels.adjacent[dtype.itemsize] = adjacent
                if all(_as_torch(kernels, size, dtype, device) for size in SIZES):
                    break
                del kernels.adjacent[dtype.itemsize]
    finally:
        torch.cuda.set_rng_state(before, device)
    return kernels if torch.float32.itemsize in kernels.adjacent else None


def _as_torch(kernels: OwnKernels, size: int, dtype: torch.dtype, device: torch.device) -> bool:
    seed, offset, kept = 1234567890123, 8, 0.7
    state = torch.tensor([seed, offset])
    torch.cuda.set_rng_state(state.view(torch.uint8), device)
    ones, found = (torch.ones(size, dtype=dtype, device=device) for _ in range(2))
    wanted = functional.dropout(ones, 1 - kept)
    moved = int(torch.cuda.get_rng_state(device).view(torch.int64)[1]) - offset
    kernels.masks(found, [(Drawn(0, 0, size, kept), 0)], state.to(device).unsqueeze(0))
    return bool(torch.equal(wanted, found)) and moved == kernels.increment(size)


KERNELS["cuda"] = _of_cuda
