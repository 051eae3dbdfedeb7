"""A stream that is not kept, as a Dataset: samples are numbered shard after shard, and each shard is read forward.

Contract. A stream has `num_shards` shards if it has that attribute (Hugging Face's name), else one. Shard k consists of the samples that the stream
yields when `torch.utils.data.get_worker_info` names worker k of `num_shards`; they must be the same, in the same order, whenever it
is read. Each process keeps its own position in each shard. To get a sample before that position, the shard is read again from its beginning, or
by `read_from(shard, row)` from the sample itself. A stream with `state_dict` and `load_state_dict`, such as those of Hugging Face,
continues at the newest mark before the sample: a row with the stream's state before it. A mark is used only if the stream then yields the samples
that it yielded before. A stream that shuffles in a buffer fails this check and is read from the beginning.
"""

import contextlib
import copy
import functools
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker

from argosy.errors.traces import USER_ERRORS
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import UnfitSample, host_bytes, sample_leaves
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.order import OPEN_SHARDS, Indices
from argosy.stream.padding import PaddedStream, unwrap_padding

__all__ = [
    "FactoryStream",
    "ShardMarks",
    "ShardedStream",
    "name_of",
    "next_sample",
    "open_shard",
    "shard_count",
    "shards_of",
]

MAX_PROOF_SAMPLES = 8
"""Most samples that prove a mark."""
MIN_PROOF_SAMPLES = 4
"""Fewest samples that prove a mark: a stream that shuffles hardly ever yields so many in their old order."""
MAX_STATE_LENGTH = 4096
"""Most characters of a state. The journal records those of eight shards whenever members are saved."""


@dataclass(frozen=True, slots=True)
class FactoryStream:
    """The samples of a factory that returns an iterator. It is called for each pass, because an iterator can be read only once."""

    factory: Callable[[], Any]

    @property
    def name(self) -> str:
        """The name of the factory's function or class."""
        name: str = getattr(
            getattr(self.factory, "func", self.factory), "__qualname__", type(self.factory).__qualname__
        )
        return name

    def __iter__(self) -> Iterator[Any]:
        return iter(self.factory())


def name_of(stream: Any) -> str:
    """Return what messages call a stream: its class, or the user's function that returns its samples."""
    whole = unwrap_padding(stream)
    return whole.name if isinstance(whole, FactoryStream) else type(whole).__name__


def shard_count(stream: Any) -> int | None:
    """Return the number of a stream's shards; None if it does not give one."""
    count = getattr(unwrap_padding(stream), "num_shards", None)
    return count if isinstance(count, int) and count > 0 else None


def open_shard(stream: Any, shard: int, row: int = 0) -> tuple[int, Iterator[Any]]:
    """Begin to read a shard. Returns the row at which its samples begin, which is 0 unless the stream can begin at `row`, and the samples."""
    whole = unwrap_padding(stream)
    with _as_worker(stream, shard):
        if hasattr(whole, "read_from"):
            first, samples = row, iter(whole.read_from(shard, row))
        else:
            first, samples = 0, iter(whole)
    return first, stream.padded(samples) if isinstance(stream, PaddedStream) else samples


def next_sample(stream: Any, shard: int, samples: Iterator[Any]) -> Any:
    """Return the next sample of an opened shard. Raises StopIteration at its end."""
    with _as_worker(stream, shard):  # a generator calls `get_worker_info` only when it first runs
        return next(samples)


@contextlib.contextmanager
def _as_worker(stream: Any, shard: int) -> Iterator[None]:
    """Let `get_worker_info` name the shard, except for streams with `read_from`, whose shards may themselves be streams that call it."""
    count, whole, seed = shard_count(stream), unwrap_padding(stream), torch.default_generator.initial_seed()
    before, worker._worker_info = worker._worker_info, None
    if count is not None and not hasattr(whole, "read_from"):
        worker._worker_info = worker.WorkerInfo(id=shard, num_workers=count, seed=seed, dataset=whole)
    try:
        yield
    finally:
        worker._worker_info = before


def shards_of(indices: Indices, lengths: tuple[int, ...]) -> Indices:
    """Return the shard of each sample, int64 ``[n]``."""
    return np.searchsorted(np.cumsum(lengths), indices, side="right").astype(np.int64)


class ShardMarks:
    """The newest marks of the shards that are being read, updated block by block."""

    def __init__(self, marks: Iterable[ShardMark] = ()) -> None:
        self._newest = {mark.shard: mark for mark in marks}

    def after(self, of_block: Iterable[ShardMark]) -> tuple[ShardMark, ...]:
        """Return the marks from which this block can be read, including those made while it was read."""
        for mark in {mark.shard: mark for mark in sorted(of_block, key=lambda mark: -mark.row)}.values():
            if mark.rows >= MIN_PROOF_SAMPLES:
                # Inserted last, because the oldest are dropped below.
                self._newest.pop(mark.shard, None)
                self._newest[mark.shard] = mark
        # A block may hold the last samples of eight shards and the first of eight others.
        while len(self._newest) > 2 * OPEN_SHARDS:
            del self._newest[next(iter(self._newest))]
        return tuple(self._newest.values())


@dataclass(slots=True)
class _OpenShard:
    """A shard that is being read."""

    stream: Any
    """If the stream has a state, a copy of the stream for this shard alone."""
    row: int
    """The next row."""
    samples: Iterator[Any]
    mark: ShardMark | None = None
    """The mark at which reading began. The samples that prove it were read ahead then."""


class ShardedStream:
    """A stream whose shards have these lengths."""

    def __init__(self, stream: Any, lengths: tuple[int, ...], heartbeat: Heartbeat) -> None:
        self.stream = stream
        self.lengths = lengths
        self._heartbeat = heartbeat
        """Beats at each sample that is read or skipped."""
        self._starts: list[int] = [0, *np.cumsum(lengths).tolist()]
        self._open: dict[int, _OpenShard] = {}
        """Open shards; the one read last comes last."""
        self._known: dict[int, ShardMark] = {}
        """By shard, the mark from which reading can continue."""
        self._made: dict[int, ShardMark] = {}
        """By shard, the mark at the first of its samples read since `begin`."""
        self._has_state: bool = _has_state(stream)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def probes(self) -> list[int]:
        """Samples used to probe the stream: first samples of shards, because reaching the last ones would take a pass."""
        begins = [start for start, length in zip(self._starts, self.lengths, strict=False) if length]
        return sorted({begins[0], begins[len(begins) // 2], begins[-1]})

    @property
    def second(self) -> int | None:
        """Second sample of the first shard that has one; None if none has, or the stream cannot begin at a row."""
        if not hasattr(unwrap_padding(self.stream), "read_from"):
            return None
        return next((start + 1 for start, length in zip(self._starts, self.lengths, strict=False) if length > 1), None)

    def __getitem__(self, index: int) -> Any:
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - self._starts[shard]
        reading = self._open.pop(shard, None)
        try:
            if reading is None or reading.row > row:
                reading = self._opened(shard, row)
            for passed in range(reading.row, row):
                self._next(reading, shard, passed)
            if self._has_state:
                self._begin_mark(reading, shard, row)
            sample = self._next(reading, shard, row)
        except StopIteration:
            raise UnfitSample(
                f"is missing: shard {shard} of {name_of(self.stream)} has fewer than the "
                f"{self.lengths[shard]:,} samples that were counted, or that shard_lengths specifies. Yield the "
                "same samples each time a shard is read."
            ) from None
        if self._has_state:
            self._prove_mark(shard, row, sample)
        if row + 1 < self.lengths[shard]:
            self._open[shard] = reading
        if len(self._open) > OPEN_SHARDS:
            del self._open[next(iter(self._open))]
        return sample

    def _next(self, reading: _OpenShard, shard: int, row: int) -> Any:
        self._heartbeat.beat(self._starts[shard] + row)
        sample = next_sample(reading.stream, shard, reading.samples)
        reading.row = row + 1
        return sample

    def _opened(self, shard: int, row: int) -> _OpenShard:
        mark = self._known.get(shard)
        if mark is not None and mark.row <= row:
            with contextlib.suppress(*USER_ERRORS):  # the user's code; the shard is then read from its beginning
                return self._resumed(mark)
        stream = copy.deepcopy(self.stream) if self._has_state else self.stream
        first, samples = open_shard(stream, shard, row)
        return _OpenShard(stream, first, samples)

    def _resumed(self, mark: ShardMark) -> _OpenShard:
        """Continue at a mark. Raises ValueError if the stream then yields other samples than before."""
        stream = copy.deepcopy(self.stream)
        unwrap_padding(stream).load_state_dict(json.loads(mark.state))
        _, samples = open_shard(stream, mark.shard)
        ahead = []
        for row in range(mark.row, mark.row + mark.rows):
            self._heartbeat.beat(self._starts[mark.shard] + row)
            ahead.append(next_sample(stream, mark.shard, samples))
        if functools.reduce(_checksum, ahead, 0) != mark.checksum:
            raise ValueError
        return _OpenShard(stream, mark.row, itertools.chain(ahead, samples), mark)

    # ---- marks

    def resume_from(self, mark: ShardMark) -> None:
        """Let reading of a shard continue at a mark."""
        self._known[mark.shard] = mark

    def begin(self) -> None:
        """Discard the marks made so far and make a new one for each shard that is read from now on."""
        self._made.clear()

    @property
    def made(self) -> tuple[ShardMark, ...]:
        """Marks made since `begin`."""
        return tuple(self._made.values())

    def _begin_mark(self, reading: _OpenShard, shard: int, row: int) -> None:
        if shard in self._made:
            return
        if reading.mark is not None and row < reading.mark.row + reading.mark.rows:
            self._made[shard] = reading.mark  # the stream's state is past the samples that were read to prove this mark
            return
        text = _state_of(reading.stream)
        if text is not None:
            self._made[shard] = ShardMark(shard, row, rows=0, checksum=0, state=text)

    def _prove_mark(self, shard: int, row: int, sample: Any) -> None:
        mark = self._made.get(shard)
        if mark is not None and row == mark.row + mark.rows and mark.rows < MAX_PROOF_SAMPLES:
            self._made[shard] = mark._replace(rows=mark.rows + 1, checksum=_checksum(mark.checksum, sample))

    def close(self) -> None:
        """Close all open shards, and with them the files that the stream may hold open."""
        self._open.clear()


def _checksum(before: int, sample: Any) -> int:
    return functools.reduce(lambda sum_, leaf: zlib.crc32(host_bytes(leaf), sum_), sample_leaves(sample)[0], before)


def _has_state(stream: Any) -> bool:
    """Return whether a stream has a state to be used, and can be copied so that each shard has a state of its own."""
    of = unwrap_padding(stream)
    if hasattr(of, "read_from") or not (hasattr(of, "state_dict") and hasattr(of, "load_state_dict")):
        return False
    try:
        copy.deepcopy(stream)
    except USER_ERRORS:  # the user's code, for example an open file or a lock
        return False
    return True


def _state_of(stream: Any) -> str | None:
    """Return the stream's state as JSON; None if `state_dict` raises, JSON does not preserve the state, or it is too long."""
    try:
        state = unwrap_padding(stream).state_dict()
        text = json.dumps(state)
    except USER_ERRORS:  # the user's code; its shards are then read from their beginnings
        return None
    return text if state and len(text) <= MAX_STATE_LENGTH and json.loads(text) == state else None
