"""Where samples come from: a Dataset, prepared sample by sample under its seed, or arrays, gathered a block at a time."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset

from argosy.errors import StudyError
from argosy.errors.checks import check_no_stream, is_map_style, shown
from argosy.stream.blocks import Block, Layout, sample_leaves
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept import Kept
from argosy.stream.mapped import files_in
from argosy.stream.order import Indices, sample_seed
from argosy.stream.probing import Facts, confirm, fingerprint_of, probe
from argosy.stream.samples import THROWN, has_drawn, prepare, reason, refusal, seed_everything
from argosy.study import Data

__all__ = [
    "ArraySource",
    "DatasetSource",
    "Filled",
    "Source",
    "keep",
    "open_sources",
    "open_split",
    "open_splits",
    "probed",
    "probed_splits",
    "reopened",
]

OPENING = -1
"""Used in place of a sample's index, in the seed under which a split is opened."""


class Filled(NamedTuple):
    """Result of filling rows of a block."""

    holes: list[tuple[int, str]]
    """(index, error) of each broken sample."""
    prepared: int
    """Samples that were prepared for it, holes among them; others were kept."""


class Source(ABC):
    """One split of the data."""

    facts: Facts
    kept: Kept | None = None
    """Prepared samples that are kept, where validation needs them again."""
    heartbeat: Heartbeat
    """Beats with every sample. A process that inherits a source puts its own here."""

    @property
    def length(self) -> int:
        """Number of samples."""
        return self.facts.length

    @property
    def layout(self) -> Layout:
        """Layout of each sample."""
        return self.facts.layout

    @property
    def takes_kept(self) -> bool:
        """Whether samples that are kept are not prepared again."""
        return self.kept is not None and self.facts.again

    @abstractmethod
    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Prepare these samples into rows low, low+1, … of the block."""

    @property
    @abstractmethod
    def parallel(self) -> bool:
        """Whether loader workers are worth their start."""


class ArraySource(Source):
    """Tensors or arrays with one sample in each row: one gather per block, no workers, no seeds."""

    parallel = False

    def __init__(self, arrays: Sequence[Any], split: str, *, heartbeat: Heartbeat) -> None:
        self.arrays = tuple(_rows(array, f"array {number} of {split}") for number, array in enumerate(arrays))
        lengths = {len(array) for array in self.arrays}
        if len(lengths) != 1 or 0 in lengths:
            found = ", ".join(str(len(array)) for array in self.arrays)
            raise StudyError(
                f"Data: the arrays of {split} have {found} rows; give all of them the same number, above 0."
            )
        self.split = split
        self.heartbeat = heartbeat
        self.facts = Facts(
            length=len(self.arrays[0]),
            layout=Layout.of(self._sample(0)),
            fingerprint=fingerprint_of(sample_leaves(self._sample(index))[0] for index in (0, -1)),
            files=files_in(self.arrays),
        )

    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Gather these rows into the block; no sample can be broken."""
        high = low + len(indices)
        with self.heartbeat.busy(f"gathering {len(indices)} samples of {self.split}", opaque=True):
            for array, leaf in zip(self.arrays, block.leaves, strict=True):
                if isinstance(array, np.ndarray):
                    # mode="clip": with "raise", NumPy gathers into a buffer first. A memmap stays on disk.
                    np.take(array, indices, axis=0, out=leaf[low:high].numpy(), mode="clip")
                else:
                    torch.index_select(array, 0, torch.from_numpy(indices), out=leaf[low:high])
        block.indices[low:high] = indices
        block.sound[low:high] = True
        return Filled([], len(indices))

    def _sample(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)


class DatasetSource(Source):
    """A map-style Dataset; every sample is prepared under a seed of its own, so that any process may prepare it."""

    parallel = True

    def __init__(
        self,
        split: str,
        facts: Facts,
        open_dataset: Callable[[Heartbeat], Any],
        *,
        seed: int,
        skip_errors: bool,
        heartbeat: Heartbeat,
    ) -> None:
        self.split = split
        self.facts = facts
        self.open_dataset = open_dataset
        self.heartbeat = heartbeat
        self.doing = _doing(split)
        self.seed = seed
        self.skip_errors = skip_errors

    @cached_property
    def dataset(self) -> Any:
        """The Dataset, opened on first use in the process that prepares its samples, or long before."""
        return self.open_dataset(self.heartbeat)

    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Copy the samples that are kept into the block, and prepare the others."""
        if self.kept is None or not self.takes_kept:
            return Filled(self._prepared(block, low, indices), len(indices))
        missing = np.flatnonzero(~self.kept.copy(block, low, indices))
        holes = []
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else ():
            holes += self._prepared(block, low + int(run[0]), indices[run])
        return Filled(holes, len(missing))

    def _prepared(self, block: Block, low: int, indices: Indices) -> list[tuple[int, str]]:
        _ = self.dataset  # an error while it opens belongs to no sample
        ready = self._gather(indices) if self.facts.gathers else None
        with self.heartbeat.busy(self.doing):
            return self._fill(block, low, indices, ready)

    def _gather(self, indices: Indices) -> Sequence[Any] | None:
        """Return the samples; None where they must be asked for one by one, to find the one that raises."""
        with self.heartbeat.busy(f"preparing {len(indices)} samples of {self.split} from {indices[0]} on", opaque=True):
            try:
                samples: Sequence[Any] = self.dataset.__getitems__(indices.tolist())
            except THROWN:  # the user's code: asked for the sample alone, it raises again
                return None
            # A Dataset that leaves out broken samples would give others in their place.
            return samples if len(samples) == len(indices) else None

    def _fill(self, block: Block, low: int, indices: Indices, ready: Sequence[Any] | None) -> list[tuple[int, str]]:
        epoch, holes = block.place.epoch, []
        for row, index in enumerate(indices.tolist(), start=low):
            try:
                leaves, tree = sample_leaves(ready[row - low] if ready is not None else self._prepare(epoch, index))
                self.layout.check(leaves, tree)
            except THROWN as error:  # the user's code: the run's contract decides what it does to the run
                if not self.skip_errors:
                    raise refusal(error, self.split, index) from error
                holes.append((index, reason(error)))
                leaves = []
                for target in block.leaves:
                    # `Data.on_device` gets this row as well, and could raise at what lay there before.
                    target[row].zero_()
            for target, leaf in zip(block.leaves, leaves, strict=False):
                target[row].copy_(leaf)
            block.indices[row] = index
            block.sound[row] = bool(leaves)
            if leaves and self.kept is not None and (ready is not None or not self._has_drawn(epoch, index)):
                self.kept.keep(index, leaves)
        return holes

    def _prepare(self, epoch: int, index: int) -> Any:
        return prepare(self.dataset, index, epoch=epoch, split=self.split, seed=self.seed, heartbeat=self.heartbeat)

    def _has_drawn(self, epoch: int, index: int) -> bool:
        return has_drawn(index, epoch=epoch, split=self.split, seed=self.seed)


def open_sources(data: Data, *, seed: int, heartbeat: Heartbeat | None = None) -> dict[str, Source]:
    """Open and probe the splits of a study's data, by name, in this process; the heartbeat defaults to a private one."""
    heartbeat = heartbeat or Heartbeat.private()
    splits = open_splits(data, seed=seed, heartbeat=heartbeat)
    return probed_splits(splits, seed=seed, skip_errors=data.on_error == "skip", heartbeat=heartbeat)


def keep(sources: Mapping[str, Source], most_bytes: int) -> None:
    """Keep prepared samples, where validation uses the training samples again, as far as they fit in so many bytes.

    Call this before loader workers are forked. Nothing is kept where the first samples show that what they become depends on
    the seed.
    """
    train, val = sources["train"], sources.get("val")
    if val is not None and val.facts.again and val.facts.fingerprint == train.facts.fingerprint:
        rows = min(val.length, most_bytes // max(val.layout.sample_bytes, 1))
        train.kept = val.kept = Kept(val.layout, rows) if rows else None


def open_splits(data: Data, *, seed: int, heartbeat: Heartbeat) -> dict[str, Any]:
    """Return by split its Dataset, or its source where it is arrays; factories are called here.

    A Dataset that is given for both is opened once, and is one object.
    """
    opened = {"train": open_split(data, "train", seed=seed, heartbeat=heartbeat)}
    if data.has_val:
        again = data.val is data.train and not isinstance(opened["train"], ArraySource)
        opened["val"] = opened["train"] if again else open_split(data, "val", seed=seed, heartbeat=heartbeat)
    return opened


def open_split(data: Data, split: str, *, seed: int, heartbeat: Heartbeat) -> Any:
    """Open one split, as `open_splits` does."""
    dataset, arrays = (data.train, data.arrays) if split == "train" else (data.val, data.val_arrays)
    if isinstance(dataset, type) or (dataset is not None and not hasattr(dataset, "__getitem__")):
        with heartbeat.busy(f"opening the data ({split})", opaque=True):
            # One factory for both splits gets the seed of the training split, wherever it is called.
            dataset = _made(dataset, "train" if dataset is data.train else split, seed)
    # Exactly TensorDataset: a subclass may prepare its samples.
    if type(dataset) is TensorDataset:
        arrays = dataset.tensors
    return dataset if arrays is None else ArraySource(arrays, split, heartbeat=heartbeat)


def probed_splits(
    splits: Mapping[str, Any], *, seed: int, skip_errors: bool, heartbeat: Heartbeat
) -> dict[str, Source]:
    """Return the sources of what `open_splits` has opened."""
    found = {
        name: probed(split, name, seed=seed, skip_errors=skip_errors, heartbeat=heartbeat)
        for name, split in splits.items()
    }
    if splits.get("val") is splits["train"]:
        found["val"].facts = replace(found["val"].facts, again=True)
    return found


def probed(dataset: Any, split: str, *, seed: int, skip_errors: bool, heartbeat: Heartbeat) -> Source:
    """Return the source of what `open_split` has opened, known from a few of its samples."""
    if isinstance(dataset, ArraySource):
        return dataset
    sample = partial(prepare, dataset, epoch=0, split=split, seed=seed, heartbeat=heartbeat)
    # Opaque: what a dataset does once, it does for its first samples.
    with heartbeat.busy(_doing(split), opaque=True):
        facts = probe(dataset, split, sample, skip_errors=skip_errors)
    return DatasetSource(split, facts, lambda _: dataset, seed=seed, skip_errors=skip_errors, heartbeat=heartbeat)


def reopened(
    split: str, facts: Facts, data: Callable[[], Data], *, seed: int, skip_errors: bool, heartbeat: Heartbeat
) -> DatasetSource:
    """Return the source of a Dataset that was probed elsewhere: each process that prepares its samples opens its own."""

    def open_own(heartbeat: Heartbeat) -> Any:
        dataset = open_split(data(), split, seed=seed, heartbeat=heartbeat)
        sample = partial(prepare, dataset, epoch=0, split=split, seed=seed, heartbeat=heartbeat)
        with heartbeat.busy(_doing(split), opaque=True):
            confirm(facts, dataset, split, sample, skip_errors=skip_errors)
        return dataset

    return DatasetSource(split, facts, open_own, seed=seed, skip_errors=skip_errors, heartbeat=heartbeat)


def _doing(split: str) -> str:
    return f"preparing sample {{number}} of {split}"


def _made(factory: Callable[[], Any], split: str, seed: int) -> Any:
    """Return what a factory returns; what it draws follows from the study's seed, wherever it is called."""
    name = getattr(getattr(factory, "func", factory), "__qualname__", type(factory).__qualname__)
    seed_everything(sample_seed(seed, split, 0, OPENING))
    try:
        dataset = factory()
    except THROWN as error:  # the user's code
        where = "".join(traceback.format_tb(error.__traceback__)[1:])
        raise StudyError(
            f"Data.{split}: its factory {name} raised {reason(error)}\n{where}Mend what it opens."
        ) from error
    check_no_stream(f"Data.{split}: what its factory {name} returned", dataset)
    if not is_map_style(dataset):
        raise StudyError(
            f"Data.{split}: its factory {name} returned {shown(dataset)}, which is no map-style Dataset. Return an object "
            "with __len__ and __getitem__."
        )
    return dataset


def _rows(array: Any, what: str) -> Any:
    """Return rows that can be gathered: contiguous, in host memory, of a dtype that torch has; raises StudyError for others."""
    try:
        array = array if isinstance(array, torch.Tensor | np.ndarray) else np.asarray(array)
    except ValueError as error:
        raise StudyError(
            f"Data: {what} has rows of unlike shapes ({str(error).rstrip('.')}). Pad them to one shape; what is several arrays is given "
            "as several, one after another."
        ) from error
    if isinstance(array, torch.Tensor):
        if array.device.type != "cpu" or array.layout != torch.strided:
            raise StudyError(
                f"Data: {what} is a tensor of layout {array.layout} on {array.device}; samples are gathered from dense "
                "tensors in host memory. Give tensor.cpu(), or tensor.to_dense()."
            )
        return array.detach().resolve_conj().resolve_neg()
    try:
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError) as error:
        raise StudyError(
            f"Data: {what} has dtype {array.dtype}, which the stream cannot carry. Convert it to numbers: words to classes "
            "with np.unique(words, return_inverse=True)[1], numbers with array.astype(np.float32)."
        ) from error
    # For each gather NumPy would copy the whole of an array that is not contiguous.
    return np.ascontiguousarray(array)
