"""What CUDA alone can do, and ROCm under its name."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Unpin", "pin"]

Unpin = Callable[[], None]
"""Undoes what `pin` did."""


def pin(memory: npt.NDArray[np.uint8], device: torch.device) -> Unpin:
    """Register memory of the host, so that copies need not wait for it; warns where that is not to be had."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.ctypes.data
    failed = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if not failed:
        return lambda: _unpin(runtime, address)
    with suppress(RuntimeError):
        # The runtime tells its last error once more, to the next who asks.
        torch.zeros(1, device=device)
    warnings.warn(
        f"{memory.nbytes} bytes of shared memory could not be pinned (CUDA error {failed}): copies to {device} wait for "
        "the host. Allow more locked memory (ulimit -l).",
        stacklevel=2,
    )
    return lambda: None


def _unpin(runtime: Any, address: int) -> None:
    runtime.cudaHostUnregister(address)
