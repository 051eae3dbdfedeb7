"""What CUDA alone can do, and ROCm under its name."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["CudaRecorder", "Unpin", "pin"]

Unpin = Callable[[], None]
"""Undoes what `pin` did."""
Made = TypeVar("Made")


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


# ---- graphs


class CudaRecorder:
    """See `argosy.training.recorders.Recorder`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """See `Recorder.own`."""
        with torch.cuda.stream(self._stream):
            yield

    def fork(self) -> None:
        """See `Recorder.fork`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        """See `Recorder.join`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def record(self, work: Callable[[], Made]) -> tuple["CudaRecording", Made]:
        """See `Recorder.record`. Its memory is a pool of its own."""
        graph: Any = torch.cuda.CUDAGraph()
        # Nothing is to be under way, and nothing to be collected meanwhile: what frees memory or destroys an event would
        # end the capture. Without what is cached there is more for the graph, whose memory is for nobody else.
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._stream):
                made = _captured(graph, work)
        finally:
            if collects:
                gc.enable()
        return CudaRecording(graph), made


def _captured(graph: Any, work: Callable[[], Made]) -> Made:
    # Other threads may ask things of CUDA that a capture does not allow: those of autograd, of pinned memory, of a tracker.
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        made = work()
    except BaseException:
        with suppress(RuntimeError):
            graph.capture_end()  # it only says that something was raised
        graph.reset()
        raise
    graph.capture_end()
    return made


@dataclass(frozen=True, slots=True)
class CudaRecording:
    """See `argosy.training.recorders.Recording`."""

    graph: Any

    def replay(self) -> None:
        """See `Recording.replay`."""
        self.graph.replay()

    def close(self) -> None:
        """See `Recording.close`."""
        self.graph.reset()
