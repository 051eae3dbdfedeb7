"""Builds a member's network with its saved weights."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from argosy.errors import RunError
from argosy.study import Member
from argosy.training.device.devices import open_backend
from argosy.training.device.process_state import preserve_random_states
from argosy.training.member.randomness import Randomness
from argosy.training.member.weights import load_weights

__all__ = ["network_with_weights"]


def network_with_weights(
    member: Member, weights: Mapping[str, Any], seed: int, *, late: Iterable[str] = ()
) -> nn.Module:
    """Return the member's network with these weights, in ``eval()`` on the CPU; raise RunError if they do not fit it. `late`: see `load_weights`.

    The network is built with the same seed as for training, so random parts that are not among its weights are reproduced.
    """
    with preserve_random_states(), Randomness.seeded(seed, open_backend("cpu:0")).building():
        network: nn.Module = member.model()
    try:
        load_weights(network, weights, torch.device("cpu"), late=late)
    except RuntimeError as error:
        first, *lines = str(error).splitlines()  # torch lists the mismatches after the first line
        problem = (lines or [first])[0].strip().rstrip(".")
        raise RunError(
            f"the network that the study builds for member {member.name!r} is not the one that was trained: {problem}. "
            "Pass the run's own study."
        ) from error
    return network.eval()
