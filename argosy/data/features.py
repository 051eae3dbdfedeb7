"""What a frozen network makes of a Dataset's samples: computed once for all heads that are trained on it."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from argosy.errors import StudyError
from argosy.errors.checks import check_dataset, is_map_style, shown
from argosy.stream.blocks import sample_leaves
from argosy.stream.trees import flatten, unflatten

__all__ = ["Features", "features"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Samples of a Dataset with the network's output, ``[...]`` of one sample, in place of the first leaf."""

    dataset: Any
    network: nn.Module

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        leaves, tree = sample_leaves(sample)
        with torch.inference_mode():
            made = [output[0] for output in flatten(self.network(leaves[0][None]))[0]]
        return unflatten([*made, *leaves[1:]], tree) if len(made) == 1 else (*made, *leaves[1:])


def features(dataset: Any, network: nn.Module) -> Features:
    """Return a Dataset of what a frozen network makes of the inputs of another one; targets stay.

    A copy of the network is run on the CPU by the loader workers, sample by sample, in ``eval()`` and without gradients; what it makes is kept as all
    prepared samples are: fifty heads cost one pass of it in all, and the second epoch and the next run none. What is random before it,
    as an augmentation, makes it run in each epoch.

    Raises:
        StudyError: for what is no map-style Dataset, or no network.
    """
    check_dataset("features: dataset", dataset)
    if not is_map_style(dataset):
        raise StudyError(
            f"features: dataset= is {shown(dataset)}, which has no samples by index. Give a map-style Dataset, with __len__ and __getitem__."
        )
    if not isinstance(network, nn.Module):
        raise StudyError(
            f"features: network is {shown(network)}; it must be a network (an nn.Module) with its weights."
        )
    if any(
        isinstance(value, Tensor) and value.device.type != "cpu"
        for value in (*network.parameters(), *network.buffers())
    ):
        raise StudyError(
            "features: the network is on an accelerator, and loader workers have none. Give network.cpu()."
        )
    return Features(dataset=dataset, network=copy.deepcopy(network).eval())
