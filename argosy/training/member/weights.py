"""A network's weights as files hold them: read, copied out of the network, and loaded into one that was just built."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod

from argosy.errors import StudyError
from argosy.training.member.checkpoint import to_plain
from argosy.training.member.running_average import RunningAverage

__all__ = ["NetworkWeights", "extra_states", "load_weights"]

SMALL_BYTES = 4 << 20
"""Most bytes of a small network's weights."""


class NetworkWeights:
    """The raw and the averaged weights of one member's network, which must keep the names that it was built with."""

    def __init__(self, member: str, model: nn.Module, average: RunningAverage | None, *, apart: bool) -> None:
        self._member = member
        self._model = model
        self._average = average
        self._apart = apart
        """Whether they are on an accelerator."""
        self._frozen, self._named = _frozen(model), _named(model)
        """Names of weights that are not trained, and of all weights, in the network as built."""
        self._names = frozenset(model.state_dict())
        """Names in the state of the network as built."""

    @property
    def turned(self) -> list[str]:
        """Names of weights that steps have frozen or unfrozen."""
        return sorted(self._frozen ^ _frozen(self._model))

    def read(self, *, averaged: bool = False) -> dict[str, Any]:
        """Return the network's state with its raw or averaged weights. Raises StudyError if no file of it could be loaded."""
        self._model.train()  # layers that merge weights in eval(), such as LoRA's, would otherwise merge loaded weights again
        with self._average.held() if self._average is not None and averaged else contextlib.nullcontext():
            weights = self._model.state_dict()
        gone, come = self._names - weights.keys(), _named(self._model) - self._named
        for name in sorted(gone | come):
            changed = "has gained {!r}" if name in come else "has lost {!r}"
            raise StudyError(
                f"member {self._member!r}: its network {changed.format(name)} since it was built, so no file "
                "of it could be loaded. Build all trained weights in the factory, for example with "
                "torch.nn.utils.prune.identity if they are pruned later. Weights that are used only later can be "
                "left out of its forward passes at first."
            )
        return weights

    def late(self, weights: Mapping[str, Any]) -> list[str]:
        """Return the names of buffers that a pass has registered since the network was built."""
        return sorted(weights.keys() - self._names)

    def copied(self, *, averaged: bool) -> dict[str, Any]:
        """Return what `read` does, in memory of its own: that of the host, or of the accelerator for a small network."""
        weights = self.read(averaged=averaged)
        return (self._on_device(weights) if self._apart else None) or to_plain(weights, host=True)

    def _on_device(self, weights: dict[str, Any]) -> dict[str, Any] | None:
        """Return copies in the accelerator's memory; None for a large network, a state with more than dense tensors, or if memory is short."""
        tensors = [one for one in weights.values() if isinstance(one, torch.Tensor) and one.layout is torch.strided]
        # Copied to the host, each tensor of each member would make it wait.
        if len(tensors) < len(weights) or sum(tensor.nbytes for tensor in tensors) > SMALL_BYTES:
            return None
        try:
            copies = {_place(tensor): tensor.clone() for tensor in tensors}
        except torch.OutOfMemoryError:
            return None
        return {name: copies[_place(tensor)] for name, tensor in weights.items()}


def load_weights(
    model: nn.Module, weights: Mapping[str, Any], device: torch.device, *, late: Iterable[str] = (), strict: bool = True
) -> None:
    """Load a file's weights into a network that was just built; without `strict`, some may be missing. A pass has registered the buffers in `late`."""
    modules = dict(model.named_modules())
    for place, _, key in (name.rpartition(".") for name in late):
        if place in modules:
            modules[place].__dict__.pop(key, None)
            modules[place]._buffers[key] = None
    for name, module in modules.items():
        for key, buffer in module._buffers.items():
            loaded = weights.get(f"{name}.{key}" if name else key)
            # It was None until a forward pass, or has grown since; torch loads values into neither.
            if loaded is not None and (buffer is None or buffer.shape != loaded.shape):
                module._buffers[key] = torch.empty_like(loaded, device=device)
    model.load_state_dict(weights, strict=strict)
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                hook(module, ())  # a step may read the pruned weight before a forward pass computes it from its mask


def extra_states(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return, of a network's state, what `get_extra_state` of its modules has returned."""
    return {name: value for name, value in weights.items() if name.endswith("_extra_state")}


def _named(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def _frozen(model: nn.Module) -> frozenset[str]:
    """Return the names of weights that are not trained."""
    return frozenset(name for name, weight in model.named_parameters() if not weight.requires_grad)


def _place(tensor: torch.Tensor) -> Any:
    """Return a key that is equal for tensors with the same memory, such as tied weights."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
