"""Calls networks on batches, for the predictions of reports and ensembles."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from argosy.errors import RunError
from argosy.errors.traces import USER_ERRORS
from argosy.stream.trees import copied, flatten, format_structure, unflatten

__all__ = ["answer", "answer_in_batches", "call_network", "takes_keywords"]


def answer(network: nn.Module, inputs: Any) -> Any:
    """Return the network's output for a batch: a tensor, or several in a tuple, a dict or a dataclass; raise RunError for anything else.

    If the output has an attribute ``logits``, as with Hugging Face, that is returned.
    """
    output = call_network(network, copied(inputs))  # which it may write into, and other networks get too
    output = getattr(output, "logits", output)
    leaves, tree = flatten(output)
    wrong = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)]
    if leaves and not wrong:
        return output
    returned = (
        type(output).__name__ if tree is None or not wrong else f"{format_structure(tree)} with {', '.join(wrong)}"
    )
    raise RunError(
        f"a network returned {returned}, but predictions must be tensors. Return a tensor, or a tuple or dict of "
        "tensors, in eval(), or call report.member(name).load() and pick the tensor from its output."
    )


def answer_in_batches(network: nn.Module, inputs: Any, sizes: Sequence[int]) -> Any:
    """Return the network's output for a batch ``[B, …]``, splitting the batch if the network does not accept B rows.

    The parts have the first of `sizes` that the network accepts; the last part is padded by repeating its own rows. Raises RunError
    if the network accepts none of the sizes.
    """
    leaves, tree = flatten(inputs)
    rows, problem = len(leaves[0]), ""
    cause: BaseException | None = None
    for size in dict.fromkeys((rows, *sizes)):
        places = torch.arange(-(-rows // size) * size, device=leaves[0].device)
        # The last batch repeats its own rows, so that it contains none of another batch.
        places = torch.where(places < rows, places, rows - rows % size + (places - rows) % max(rows % size, 1))
        try:
            answers = [
                flatten(answer(network, inputs if size == rows else unflatten([leaf[part] for leaf in leaves], tree)))
                for part in places.view(-1, size)
            ]
        except RunError:
            raise
        except USER_ERRORS as error:  # the user's code
            problem, cause = problem or f"raised {error!r}", cause or error
            continue
        wrong = [tuple(output.shape) for outputs, _ in answers for output in outputs if output.shape[:1] != (size,)]
        if not wrong:
            parts = zip(*(outputs for outputs, _ in answers), strict=True)
            return unflatten([torch.cat(part)[:rows] for part in parts], answers[0][1])
        problem = problem or f"returned a tensor of shape {wrong[0]}"
    others = ", ".join(str(size) for size in dict.fromkeys(sizes) if size != rows)
    inputs_described = ", ".join(f"{[*leaf.shape[1:]]} of {str(leaf.dtype).removeprefix('torch.')}" for leaf in leaves)
    raise RunError(
        f"a network {problem} for a batch of {rows} "
        f"samples{others and f', and also fails for validation batches of {others}'}. Each sample "
        f"was {inputs_described}: pass samples with the shapes and dtypes of the study's. The network must take inputs as "
        "Data.on_device returns them, not as a member's step makes them, and return one row per sample in eval(); "
        "for other networks, call report.member(name).load() on batches of your own."
    ) from cause


def call_network(network: nn.Module, inputs: Any) -> Any:
    """Call the network; a dict whose keys are parameters of ``forward`` is passed as keyword arguments, as with Hugging Face."""
    return network(**inputs) if isinstance(inputs, Mapping) and takes_keywords(network, inputs) else network(inputs)


def takes_keywords(network: nn.Module, names: Mapping[str, Any]) -> bool:
    """Return whether all these names are parameters of the network's ``forward``; otherwise it gets the dict itself."""
    return names.keys() <= inspect.signature(network.forward).parameters.keys()
