"""Sources of samples: a Dataset, prepared sample by sample under its own seeds, or arrays, gathered a block at a time."""

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset

from argosy.errors import StudyError
from argosy.errors.checks import check_not_a_loader, describe_value, is_map_style
from argosy.protocol.feeder import Opened, ShardMark
from argosy.stream.blocks import Block, Layout, sample_leaves
from argosy.stream.content import digest_of_arrays, digest_of_labels, why_doubtful
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.proof import Prover
from argosy.stream.kept.rows import Rows
from argosy.stream.kept.spool import Spool, SpooledDataset
from argosy.stream.kept.witnesses import Roots, Witnesses
from argosy.stream.mapped import files_of_split
from argosy.stream.order import OPENING_INDEX, Indices, sample_seed
from argosy.stream.padding import PaddedThen, pad_dataset, unwrap_padding
from argosy.stream.probing import Facts, check_same_data, probe
from argosy.stream.samples import USER_ERRORS, SamplePreparer, format_error, sample_error, seed_everything
from argosy.stream.shards import ShardedStream
from argosy.study import Data

__all__ = [
    "ArraySource",
    "DatasetSource",
    "Filled",
    "Source",
    "open_kept_rows",
    "open_sources",
    "open_split",
    "open_splits",
    "probe_split",
    "identities_of_arrays",
    "probe_splits",
    "make_lazy_source",
    "make_source",
]


READ_AGAIN = "read in each epoch, shard by shard, because it is not kept"


class Filled(NamedTuple):
    """Result of filling rows of a block."""

    holes: list[tuple[int, str]]
    """(index, error) of each broken sample."""
    prepared: int
    """Number of samples that were prepared, including holes; the others were kept."""
    marks: tuple[ShardMark, ...] = ()
    """Marks of the shards from which samples were read."""


class Source(ABC):
    """One split of the data."""

    facts: Facts
    kept: Rows | None = None
    """Rows of kept samples."""
    heartbeat: Heartbeat
    """Beats at every sample. A process that inherits a source sets its own."""

    @property
    def identity(self) -> str:
        """Digest by which a study's data are recognised, on another node and on disk."""
        return self.facts.identity

    @property
    def length(self) -> int:
        """Number of samples."""
        return self.facts.length

    @property
    def layout(self) -> Layout:
        """Layout of each sample."""
        return self.facts.layout

    @abstractmethod
    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Prepare these samples into rows low, low+1, … of the block."""

    @abstractmethod
    def fixed(self, indices: Indices) -> bool:
        """Return whether these samples are the same in every epoch, as far as is known once they are prepared."""

    @property
    @abstractmethod
    def parallel(self) -> bool:
        """Whether starting loader workers is worthwhile."""


class ArraySource(Source):
    """Tensors or arrays with one sample in each row: one gather per block, without workers or seeds."""

    parallel = False

    def __init__(self, arrays: Sequence[Any], split: str, *, heartbeat: Heartbeat) -> None:
        named = ((array, f"array {number} of {split}") for number, array in enumerate(arrays))
        self.arrays: tuple[Any, ...] = tuple(_gatherable(array, what) for array, what in named)
        lengths = {len(array) for array in self.arrays}
        if len(lengths) != 1 or 0 in lengths:
            found = ", ".join(str(len(array)) for array in self.arrays)
            raise StudyError(
                f"Data: the arrays of {split} have {found} rows. Pass arrays with the same number of rows, at least 1."
            )
        self.split = split
        self.heartbeat = heartbeat
        self.facts: Facts = Facts(
            length=len(self.arrays[0]),
            layout=Layout.of(self._sample(0)),
            fingerprint="",  # see `identity`
            files=files_of_split(self.arrays),
        )

    @property
    def identity(self) -> str:
        """Implement `Source.identity`. Reads all values, so it is computed only on request, and not when samples are opened for prediction."""
        return digest_of_arrays(self.arrays)

    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Gather these rows into the block. There are no holes."""
        high = low + len(indices)
        with self.heartbeat.busy(f"gathering {len(indices)} samples of {self.split}", opaque=True):
            for array, leaf in zip(self.arrays, block.leaves, strict=True):
                if isinstance(array, np.ndarray):
                    # mode="clip": with "raise", NumPy gathers into a temporary buffer first. A memmap stays on disk.
                    np.take(array, indices, axis=0, out=leaf[low:high].numpy(), mode="clip")
                else:
                    torch.index_select(array, 0, torch.from_numpy(indices), out=leaf[low:high])
        block.indices[low:high] = indices
        block.sound[low:high] = True
        return Filled([], len(indices))

    def fixed(self, indices: Indices) -> bool:
        """Return True."""
        return True

    def _sample(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)


@dataclass(eq=False)
class DatasetSource(Source):
    """A map-style Dataset. Every sample is prepared under its own seed, so any process may prepare it.

    If the source has `kept` rows, samples that draw no random numbers are kept in them and not prepared again.
    """

    split: str
    facts: Facts
    open_preparing: Callable[[Heartbeat], SamplePreparer]
    _: KW_ONLY
    skip_errors: bool
    heartbeat: Heartbeat
    gathers: bool = field(init=False)
    """Whether `__getitems__` is used for lists of samples."""
    doing: str = field(init=False)
    _witnesses: Witnesses | None = field(default=None, init=False)
    _complete: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.gathers, self.doing = self.facts.gathers, _format_activity(self.split)

    @cached_property
    def preparing(self) -> SamplePreparer:
        """How samples are prepared. The Dataset is opened on first use, in the process that prepares them or in an ancestor of it."""
        return self.open_preparing(self.heartbeat)

    @property
    def parallel(self) -> bool:
        """Whether there are samples to prepare. Kept samples that fit in memory are gathered directly, as arrays are."""
        return self.facts.base is not None or not self.complete or (self.kept is not None and self.kept.from_disk)

    @property
    def complete(self) -> bool:
        """Whether every sample is kept."""
        self._complete = self._complete or (self.kept is not None and self.kept.found == self.length)
        return self._complete

    def keep(self, rows: Rows) -> None:
        """Keep samples in these rows from now on, and read from there those that they already hold."""
        self.kept: Rows | None = rows
        location = self.facts.location
        if location is not None and location.witnesses is not None:
            self._witnesses = Witnesses(location.witnesses, Roots(location.roots))

    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Copy the kept samples and prepare the others."""
        if self.facts.shards:
            shards: ShardedStream = self.preparing.dataset
            shards.begin()
            return Filled(self._prepared(block, low, indices), len(indices), shards.made)
        if self.kept is None:
            return Filled(self._prepared(block, low, indices), len(indices))
        here = self.kept.copy(block, low, indices) if self.facts.base is None else self.kept.has(indices)
        missing = np.flatnonzero(~here)
        holes = []
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else ():
            holes += self._prepared(block, low + int(run[0]), indices[run])
        if self.facts.base is not None:
            self.kept.prefetch(indices[here])
            with self.heartbeat.busy(self.doing):
                for row in np.flatnonzero(here).tolist():
                    holes += self._fill(block, low + row, int(indices[row]), self.kept.row)
        return Filled(holes, len(missing))

    def resume_from(self, mark: ShardMark) -> None:
        """Let reading of a shard continue at a mark."""
        self.preparing.dataset.resume_from(mark)

    def fixed(self, indices: Indices) -> bool:
        """Return whether these samples are kept and there is no `Data.then`."""
        return self.facts.base is None and self.kept is not None and bool(self.kept.has(indices).all())

    def _prepared(self, block: Block, low: int, indices: Indices) -> list[tuple[int, str]]:
        _ = self.preparing.dataset  # open it first: an error while opening belongs to no sample
        ready = self._gather(indices, block.place.epoch) if self.gathers else None
        holes = []
        with self.heartbeat.busy(self.doing):
            for row, index in enumerate(indices.tolist()):
                found = None if ready is None else ready[row]
                holes += self._fill(block, low + row, index, partial(self._sample, block.place.epoch, found))
        return holes

    def _gather(self, indices: Indices, epoch: int) -> Sequence[Any] | None:
        """Return the samples; None if they must be requested one by one, because one raises, or draws numbers without its own seed."""
        doing = f"preparing {len(indices)} samples of {self.split} from {indices[0]} on"
        first = int(indices[0])
        seed_everything(sample_seed(self.preparing.seed, self.preparing.split, epoch, first))
        with self.heartbeat.busy(doing, opaque=True), self.preparing.watching():
            try:
                samples: Sequence[Any] = self.preparing.dataset.__getitems__(indices.tolist())
            except USER_ERRORS:  # the user's code: the sample raises again when it is requested alone
                return None
        # The probed samples drew nothing. Once others do, no list is requested again.
        self.gathers = not self.preparing.has_drawn(first, epoch)
        # A Dataset that omits broken samples would return others in their place.
        return samples if self.gathers and len(samples) == len(indices) else None

    def _fill(
        self, block: Block, row: int, index: int, leaves: Callable[[int], list[torch.Tensor]]
    ) -> list[tuple[int, str]]:
        """Apply `Data.then` to a sample and write it to its row of the block. Returns a hole if either raises."""
        try:
            self._write(block, row, index, self._finished(block.place.epoch, index, leaves(index)))
        except USER_ERRORS as error:  # the user's code: `on_error` decides whether the run ends
            if not self.skip_errors:
                raise sample_error(error, self.split, index) from error
            for target in block.leaves:
                # `Data.on_device` receives this row too, and could raise on its earlier content.
                target[row].zero_()
            block.indices[row], block.sound[row] = index, False
            return [(index, format_error(error))]
        return []

    def _sample(self, epoch: int, ready: Any, index: int) -> list[torch.Tensor]:
        """Return the leaves of a sample, prepared here unless `ready` holds it. Keeps the sample if nothing was drawn."""
        self.preparing.heartbeat = self.heartbeat  # of this process: the source may have been created before a fork
        leaves, tree = sample_leaves(self.preparing(index, epoch) if ready is None else ready)
        self.facts.kept_layout.check(leaves, tree)
        if self.kept is not None and (ready is not None or not self.preparing.has_drawn(index, epoch)):
            self._keep(self.kept, index, leaves)
        return leaves

    def _keep(self, rows: Rows, index: int, leaves: list[torch.Tensor]) -> None:
        """Keep a sample. If it or its witnesses cannot be written, stop keeping samples."""
        try:
            if self._witnesses is not None and not rows.full:
                self._witnesses.add()
            rows.keep(index, leaves)
        except OSError as error:
            rows.full = True
            _note(f"no more prepared samples are kept ({error}); the others are prepared again in each epoch.")

    def _finished(self, epoch: int, index: int, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.facts.base is None:
            return leaves
        finished, tree = sample_leaves(self.preparing.finished(leaves, self.facts.kept_layout, index, epoch))
        self.layout.check(finished, tree)
        return finished

    def _write(self, block: Block, row: int, index: int, leaves: list[torch.Tensor]) -> None:
        for target, leaf in zip(block.leaves, leaves, strict=True):
            target[row].copy_(leaf)
        block.indices[row], block.sound[row] = index, True


def open_sources(
    data: Data,
    *,
    seed: int,
    heartbeat: Heartbeat | None = None,
    cache: RowCache | None = None,
    shards: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Source]:
    """Open and probe the splits of a study's data, by name, in this process; the heartbeat defaults to a private one."""
    heartbeat = heartbeat or Heartbeat.private()
    splits = open_splits(data, seed=seed, heartbeat=heartbeat, shards=shards or {})
    prover = Prover(cache, skip_errors=data.on_error == "skip", keys={})
    found = probe_splits(splits, data, prover, seed=seed, heartbeat=heartbeat)
    prover.note_use(splits.values())
    return found


def make_opened(sources: Mapping[str, Source], *, block_size: int, seconds: float) -> Opened:
    """Return the driver's message about a study's data, which took so many seconds to open."""
    facts = {split: source.facts for split, source in sources.items()}
    return Opened(
        lengths={split: source.length for split, source in sources.items()},
        fingerprints={split: source.identity for split, source in sources.items()},
        block_size=block_size,
        seconds_per_sample=facts["train"].seconds_per_sample,
        opening_seconds=seconds,
        keeping={split: one.keeping for split, one in facts.items() if one.keeping},
        shards={split: one.shards for split, one in facts.items() if one.shards},
        doubts=tuple(one.doubt for one in facts.values() if one.doubt),
    )


def open_kept_rows(sources: Mapping[str, Source], most_bytes: int) -> None:
    """Open the rows in which prepared samples are kept. Rows in memory, for this run alone, take at most `most_bytes` in all.

    Call this before forking loader workers. Splits of one Dataset share their rows.
    """
    kept: dict[str, Rows] = {}
    for source in sources.values():
        facts = source.facts
        if not isinstance(source, DatasetSource) or facts.location is None:
            continue
        key = facts.location.folder or facts.location.name
        if key not in kept:
            rows = _open_rows(facts, most_bytes)
            if rows is None:
                continue
            kept[key] = rows
            rows_bytes = rows.count * facts.kept_layout.sample_bytes
            if rows_bytes > most_bytes:
                rows.use_random_access()
            most_bytes -= 0 if facts.location.folder else rows_bytes
        source.keep(kept[key])


def _note(text: str) -> None:
    """Write a line to the worker's log; ignore a full disk."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def _open_rows(facts: Facts, most_bytes: int) -> Rows | None:
    """Return the rows of a split: those of its folder, or rows in memory if another machine uses the folder or opening it fails."""
    assert facts.location is not None
    if facts.location.folder is not None:
        try:
            rows = Rows.open(Path(facts.location.folder), facts.kept_layout, facts.location.count)
            if rows is not None:
                return rows
            _note(f"another machine is using {facts.location.folder}; samples are kept in memory for this run.")
        except OSError as error:
            _note(f"samples cannot be kept on disk ({error}); they are kept in memory for this run.")
    count = min(facts.length, most_bytes // max(facts.kept_layout.sample_bytes, 1))
    return Rows.in_memory(facts.kept_layout, count) if count else None


def open_splits(
    data: Data, *, seed: int, heartbeat: Heartbeat, shards: Mapping[str, tuple[int, ...]], readers: int = 1
) -> dict[str, Any]:
    """Return each split's Dataset, or its source if it consists of arrays. Factories are called here.

    A Dataset given for both splits is opened once, as one object. `shards` has the lengths of shards that are known; `readers` processes
    read a stream at a time.
    """
    opened = {"train": open_split(data, "train", seed=seed, heartbeat=heartbeat)}
    if data.has_val:
        again = data.val is data.train and not isinstance(opened["train"], ArraySource)
        opened["val"] = opened["train"] if again else open_split(data, "val", seed=seed, heartbeat=heartbeat)
    for name, split in opened.items():
        if isinstance(split, Spool):
            split.lengths, split.readers = shards.get(name, split.lengths), readers
    return opened


def open_split(data: Data, split: str, *, seed: int, heartbeat: Heartbeat) -> Any:
    """Open one split, as `open_splits` does."""
    dataset, arrays = (data.train, data.arrays) if split == "train" else (data.val, data.val_arrays)
    if isinstance(dataset, type) or not (
        dataset is None or hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    ):
        with heartbeat.busy(f"opening the data ({split})", opaque=True):
            # A factory given for both splits always gets the seed of the training split.
            dataset = _call_factory(dataset, "train" if dataset is data.train else split, seed)
    # Exactly TensorDataset: a subclass may prepare samples.
    if type(dataset) is TensorDataset and data.ragged is None and (data.then is None or split != "train"):
        arrays = dataset.tensors
    if data.ragged is not None:
        dataset = pad_dataset(dataset, data.ragged)
    if arrays is None and dataset is not None and not is_map_style(dataset):
        return Spool(dataset, split, seed, heartbeat)
    return dataset if arrays is None else ArraySource(arrays, split, heartbeat=heartbeat)


def identities_of_arrays(data: Data) -> dict[str, str]:
    """Return the identities of splits given as arrays or as a TensorDataset. Those of other splits are known only once the data are open."""
    found: dict[str, str] = {}
    for split, dataset, arrays in (("train", data.train, data.arrays), ("val", data.val, data.val_arrays)):
        if arrays is not None or type(dataset) is TensorDataset:
            source = open_split(data, split, seed=0, heartbeat=Heartbeat.private())
            found |= {split: source.identity} if isinstance(source, ArraySource) else {}
    return found


def probe_splits(
    splits: Mapping[str, Any], data: Data, prover: Prover, *, seed: int, heartbeat: Heartbeat
) -> dict[str, Source]:
    """Return the sources of the splits that `open_splits` returned."""
    found: dict[str, Source] = {}
    for name, split in splits.items():
        source = found[name] = probe_split(split, name, data, prover, seed=seed, heartbeat=heartbeat)
        if isinstance(source, DatasetSource):
            source.facts = replace(source.facts, labels=digest_of_labels(unwrap_padding(split), source.length))
        if name != "train":
            train, facts = splits["train"], source.facts
            why = why_doubtful(
                unwrap_padding(train),
                unwrap_padding(split),
                drawn=isinstance(source, DatasetSource) and not facts.constant,
            )
            source.facts = replace(facts, again=split is train, doubt=why)
    return found


def probe_split(opened: Any, split: str, data: Data, prover: Prover, *, seed: int, heartbeat: Heartbeat) -> Source:
    """Return the source of a split that `open_split` returned, with facts from a few of its samples or from kept rows."""
    if isinstance(opened, ArraySource):
        return opened
    if isinstance(opened, Spool):
        return _probe_stream(opened, data, prover, seed=seed, heartbeat=heartbeat)
    preparing = _make_preparer(opened, split, data, seed=seed, heartbeat=heartbeat)
    # Opaque: with its first samples a Dataset may do work that it does only once.
    with heartbeat.busy(_format_activity(split), opaque=True):
        facts = prover.facts(preparing)
    return make_source(opened, split, facts, data, seed=seed, heartbeat=heartbeat)


def _probe_stream(spool: Spool, data: Data, prover: Prover, *, seed: int, heartbeat: Heartbeat) -> Source:
    """Return the source of a stream: one that was read into a file, or one that is not kept, whose shards were counted."""
    if prover.cache is not None:
        with heartbeat.busy(f"reading sample {{number}} of {spool.split} into a file"):
            facts = spool.facts(prover.cache)
        preparing = _make_preparer(SpooledDataset(facts), spool.split, data, seed=seed, heartbeat=heartbeat)
        facts = prover.facts_after_then(preparing, facts)
    else:
        with heartbeat.busy(f"counting sample {{number}} of {spool.split}"):
            lengths = spool.count_shards()
        shards = ShardedStream(spool.stream, lengths, heartbeat.beat)
        preparing = _make_preparer(shards, spool.split, data, seed=seed, heartbeat=heartbeat)
        with heartbeat.busy(_format_activity(spool.split), opaque=True):
            facts = probe(preparing, skip_errors=prover.skip_errors)
            facts = replace(prover.facts_after_then(preparing, facts), shards=lengths, keeping=READ_AGAIN)
        shards.close()
    return make_source(spool, spool.split, facts, data, seed=seed, heartbeat=heartbeat)


def _as_dataset(opened: Any, facts: Facts) -> Any:
    """Return a Dataset for a split that `open_split` returned and whose facts are known."""
    if not isinstance(opened, Spool):
        return opened
    return ShardedStream(opened.stream, facts.shards, opened.heartbeat.beat) if facts.shards else SpooledDataset(facts)


def make_source(
    dataset: Any, split: str, facts: Facts, data: Data, *, seed: int, heartbeat: Heartbeat
) -> DatasetSource:
    """Return the source of a Dataset that is open in this process, and was probed here or in another process."""
    preparing = _make_preparer(_as_dataset(dataset, facts), split, data, seed=seed, heartbeat=heartbeat)
    return DatasetSource(split, facts, lambda _: preparing, skip_errors=data.on_error == "skip", heartbeat=heartbeat)


def make_lazy_source(
    split: str, facts: Facts, data: Callable[[], Data], *, seed: int, skip_errors: bool, heartbeat: Heartbeat
) -> DatasetSource:
    """Return the source of a Dataset that was probed elsewhere. Each process that prepares its samples opens its own."""

    def open_own(heartbeat: Heartbeat) -> SamplePreparer:
        given = data()
        dataset = _as_dataset(open_split(given, split, seed=seed, heartbeat=heartbeat), facts)
        preparing = _make_preparer(dataset, split, given, seed=seed, heartbeat=heartbeat)
        if isinstance(dataset, SpooledDataset):
            return preparing
        with heartbeat.busy(_format_activity(split), opaque=True):
            check_same_data(facts, preparing, skip_errors=skip_errors)
        return preparing

    return DatasetSource(split, facts, open_own, skip_errors=skip_errors, heartbeat=heartbeat)


def _make_preparer(dataset: Any, split: str, data: Data, *, seed: int, heartbeat: Heartbeat) -> SamplePreparer:
    then = data.then if split == "train" else None
    if then is not None and data.ragged is not None:
        then = PaddedThen(then, data.ragged)
    return SamplePreparer(dataset=dataset, split=split, seed=seed, heartbeat=heartbeat, watched=data.keep, then=then)


def _format_activity(split: str) -> str:
    return f"preparing sample {{number}} of {split}"


def _call_factory(factory: Callable[[], Any], split: str, seed: int) -> Any:
    """Return what a factory returns. Random numbers that it draws depend only on the study's seed, wherever it is called."""
    name = getattr(getattr(factory, "func", factory), "__qualname__", type(factory).__qualname__)
    seed_everything(sample_seed(seed, split, 0, OPENING_INDEX))
    try:
        dataset = factory()
    except USER_ERRORS as error:  # the user's code
        where = "".join(traceback.format_tb(error.__traceback__)[1:])
        raise StudyError(
            f"Data.{split}: its factory {name} raised {format_error(error)}\n{where}Fix the factory."
        ) from error
    check_not_a_loader(f"Data.{split}: the result of its factory {name}", dataset)
    if not is_map_style(dataset) and not hasattr(dataset, "__iter__"):
        raise StudyError(
            f"Data.{split}: its factory {name} returned {describe_value(dataset)}, which is not a Dataset. Return an object "
            "with __len__ and __getitem__, or one with __iter__."
        )
    return dataset


def _gatherable(array: Any, what: str) -> Any:
    """Return an array whose rows can be gathered: contiguous, in host memory, of a dtype that torch has. Raises StudyError for others."""
    try:
        array = array if isinstance(array, torch.Tensor | np.ndarray) else np.asarray(array)
    except ValueError as error:
        raise StudyError(
            f"Data: {what} has rows of different shapes ({str(error).rstrip('.')}). Pad them to one shape, or pass "
            "several arrays one after another."
        ) from error
    if isinstance(array, torch.Tensor):
        if array.device.type != "cpu" or array.layout != torch.strided:
            raise StudyError(
                f"Data: {what} is a tensor of layout {array.layout} on {array.device}; it must be a dense tensor "
                "in host memory. Pass tensor.cpu() or tensor.to_dense()."
            )
        return array.detach().resolve_conj().resolve_neg()
    try:
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError) as error:
        raise StudyError(
            f"Data: {what} has dtype {array.dtype}, which torch does not support. Convert it to numbers: words to "
            "classes with np.unique(words, return_inverse=True)[1], numbers with array.astype(np.float32)."
        ) from error
    # NumPy would copy a non-contiguous array as a whole at each gather.
    return np.ascontiguousarray(array)
