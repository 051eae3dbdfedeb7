"""Which member sees which sample when: the published order, the seeds, and the digest that proves them (DESIGN.md §3.1, 1-5).

Everything here is a pure function of integers and uses only NumPy arrays.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "OPENING_INDEX",
    "OPEN_SHARDS",
    "Digest",
    "Indices",
    "Selection",
    "member_seed",
    "mix64",
    "permutation",
    "running_sums",
    "sample_seed",
    "shard_order",
    "split_order",
    "used_elements",
    "window_elements",
    "window_order",
]

Indices = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
"""Increment of splitmix64, and the constant C of the positions in a digest."""
WORD = 2**64
OPENING_INDEX = -1
"""Replaces a sample's index in the seed under which a split is opened, or read from beginning to end."""
WINDOW = 64
"""Number of full batches in a window, which is sorted by length. Lengths in a batch then differ by about a 64th of their range."""
OPEN_SHARDS = 8
"""Number of shards that an epoch reads at a time, for a stream that is not kept."""
SHARD_RUN = 8
"""Number of consecutive samples of one shard, so that a loader worker can be asked for several at once."""
SPLITS = {"train": 0, "val": 1, "then": WORD // 2}
"""Parts of preparation that draw random numbers, each under its own seeds."""


def permutation(seed: int, epoch: int, length: int) -> Indices:
    """Return the order of one stream epoch, int64 ``[length]``: a function of (study seed, epoch) alone."""
    return _random(seed, epoch).permutation(length).astype(np.int64)


def window_order(seed: int, epoch: int, window: int, count: int) -> Indices:
    """Return the order of the `count` batches of one window of an epoch, int64 ``[count]``: a function of these numbers alone."""
    return _random(seed, epoch, window).permutation(count).astype(np.int64)


def window_elements(batch_size: int) -> int:
    """Return the number of elements of a member's sequence that are sorted by length together."""
    return WINDOW * batch_size


def shard_order(seed: int, epoch: int, shards: Sequence[int]) -> Indices:
    """Return the order of one epoch of a stream that can only be read forward, in shards of these lengths, int64 ``[sum(shards)]``.

    The shards are shuffled. `OPEN_SHARDS` of them at a time are interleaved in runs of `SHARD_RUN` samples; within each shard samples keep their order.
    """
    lengths = np.asarray(shards, dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    state = _random(seed, epoch)
    shuffled = state.permutation(len(lengths))
    parts = [np.zeros(0, dtype=np.int64)]
    for first in range(0, len(shuffled), OPEN_SHARDS):
        beside = shuffled[first : first + OPEN_SHARDS]
        # One entry for each run of samples; shuffled, they say which shard comes next.
        runs = np.repeat(beside, -(-lengths[beside] // SHARD_RUN))
        state.shuffle(runs)
        row = np.zeros(len(runs), dtype=np.int64)
        # The runs of one shard stay in their order, because it is read forward.
        for shard in beside.tolist():
            its = np.flatnonzero(runs == shard)
            row[its] = SHARD_RUN * np.arange(len(its))
        rows = row[:, None] + np.arange(SHARD_RUN)
        # The last run of a shard may be shorter.
        parts.append((starts[runs][:, None] + rows)[rows < lengths[runs][:, None]])
    return np.concatenate(parts)


def _random(seed: int, *numbers: int) -> np.random.RandomState:
    """Return a generator seeded by these numbers: a RandomState, whose output NumPy guarantees never to change."""
    return np.random.RandomState([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, *numbers])


def split_order(seed: int, split: str, epoch: int, length: int, shards: Sequence[int] = ()) -> Indices:
    """Return the order in which the samples of one split pass in one epoch. `shards` are those of a stream that is not kept."""
    if split != "train":
        return np.arange(length, dtype=np.int64)
    return shard_order(seed, epoch, shards) if shards else permutation(seed, epoch, length)


def mix64(value: int) -> int:
    """Return the finalizer of splitmix64 (Steele, Lea and Flood 2014) on one 64-bit integer."""
    value = (value + GOLDEN) % WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
    return value ^ (value >> 31)


def mix64_array(values: Hashes) -> Hashes:
    """Return `mix64` of every element."""
    values = values + np.uint64(GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sample_seed(seed: int, split: str, epoch: int, index: int) -> int:
    """Return 64 bits that seed the preparation of one sample: a function of (study seed, split, epoch, index)."""
    return mix64(_epoch_seed(seed, split, epoch) ^ index)


@functools.lru_cache(maxsize=8)
def _epoch_seed(seed: int, split: str, epoch: int) -> int:
    return mix64(mix64(seed % WORD) ^ (2 * epoch + SPLITS[split]))


def member_seed(seed: int, name: str) -> int:
    """Return 63 bits that seed a member: a function of the study's seed and the member's name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Digest(NamedTuple):
    """Proof of what a program stepped on: integers that add up over batches, blocks and shards.

    A tuple, because one is created for every batch of every member.
    """

    elements: int = 0
    indices: int = 0
    """Σ mix64(index) mod 2^64."""
    positions: int = 0
    """Σ mix64(position·C ⊕ index) mod 2^64; the position counts the member's own elements of the epoch."""

    def plus(self, other: "Digest") -> "Digest":
        """Return the sum of both digests."""
        return Digest(self[0] + other[0], (self[1] + other[1]) % WORD, (self[2] + other[2]) % WORD)

    @classmethod
    def of(cls, indices: Indices, positions: Indices) -> "Digest":
        """Return the digest of some elements, both int64 ``[n]``."""
        by_index, by_position = element_hashes(indices, positions)
        return cls(len(indices), int(by_index.sum(dtype=np.uint64)), int(by_position.sum(dtype=np.uint64)))


def element_hashes(indices: Indices, positions: Indices) -> tuple[Hashes, Hashes]:
    """Return mix64(index) and mix64(position·C ⊕ index) of each element."""
    unsigned = indices.astype(np.uint64)
    return mix64_array(unsigned), mix64_array((positions.astype(np.uint64) * np.uint64(GOLDEN)) ^ unsigned)


def running_sums(indices: Indices, positions: Indices, sound: npt.NDArray[np.bool_]) -> tuple[Hashes, Hashes]:
    """Return Σ mod 2^64 of both hashes over the first 0 … n elements, ``[n + 1]``. Elements that are not sound add nothing."""
    by_index, by_position = (np.where(sound, hashes, np.uint64(0)) for hashes in element_hashes(indices, positions))
    return _running_sums(by_index), _running_sums(by_position)


def _running_sums(hashes: Hashes) -> Hashes:
    sums = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(hashes, out=sums[1:])
    return sums


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples of a split that a member sees, and how many times."""

    multiplicity: npt.NDArray[np.int64] | None
    """Number of times that each index is seen, ``[length]``; None if each is seen once."""
    length: int
    """Number of elements in the member's sequence in one epoch."""

    @classmethod
    def of(cls, subset: Sequence[int] | None, length: int) -> "Selection":
        """Select all samples, or those of a subset, in which an index may be repeated."""
        if subset is None:
            return cls(None, length)
        multiplicity = np.bincount(np.asarray(subset, dtype=np.int64), minlength=length)
        return cls(multiplicity, int(multiplicity.sum()))

    def positions(self, order: Indices) -> Indices | None:
        """Return each element's position in the stream, int64 ``[self.length]``, ascending; None if it equals the element's number.

        The sequence is the order restricted to the subset, each index repeated in place by its multiplicity.
        """
        if self.multiplicity is None:
            return None
        return np.repeat(np.arange(len(order), dtype=np.int64), self.multiplicity[order])


def used_elements(length: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of elements of a sequence that its batches use."""
    return length - length % batch_size if drop_last else length
