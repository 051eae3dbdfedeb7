"""What a network says to a batch, as the predictions of a report and of an ensemble need it: one tensor."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from argosy.errors import RunError

__all__ = ["answer"]


def answer(network: nn.Module, inputs: Any) -> Tensor:
    """A dict whose names are parameters of ``forward`` goes there by name, and of what comes back ``logits`` count where it has them.

    Both as networks of Hugging Face have it. Raises RunError where no tensor comes back.
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
    """Whether these are parameters of its ``forward``; else it is given the dict itself."""
    return names.keys() <= inspect.signature(network.forward).parameters.keys()
