"""What CUDA alone can do, and ROCm under its name."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

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


class Lane:
    """A stream, and the graphs that were captured on it.

    With any of them that is destroyed torch gives back the work space of the stream (2.12 and later, pytorch#193402), in which
    the others still compute. So they are destroyed when none of them is replayed any more.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.recorders = 0
        """That capture there."""
        self._open = 0
        self._closed: list[Any] = []

    def open(self) -> None:
        """A graph is there that will be replayed."""
        self._open += 1

    def close(self, graph: Any) -> None:
        """It is replayed no longer."""
        self._open -= 1
        self.drop(graph)

    def drop(self, graph: Any) -> None:
        """Destroy a graph that is not open, now or with others."""
        self._closed.append(graph)
        while self._closed and not self._open:
            self._closed.pop().reset()


LANES = 32
"""Streams in torch's pool, which it hands out in turn."""
_BROKEN_OFF: list[Any] = []
"""Graphs whose capture CUDA has ended: torch's allocator of pinned memory goes on asking them which streams are theirs."""


@functools.cache
def lanes_of(device: torch.device) -> Sequence[Lane]:
    """Of a device, for the life of the process."""
    return [Lane(torch.cuda.Stream(device)) for _ in range(LANES)]  # type: ignore[no-untyped-call]


class CudaRecorder:
    """See `argosy.training.device.recorders.Recorder`. Where there are more of them than streams, some have one together."""

    # Before (pytorch#176752), where a generator stands was written for a replay while that of another program might still read it.
    draws_apart: ClassVar[bool] = torch.__version__ >= "2.13"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lane = min(lanes_of(device), key=lambda lane: lane.recorders)
        self._lane.recorders += 1

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """See `Recorder.own`."""
        with torch.cuda.stream(self._lane.stream):
            yield

    def fork(self) -> None:
        """See `Recorder.fork`."""
        self._lane.stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        """See `Recorder.join`."""
        torch.cuda.current_stream(self._device).wait_stream(self._lane.stream)

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        """See `Recorder.strict`."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def record(self, work: Callable[[], Made]) -> tuple["CudaRecording", Made]:
        """See `Recorder.record`. Its memory is a pool of its own."""
        graph: Any = torch.cuda.CUDAGraph()
        # Nothing is to be under way, and nothing to be collected meanwhile: what frees memory or destroys an event would
        # end the capture. Without what is cached there is more for the graph, whose memory is for nobody else.
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        held, collects = torch.cuda.memory_reserved(self._device), gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._lane.stream):
                made = self._captured(graph, work)
        finally:
            if collects:
                gc.enable()
        self._lane.open()
        return CudaRecording(graph, self._lane, torch.cuda.memory_reserved(self._device) - held), made

    def _captured(self, graph: Any, work: Callable[[], Made]) -> Made:
        pool = torch.cuda.graph_pool_handle()
        try:
            # Other threads may ask things of CUDA that a capture does not allow: those of autograd, of pinned memory, of a tracker.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            made = work()
            graph.capture_end()
        except BaseException:
            self._break_off(graph, pool)
            raise
        return made

    def _break_off(self, graph: Any, pool: tuple[int, int]) -> None:
        """End a capture that has failed.

        Where CUDA did so before, torch raises in the middle: its allocator still takes the pool's part, so that memory which
        other streams have used is never free again, and its generator raises at every draw until a capture ends well.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            _BROKEN_OFF.append(graph)
            # Where all but the making of the graph went well, the allocator knows of the end.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._device.index, pool)
                torch._C._cuda_releasePool(self._device.index, pool)
            another, little = torch.cuda.CUDAGraph(), torch.zeros(1, device=self._device)
            another.capture_begin(capture_error_mode="thread_local")
            little.zero_()
            another.capture_end()
            self._lane.drop(another)
        self._lane.drop(graph)

    def close(self) -> None:
        """See `Recorder.close`."""
        self._lane.recorders -= 1


@dataclass(frozen=True, slots=True)
class CudaRecording:
    """See `argosy.training.device.recorders.Recording`."""

    graph: Any
    lane: Lane
    memory_bytes: int

    def replay(self) -> None:
        """See `Recording.replay`."""
        self.graph.replay()

    def close(self) -> None:
        """See `Recording.close`."""
        self.lane.close(self.graph)
