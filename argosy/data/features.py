"""Features that a frozen network computes from a Dataset: once for all heads, and for members that also train its last layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from argosy.errors import StudyError
from argosy.errors.checks import check_dataset, check_whole, describe_value, is_map_style
from argosy.stream.blocks import sample_leaves
from argosy.stream.copied import copy_network
from argosy.stream.trees import flatten, map_leaves, unflatten

__all__ = ["Features", "Unfrozen", "features", "unfrozen"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Samples of a Dataset with their first leaf replaced by the network's output for that sample, ``[...]``."""

    dataset: Any
    network: nn.Module
    unfreeze: tuple[int, ...] | None = None
    """Cuts, each as the number of layers above it. If given, the first leaf becomes a dict with the output at each cut."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        leaves, tree = sample_leaves(sample)
        with torch.inference_mode():
            if self.unfreeze is None:
                outputs = [output[0] for output in flatten(self.network(leaves[0][None]))[0]]
            else:
                outputs = [self._cut(leaves[0][None])]
        return unflatten([*outputs, *leaves[1:]], tree) if len(outputs) == 1 else (*outputs, *leaves[1:])

    def _cut(self, inputs_B: Tensor) -> dict[str, Any]:
        """Return one sample's output at each cut, by name."""
        assert self.unfreeze is not None and isinstance(self.network, nn.Sequential)
        by_layer, done = {}, 0
        for layers in sorted(self.unfreeze, reverse=True):
            end = len(self.network) - layers
            inputs_B = self.network[done:end](inputs_B)
            by_layer[_name_below(layers)], done = map_leaves(itemgetter(0), inputs_B), end
        return by_layer


class Unfrozen(nn.Module):
    """The last layers of a trunk with a head on top. The input is a dict of outputs at the trunk's cuts, or the output at its own cut."""

    def __init__(self, tail: nn.Sequential, head: nn.Module) -> None:
        super().__init__()
        self.tail = tail
        self.head = head

    def forward(self, features: Any) -> Any:
        """Return the head's output."""
        return self.head(self.tail(self.own(features)))

    def own(self, features: Any) -> Any:
        """Return the output of the trunk below these layers, which may be one of several in a dict."""
        return features[_name_below(len(self.tail))] if isinstance(features, Mapping) else features


def features(dataset: Any, network: nn.Module, *, unfreeze: Sequence[int] | None = None) -> Features:
    """Return a Dataset whose inputs are the outputs of a frozen network on the inputs of `dataset`; targets are unchanged.

    The loader workers run a copy of the network on the CPU, sample by sample, in ``eval()`` and without gradients. Its outputs are kept like all
    prepared samples: fifty heads need one pass in all, and later epochs and runs need none. Randomness in `dataset`, such as
    augmentation, makes the network run in each epoch. Its inputs are those of `dataset`, before `Data.on_device`. If they are bytes, as from
    `image_folder`, let the network begin with a layer that scales them: ``nn.Sequential(Scaled(), trunk)``.

    With ``unfreeze=(0, 2)`` members may train the head alone, or the head and the last two layers, as `argosy.data.unfrozen`
    builds them. The network runs once for all of these members, and each sample has a dict with the output at each cut.

    Raises:
        StudyError: if `dataset` is not a map-style Dataset, or `network` not a network on the CPU; with `unfreeze`, if the network is not an
            `nn.Sequential`, or has fewer layers.
    """
    check_dataset("features: dataset", dataset)
    if not is_map_style(dataset):
        raise StudyError(
            f"features: dataset= is {describe_value(dataset)}, whose samples cannot be read by index. Pass a map-style "
            "Dataset, with __len__ and __getitem__."
        )
    if not isinstance(network, nn.Module):
        raise StudyError(
            f"features: network is {describe_value(network)}; it must be a network (an nn.Module) with its weights."
        )
    if any(
        isinstance(value, Tensor) and value.device.type != "cpu"
        for value in (*network.parameters(), *network.buffers())
    ):
        raise StudyError(
            "features: the network is on an accelerator, but loader workers run it on the CPU. Pass network.cpu()."
        )
    if unfreeze is not None and not (isinstance(unfreeze, Sequence) and unfreeze):
        raise StudyError(
            f"features: unfreeze is {unfreeze!r}. Pass a list of how many last layers members train, for example "
            "unfreeze=(0, 2)."
        )
    cuts = None if unfreeze is None else tuple(dict.fromkeys(unfreeze))
    for layers in cuts or ():
        _check_cut("features", network, layers)
    return Features(dataset=dataset, network=copy_network(network).eval(), unfreeze=cuts)


def unfrozen(trunk: nn.Sequential, layers: int, head: Callable[[], nn.Module]) -> Unfrozen:
    """Build a head on a copy of the trunk's last `layers`, with their weights; all of it is trained. With 0 layers it is the head alone.

    Use it as a member's model, ``partial(argosy.data.unfrozen, trunk, 2, partial(nn.Linear, 64, 10))``, on the samples of
    ``argosy.data.features(dataset, trunk, unfreeze=(0, 2))``. The layers below stay frozen, in ``eval()``.

    Raises:
        StudyError: if the trunk is not an `nn.Sequential`, or has fewer layers.
    """
    _check_cut("unfrozen", trunk, layers)
    last = trunk[len(trunk) - layers :]
    tail = copy_network(last)
    assert isinstance(tail, nn.Sequential)
    return Unfrozen(tail.train().requires_grad_(True), head())


def _check_cut(what: str, network: nn.Module, layers: int) -> None:
    if not isinstance(network, nn.Sequential):
        raise StudyError(
            f"{what}: the trunk is a {type(network).__name__}, which cannot be cut into layers. Pass an nn.Sequential "
            "of its parts in order, for example nn.Sequential(net.stem, net.blocks, net.pool)."
        )
    check_whole(f"{what}: layers to unfreeze", layers, least=0)
    if layers > len(network):
        raise StudyError(f"{what}: {layers} layers are to be unfrozen, but the trunk has {len(network)}. Choose fewer.")


def _name_below(layers: int) -> str:
    """Return the name of the output below the last `layers`."""
    return f"below_{layers}"
