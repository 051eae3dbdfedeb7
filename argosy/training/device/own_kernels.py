"""Argosy's own kernels, for work that torch would launch once per member: dropout masks, and optimizer steps of different members.

They are written in Triton, which torch's CUDA builds include, and can be captured. Without Triton, or if its numbers differ from those
that this version of torch draws, members draw and step one after another.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch

from argosy.errors.traces import reason_of
from argosy.training.device.devices import is_out_of_memory
from argosy.training.device.kernel_forms import OwnKernels

__all__ = ["KERNELS", "find_kernels"]

_BUILT: dict[torch.device, OwnKernels | None] = {}
"""Kernels of this process, by device."""


def find_kernels(device: torch.device) -> OwnKernels | None:
    """Return the kernels of a device; None if it has none."""
    return KERNELS[device.type](device) if device.type in KERNELS else None


def _of_cuda(device: torch.device) -> OwnKernels | None:
    """Return the Triton kernels if they draw the numbers of torch's dropout on this device; warns if they cannot be built."""
    if device in _BUILT:
        return _BUILT[device]
    if torch.version.cuda is None or find_spec("triton") is None:
        return None
    before = torch.cuda.get_rng_state(device)
    try:
        _BUILT[device] = _in_triton(device)
    except Exception as error:  # Triton needs a C compiler, and raises errors of many types
        if is_out_of_memory(error):
            return None  # for now
        _BUILT[device] = None
        warnings.warn(
            f"Argosy's kernels for {device} could not be built ({reason_of(error)}), so packs with dropout and "
            "packs of different members are not captured there. Triton builds them and needs a C compiler: "
            "install gcc, or set CC to a compiler.",
            stacklevel=2,
        )
    finally:
        torch.cuda.set_rng_state(before, device)
    return _BUILT[device]


def _in_triton(device: torch.device) -> OwnKernels | None:
    from argosy.training.device.triton_kernels import TritonKernels

    return TritonKernels.as_torch(device)


KERNELS: dict[str, Callable[[torch.device], OwnKernels | None]] = {"cuda": _of_cuda}
"""Functions that return the kernels, by device type."""
