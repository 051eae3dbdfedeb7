"""A network with the weights that a member was left with."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from argosy.errors import RunError
from argosy.study import Member

__all__ = ["opened"]


def opened(member: Member, weights: Mapping[str, Any]) -> nn.Module:
    """The member's network with these weights, in ``eval()`` on the CPU; raises RunError where it is another one."""
    network: nn.Module = member.model()
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip().rstrip(".")
        raise RunError(
            f"the network that the study builds for member {member.name!r} is not the one that was trained: {first}. Give "
            "the run's own study."
        ) from error
    return network.eval()
