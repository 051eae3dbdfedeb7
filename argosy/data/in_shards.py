"""A stream in shards, each of which can be read from any of its samples on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from argosy.errors import StudyError
from argosy.errors.checks import describe_value

__all__ = ["FromShards", "from_shards"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FromShards(IterableDataset[Any]):
    """Samples ``read(shard, row)`` of one shard after another."""

    shards: tuple[Any, ...]
    read: Callable[[Any, int], Iterable[Any]]
    shard_lengths: tuple[int, ...] | None
    """Number of samples in each shard; None if they have to be counted."""

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.shards)

    def read_from(self, shard: int, row: int) -> Iterator[Any]:
        """Return the samples of a shard, beginning at sample `row`."""
        return iter(self.read(self.shards[shard], row))

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of all shards; in a loader worker, those of its shards."""
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for shard in range(first, len(self.shards), step):
            yield from self.read_from(shard, 0)


def from_shards(
    shards: Iterable[Any], *, read: Callable[[Any, int], Iterable[Any]], lengths: Sequence[int] | None = None
) -> FromShards:
    """Return a stream for `Data`, where ``read(shard, row)`` gives the samples of a shard (for example a file) from sample `row` on.

    With ``Data(keep=False)`` an epoch reads eight shards at a time, and a resume begins in the middle of them. If `lengths` gives the number of
    samples in each shard, the pass that would count them is skipped.

    Raises:
        StudyError: if there is no shard, one path instead of several, or the number of lengths differs from that of shards.
    """
    if isinstance(shards, str | PurePath):
        raise StudyError(
            f"from_shards: shards is {describe_value(shards)}; it must be several shards. Pass a list, such as [{str(shards)!r}]."
        )
    listed = tuple(shards)
    if not listed:
        raise StudyError("from_shards: there are 0 shards. Pass at least 1, for example a list of files.")
    if lengths is not None and len(lengths) != len(listed):
        raise StudyError(
            f"from_shards: there are {len(listed)} shards, but the number of lengths is {len(lengths)}. Pass one "
            "length per shard."
        )
    return FromShards(shards=listed, read=read, shard_lengths=None if lengths is None else tuple(map(int, lengths)))
