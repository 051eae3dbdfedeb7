"""Kernels of our own, for what torch would launch one kernel per member: dropout masks, and optimizer steps of unlike members.

They are written in Triton, which torch's builds for CUDA bring along, and can be captured. Where there is none, or where it draws other
numbers than this version of torch, members draw and step one after another.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch

from argosy.errors.traces import reason_of
from argosy.training.device.devices import out_of_memory
from argosy.training.device.kernel_forms import OwnKernels

__all__ = ["KERNELS", "kernels_of"]

_BUILT: dict[torch.device, OwnKernels | None] = {}
"""Kernels of this process's devices."""


def kernels_of(device: torch.device) -> OwnKernels | None:
    """Return the kernels of a device; None where it has none."""
    return KERNELS[device.type](device) if device.type in KERNELS else None


def _of_cuda(device: torch.device) -> OwnKernels | None:
    """Return the kernels in Triton, if they draw what this torch's dropout draws on this device; warns where they cannot be built."""
    if device in _BUILT:
        return _BUILT[device]
    if torch.version.cuda is None or find_spec("triton") is None:
        return None
    before = torch.cuda.get_rng_state(device)
    try:
        _BUILT[device] = _in_triton(device)
    except Exception as error:  # boundary to Triton, which needs a compiler of C, and has errors of many types
        if out_of_memory(error):
            return None  # for now
        _BUILT[device] = None
        warnings.warn(
            f"Argosy's kernels for {device} could not be built ({reason_of(error)}), so that packs that drop out, and unlike members, are "
            "not captured there. Triton builds them, and needs a C compiler: install gcc, or name one in CC.",
            stacklevel=2,
        )
    finally:
        torch.cuda.set_rng_state(before, device)
    return _BUILT[device]


def _in_triton(device: torch.device) -> OwnKernels | None:
    from argosy.training.device.triton_kernels import TritonKernels

    return TritonKernels.as_torch(device)


KERNELS: dict[str, Callable[[torch.device], OwnKernels | None]] = {"cuda": _of_cuda}
"""By type of device."""
