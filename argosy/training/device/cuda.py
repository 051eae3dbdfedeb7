"""Features of CUDA, and of ROCm under CUDA's name, that other devices lack: pinned memory and graphs."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["CudaRecorder", "Unpin", "pin"]

Unpin = Callable[[], None]
"""Undoes what `pin` did."""
Made = TypeVar("Made")


def pin(memory: npt.NDArray[np.uint8], device: torch.device) -> Unpin:
    """Pin host memory, so that copies run asynchronously; warns if that fails."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.ctypes.data
    failed = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if not failed:
        return partial(runtime.cudaHostUnregister, address)
    with suppress(RuntimeError):
        # The runtime reports its last error once more, at the next call.
        torch.zeros(1, device=device)
    reason = runtime.cudaGetErrorString(runtime.cudaError(failed))
    warnings.warn(
        f"{memory.nbytes} bytes of shared memory could not be pinned (CUDA error {failed}, {reason}), so copies to "
        f"{device} block the host. Allow more locked memory (ulimit -l), or run outside a sandbox that cannot pin "
        "(gVisor, WSL).",
        stacklevel=2,
    )
    return lambda: None


# ---- graphs


class Lane:
    """A stream, and the graphs that were captured on it.

    When a graph is destroyed, torch (2.12 and later, pytorch#193402) frees the work space of its stream, which the other graphs still
    use. Graphs are therefore destroyed only when none of the lane's graphs will be replayed again.
    """

    def __init__(self, stream: Any, branches: int) -> None:
        self.stream = stream
        self._branches = branches
        self.recorders = 0
        """Recorders that use this stream."""
        self._open = 0
        self._closed: list[Any] = []

    @functools.cached_property
    def branches(self) -> Sequence[Any]:
        """Additional streams of this lane alone, because libraries allocate their work space per stream."""
        # From torch's high-priority pool, because lanes take most of the usual one.
        return [torch.cuda.Stream(self.stream.device, priority=-1) for _ in range(self._branches)]  # type: ignore[no-untyped-call]

    def open(self) -> None:
        """Count a graph that will be replayed."""
        self._open += 1

    def close(self, graph: Any) -> None:
        """Drop an open graph."""
        self._open -= 1
        self.drop(graph)

    def drop(self, graph: Any) -> None:
        """Destroy a graph that is not open, as soon as no graph of the lane is."""
        self._closed.append(graph)
        while self._closed and not self._open:
            self._closed.pop().reset()


LANES = 24
"""Number of lanes, fewer than the 32 streams that torch hands out in turn, so that copies and sums share no stream with a lane's steps."""
BRANCHED, BRANCHES = 8, 4
"""Number of lanes with branches, and of branches of each; together they use all 32 streams of the high-priority pool."""
_ABORTED: list[Any] = []
"""Graphs whose capture CUDA has aborted, kept alive because torch's pinned-memory allocator continues to ask them for their streams."""


@functools.cache
def lanes_of(device: torch.device) -> Sequence[Lane]:
    """Return the device's lanes, created once per process."""
    return [Lane(torch.cuda.Stream(device), BRANCHES * (n < BRANCHED)) for n in range(LANES)]  # type: ignore[no-untyped-call]


class CudaRecorder:
    """A `argosy.training.device.recorders.Recorder` of CUDA graphs. Recorders share streams if there are more of them than lanes."""

    # Earlier versions (pytorch#176752) wrote a replay's generator state while another program's replay might still read it.
    draws_apart: ClassVar[bool] = torch.__version__ >= "2.13"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lane = min(lanes_of(device), key=lambda lane: lane.recorders)
        self._lane.recorders += 1

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Make the lane's stream current."""
        with torch.cuda.stream(self._lane.stream):
            yield

    def fork(self) -> None:
        """Let the lane wait for the current stream."""
        self._lane.stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        """Let the current stream wait for the lane."""
        torch.cuda.current_stream(self._device).wait_stream(self._lane.stream)

    def in_branches(self, works: Sequence[Callable[[], object]]) -> None:
        """Distribute the work over the lane and its branches; the lane waits for the branches at the end."""
        lane = torch.cuda.current_stream(self._device)
        branches = self._lane.branches[: len(works) - 1] if lane == self._lane.stream else ()
        for branch in branches:
            branch.wait_stream(lane)
        try:
            for number, work in enumerate(works):
                with torch.cuda.stream((lane, *branches)[number % (1 + len(branches))]):
                    work()
        finally:
            for branch in branches:
                lane.wait_stream(branch)

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        """Set torch's sync debug mode to raise."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def record(self, work: Callable[[], Made]) -> tuple["CudaRecording", Made]:
        """Capture the work in a graph with a memory pool of its own."""
        graph: Any = torch.cuda.CUDAGraph()
        # The device must be idle and garbage collection off, because freeing memory or destroying an event would abort the
        # capture. The cache is emptied because the graph's pool cannot use it. If a sum is running, it completes without this
        # trainer, unless one of its ranks is lost at this moment; then `hang_seconds` limits the wait.
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        held, collects = torch.cuda.memory_reserved(self._device), gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._lane.stream):
                result = self._captured(graph, work)
        finally:
            if collects:
                gc.enable()
        self._lane.open()
        return CudaRecording(graph, self._lane, torch.cuda.memory_reserved(self._device) - held), result

    def _captured(self, graph: Any, work: Callable[[], Made]) -> Made:
        pool = torch.cuda.graph_pool_handle()
        try:
            # Other threads (autograd, pinned memory, a tracker) may make CUDA calls that the default capture mode forbids.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            result = work()
            graph.capture_end()
        except BaseException:
            self._abort_capture(graph, pool)
            raise
        return result

    def _abort_capture(self, graph: Any, pool: tuple[int, int]) -> None:
        """End a capture that has failed.

        If CUDA has already aborted it, torch raises halfway through its cleanup: its allocator still allocates from the graph's pool, so
        memory that other streams used is never freed, and its generator raises at every draw until another capture ends successfully.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            _ABORTED.append(graph)
            # Raises if only building the graph failed; then the allocator has already left the pool.
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
        """Release the lane."""
        self._lane.recorders -= 1


@dataclass(frozen=True, slots=True)
class CudaRecording:
    """The `argosy.training.device.recorders.Recording` of a graph."""

    graph: Any
    lane: Lane
    memory_bytes: int

    def replay(self) -> None:
        """Replay the graph on the current stream."""
        self.graph.replay()

    def close(self) -> None:
        """Hand the graph back to its lane."""
        self.lane.close(self.graph)
