"""Applies `Data.on_device` to the inputs of networks, for samples with or without a target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from argosy.errors import RunError
from argosy.stream.blocks import Layout
from argosy.stream.trees import Structure, described, flatten, unflatten

__all__ = ["InputPreparation", "Prepared", "inputs_and_target"]


@dataclass(frozen=True, slots=True)
class InputPreparation:
    """`Data.on_device`, with the layout of the batches that it expects."""

    on_device: Callable[[Any], Any]
    layout: Callable[[], Layout]
    """Returns the layout of the study's samples; called where a batch has no target."""

    def __call__(self, batch: Any) -> Any:
        """Prepare a batch ``[B, …]``; a missing target is filled with zeros. Raises RunError for inputs of another structure."""
        return self.on_device(self._whole(batch) if inputs_and_target(batch)[1] is None else batch)

    def inputs(self, inputs: Any) -> Any:
        """Prepare inputs that come without a target."""
        return inputs_and_target(self.on_device(self._whole(inputs)))[0]

    def _whole(self, batch: Any) -> Any:
        """Return the batch in the study's structure, with zeros for a missing target."""
        layout = self.layout()
        if isinstance(batch, Mapping) and layout.tree is not None and layout.tree[1] is not None:
            batch = {key: batch[key] for key in layout.tree[1] if key in batch}  # in the study's order
        leaves, given = flatten(batch)
        missing = _target_leaves(layout.tree) if len(leaves) < len(layout.shapes) else []
        if len(leaves) + sum(missing) != len(layout.shapes):
            raise RunError(
                f"samples to predict are built as {described(given)}, and the study's, which Data.on_device takes, as "
                f"{described(layout.tree)}. Give them as the study has them, with or without the target."
            )
        rows, device, left = len(leaves[0]), leaves[0].device, iter(leaves)
        forms = zip(missing or [False] * len(leaves), layout.shapes, layout.dtypes, strict=True)
        return unflatten(
            [
                torch.zeros(rows, *shape, dtype=dtype, device=device) if is_missing else next(left)
                for is_missing, shape, dtype in forms
            ],
            layout.tree,
        )


def _target_leaves(tree: Structure) -> list[bool]:
    """Return for each leaf of a sample whether it belongs to the target: it is not in the first part, or is named labels."""
    if tree is None:
        return [False]
    _, keys, parts = tree
    of_target = [part > 0 if keys is None else keys[part] == "labels" for part in range(len(parts))]
    return [found for found, part in zip(of_target, parts, strict=True) for _ in _target_leaves(part)]


class Prepared(nn.Module):
    """A network that takes inputs as the study's dataset has them, and applies `Data.on_device` first."""

    def __init__(self, network: nn.Module, preparation: InputPreparation) -> None:
        super().__init__()
        self.network = network
        self.preparation = preparation

    def forward(self, inputs: Any) -> Any:
        """Return the network's output for the prepared inputs."""
        return self.network(self.preparation.inputs(inputs))


def inputs_and_target(batch: Any) -> tuple[Any, Any]:
    """Split a batch: its target is its second part, or the labels of a dict, or None where it has neither."""
    if isinstance(batch, Mapping):
        return batch, batch.get("labels")
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None
