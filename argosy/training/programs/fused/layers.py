"""The layers of plain MLPs on a CPU, computed for all members at once: products of stacked matrices, and elementwise functions.

The bits equal those of `torch.vmap`, whose dispatch takes longer than this whole computation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from argosy.training.member.randomness import Randomness
from argosy.training.programs.fused.draws import draw_masks, rate_of_row
from argosy.training.programs.fused.vmap_overrides import linear

__all__ = ["Layers", "modules_in_order"]

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Identity)
"""Modules that compute each number alone."""


class Layers:
    """The layers of networks of one architecture, taken from one of them; the tensors come with each pass."""

    def __init__(self, modules: Sequence[nn.Module], names: Mapping[int, str]) -> None:
        self._modules = modules
        self._names = names
        """Names of the weights, by id."""

    @classmethod
    def of(cls, network: nn.Module) -> "Layers | None":
        """Return the layers of a plain MLP, whose dropouts may have `Rates`; None for any other network."""
        modules = list(modules_in_order(network))
        if all(map(_known, modules)):
            return cls(modules, {id(parameter): name for name, parameter in network.named_parameters()})
        return None

    def outputs(self, inputs: Tensor, weights: Mapping[str, Tensor], states: Sequence[Randomness]) -> Tensor:
        """Return outputs ``[members, samples, …]`` from inputs of the same form and weights ``[members, *shape]``."""
        rows, masks = inputs, self._masks(inputs, states)
        for module in self._modules:
            if isinstance(module, nn.Linear):
                biases = None if module.bias is None else weights[self._names[id(module.bias)]]
                rows = linear(rows, weights[self._names[id(module.weight)]], biases)
            elif isinstance(module, nn.Flatten):
                rows = rows.flatten(2)
            elif not isinstance(module, nn.Dropout):
                rows = module(rows)
            elif _draws(module):
                rows = rows * next(masks)
        return rows

    @torch.no_grad()
    def _masks(self, inputs: Tensor, states: Sequence[Randomness]) -> Iterator[Tensor]:
        """Draw the masks of a pass."""
        shape, drawn = list(inputs.shape), list[tuple[nn.Dropout, Tensor]]()
        for module in self._modules:
            if isinstance(module, nn.Flatten):
                shape[2:] = [math.prod(shape[2:])]
            elif isinstance(module, nn.Linear):
                shape[-1] = module.out_features
            elif isinstance(module, nn.Dropout) and _draws(module):
                drawn.append((module, inputs.new_empty(shape)))
        if drawn:
            rows = range(len(states))
            shares = [[(1 - rate_of_row(module.p, row), masks[row]) for module, masks in drawn] for row in rows]
            draw_masks(states, shares)
        return iter([masks for _, masks in drawn])


def modules_in_order(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a network calls, in order."""
    # First its class, because that of a ScriptModule has no `forward` that can be read.
    sequential = module if isinstance(module, nn.Sequential) and not _overrides_forward(module) else None
    if sequential is not None and type(sequential).forward is nn.Sequential.forward:
        for part in sequential:  # as `forward` does: `children` leaves out a module that is called before
            yield from modules_in_order(part)
    else:
        yield module


def _known(module: nn.Module) -> bool:
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
        return False
    return type(module) in (nn.Linear, nn.Dropout, nn.Flatten, *ELEMENTWISE) and not _overrides_forward(module)


def _overrides_forward(module: nn.Module) -> bool:
    """Return whether an instance attribute overrides the `forward` of the module's class."""
    return "forward" in vars(module)


def _draws(dropout: nn.Dropout) -> bool:
    return dropout.training and dropout.p > 0  # `Rates` compare as their largest rate
