"""One sample of a Dataset: prepared under its own seed, and named where it cannot be had."""

import random
import traceback
from typing import Any

import numpy as np
import torch

from argosy.errors import StudyError
from argosy.stream.blocks import Unfit
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.order import sample_seed

__all__ = ["THROWN", "generator_states", "has_drawn", "prepare", "reason", "refusal", "seed_everything"]

THROWN = (Exception, SystemExit)
"""What a user's Dataset may raise without ending the process; SystemExit comes from code that parses a command line."""


def prepare(dataset: Any, index: int, *, epoch: int, split: str, seed: int, heartbeat: Heartbeat) -> Any:
    """Return the sample of this epoch: a function of (seed, split, epoch, index), in any process and after any other."""
    heartbeat.beat(index)
    seed_everything(sample_seed(seed, split, epoch, index))
    return dataset[index]


def has_drawn(index: int, *, epoch: int, split: str, seed: int) -> bool:
    """Return whether a generator has moved since `prepare` seeded it for this sample, about 15 us. Seeds them again.

    One that has moved draws another number next: of 53 bits, from states that are far longer to compare.
    """
    following = _drawn()
    seed_everything(sample_seed(seed, split, epoch, index))
    return following != _drawn()


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


def refusal(error: BaseException, split: str, index: int) -> StudyError:
    """Return the error that ends a study because of this sample."""
    if isinstance(error, Unfit):
        return StudyError(f"Data.{split}: sample {index} {error}")
    where = "".join(traceback.format_tb(error.__traceback__)[-2:])
    return StudyError(
        f"Data.{split}: sample {index} raised {reason(error)}\n{where}"
        "Mend the dataset, or leave such samples out with Data(on_error='skip')."
    )
