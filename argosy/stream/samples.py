"""One sample of a Dataset: prepared under its own seed, and named in the error if preparation fails."""

import contextlib
import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from argosy.errors import StudyError
from argosy.stream.blocks import Layout, UnfitSample, sample_leaves
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.witnesses import RECORDER
from argosy.stream.order import sample_seed
from argosy.stream.trees import unflatten

__all__ = ["SamplePreparer", "counting_entropy", "format_error", "generator_states", "sample_error", "seed_everything"]


@dataclass(kw_only=True, slots=True)
class SamplePreparer:
    """Prepares samples of one split. Each is a function of (seed, split, epoch, index), in any process and after any other sample."""

    dataset: Any
    split: str
    seed: int
    heartbeat: Heartbeat
    """Beats at every sample."""
    watched: bool
    """Whether to record what samples read."""
    skip_errors: bool
    """Whether samples that raise are left out, instead of ending the study."""
    then: Callable[[Any], Any] | None = None
    """`Data.then`, for training samples."""

    def __call__(self, index: int, epoch: int = 0) -> Any:
        """Return the Dataset's sample for this epoch."""
        self.heartbeat.beat(index)
        seed_everything(sample_seed(self.seed, self.split, epoch, index))
        with self.watching(), counting_entropy():
            return self.dataset[index]

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which what the Dataset reads is recorded, if samples may outlive the run."""
        return RECORDER.watching() if self.watched else contextlib.nullcontext()

    def has_drawn(self, index: int, epoch: int = 0) -> bool:
        """Return whether a generator was used since it was seeded for this sample. Seeds the generators again; takes about 15 us.

        Compares the next number (53 bits) of each generator, because the complete states are much longer.
        """
        following = ENTROPY.requests, _draw_numbers()
        seed_everything(sample_seed(self.seed, self.split, epoch, index))
        return following != (0, _draw_numbers())

    def finished(self, leaves: Sequence[torch.Tensor], layout: Layout, index: int, epoch: int = 0) -> Any:
        """Return the output of `then` for a sample, under its own seed: the same for a kept sample and a newly prepared one."""
        assert self.then is not None
        seed_everything(sample_seed(self.seed, "then", epoch, index))
        # Copies, because `then` may write into them and the sample is still to be kept.
        return self.then(unflatten([leaf.clone() for leaf in leaves], layout.tree))

    def prepare(self, base: Layout | None, index: int, epoch: int = 0) -> Any:
        """Return the Dataset's sample for this epoch. If the layout `base` of its samples is given, apply `then` to it."""
        sample = self(index, epoch)
        if base is None:
            return sample
        leaves, tree = sample_leaves(sample)
        base.check(leaves, tree)
        return self.finished(leaves, base, index, epoch)


class _Entropy:
    """Gives random bytes of the operating system, and counts the requests since the generators were seeded.

    `numpy.random.default_rng()` takes its seed from there, so what it draws is not determined by the seed of the sample.
    """

    requests = 0

    def __call__(self, size: int) -> bytes:
        self.requests += 1
        return os.urandom(size)


ENTROPY = _Entropy()


@contextlib.contextmanager
def counting_entropy() -> Iterator[None]:
    """Count requests for random bytes of the operating system inside."""
    names = vars(random)
    # NumPy asks this function, through `secrets`.
    before = names["_urandom"]
    names["_urandom"] = ENTROPY
    try:
        yield
    finally:
        names["_urandom"] = before


def _draw_numbers() -> tuple[float, float, float]:
    """Draw a number from each of the three generators."""
    return random.random(), np.random.random_sample(), torch.rand((), dtype=torch.float64).item()


def generator_states() -> tuple[Any, ...]:
    """Return the states of the three generators and of `ENTROPY`, which are equal to earlier ones if nothing was drawn in between."""
    of_numpy: Any = np.random.get_state()
    _, words, *place = of_numpy
    of_torch = torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), words.tobytes(), place, of_torch, ENTROPY.requests


def seed_everything(seed: int) -> None:
    """Seed the three generators that preparation may draw from, in about 10 us.

    ``torch.manual_seed`` is not used: it also visits every accelerator and takes a hundred times longer.
    """
    ENTROPY.requests = 0
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # it takes no more bits
    torch.default_generator.manual_seed(seed)


def format_error(error: BaseException) -> str:
    """Return why preparing a sample or opening a Dataset failed, without notes."""
    if isinstance(error, UnfitSample):
        return str(error)
    return next(line.strip() for line in traceback.format_exception_only(error) if not line[0].isspace())


def sample_error(error: BaseException, split: str, index: int | str) -> StudyError:
    """Return the error that ends a study because of this sample."""
    if isinstance(error, UnfitSample):
        return StudyError(f"Data.{split}: sample {index} {error}")
    where = "".join(traceback.format_tb(error.__traceback__)[-2:])
    advice = "Fix the dataset, or skip such samples with Data(on_error='skip')."
    if "in forked subprocess" in str(error):
        advice = (
            "Loader workers are forks, which cannot use accelerators. Keep the dataset's tensors and networks in host memory, "
            "tensor.cpu(): blocks are copied to each device, where Data.on_device is called."
        )
    return StudyError(f"Data.{split}: sample {index} raised {format_error(error)}\n{where}{advice}")
