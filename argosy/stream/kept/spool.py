"""Read data that only yield samples in sequence, such as an IterableDataset, once into kept rows. From then on they are treated as any other data.

If they are not to be kept, only the lengths of their shards are counted here, and the shards are read in each epoch (`argosy.stream.shards`).

Contract. Reading takes one pass before training begins, in one process, or in several if the stream has `num_shards`. The order of shards and of
samples within them determines the indices. The study shuffles these like those of any Dataset, so a resume is exact
whatever the workers, devices and nodes. No sample may depend on random numbers drawn in that pass, because they would be the same in each epoch:
a shard that draws is read again with other random numbers.
"""

import contextlib
import filecmp
import functools
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from argosy.errors import StudyError, WorkerError
from argosy.errors.traces import USER_ERRORS
from argosy.stream.blocks import Layout, UnfitSample, host_bytes, same_bits, sample_leaves
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.cache import Entry, Location, RowCache, make_header
from argosy.stream.kept.keys import Key, make_key
from argosy.stream.kept.proof import SAMPLES_VERIFIED
from argosy.stream.kept.readers import Found, GrowthCallback, Read, read_in_parallel
from argosy.stream.kept.rows import Rows
from argosy.stream.kept.witnesses import RECORDER, Witnesses, make_notes
from argosy.stream.order import OPENING_INDEX, sample_seed
from argosy.stream.own_generators import outside_parts, own_generator_states
from argosy.stream.padding import unwrap_padding
from argosy.stream.probing import Facts, fingerprint_of
from argosy.stream.samples import counting_entropy, generator_states, sample_error, seed_everything
from argosy.stream.shards import name_of, next_sample, open_shard, shard_count
from argosy.stream.trees import unflatten
from argosy.stream.value_text import UnreadableContent

__all__ = ["SpooledDataset", "Spool"]

FIRST_ROOM_BYTES = 2**26
"""Room requested at first."""


@dataclass(kw_only=True, slots=True)
class _Part:
    """The samples read from one shard."""

    shard: int
    layout: Layout | None = None
    """None if the shard has no sample."""
    samples: int = 0
    files: list[Path] = field(default_factory=list)
    """One file of samples for each leaf."""
    first: list[torch.Tensor] = field(default_factory=list)
    last: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Spool:
    """Reads one split from beginning to end."""

    stream: Any
    split: str
    seed: int
    heartbeat: Heartbeat
    lengths: tuple[int, ...]
    """Lengths of the shards, once they are known; needed only if the stream is not kept."""
    readers: int
    """Number of processes that may read shards at a time."""

    def facts(self, cache: RowCache) -> Facts:
        """Return the facts of the split after it was read, by this or an earlier run."""
        try:
            return self._facts(cache)
        except OSError as error:  # from the folder of kept rows: errors of the stream are reported for their sample
            raise StudyError(
                f"Data.{self.split}: the samples of {self._kind} cannot be written to {cache.folder}: "
                f"{error.strerror}. Free some space, or set ARGOSY_CACHE to a folder on another disk."
            ) from error

    def _facts(self, cache: RowCache) -> Facts:
        try:
            key = make_key(self.stream)
            entry = cache.look_up(key)
        except UnreadableContent as error:
            key, entry = Key.of_one_run(self.stream), f"for this run only, because it contains {error}"
        if isinstance(entry, Entry):
            known = self._verify_kept(cache, entry, key)
            if known is not None:
                return known
            entry = "its first samples have changed"
        return self._read(cache, key, entry)

    @property
    def _kind(self) -> str:
        return name_of(self.stream)

    def _seed(self, epoch: int = 0) -> None:
        seed_everything(sample_seed(self.seed, self.split, epoch, OPENING_INDEX))

    def _samples_of(self, shard: int, epoch: int = 0) -> Iterator[tuple[list[torch.Tensor], Any]]:
        """Yield leaves and structure of each sample of a shard."""
        self._seed(epoch)
        row = 0
        try:
            with RECORDER.watching():
                _, samples = open_shard(self.stream, shard)
            for row in itertools.count():
                self.heartbeat.beat(row)
                with RECORDER.watching():
                    sample = next_sample(self.stream, shard, samples)
                yield sample_leaves(sample)
        except StopIteration:
            return
        except USER_ERRORS as error:  # the user's code
            raise sample_error(error, self.split, self._place(shard, row)) from error

    def _place(self, shard: int, row: int) -> str:
        return str(row) if shard_count(self.stream) is None else f"{row} of shard {shard}"

    def count_shards(self) -> tuple[int, ...]:
        """Return the lengths of the shards. If neither a journal nor the stream gives them, read the stream to its end."""
        declared = tuple(getattr(unwrap_padding(self.stream), "shard_lengths", None) or ())
        self.lengths = self.lengths or declared or self._count_shards()
        if not sum(self.lengths):
            raise self._empty()
        return self.lengths

    def _count_shards(self) -> tuple[int, ...]:
        counted = self._by_readers(self._count, lambda *_: None)
        if self._heeds_workers(len(counted)) and counted[0] == counted[1] and counted[0][0]:
            raise self._repeated(len(counted))
        return tuple(samples for samples, _ in counted)

    def _count(self, shard: int, grown: GrowthCallback) -> tuple[int, int]:
        """Return the number of samples of a shard, and a sum of their bytes."""
        count, total = 0, 0
        for leaves, _ in self._samples_of(shard, epoch=shard):  # what shards draw then differs
            count += 1
            for leaf in leaves:
                total = zlib.crc32(host_bytes(leaf), total)
        return count, total

    def _by_readers(self, read: Read[Found], grown: GrowthCallback) -> list[Found]:
        doing = f"reading sample {{number}} of {self.split}"
        return read_in_parallel(read, shard_count(self.stream) or 1, self.readers, self.heartbeat, grown, doing)

    def _verify_kept(self, cache: RowCache, entry: Entry, key: Key) -> Facts | None:
        """Return the facts of kept rows if the first samples of the stream are still the same; else delete the rows."""
        header = entry.header
        layout: Layout | None = None
        rows: Rows | None = None
        of_shards = map(self._samples_of, range(shard_count(self.stream) or 1))
        first = itertools.islice(itertools.chain.from_iterable(of_shards), SAMPLES_VERIFIED)
        for number, (leaves, tree) in enumerate(first):
            layout = layout or Layout.of(unflatten(leaves, tree))
            if rows is None and header.fits(layout):
                rows = Rows.open(entry.folder, layout, header.count)
            if rows is None or rows.found < header.length or not same_bits(leaves, rows.row(number)):
                layout = None
                break
        if layout is None:
            cache.discard(entry.folder)
            return None
        return _kept_facts(layout, header.length, header.fingerprint, entry.folder, key, "read by an earlier run")

    def _read(self, cache: RowCache, key: Key, why: str) -> Facts:
        """Read the whole stream into rows."""
        with cache.new() as folder:
            witnesses = Witnesses(folder, key.roots)
            witnesses.write(make_notes(key.files, key.roots))
            read_parts = self._by_readers(partial(self._read_shard, folder, witnesses), self._budget(cache))
            parts = [part for part in read_parts if part.layout is not None]
            if not parts:
                raise self._empty()
            layout, count = parts[0].layout, sum(part.samples for part in parts)
            assert layout is not None
            for part in parts:
                assert part.layout is not None
                self._check(layout, part.first, part.layout.tree, self._place(part.shard, 0))
            same_content = partial(filecmp.cmp, shallow=False)
            if self._heeds_workers(len(parts)) and all(map(same_content, parts[0].files, parts[1].files)):
                raise self._repeated(len(parts))
            Rows.assemble(folder, layout, count, [part.files for part in parts])
            fingerprint = fingerprint_of([parts[0].first, parts[-1].last])
            place, keeping = cache.folder / key.name, f"read once into a file: {why}"
            facts = _kept_facts(layout, count, fingerprint, place, key, keeping)
            cache.place(folder, key, make_header(key, facts, count))
            return facts

    def _read_shard(self, folder: Path, witnesses: Witnesses, shard: int, grown: GrowthCallback) -> _Part:
        """Write the samples of one shard to files, one for each leaf."""
        stream = unwrap_padding(self.stream)
        may_draw = stream, *outside_parts(stream)
        own = own_generator_states(*may_draw)
        with counting_entropy(), contextlib.ExitStack() as files:
            columns: list[BinaryIO] = []
            part = _Part(shard=shard)
            for row, (leaves, tree) in enumerate(self._samples_of(shard)):
                if part.layout is None:
                    part.layout, part.first = Layout.of(unflatten(leaves, tree)), leaves
                    part.files = [folder / f"shard{shard}-leaf{number}" for number in range(len(leaves))]
                    columns = [files.enter_context(path.open("wb")) for path in part.files]
                self._check(part.layout, leaves, tree, self._place(shard, row))
                grown(shard, row + 1, (row + 1) * part.layout.sample_bytes)
                for column, leaf in zip(columns, leaves, strict=True):
                    column.write(host_bytes(leaf))
                part.samples, part.last = row + 1, leaves
        drew = self._has_drawn() or own_generator_states(*may_draw) != own
        if drew and not self._equal(part):
            raise StudyError(
                f"Data.{self.split}: {self._kind} draws random numbers, but is read only once, so they would be "
                "the same in each epoch. Draw in Data(then=...), and leave shuffling to the study."
            )
        if part.shard == 0 and not drew and self._begins_differently(part):
            raise StudyError(
                f"Data.{self.split}: {self._kind} yields different samples when it is read again, so a later run, or one that "
                "is resumed, would train on others. Draw in Data(then=...), and leave shuffling to the study."
            )
        witnesses.add()
        return part

    def _budget(self, cache: RowCache) -> GrowthCallback:
        """Return a callback that requests more room whenever the samples read exceed it."""
        sizes: dict[int, tuple[int, int]] = {}
        room = 0

        def grown(shard: int, samples: int, size: int) -> None:
            nonlocal room
            sizes[shard] = samples, size
            wanted = sum(size for _, size in sizes.values())
            if wanted > room:
                room = cache.room(2 * wanted + FIRST_ROOM_BYTES)
            if wanted > room:
                number = sum(samples for samples, _ in sizes.values()) - 1
                raise StudyError(
                    f"Data.{self.split}: there is no room for more than {number:,} samples of {self._kind} "
                    f"({room:,} bytes). Free space on the disk of {cache.folder}, raise keep_bytes (--keep-bytes), "
                    "delete other samples (argosy cache --clear), or make the stream end earlier."
                )

        return grown

    def _check(self, layout: Layout, leaves: list[torch.Tensor], tree: Any, place: str) -> None:
        try:
            layout.check(leaves, tree)
        except UnfitSample as error:
            raise sample_error(error, self.split, place) from error

    def _has_drawn(self) -> bool:
        """Return whether the pass that has just ended drew random numbers."""
        states = generator_states()
        self._seed()
        return states != generator_states()

    def _begins_differently(self, part: _Part) -> bool:
        """Return whether the first samples of a shard differ when it is read again, as if shuffled by a generator of its own."""
        try:
            return not self._equal(part, SAMPLES_VERIFIED)
        except StudyError:  # a stream that can be read only once
            return False

    def _equal(self, part: _Part, most: int | None = None) -> bool:
        """Return whether a shard, or `most` of its samples, are the same with other random numbers, as when they only choose a name."""
        with contextlib.ExitStack() as files:
            columns = [files.enter_context(path.open("rb")) for path in part.files]
            for leaves, _ in itertools.islice(self._samples_of(part.shard, epoch=1), most):
                if len(leaves) != len(columns):
                    return False
                kept = [column.read(leaf.nbytes) for column, leaf in zip(columns, leaves, strict=True)]
                if kept != [host_bytes(leaf) for leaf in leaves]:
                    return False
            return most is not None or not any(column.read(1) for column in columns)

    def _heeds_workers(self, shards: int) -> bool:
        """Return whether a stream has to look at `get_worker_info` to tell its shards apart; `read_from` is told the shard."""
        return shards > 1 and not hasattr(unwrap_padding(self.stream), "read_from")

    def _repeated(self, shards: int) -> StudyError:
        return StudyError(
            f"Data.{self.split}: {self._kind} yields the same samples for each of its {shards} shards. Yield those of "
            "shard torch.utils.data.get_worker_info().id, or rename its attribute num_shards, if that means something else."
        )

    def _empty(self) -> StudyError:
        return StudyError(
            f"Data.{self.split} is empty: {self._kind} yields no samples. Yield at least one each time it is read."
        )


@dataclass(frozen=True, slots=True)
class SpooledDataset:
    """What was read, as a Dataset: for `Data.then`, and if its rows cannot be kept open."""

    facts: Facts

    def __len__(self) -> int:
        return self.facts.length

    def __getitem__(self, index: int) -> Any:
        layout = self.facts.kept_layout
        return unflatten(_rows(self.facts.location, layout).row(index), layout.tree)


@functools.cache
def _rows(location: Location, layout: Layout) -> Rows:
    assert location.folder is not None
    rows = Rows.open(location.folder, layout, location.count)
    if rows is None:
        raise WorkerError(
            f"another machine is using {location.folder}. Set ARGOSY_CACHE to a different folder on each machine."
        )
    return rows


def _kept_facts(layout: Layout, count: int, fingerprint: str, folder: Path, key: Key, keeping: str) -> Facts:
    location = Location(name=folder.name, folder=folder, count=count, roots=key.roots)
    return Facts(
        length=count, layout=layout, fingerprint=fingerprint, constant=True, location=location, keeping=keeping
    )
