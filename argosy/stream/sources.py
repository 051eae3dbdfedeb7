"""Where samples come from: a Dataset, prepared sample by sample under its seed, or arrays, gathered a block at a time."""

import hashlib
import random
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from argosy.errors import StudyError
from argosy.stream.blocks import Block, Layout, sample_leaves
from argosy.stream.order import Indices, sample_seed
from argosy.stream.pulse import Pulse
from argosy.study import Data

__all__ = ["ArraySource", "DatasetSource", "Source", "open_sources"]


class Source(ABC):
    """One split of the data."""

    length: int
    layout: Layout
    pulse: Pulse
    """Beats with every sample. A process that inherits a source puts its own here."""
    seconds_per_sample: float = 0.0
    """Of one core that prepares a sample; 0 where nothing is prepared."""

    @abstractmethod
    def fill(self, block: Block, low: int, indices: Indices) -> list[tuple[int, str]]:
        """Prepare these samples into rows low, low+1, … of the block; returns (index, error) of each hole."""

    @property
    @abstractmethod
    def parallel(self) -> bool:
        """Whether loader workers are worth their start."""

    def fingerprint(self) -> str:
        """SHA-256 over two prepared samples, the first and the last: part of a study's identity on disk."""
        digest = hashlib.sha256()
        for index in (0, self.length - 1):
            for leaf in self.sample(index):
                digest.update(_bytes(leaf))
        return digest.hexdigest()

    @abstractmethod
    def sample(self, index: int) -> list[torch.Tensor]:
        """The leaves of one sample as epoch 0 prepares it."""


class ArraySource(Source):
    """Tensors or arrays whose rows are samples: one gather per block, no workers, no seeds."""

    parallel = False

    def __init__(self, arrays: Sequence[Any], name: str, *, pulse: Pulse) -> None:
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1 or 0 in lengths:
            raise StudyError(f"{name}: arrays need one common length above 0; found {[len(a) for a in arrays]}.")
        self.arrays = tuple(a if isinstance(a, torch.Tensor | np.ndarray) else np.asarray(a) for a in arrays)
        self.name = name
        self.pulse = pulse
        self.length = lengths.pop()
        self.layout = Layout.of(tuple(array[0] for array in self.arrays))

    def sample(self, index: int) -> list[torch.Tensor]:
        """See `Source.sample`."""
        return sample_leaves(tuple(array[index] for array in self.arrays))[0]

    def fill(self, block: Block, low: int, indices: Indices) -> list[tuple[int, str]]:
        """See `Source.fill`; nothing can break."""
        high = low + len(indices)
        with self.pulse.busy(f"gathering {len(indices)} samples of {self.name}", opaque=True):
            for array, leaf in zip(self.arrays, block.leaves, strict=True):
                if isinstance(array, np.ndarray):
                    # mode="clip": with "raise", NumPy gathers into a buffer first. A memmap stays on disk.
                    np.take(array, indices, axis=0, out=leaf[low:high].numpy(), mode="clip")
                else:
                    torch.index_select(array.detach(), 0, torch.from_numpy(indices), out=leaf[low:high])
        block.indices[low:high] = indices
        block.sound[low:high] = True
        return []


class DatasetSource(Source):
    """A map-style Dataset; every sample is prepared under a seed of its own, so that who prepares it does not matter."""

    parallel = True

    def __init__(self, dataset: Any, name: str, *, seed: int, skip_errors: bool, pulse: Pulse) -> None:
        self.dataset = dataset
        self.name = name
        self.pulse = pulse
        self.doing = f"preparing sample {{number}} of {name}"
        self.seed = seed
        self.skip_errors = skip_errors
        self.length = len(dataset)
        if self.length == 0:
            raise StudyError(f"Data.{name} is empty.")
        # Opaque: what a dataset does once, it does for its first samples.
        with pulse.busy(self.doing, opaque=True):
            self.layout = Layout.of(self._first_sound_sample())
            self.gathers = self._check()

    def sample(self, index: int) -> list[torch.Tensor]:
        """See `Source.sample`."""
        return sample_leaves(self._prepare(0, index))[0]

    def fill(self, block: Block, low: int, indices: Indices) -> list[tuple[int, str]]:
        """See `Source.fill`."""
        ready = self._gather(indices) if self.gathers else None
        with self.pulse.busy(self.doing):
            return self._fill(block, low, indices, ready)

    def _gather(self, indices: Indices) -> Sequence[Any]:
        with self.pulse.busy(f"preparing {len(indices)} samples of {self.name} from {indices[0]} on", opaque=True):
            samples: Sequence[Any] = self.dataset.__getitems__(indices.tolist())
            return samples

    def _fill(self, block: Block, low: int, indices: Indices, ready: Sequence[Any] | None) -> list[tuple[int, str]]:
        epoch, holes = block.place.epoch, []
        for row, index in enumerate(indices.tolist(), start=low):
            try:
                leaves, tree = sample_leaves(ready[row - low] if ready is not None else self._prepare(epoch, index))
                self.layout.check(leaves, tree, index)
            except Exception as error:  # the user's code: the run's contract decides what it does to the run
                if not self.skip_errors:
                    raise _with_index(error, self.name, index) from error
                holes.append((index, _one_line(error)))
                leaves = []
            for target, leaf in zip(block.leaves, leaves, strict=False):
                target[row].copy_(leaf)
            block.indices[row] = index
            block.sound[row] = bool(leaves)
        return holes

    def _prepare(self, epoch: int, index: int) -> Any:
        self.pulse.beat(index)
        seed_everything(sample_seed(self.seed, self.name, epoch, index))
        return self.dataset[index]

    def _first_sound_sample(self) -> Any:
        for index in range(self.length):
            try:
                return self._prepare(0, index)
            except Exception as error:  # the user's code, as in `fill`
                if not self.skip_errors:
                    raise _with_index(error, self.name, index) from error
        raise StudyError(f"Data.{self.name}: every sample raised; there is nothing to train on.")

    def _check(self) -> bool:
        """Prepare a few samples twice, in another order; True if whole lists may be asked for with __getitems__."""
        probes = sorted({0, self.length // 2, self.length - 1})
        try:
            first = {index: self.sample(index) for index in probes}
            started = time.perf_counter()
            again = {index: self.sample(index) for index in reversed(probes)}
            self.seconds_per_sample = (time.perf_counter() - started) / len(probes)
        except Exception as error:  # the user's code, as in `fill`
            if self.skip_errors:
                return False
            raise StudyError(f"Data.{self.name}: {_one_line(error)} while preparing samples {probes}.") from error
        for index in probes:
            if not _equal(first[index], again[index]):
                raise StudyError(
                    f"Data.{self.name} ({type(self.dataset).__name__}) prepared sample {index} twice from the same seeds, and "
                    "the results differ: it draws from a generator of its own. Draw from `random`, `numpy.random` or "
                    "torch's default generator (seeded for every sample), or derive the generator's seed from the index."
                )
        if not hasattr(self.dataset, "__getitems__"):
            return False
        before = _generator_states()
        lists = [sample_leaves(sample)[0] for sample in self.dataset.__getitems__(probes)]
        untouched = all(np.array_equal(a, b) for a, b in zip(before, _generator_states(), strict=True))
        return untouched and all(_equal(first[index], found) for index, found in zip(probes, lists, strict=True))


def open_sources(data: Data, *, seed: int, pulse: Pulse | None = None) -> dict[str, Source]:
    """The splits of a study's data, by name; factories are called here. Without a pulse nobody looks."""
    pulse = pulse or Pulse.private()
    sources: dict[str, Source] = {}
    splits = {"train": (data.train, data.arrays), "val": (data.val, data.val_arrays)}
    for name, (dataset, arrays) in splits.items():
        if isinstance(dataset, type) or (dataset is not None and not hasattr(dataset, "__getitem__")):
            with pulse.busy(f"opening the data ({name})", opaque=True):
                dataset = dataset()
        # Exactly TensorDataset: a subclass may prepare its samples.
        if type(dataset) is TensorDataset:
            arrays = dataset.tensors
        if arrays is not None:
            sources[name] = ArraySource(arrays, name, pulse=pulse)
        elif dataset is not None:
            skip = data.on_error == "skip"
            sources[name] = DatasetSource(dataset, name, seed=seed, skip_errors=skip, pulse=pulse)
    return sources


def seed_everything(seed: int) -> None:
    """Seed the three generators that preparation draws from, about 10 us.

    Not ``torch.manual_seed``, which also visits every accelerator and costs a hundred times more.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def _generator_states() -> list[Any]:
    return [random.getstate()[1], np.random.get_state()[1], torch.default_generator.get_state().numpy()]  # type: ignore[index]


def _equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit for bit, so that a NaN equals itself."""
    return len(some) == len(others) and all(
        a.dtype == b.dtype and a.shape == b.shape and _bytes(a) == _bytes(b) for a, b in zip(some, others, strict=True)
    )


def _bytes(leaf: torch.Tensor) -> bytes:
    return leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _one_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _with_index(error: Exception, split: str, index: int) -> StudyError:
    if isinstance(error, StudyError):
        return error
    where = "".join(traceback.format_tb(error.__traceback__)[-2:])
    return StudyError(
        f"Data.{split}: sample {index} raised {_one_line(error)}\n{where}"
        "Mend the dataset, or leave such samples out with Data(on_error='skip')."
    )
