"""Sources of samples: a Dataset, prepared sample by sample under its own seeds, or arrays, gathered a block at a time."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from argosy.errors import StudyError
from argosy.errors.traces import USER_ERRORS
from argosy.protocol.feeder import ShardMark
from argosy.stream.blocks import Block, Layout, sample_leaves, select_rows
from argosy.stream.content import digest_of_arrays
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.rows import Rows
from argosy.stream.kept.witnesses import Witnesses
from argosy.stream.mapped import files_of_split
from argosy.stream.order import Indices, sample_seed
from argosy.stream.own_generators import own_generators, states_of
from argosy.stream.probing import Facts, check_draws, parts_of
from argosy.stream.samples import SamplePreparer, counting_entropy, format_error, sample_error, seed_everything
from argosy.stream.shards import ShardedStream

__all__ = ["ArraySource", "DatasetSource", "Filled", "Source", "format_activity", "note_in_log"]


class Filled(NamedTuple):
    """Result of filling rows of a block."""

    holes: Sequence[tuple[int, str]] = ()
    """(index, error) of each broken sample."""
    prepared: int = 0
    """Number of samples that were prepared, including holes; the others were kept."""
    marks: tuple[ShardMark, ...] = ()
    """Marks of the shards from which samples were read."""


class Source(ABC):
    """One split of the data."""

    facts: Facts
    kept: Rows | None = None
    """Rows of kept samples."""
    heartbeat: Heartbeat
    """Beats at every sample."""

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
            listed = ", ".join(str(len(array)) for array in self.arrays)
            raise StudyError(
                f"Data: the arrays of {split} have {listed} rows. Pass arrays with the same number of rows, at least 1."
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
                    select_rows(array, torch.from_numpy(indices), out=leaf[low:high])
        block.indices[low:high] = indices
        block.sound[low:high] = True
        return Filled(prepared=len(indices))

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
    open_preparing: Callable[[], SamplePreparer]
    heartbeat: Heartbeat
    gathers: bool = field(init=False)
    """Whether `__getitems__` is used for lists of samples."""
    _witnesses: Witnesses | None = field(default=None, init=False)
    _complete: bool = field(default=False, init=False)
    """Whether every sample is kept, as far as is known."""

    def __post_init__(self) -> None:
        self.gathers = self.facts.gathers

    @cached_property
    def preparing(self) -> SamplePreparer:
        """How samples are prepared. The Dataset is opened on first use, in the process that prepares them or in an ancestor of it."""
        return self.open_preparing()

    @property
    def parallel(self) -> bool:
        """Whether there are samples to prepare. Kept samples that fit in memory are gathered directly, as arrays are."""
        kept = self.kept
        self._complete = self._complete or (kept is not None and kept.found == self.length)
        return self.facts.base is not None or not self._complete or (kept is not None and kept.from_disk)

    def keep(self, rows: Rows) -> None:
        """Keep samples in these rows from now on, and read from there those that they already hold."""
        self.kept: Rows | None = rows
        location = self.facts.location
        if location is not None and location.folder is not None:
            self._witnesses = Witnesses(location.folder, location.roots)

    def fill(self, block: Block, low: int, indices: Indices) -> Filled:
        """Copy the kept samples and prepare the others."""
        if self.facts.shards:
            shards: ShardedStream = self.preparing.dataset
            shards.begin()
            return Filled(self._prepared(block, low, indices), len(indices), shards.made)
        if self.kept is None:
            return Filled(self._prepared(block, low, indices), len(indices))
        are_kept = self.kept.copy(block, low, indices) if self.facts.base is None else self.kept.has(indices)
        missing = np.flatnonzero(~are_kept)
        holes = []
        # Adjacent samples together, because `__getitems__` takes lists.
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else ():
            holes += self._prepared(block, low + int(run[0]), indices[run])
        if self.facts.base is not None:
            self.kept.prefetch(indices[are_kept])
            activity = self.heartbeat.busy(format_activity(self.split))
            with activity, self._watching_generators(block.place.epoch, indices[are_kept]):
                for row in np.flatnonzero(are_kept).tolist():
                    holes += self._fill(block, low + row, int(indices[row]), self.kept.row)
        return Filled(holes, len(missing))

    def resume_from(self, mark: ShardMark) -> None:
        """Let reading of a shard continue at a mark."""
        self.preparing.dataset.resume_from(mark)

    def fixed(self, indices: Indices) -> bool:
        """Return whether these samples are kept and there is no `Data.then`."""
        return self.facts.base is None and self.kept is not None and bool(self.kept.has(indices).all())

    def _prepared(self, block: Block, low: int, indices: Indices) -> list[tuple[int, str]]:
        _ = self._watched  # open the Dataset first: an error while opening belongs to no sample
        holes = []
        with self._watching_generators(block.place.epoch, indices):
            ready = self._gather(indices, block.place.epoch) if self.gathers else None
            with self.heartbeat.busy(format_activity(self.split)):
                for row, index in enumerate(indices.tolist()):
                    ready_row = None if ready is None else ready[row]
                    holes += self._fill(block, low + row, index, partial(self._sample, block.place.epoch, ready_row))
        return holes

    @cached_property
    def _watched(self) -> list[Any]:
        """Generators that the Dataset and `Data.then` own, from which no sample may draw: the probed ones did not, but others may."""
        return [] if self.facts.shards else own_generators(*parts_of(self.preparing))

    @contextlib.contextmanager
    def _watching_generators(self, epoch: int, indices: Indices) -> Iterator[None]:
        """Raise StudyError if samples that are prepared inside draw from a generator that is not seeded for them. They are not kept."""
        before = states_of(self._watched)
        yield
        if states_of(self._watched) != before:
            try:
                check_draws(self.preparing, self.facts, (epoch, indices.tolist()), self._watched)
            except StudyError:
                if self.kept is not None:
                    self.kept.forget(indices)
                raise
            self._watched = []  # they are seeded for each sample

    def _gather(self, indices: Indices, epoch: int) -> Sequence[Any] | None:
        """Return the samples; None if they must be requested one by one, because one raises, or draws numbers without its own seed."""
        doing = f"preparing {len(indices)} samples of {self.split} from {indices[0]} on"
        first = int(indices[0])
        seed_everything(sample_seed(self.preparing.seed, self.preparing.split, epoch, first))
        with self.heartbeat.busy(doing, opaque=True), self.preparing.watching(), counting_entropy():
            try:
                samples = list(self.preparing.dataset.__getitems__(indices.tolist()))
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
            sample = leaves(index)
            if self.facts.base is not None:
                finished = self.preparing.finished(sample, self.facts.base, index, block.place.epoch)
                sample, tree = sample_leaves(finished)
                self.layout.check(sample, tree)
            for target, leaf in zip(block.leaves, sample, strict=True):
                target[row].copy_(leaf)
        except USER_ERRORS as error:  # the user's code: `on_error` decides whether the run ends
            if not self.preparing.skip_errors:
                raise sample_error(error, self.split, index) from error
            for target in block.leaves:
                # `Data.on_device` receives this row too, and could raise on its earlier content.
                target[row].zero_()
            block.indices[row], block.sound[row] = index, False
            return [(index, format_error(error))]
        block.indices[row], block.sound[row] = index, True
        return []

    def _sample(self, epoch: int, ready: Any, index: int) -> list[torch.Tensor]:
        """Return the leaves of a sample, prepared here unless `ready` holds it. Keeps the sample if nothing was drawn."""
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
            note_in_log(f"no more prepared samples are kept ({error}); the others are prepared again in each epoch.")


def format_activity(split: str) -> str:
    """Return what a heartbeat shows while samples of a split are prepared."""
    return f"preparing sample {{number}} of {split}"


def note_in_log(text: str) -> None:
    """Write a line to the worker's log; ignore a full disk."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def _gatherable(array: Any, what: str) -> Any:
    """Return an array whose rows can be gathered: contiguous, of a dtype that torch has. Raises StudyError for others."""
    try:
        if isinstance(array, list | tuple) and all(isinstance(row, torch.Tensor) for row in array):
            array = torch.stack(tuple(array))  # NumPy has no bfloat16, and reads no tensor with a gradient
        array = array if isinstance(array, torch.Tensor | np.ndarray) else np.asarray(array)
    except (ValueError, RuntimeError) as error:
        raise StudyError(
            f"Data: {what} has rows of different shapes ({str(error).rstrip('.')}). Pad them to one shape, or pass "
            "several arrays one after another."
        ) from error
    if isinstance(array, torch.Tensor):
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
