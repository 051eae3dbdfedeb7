"""The kernels of `argosy.training.device.own_kernels` in Triton; imported only if Triton is installed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from argosy.stream.batches import copy_to_device
from argosy.training.device.kernel_forms import BLOCK, DRAWS_PER_THREAD, NUMBERS_PER_STEP, MaskDraw

__all__ = ["TritonKernels"]

SIZES = (1001, 65_536 * 96, 1_500_002)
"""Sizes of masks that are compared with torch's: some are odd, and with some each thread draws several times."""
GROUPS = 512
"""Draws of four numbers that one Triton program makes."""
NUMBERS_PER_MASK = 6
"""Columns of the table of masks."""
THREADS = 256
"""Threads of a block of torch's dropout."""


class TritonKernels:
    """The `argosy.training.device.kernel_forms.OwnKernels` of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.adjacent: dict[int, int] = {}
        """Most adjacent elements that a thread of torch's dropout draws, by the element size in bytes."""

    @classmethod
    def as_torch(cls, device: torch.device) -> "TritonKernels | None":
        """Return kernels after checking that they draw the same numbers as this torch's dropout; None if they differ even in float32."""
        kernels = cls(device)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for adjacent in (16 // dtype.itemsize, 4):
                kernels.adjacent[dtype.itemsize] = adjacent
                if all(kernels._draws_as_torch(size, dtype) for size in SIZES):
                    break
                del kernels.adjacent[dtype.itemsize]
        return kernels if torch.float32.itemsize in kernels.adjacent else None

    def _draws_as_torch(self, size: int, dtype: torch.dtype) -> bool:
        seed, offset, kept = 1234567890123, 8, 0.7
        state = torch.tensor([seed, offset])
        torch.cuda.set_rng_state(state.view(torch.uint8), self._device)
        ones, drawn = (torch.ones(size, dtype=dtype, device=self._device) for _ in range(2))
        wanted = functional.dropout(ones, 1 - kept)
        moved = int(torch.cuda.get_rng_state(self._device).view(torch.int64)[1]) - offset
        self.masks(drawn, [(MaskDraw(0, 0, size, kept), 0)], state.to(self._device).unsqueeze(0), {})
        return bool(torch.equal(wanted, drawn)) and moved == self.increment(size)

    def masks(
        self, into: Tensor, drawn: Sequence[tuple[MaskDraw, int]], states: Tensor, tables: dict[Any, Any]
    ) -> None:
        """Implement `OwnKernels.masks`."""
        key = into.dtype, tuple(drawn)
        if key not in tables:
            tables[key] = self._table(into.dtype, drawn)
        table, shares, most = tables[key]
        _masks[(-(-most // GROUPS), len(drawn))](into, table, shares, states, COLUMNS=NUMBERS_PER_MASK, GROUPS=GROUPS)

    def _table(self, dtype: torch.dtype, drawn: Sequence[tuple[MaskDraw, int]]) -> tuple[Tensor, Tensor, int]:
        if dtype.itemsize not in self.adjacent:
            raise RuntimeError(f"dropout of {dtype} draws differently in this version of torch")
        rows, shares, most = [], [], 1
        real = np.float64 if dtype == torch.float64 else np.float32
        for one, offset in drawn:
            threads, adjacent = self._threads(one.size), self.adjacent[dtype.itemsize]
            while one.size % adjacent:
                adjacent //= 2
            rows.append((one.start, one.size, threads, adjacent, one.row, offset // DRAWS_PER_THREAD))
            kept = real(one.kept)
            scale = float(real(1.0 / float(kept))) if one.kept else 0.0
            shares.append((2.0, 1.0) if one.kept == 1 else (float(kept), scale))
            a_turn = threads * (DRAWS_PER_THREAD if adjacent == 1 else adjacent)
            most = max(most, -(-one.size // a_turn) * threads * max(adjacent // DRAWS_PER_THREAD, 1))
        columns = torch.tensor(rows, dtype=torch.int64), torch.tensor(shares, dtype=torch.float64)
        return copy_to_device(columns[0], self._device), copy_to_device(columns[1], self._device), most

    def _threads(self, size: int) -> int:
        """Return how many threads torch uses to draw a mask (ATen/native/cuda/Dropout.cu)."""
        properties = torch.cuda.get_device_properties(self._device)
        most: int = properties.multi_processor_count * (properties.max_threads_per_multi_processor // THREADS)
        return min(most, -(-size // THREADS)) * THREADS

    def increment(self, size: int) -> int:
        """Implement `OwnKernels.increment`."""
        return ((size - 1) // (self._threads(size) * DRAWS_PER_THREAD) + 1) * DRAWS_PER_THREAD

    def step(
        self, weights: Tensor, gradients: Tensor, moments: tuple[Tensor, Tensor], numbers: Tensor, owners: Tensor
    ) -> None:
        """Implement `OwnKernels.step`."""
        _step[(len(owners),)](weights, gradients, *moments, numbers, owners, NUMBERS=NUMBERS_PER_STEP, BLOCK=BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _masks(into, table, shares, states, COLUMNS: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    of = table + tl.program_id(1) * COLUMNS
    start, count, threads = tl.load(of), tl.load(of + 1), tl.load(of + 2)
    adjacent, row, counter = tl.load(of + 3), tl.load(of + 4), tl.load(of + 5)
    kept, scale = tl.load(shares + tl.program_id(1) * 2), tl.load(shares + tl.program_id(1) * 2 + 1)
    seed, offset = tl.load(states + row * 2), tl.load(states + row * 2 + 1)
    # A thread with eight adjacent elements draws four numbers twice.
    halves = tl.where(adjacent == 8, 2, 1)
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    half, thread, turn = group % halves, group // halves % threads, group // halves // threads
    at = offset // 4 + counter + turn * halves + half
    low, high = (at & 0xFFFFFFFF).to(tl.uint32), (at >> 32).to(tl.uint32)
    one, two, three, four = tl.philox(seed, low, high, thread.to(tl.uint32), (thread >> 32).to(tl.uint32))
    first = turn * tl.where(adjacent == 1, 4, adjacent) * threads + thread * adjacent + half * 4
    # The four numbers are adjacent, or each is `threads` elements after the last; with pairs, torch discards two of the four.
    of_two = tl.where(adjacent == 1, threads, 1)
    of_three = tl.where(adjacent >= 4, 2, tl.where(adjacent == 2, count, 2 * threads))
    _write(into, start, count, first, one, kept, scale)
    _write(into, start, count, first + of_two, two, kept, scale)
    _write(into, start, count, first + of_three, three, kept, scale)
    _write(into, start, count, first + of_two + of_three, four, kept, scale)


@triton.jit
def _write(into, start, count, at, bits, kept, scale):  # type: ignore[no-untyped-def]
    uniform = bits.to(tl.float32) * 2.3283064e-10 + 1.1641532e-10
    mask = tl.where(uniform.to(tl.float64) < kept, scale, 0.0)
    tl.store(into + start + at, mask.to(into.dtype.element_ty), mask=at < count)


@triton.jit  # type: ignore[untyped-decorator]
def _step(weights, gradients, first, second, numbers, owners, NUMBERS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    own = numbers + tl.load(owners + tl.program_id(0)) * NUMBERS
    w, g, m = tl.load(weights + at), tl.load(gradients + at), tl.load(first + at)
    g += tl.load(own + 2) * w
    w *= tl.load(own + 1)
    a, b, eps, rate = tl.load(own + 3), tl.load(own + 4), tl.load(own + 5), tl.load(own + 6)
    kind = tl.load(own)
    if kind == 1:
        v = tl.load(second + at)
        m += a * (g - m)
        v += b * (g * g - v)
        tl.store(second + at, v)
        w += rate * (m / (tl.sqrt(v) + eps))
    elif kind == 2:
        m += a * (g - m)
        tl.store(gradients + at, tl.where(eps == 1, g + b * (m - g), m))
    else:
        m = a * m + g
        w += rate * tl.where(b == 1, g + a * m, m)
    tl.store(first + at, m)
    tl.store(weights + at, w)
