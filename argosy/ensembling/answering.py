"""Calls a network on a batch and returns its output as one tensor, for the predictions of reports and ensembles."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from argosy.errors import RunError

__all__ = ["answer"]


def answer(network: nn.Module, inputs: Any) -> Tensor:
    """Return the network's output for a batch, as one tensor; raise RunError where it returns none.

    As with Hugging Face: a dict keyed by parameters of ``forward`` is passed as keyword arguments, and ``logits`` is taken from
    an output that has it.
    """
    made = network(**inputs) if isinstance(inputs, Mapping) and _takes(network, inputs) else network(inputs)
    made = getattr(made, "logits", made)
    if isinstance(made, Tensor):
        return made
    raise RunError(
        f"a network returned {type(made).__name__} where predictions are tensors. Let it return one in eval(), or call "
        "report.member(name).load() and take the tensor that you mean from what it returns."
    )


def _takes(network: nn.Module, names: Mapping[str, Any]) -> bool:
    """Whether these names are parameters of the network's ``forward``; if not, it is given the dict itself."""
    return names.keys() <= inspect.signature(network.forward).parameters.keys()
