"""One sample of a Dataset: prepared under its own seed, and named where it cannot be had."""

import contextlib
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from argosy.errors import StudyError
from argosy.stream.blocks import Layout, Unfit, sample_leaves
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.kept.witnesses import RECORDER
from argosy.stream.order import sample_seed
from argosy.stream.trees import unflatten

__all__ = ["THROWN", "Preparing", "generator_states", "reason", "refusal", "seed_everything"]

THROWN = (Exception, SystemExit)
"""What a user's Dataset may raise without ending the process; SystemExit comes from code that parses a command line."""


@dataclass(kw_only=True, slots=True)
class Preparing:
    """How samples of one split are prepared: each a function of (seed, split, epoch, index), in any process and after any other."""

    dataset: Any
    split: str
    seed: int
    heartbeat: Heartbeat
    """Beats with every sample."""
    watched: bool
    """Whether it is noted what samples are made of."""
    then: Callable[[Any], Any] | None = None
    """`Data.then`, for training samples."""

    def __call__(self, index: int, epoch: int = 0) -> Any:
        """Return the Dataset's sample for this epoch."""
        self.heartbeat.beat(index)
        seed_everything(sample_seed(self.seed, self.split, epoch, index))
        with self.watching():
            return self.dataset[index]

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which it is noted what the Dataset reads, where samples may outlive the run."""
        return RECORDER.watching() if self.watched else contextlib.nullcontext()

    def drew(self, index: int, epoch: int = 0) -> bool:
        """Return whether a generator has moved since it was seeded for this sample, about 15 us. Seeds them again.

        One that has moved draws another number next: of 53 bits, from states that are far longer to compare.
        """
        following = _drawn()
        seed_everything(sample_seed(self.seed, self.split, epoch, index))
        return following != _drawn()

    def finished(self, leaves: Sequence[torch.Tensor], layout: Layout, index: int, epoch: int = 0) -> Any:
        """Return what `then` makes of a sample, under a seed of its own: the same whether that was kept or has just been prepared."""
        assert self.then is not None
        seed_everything(sample_seed(self.seed, "then", epoch, index))
        # Copies, which may be written into: the sample is still to be kept.
        return self.then(unflatten([leaf.clone() for leaf in leaves], layout.tree))

    def made(self, base: Layout | None, index: int, epoch: int = 0) -> Any:
        """Return the Dataset's sample for this epoch; of one of layout `base`, if that is given, what `then` makes of it."""
        sample = self(index, epoch)
        if base is None:
            return sample
        leaves, tree = sample_leaves(sample)
        base.check(leaves, tree)
        return self.finished(leaves, base, index, epoch)


def _drawn() -> tuple[float, float, float]:
    """Draw a number from each of the three generators."""
    return random.random(), np.random.random_sample(), torch.rand((), dtype=torch.float64).item()


def generator_states() -> tuple[Any, ...]:
    """Return the states of the three generators: equal to earlier ones if nothing was drawn meanwhile."""
    of_numpy: Any = np.random.get_state()
    _, words, *place = of_numpy
    return random.getstate(), words.tobytes(), place, torch.default_generator.get_state().numpy().tobytes()


def seed_everything(seed: int) -> None:
    """Seed the three generators that preparation draws from, about 10 us.

    Not ``torch.manual_seed``, which also visits every accelerator and costs a hundred times more.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def reason(error: BaseException) -> str:
    """Return in one line why a sample or a Dataset of the user's cannot be had."""
    return str(error) if isinstance(error, Unfit) else traceback.format_exception_only(error)[-1].strip()


def refusal(error: BaseException, split: str, index: int | str) -> StudyError:
    """Return the error that ends a study because of this sample."""
    if isinstance(error, Unfit):
        return StudyError(f"Data.{split}: sample {index} {error}")
    where = "".join(traceback.format_tb(error.__traceback__)[-2:])
    return StudyError(
        f"Data.{split}: sample {index} raised {reason(error)}\n{where}"
        "Mend the dataset, or leave such samples out with Data(on_error='skip')."
    )
