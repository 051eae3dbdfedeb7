"""Tests of recorders of CUDA graphs, on a stand-in driver as strict as torch 2.11's, and on a CUDA device."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from argosy.training.device.cuda import LANES, CudaRecorder, lanes_of, pin

HERE = torch.device("cpu", 0)
POOL = 32
"""Number of streams that torch has for a device and returns in turn."""
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@dataclass
class Driver:
    """State that CUDA and torch would hold."""

    streams: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(POOL)))
    stream: int | None = None
    """The current stream."""
    spoiled: set[int] = field(default_factory=set)
    """Streams whose work space was freed."""
    pools: Iterator[tuple[int, int]] = field(default_factory=lambda: zip(itertools.repeat(0), itertools.count(1)))
    recorded_to: set[tuple[int, int]] = field(default_factory=set)
    """Pools from which the allocator serves a capture."""
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    """Use count of each pool."""
    capturing: bool = False
    """Whether the random generator considers a capture under way."""
    invalid: bool = False
    """Whether CUDA has invalidated the capture under way."""
    cannot_instantiate: bool = False
    sync_debug_mode: Any = 0

    def end_allocate(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recorded_to:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recorded_to.remove(pool)

    def release(self, device: int, pool: tuple[int, int]) -> None:
        self.held[pool] -= 1

    @property
    def at_rest(self) -> bool:
        return not self.recorded_to and not any(self.held.values()) and not self.capturing


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Replace torch's CUDA functions by a stand-in driver."""
    found = Driver()

    class Graph:
        pool: tuple[int, int]
        ended = False
        stream: int | None = None

        def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
            self.pool, self.stream = pool or next(found.pools), found.stream
            found.spoiled.discard(found.stream)
            found.recorded_to.add(self.pool)
            found.held[self.pool] = 1
            found.capturing = True

        def capture_end(self) -> None:
            invalid, found.invalid = found.invalid, False
            if invalid or self.ended:
                raise RuntimeError("operation failed due to a previous error during capture")
            found.end_allocate(0, self.pool)
            found.capturing, self.ended = False, True
            if found.cannot_instantiate:
                found.cannot_instantiate = False
                raise RuntimeError("out of memory")

        def replay(self) -> None:
            assert self.stream not in found.spoiled, "the replay computes in work space that was freed"

        def reset(self) -> None:
            if self.ended:
                found.release(0, self.pool)
                found.spoiled.add(self.stream)
            self.ended = False

    @contextlib.contextmanager
    def on(stream: int) -> Iterator[None]:
        before, found.stream = found.stream, stream
        yield
        found.stream = before

    patched: dict[str, Any] = {
        "CUDAGraph": Graph,
        "Stream": lambda device: next(found.streams),
        "stream": on,
        "synchronize": lambda device: None,
        "empty_cache": lambda: None,
        "memory_reserved": lambda device: 1000 * sum(found.held.values()),
        "graph_pool_handle": lambda: next(found.pools),
        "get_sync_debug_mode": lambda: found.sync_debug_mode,
        "set_sync_debug_mode": lambda mode: setattr(found, "sync_debug_mode", mode),
    }
    for name, value in patched.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", found.end_allocate, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", found.release, raising=False)
    lanes_of.cache_clear()
    yield found
    lanes_of.cache_clear()


def test_a_recording_keeps_what_its_pool_has(driver: Driver) -> None:
    recording, made = CudaRecorder(HERE).record(lambda: "made")
    assert (made, recording.memory_bytes) == ("made", 1000)
    recording.close()
    assert driver.at_rest


def test_copies_and_sums_have_streams_that_are_no_programs(driver: Driver) -> None:
    lanes = {lane.stream for lane in lanes_of(HERE)}
    apart = {torch.cuda.Stream(HERE), torch.cuda.Stream(HERE)}
    assert (len(lanes), len(apart)) == (LANES, 2) and not lanes & apart


def test_memory_that_is_not_pinned_is_told_with_the_reason_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: 801,
        cudaGetErrorString=lambda error: f"operation not supported ({error})",
        cudaError=int,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with pytest.warns(UserWarning, match=r"operation not supported \(801\).*ulimit -l.*gVisor, WSL"):
        pin(np.zeros(64, np.uint8), HERE)


def failing(driver: Driver) -> dict[str, Callable[[], Any]]:
    def raises() -> None:
        raise ValueError("of the member's own")

    def invalidates() -> None:
        driver.invalid = True

    def reads() -> None:
        driver.invalid = True
        raise RuntimeError("operation not permitted when stream is capturing")

    def is_too_large() -> None:
        driver.cannot_instantiate = True

    return {work.__name__: work for work in (raises, invalidates, reads, is_too_large)}


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("raises", "of the member's own"),
        ("invalidates", "operation failed due to a previous error"),
        ("reads", "operation not permitted"),
        ("is_too_large", "out of memory"),
    ],
)
def test_after_a_capture_that_fails_nothing_is_left_of_it(driver: Driver, work: str, words: str) -> None:
    one = CudaRecorder(HERE)
    with pytest.raises((ValueError, RuntimeError), match=words):
        one.record(failing(driver)[work])
    assert driver.at_rest
    recording, _ = one.record(lambda: None)
    recording.close()
    assert driver.at_rest


def test_work_is_strict_inside_alone(driver: Driver) -> None:
    driver.sync_debug_mode = 1
    with pytest.raises(ValueError, match="of the member's own"), CudaRecorder(HERE).strict():
        assert driver.sync_debug_mode == "error"
        raise ValueError("of the member's own")
    assert driver.sync_debug_mode == 1


def test_recorders_have_streams_of_their_own_as_long_as_there_are_some(driver: Driver) -> None:
    there = [CudaRecorder(HERE) for _ in range(LANES)]
    assert len({id(one._lane) for one in there}) == LANES
    there[5].close()
    assert CudaRecorder(HERE)._lane is there[5]._lane


@pytest.mark.parametrize("order", [1, -1])
def test_what_was_captured_on_one_stream_keeps_its_work_space(driver: Driver, order: int) -> None:
    recorders = [CudaRecorder(HERE) for _ in range(2 * LANES + 3)]
    recordings = [one.record(lambda: None)[0] for one in recorders]
    with pytest.raises(RuntimeError, match="operation not permitted"):
        CudaRecorder(HERE).record(failing(driver)["reads"])
    for number in range(len(recordings))[::order]:
        for one in recordings[number::order]:
            one.replay()
        recordings[number].close()
        recorders[number].close()
    assert driver.at_rest


# ---- on a device


@pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=on_a_gpu)])
def test_after_a_capture_that_a_gpu_ends_it_draws_and_captures(device: str) -> None:
    there = torch.device(device)
    one, values = CudaRecorder(there), torch.ones(4, device=there)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            one.record(lambda: (values * 2).sum().item())
        torch.rand(4, device=there)
        recording, drawn = one.record(lambda: torch.rand(4, device=there))
        recording.replay()
        first = drawn.clone()
        recording.replay()
        assert not torch.equal(first, drawn)
        recording.close()
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"), one.strict():
        values.sum().item()
    assert values.sum().item() == 4.0
