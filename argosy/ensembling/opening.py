"""A network with the weights that a member was left with."""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from argosy.errors import RunError
from argosy.study import Member
from argosy.training.device.devices import backend_of
from argosy.training.member.live import fill_buffers
from argosy.training.member.randomness import Randomness

__all__ = ["opened", "random_states_kept"]


def opened(member: Member, weights: Mapping[str, Any], seed: int) -> nn.Module:
    """The member's network with these weights, in ``eval()`` on the CPU; raises RunError where it is another one.

    It is built under the seed, as for training: what a network draws and its weights do not hold is the same again.
    """
    with random_states_kept(), Randomness.seeded(seed, backend_of("cpu:0")).building():
        network: nn.Module = member.model()
    try:
        fill_buffers(network, weights, torch.device("cpu"))
        network.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip().rstrip(".")
        raise RunError(
            f"the network that the study builds for member {member.name!r} is not the one that was trained: {first}. Give "
            "the run's own study."
        ) from error
    return network.eval()


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Inside, generators of the process may be seeded and drawn from, which are somebody else's."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
