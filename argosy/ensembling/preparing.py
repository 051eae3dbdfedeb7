"""Applies `Data.on_device` to inputs of networks, for samples with or without a target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import cloudpickle
import torch
from torch import Tensor, nn

from argosy.ensembling.answering import call_network
from argosy.errors import RunError
from argosy.stream.blocks import Layout, same_bits
from argosy.stream.trees import Structure, flatten, format_structure, unflatten
from argosy.training.device.moved import copy_held

__all__ = ["InputPreparation", "Prepared", "Preparing", "device_of", "inputs_and_target", "prepares_itself"]


@dataclass(frozen=True, slots=True)
class InputPreparation:
    """`Data.on_device` for inputs without a target, with the layout of the samples that it expects."""

    on_device: Callable[[Any], Any]
    layout: Layout
    """Layout of the study's samples."""
    needs_target: bool
    """Whether the inputs that `on_device` returns depend on the target."""

    @classmethod
    def of(cls, on_device: Callable[[Any], Any], layout: Layout, leaves: Sequence[Tensor]) -> "InputPreparation":
        """Return the preparation; `leaves` of samples of the study, each ``[B, …]``, are used to find whether it needs a target."""
        of_target = _target_leaves(layout.tree)

        def made(fill: Callable[[Tensor], Tensor]) -> tuple[list[Any], Structure]:
            filled = [fill(leaf) if own else leaf.clone() for leaf, own in zip(leaves, of_target, strict=True)]
            return flatten(_without_labels(inputs_and_target(on_device(unflatten(filled, layout.tree)))[0]))

        # Targets that are all 0, as is likely if the other class is rare, are replaced by 1, so that the two calls differ.
        (some, as_some), (zeros, as_zeros) = (
            made(lambda leaf: leaf.clone() if leaf.any() else torch.ones_like(leaf)),
            made(torch.zeros_like),
        )
        return cls(on_device, layout, as_some != as_zeros or not same_bits(some, zeros))

    def inputs(self, inputs: Any) -> Any:
        """Prepare inputs ``[B, …]``, with or without a target; a missing target is filled with zeros.

        Raises RunError for inputs of another structure, and if the target is missing but the inputs depend on it.
        """
        if isinstance(inputs, Mapping) and self.layout.tree is not None and self.layout.tree[1] is not None:
            inputs = {key: inputs[key] for key in self.layout.tree[1] if key in inputs}  # in the study's order
        leaves, structure = flatten(inputs)
        lacking = len(leaves) < len(self.layout.shapes)
        missing = _target_leaves(self.layout.tree) if lacking else [False] * len(leaves)
        if len(leaves) + sum(missing) != len(self.layout.shapes):
            raise RunError(
                f"samples to predict have the structure {format_structure(structure)}, but Data.on_device takes the study's, "
                f"{format_structure(self.layout.tree)}. Pass samples in the study's structure, with or without the target."
            )
        if lacking and self.needs_target:
            raise RunError(
                f"samples to predict have the structure {format_structure(structure)}, without a target, but Data.on_device also "
                "uses the target to make the network's inputs. Pass them with it, as in the study: "
                f"{format_structure(self.layout.tree)}."
            )
        rows, device, left = leaves[0].shape[0], leaves[0].device, iter(leaves)
        # `on_device` may modify its arguments, which belong to the caller.
        whole = [
            torch.zeros(rows, *shape, dtype=dtype, device=device) if is_missing else next(left).clone()
            for is_missing, shape, dtype in zip(missing, self.layout.shapes, self.layout.dtypes, strict=True)
        ]
        prepared = inputs_and_target(self.on_device(unflatten(whole, self.layout.tree)))[0]
        return _without_labels(prepared) if lacking else prepared

    def __deepcopy__(self, memo: object) -> "InputPreparation":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle `on_device` as members are pickled: by value if it is not importable from a module."""
        try:
            packed = cloudpickle.dumps(self.on_device)
        except Exception as error:  # whatever the user's objects raise when they are pickled
            raise RunError(
                f"Data.on_device cannot be saved with the network: {error!r}. Save the network without "
                "preprocess=True, or open files and connections inside on_device."
            ) from error
        return _unpacked, (packed, self.layout, self.needs_target)


def _unpacked(on_device: bytes, layout: Layout, needs_target: bool) -> InputPreparation:
    return InputPreparation(cloudpickle.loads(on_device), layout, needs_target)


def _target_leaves(tree: Structure) -> list[bool]:
    """Return, for each leaf of a sample, whether it belongs to the target: it is not in the first part, or its key is ``labels``."""
    if tree is None:
        return [False]
    _, keys, parts = tree
    of_target = [part > 0 if keys is None else keys[part] == "labels" for part in range(len(parts))]
    return [is_target for is_target, part in zip(of_target, parts, strict=True) for _ in _target_leaves(part)]


def device_of(network: nn.Module) -> torch.device:
    """Return the network's device."""
    # Not of its `state_dict`, which may hold more than tensors (`get_extra_state`).
    return next((tensor.device for tensor in chain(network.parameters(), network.buffers())), torch.device("cpu"))


class Preparing(nn.Module):
    """A network that may apply `Data.on_device` to its inputs, with what that holds on the network's device."""

    preparation: InputPreparation | None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.preparation is not None:
            on_device = copy_held(self.preparation.on_device, device_of(self))
            self.preparation = replace(self.preparation, on_device=on_device)
        return self


class Prepared(Preparing):
    """A network that takes inputs as the study's dataset returns them, and applies `Data.on_device` first."""

    def __init__(self, network: nn.Module, preparation: InputPreparation) -> None:
        super().__init__()
        self.network = network
        self.preparation = preparation

    def forward(self, inputs: Any) -> Any:
        """Return the network's output for the prepared inputs."""
        assert self.preparation is not None
        return call_network(self.network, self.preparation.inputs(inputs))


def prepares_itself(network: nn.Module) -> bool:
    """Return whether a network, or one that it wraps, takes inputs as the dataset returns them."""
    return any(isinstance(getattr(module, "preparation", None), InputPreparation) for module in network.modules())


def inputs_and_target(batch: Any) -> tuple[Any, Any]:
    """Split a batch into inputs and target: its second part, or the ``labels`` of a dict; None if it has neither."""
    if isinstance(batch, Mapping):
        return batch, batch.get("labels")
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def _without_labels(inputs: Any) -> Any:
    """Return the inputs; from a dict, remove the labels, which were filled with zeros."""
    return {key: value for key, value in inputs.items() if key != "labels"} if isinstance(inputs, Mapping) else inputs
