"""A stream that is not kept, as a Dataset: samples are numbered shard after shard, and each shard is read forward.

Contract. What gives samples one after another has as many shards as its `num_shards` says (Hugging Face's word), else one. Shard k is what
the stream gives where `torch.utils.data.get_worker_info` says worker k of `num_shards`: the same samples in the same order whenever it
is read. Each process has places of its own in the shards. A sample that is not ahead of the place is read from the beginning of its shard;
a stream that has `read_from(shard, row)` begins there instead.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker

from argosy.stream.blocks import Unfit
from argosy.stream.order import SIDE_BY_SIDE, Indices
from argosy.stream.padding import PaddedStream, given

__all__ = ["Shards", "next_of", "opened_shard", "shard_count", "shards_of"]


def shard_count(stream: Any) -> int | None:
    """Return the number of a stream's shards; None where it does not say."""
    found = getattr(given(stream), "num_shards", None)
    return found if isinstance(found, int) and found > 0 else None


def opened_shard(stream: Any, shard: int, row: int = 0) -> tuple[int, Iterator[Any]]:
    """Begin to read a shard; return the row that comes first, which is 0 unless the stream can begin elsewhere."""
    whole = given(stream)
    with _as_worker(stream, shard):
        if hasattr(whole, "read_from"):
            first, samples = row, iter(whole.read_from(shard, row))
        else:
            first, samples = 0, iter(whole)
    return first, stream.padded(samples) if isinstance(stream, PaddedStream) else samples


def next_of(stream: Any, shard: int, samples: Iterator[Any]) -> Any:
    """Return the next sample of a shard that was opened; raises StopIteration at its end."""
    with _as_worker(stream, shard):  # a generator asks which worker it is when it first runs
        return next(samples)


@contextlib.contextmanager
def _as_worker(stream: Any, shard: int) -> Iterator[None]:
    """Let `get_worker_info` name the shard, unless the stream is asked for it: what reads that may be a stream in itself."""
    count = shard_count(stream)
    before, worker._worker_info = worker._worker_info, None
    if count is not None and not hasattr(given(stream), "read_from"):
        worker._worker_info = worker.WorkerInfo(
            id=shard, num_workers=count, seed=torch.default_generator.initial_seed(), dataset=given(stream)
        )
    try:
        yield
    finally:
        worker._worker_info = before


def shards_of(indices: Indices, lengths: tuple[int, ...]) -> Indices:
    """Return in which shard each sample is, int64 ``[n]``."""
    return np.searchsorted(np.cumsum(lengths), indices, side="right").astype(np.int64)


class Shards:
    """A stream with shards of these lengths."""

    def __init__(self, stream: Any, lengths: tuple[int, ...], beat: Callable[[int], None]) -> None:
        self.stream = stream
        self.lengths = lengths
        self._beat = beat
        """Called with each sample that is read, those that are passed over included."""
        self._starts: list[int] = [0, *np.cumsum(lengths).tolist()]
        self._places: dict[int, tuple[int, Iterator[Any]]] = {}
        """By shard, the row that comes next, and what gives it; the shard that was read last is last."""

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def probes(self) -> list[int]:
        """Samples from which the stream is known: first ones of its shards, as reading to the last one takes a pass."""
        begins = [start for start, length in zip(self._starts, self.lengths, strict=False) if length]
        return sorted({begins[0], begins[len(begins) // 2], begins[-1]})

    def __getitem__(self, index: int) -> Any:
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - self._starts[shard]
        place, samples = self._places.pop(shard, (len(self), iter(())))
        if place > row:
            place, samples = opened_shard(self.stream, shard, row)
        try:
            for passed in range(place, row + 1):
                self._beat(self._starts[shard] + passed)
                sample = next_of(self.stream, shard, samples)
        except StopIteration:
            raise Unfit(
                f"is missing: shard {shard} of the {type(given(self.stream)).__name__} has fewer than the {self.lengths[shard]:,} samples that "
                "it had when it was counted, or that shard_lengths tells. Let each shard give the same samples whenever it is read."
            ) from None
        if row + 1 < self.lengths[shard]:
            self._places[shard] = (row + 1, samples)
        if len(self._places) > SIDE_BY_SIDE:
            del self._places[next(iter(self._places))]
        return sample

    def close(self) -> None:
        """Forget all places, and with them the files that the stream may hold open."""
        self._places.clear()
