"""A stream that is not kept, as a Dataset: samples are numbered shard after shard, and each shard is read forward.

Contract. What gives samples one after another has as many shards as its `num_shards` says (Hugging Face's word), else one. Shard k is what
the stream gives where `torch.utils.data.get_worker_info` says worker k of `num_shards`: the same samples in the same order whenever it
is read. Each process has places of its own in the shards. A sample that is not ahead of the place is read from the beginning of its shard;
a stream that has `read_from(shard, row)` begins there instead. One that has `state_dict` and `load_state_dict`, as those of Hugging Face,
begins at the newest mark that is not behind the sample: a row with the state before it. A mark counts where the stream then gives the samples
that it gave. One that shuffles in a buffer does not, and is read from the beginning.
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

from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Unfit, bytes_of, sample_leaves
from argosy.stream.order import SIDE_BY_SIDE, Indices
from argosy.stream.padding import PaddedStream, given
from argosy.stream.samples import THROWN

__all__ = ["ShardMarks", "Shards", "next_of", "opened_shard", "shard_count", "shards_of"]

PROVING = 8
"""Most samples that prove a mark."""
ENOUGH = 4
"""Fewest of them: a stream that shuffles gives so many in their old order hardly ever."""
LONGEST_STATE = 4096
"""Most characters of a state: the journal has those of eight shards whenever members are saved."""


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


class ShardMarks:
    """The newest marks of the shards that are being read, as of one block after another."""

    def __init__(self, marks: Iterable[ShardMark] = ()) -> None:
        self._newest = {mark.shard: mark for mark in marks}

    def after(self, of_block: Iterable[ShardMark]) -> tuple[ShardMark, ...]:
        """Return the marks from which this block can be read, among them those that were made when it was read."""
        for mark in {mark.shard: mark for mark in sorted(of_block, key=lambda mark: -mark.row)}.values():
            if mark.rows >= ENOUGH:
                self._newest.pop(mark.shard, None)
                self._newest[mark.shard] = mark
        # A block may have the last samples of some and the first of as many.
        while len(self._newest) > 2 * SIDE_BY_SIDE:
            del self._newest[next(iter(self._newest))]
        return tuple(self._newest.values())


@dataclass(slots=True)
class _Reading:
    """A shard that is being read."""

    stream: Any
    """A copy of the shard's own, where the stream has a state."""
    row: int
    """The row that comes next."""
    samples: Iterator[Any]
    mark: ShardMark | None = None
    """The mark at which reading began; the samples that prove it were read then."""


class Shards:
    """A stream with shards of these lengths."""

    def __init__(self, stream: Any, lengths: tuple[int, ...], beat: Callable[[int], None]) -> None:
        self.stream = stream
        self.lengths = lengths
        self._beat = beat
        """Called with each sample that is read, those that are passed over included."""
        self._starts: list[int] = [0, *np.cumsum(lengths).tolist()]
        self._places: dict[int, _Reading] = {}
        """The shard that was read last is last."""
        self._known: dict[int, ShardMark] = {}
        """By shard, where reading can go on."""
        self._made: dict[int, ShardMark] = {}
        """By shard, the mark at the first of its samples since `begin`."""
        self._has_state: bool = _tells_state(stream)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def probes(self) -> list[int]:
        """Samples from which the stream is known: first ones of its shards, as reading to the last one takes a pass."""
        begins = [start for start, length in zip(self._starts, self.lengths, strict=False) if length]
        return sorted({begins[0], begins[len(begins) // 2], begins[-1]})

    @property
    def second(self) -> int | None:
        """The second sample of the first shard that has one; None where none has, or the stream cannot begin at a row."""
        if not hasattr(given(self.stream), "read_from"):
            return None
        return next((start + 1 for start, length in zip(self._starts, self.lengths, strict=False) if length > 1), None)

    def __getitem__(self, index: int) -> Any:
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - self._starts[shard]
        reading = self._places.pop(shard, None)
        try:
            if reading is None or reading.row > row:
                reading = self._opened(shard, row)
            for passed in range(reading.row, row):
                self._next(reading, shard, passed)
            if self._has_state:
                self._begin_mark(reading, shard, row)
            sample = self._next(reading, shard, row)
        except StopIteration:
            raise Unfit(
                f"is missing: shard {shard} of the {type(given(self.stream)).__name__} has fewer than the {self.lengths[shard]:,} samples that "
                "it had when it was counted, or that shard_lengths tells. Let each shard give the same samples whenever it is read."
            ) from None
        if self._has_state:
            self._prove_mark(shard, row, sample)
        if row + 1 < self.lengths[shard]:
            self._places[shard] = reading
        if len(self._places) > SIDE_BY_SIDE:
            del self._places[next(iter(self._places))]
        return sample

    def _next(self, reading: _Reading, shard: int, row: int) -> Any:
        self._beat(self._starts[shard] + row)
        sample = next_of(reading.stream, shard, reading.samples)
        reading.row = row + 1
        return sample

    def _opened(self, shard: int, row: int) -> _Reading:
        mark = self._known.get(shard)
        if mark is not None and mark.row <= row:
            with contextlib.suppress(*THROWN):  # the user's code: else the shard is read from its beginning
                return self._resumed(mark)
        stream = copy.deepcopy(self.stream) if self._has_state else self.stream
        first, samples = opened_shard(stream, shard, row)
        return _Reading(stream, first, samples)

    def _resumed(self, mark: ShardMark) -> _Reading:
        """Go on at a mark; raises ValueError where the stream gives other samples there than it gave."""
        stream = copy.deepcopy(self.stream)
        given(stream).load_state_dict(json.loads(mark.state))
        _, samples = opened_shard(stream, mark.shard)
        ahead = []
        for row in range(mark.row, mark.row + mark.rows):
            self._beat(self._starts[mark.shard] + row)
            ahead.append(next_of(stream, mark.shard, samples))
        if functools.reduce(_checksum, ahead, 0) != mark.checksum:
            raise ValueError
        return _Reading(stream, mark.row, itertools.chain(ahead, samples), mark)

    # ---- marks

    def know(self, mark: ShardMark) -> None:
        """Let reading of a shard go on at a mark."""
        self._known[mark.shard] = mark

    def begin(self) -> None:
        """Make marks anew, of each shard that is read from here on."""
        self._made.clear()

    @property
    def made(self) -> tuple[ShardMark, ...]:
        """The marks that were made since then."""
        return tuple(self._made.values())

    def _begin_mark(self, reading: _Reading, shard: int, row: int) -> None:
        if shard in self._made:
            return
        if reading.mark is not None and row < reading.mark.row + reading.mark.rows:
            self._made[shard] = reading.mark  # the stream's state is behind what was read to prove this one
            return
        text = _state_of(reading.stream)
        if text is not None:
            self._made[shard] = ShardMark(shard, row, rows=0, checksum=0, state=text)

    def _prove_mark(self, shard: int, row: int, sample: Any) -> None:
        mark = self._made.get(shard)
        if mark is not None and row == mark.row + mark.rows and mark.rows < PROVING:
            self._made[shard] = mark._replace(rows=mark.rows + 1, checksum=_checksum(mark.checksum, sample))

    def close(self) -> None:
        """Forget all places, and with them the files that the stream may hold open."""
        self._places.clear()


def _checksum(before: int, sample: Any) -> int:
    return functools.reduce(lambda sum_, leaf: zlib.crc32(bytes_of(leaf), sum_), sample_leaves(sample)[0], before)


def _tells_state(stream: Any) -> bool:
    """Whether a stream has a state that is to be used, and can be copied, so that each shard has a state of its own."""
    of = given(stream)
    if hasattr(of, "read_from") or not (hasattr(of, "state_dict") and hasattr(of, "load_state_dict")):
        return False
    try:
        copy.deepcopy(stream)
    except THROWN:  # the user's code, and what it holds: an open file, a lock
        return False
    return True


def _state_of(stream: Any) -> str | None:
    """Return what a stream says of its state, as JSON; None where it raises, JSON does not give it back, or it is long."""
    try:
        state = given(stream).state_dict()
        text = json.dumps(state)
    except THROWN:  # the user's code: then its shards are read from their beginnings
        return None
    return text if state and len(text) <= LONGEST_STATE and json.loads(text) == state else None
