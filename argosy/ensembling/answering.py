"""Calls a network on a batch and returns its output as one tensor, for the predictions of reports and ensembles."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from argosy.errors import RunError
from argosy.stream.samples import THROWN
from argosy.stream.trees import flatten, unflatten

__all__ = ["answer", "answer_in_batches", "called", "takes"]


def answer(network: nn.Module, inputs: Any) -> Tensor:
    """Return the network's output for a batch, as one tensor; raise RunError where it returns none.

    As with Hugging Face, ``logits`` is taken from an output that has it.
    """
    made = called(network, inputs)
    made = getattr(made, "logits", made)
    if isinstance(made, Tensor):
        return made
    raise RunError(
        f"a network returned {type(made).__name__} where predictions are tensors. Let it return one in eval(), or call "
        "report.member(name).load() and take the tensor that you mean from what it returns."
    )


def answer_in_batches(network: nn.Module, inputs: Any, sizes: Sequence[int]) -> Tensor:
    """Return the network's output for a batch ``[B, …]``; one that does not take B rows is shown batches of the first size that it takes.

    The last of these batches is filled up with its own rows again. Raises RunError where the network takes none of the sizes.
    """
    leaves, tree = flatten(inputs)
    rows, found = len(leaves[0]), ""
    cause: BaseException | None = None
    for size in dict.fromkeys((rows, *sizes)):
        places = torch.arange(-(-rows // size) * size, device=leaves[0].device)
        # Rows of the last batch follow one another again, so that it has none of another batch.
        places = torch.where(places < rows, places, rows - rows % size + (places - rows) % max(rows % size, 1))
        try:
            parts = [
                answer(network, inputs if size == rows else unflatten([leaf[part] for leaf in leaves], tree))
                for part in places.view(-1, size)
            ]
        except RunError:
            raise
        except THROWN as error:  # the user's code
            found, cause = found or f"raised {error!r}", cause or error
            continue
        if all(part.dim() and len(part) == size for part in parts):
            return torch.cat(parts)[:rows]
        found = found or f"returned a tensor of shape {tuple(parts[0].shape)}"
    others = ", ".join(str(size) for size in dict.fromkeys(sizes) if size != rows)
    raise RunError(
        f"a network {found} for a batch of {rows} samples{others and f', and takes none of {others} either, by which members are validated'}. "
        "Let it return one row for each sample in eval(), or call report.member(name).load() on batches of its own."
    ) from cause


def called(network: nn.Module, inputs: Any) -> Any:
    """Call the network; as with Hugging Face, a dict keyed by parameters of ``forward`` is passed as keyword arguments."""
    return network(**inputs) if isinstance(inputs, Mapping) and takes(network, inputs) else network(inputs)


def takes(network: nn.Module, names: Mapping[str, Any]) -> bool:
    """Whether these names are parameters of the network's ``forward``; if not, it is given the dict itself."""
    return names.keys() <= inspect.signature(network.forward).parameters.keys()
