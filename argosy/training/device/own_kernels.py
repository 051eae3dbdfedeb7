"""Kernels of our own, for what torch would launch one kernel per member: dropout masks, and optimizer steps of unlike members.

They are written in Triton, which torch's builds for CUDA bring along, and can be captured. Where there is none, or where it draws other
numbers than this version of torch, members draw and step one after another.
"""

import functools
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from argosy.errors.traces import reason_of
from argosy.training.device.kernel_forms import Drawn, OwnKernels

if TYPE_CHECKING:
    from argosy.training.device.triton_kernels import TritonKernels

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
    """Return the kernels in Triton, if they draw what this torch's dropout draws on this device; warns where they cannot be built."""
    if torch.version.cuda is None or find_spec("triton") is None:
        return None
    before = torch.cuda.get_rng_state(device)
    try:
        kernels = _compared(device)
    except Exception as error:  # boundary to Triton, which needs a compiler of C, and has errors of many types
        warnings.warn(
            f"Argosy's kernels for {device} could not be built ({reason_of(error)}), so that packs that drop out, and unlike members, are "
            "not captured there. Triton builds them, and needs a C compiler: install gcc, or name one in CC.",
            stacklevel=2,
        )
        return None
    finally:
        torch.cuda.set_rng_state(before, device)
    return kernels if torch.float32.itemsize in kernels.adjacent else None


def _compared(device: torch.device) -> "TritonKernels":
    """Return kernels, with the types of numbers in which they draw as torch does."""
    from argosy.training.device.triton_kernels import TritonKernels

    kernels = TritonKernels(device)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for adjacent in (16 // dtype.itemsize, 4):
            kernels.adjacent[dtype.itemsize] = adjacent
            if all(_as_torch(kernels, size, dtype, device) for size in SIZES):
                break
            del kernels.adjacent[dtype.itemsize]
    return kernels


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
