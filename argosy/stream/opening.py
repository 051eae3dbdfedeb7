"""Open the splits of a study's data, and probe them: what `Data` names becomes sources (`argosy.stream.sources`)."""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import TensorDataset

from argosy.errors import StudyError
from argosy.errors.checks import check_not_a_loader, check_same_classes, describe_value, is_map_style
from argosy.errors.traces import USER_ERRORS
from argosy.protocol.feeder import Opened
from argosy.stream.content import digest_of_labels, why_doubtful
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.proof import Prover
from argosy.stream.kept.rows import Rows
from argosy.stream.kept.spool import Spool, SpooledDataset
from argosy.stream.kept.witnesses import RECORDER
from argosy.stream.order import OPENING_INDEX, sample_seed
from argosy.stream.padding import PaddedThen, pad_dataset, unwrap_padding
from argosy.stream.probing import Facts, check_same_data, probe
from argosy.stream.samples import SamplePreparer, format_error, seed_everything
from argosy.stream.shards import FactoryStream, ShardedStream, shard_count
from argosy.stream.sources import ArraySource, DatasetSource, Source, format_activity, note_in_log
from argosy.study import Data

__all__ = ["Opening", "identities_of_arrays", "make_lazy_source", "make_opened", "open_kept_rows", "open_sources"]

READ_AGAIN = "read in each epoch, shard by shard, because it is not kept"


def open_sources(
    data: Data,
    *,
    seed: int,
    heartbeat: Heartbeat | None = None,
    cache: RowCache | None = None,
    shards: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Source]:
    """Open and probe the splits of a study's data, by name, in this process; the heartbeat defaults to a private one."""
    opening = Opening(data=data, seed=seed, heartbeat=heartbeat or Heartbeat.private(), shards=shards or {})
    return opening.sources(opening.splits(), Prover(cache))


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
        key = facts.location.name
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


def _open_rows(facts: Facts, most_bytes: int) -> Rows | None:
    """Return the rows of a split: those of its folder, or rows in memory if another machine uses the folder or opening it fails."""
    assert facts.location is not None
    if facts.location.folder is not None:
        try:
            rows = Rows.open(facts.location.folder, facts.kept_layout, facts.location.count)
            if rows is not None:
                return rows
            note_in_log(f"another machine is using {facts.location.folder}; samples are kept in memory for this run.")
        except OSError as error:
            note_in_log(f"samples cannot be kept on disk ({error}); they are kept in memory for this run.")
    count = min(facts.length, most_bytes // max(facts.kept_layout.sample_bytes, 1))
    return Rows.in_memory(facts.kept_layout, count) if count else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Opens the splits of a study's data in this process, and makes their sources."""

    data: Data
    seed: int
    heartbeat: Heartbeat = field(default_factory=Heartbeat.private)
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By split: the lengths of its shards, if they are known."""
    readers: int = 1
    """Number of processes that read a stream at a time."""

    def splits(self) -> dict[str, Any]:
        """Return what `open` returns for each split. A Dataset given for both splits is opened once, as one object."""
        data, opened = self.data, {"train": self.open("train")}
        if data.has_val:
            again = data.val is data.train and not isinstance(opened["train"], ArraySource)
            opened["val"] = opened["train"] if again else self.open("val")
            check_same_classes(*map(unwrap_padding, opened.values()))
        return opened

    def open(self, split: str) -> Any:
        """Return a split's Dataset, a `Spool` for a stream, or the source of arrays. Factories are called here."""
        data = self.data
        dataset, arrays = (data.train, data.arrays) if split == "train" else (data.val, data.val_arrays)
        if isinstance(dataset, type) or not (
            dataset is None or hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
        ):
            # A cached function may keep what the factory makes it read. Folders are not noted: it may list that of the runs.
            watching = RECORDER.watching(files_only=True) if data.keep else contextlib.nullcontext()
            with self.heartbeat.busy(f"opening the data ({split})", opaque=True), watching:
                # A factory given for both splits always gets the seed of the training split.
                dataset = _call_factory(dataset, "train" if dataset is data.train else split, self.seed)
        # Exactly TensorDataset: a subclass may prepare samples.
        if type(dataset) is TensorDataset and data.ragged is None and (data.then is None or split != "train"):
            arrays = dataset.tensors
        if data.ragged is not None:
            dataset = pad_dataset(dataset, data.ragged)
        if arrays is None and dataset is not None and not is_map_style(dataset):
            return Spool(dataset, split, self.seed, self.heartbeat, self.shards.get(split, ()), self.readers)
        return dataset if arrays is None else ArraySource(arrays, split, heartbeat=self.heartbeat)

    def sources(self, splits: Mapping[str, Any], prover: Prover) -> dict[str, Source]:
        """Return the sources of the opened splits."""
        sources: dict[str, Source] = {}
        for name, split in splits.items():
            source = sources[name] = self.probed(split, name, prover)
            if isinstance(source, DatasetSource):
                source.facts = replace(source.facts, labels=digest_of_labels(unwrap_padding(split), source.length))
            if name != "train":
                drawn = isinstance(source, DatasetSource) and not source.facts.constant
                why = why_doubtful(unwrap_padding(splits["train"]), unwrap_padding(split), drawn=drawn)
                source.facts = replace(source.facts, doubt=why)
        return sources

    def probed(self, opened: Any, split: str, prover: Prover) -> Source:
        """Return the source of an opened split, with facts from a few of its samples or from kept rows."""
        if isinstance(opened, ArraySource):
            return opened
        if isinstance(opened, Spool):
            return self.source(opened, split, self._facts_of_stream(opened, split, prover))
        # Opaque: with its first samples a Dataset may do work that it does only once.
        with self.heartbeat.busy(format_activity(split), opaque=True):
            facts = prover.facts(self._preparer(opened, split))
        return self.source(opened, split, facts)

    def _facts_of_stream(self, spool: Spool, split: str, prover: Prover) -> Facts:
        """Return the facts of a stream: one that was read into a file, or one that is not kept, whose shards were counted."""
        if prover.cache is not None:
            with self.heartbeat.busy(f"reading sample {{number}} of {split} into a file"):
                facts = spool.facts(prover.cache)
            return prover.facts_after_then(self._preparer(SpooledDataset(facts), split), facts)
        with self.heartbeat.busy(f"counting sample {{number}} of {split}"):
            lengths = spool.count_shards()
        shards = ShardedStream(spool.stream, lengths, self.heartbeat)
        with self.heartbeat.busy(format_activity(split), opaque=True):
            preparing = self._preparer(shards, split)
            facts = prover.facts_after_then(preparing, probe(preparing))
        shards.close()
        return replace(facts, shards=lengths, keeping=READ_AGAIN)

    def source(self, opened: Any, split: str, facts: Facts) -> DatasetSource:
        """Return the source of an opened split that is not arrays, and was probed here or in another process."""
        preparing = self.preparer(opened, split, facts)
        return DatasetSource(split, facts, lambda: preparing, self.heartbeat)

    def preparer(self, opened: Any, split: str, facts: Facts) -> SamplePreparer:
        """Return what prepares the samples of an opened split whose facts are known."""
        if isinstance(opened, Spool):
            shards = facts.shards
            opened = ShardedStream(opened.stream, shards, self.heartbeat) if shards else SpooledDataset(facts)
        return self._preparer(opened, split)

    def _preparer(self, dataset: Any, split: str) -> SamplePreparer:
        data = self.data
        then = data.then if split == "train" else None
        if then is not None and data.ragged is not None:
            then = PaddedThen(then, data.ragged)
        return SamplePreparer(
            dataset=dataset,
            split=split,
            seed=self.seed,
            heartbeat=self.heartbeat,
            watched=data.keep,
            skip_errors=data.on_error == "skip",
            then=then,
        )


def make_lazy_source(split: str, facts: Facts, opening: Callable[[], Opening], heartbeat: Heartbeat) -> DatasetSource:
    """Return the source of a Dataset that was probed elsewhere. Each process that prepares its samples opens its own."""

    def open_own() -> SamplePreparer:
        here = opening()
        preparing = here.preparer(here.open(split), split, facts)
        if not isinstance(preparing.dataset, SpooledDataset):
            with heartbeat.busy(format_activity(split), opaque=True):
                check_same_data(facts, preparing)
        return preparing

    return DatasetSource(split, facts, open_own, heartbeat)


def identities_of_arrays(data: Data) -> dict[str, str]:
    """Return the identities of splits given as arrays or as a TensorDataset. Those of other splits are known only once the data are open."""
    identities: dict[str, str] = {}
    for split, dataset, arrays in (("train", data.train, data.arrays), ("val", data.val, data.val_arrays)):
        if arrays is not None or type(dataset) is TensorDataset:
            source = Opening(data=data, seed=0).open(split)
            identities |= {split: source.identity} if isinstance(source, ArraySource) else {}
    return identities


def _call_factory(factory: Callable[[], Any], split: str, seed: int) -> Any:
    """Return what a factory returns. Random numbers that it draws depend only on the study's seed, wherever it is called."""
    name = FactoryStream(factory).name
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
    once = isinstance(dataset, Iterator) and not is_map_style(dataset) and shard_count(dataset) is None
    return FactoryStream(factory) if once else dataset
