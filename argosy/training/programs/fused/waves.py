"""The linear layers of different MLPs, in waves: all layers of one shape at one depth are one product of stacked matrices.

Nothing is padded or copied between two layers: the activation behind a layer writes directly into the input of the next layer's
product. Gradients are written where optimizers find them. All last layers are one wave, so that one call computes the losses.

Each member gets the bits that it has alone, if torch's kernels for several matrices round like those for one (`vmap_overrides`).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from argosy.training.device.kernel_forms import MaskDraw
from argosy.training.device.own_kernels import find_kernels
from argosy.training.device.recorders import InBranches, run_in_turn
from argosy.training.optim.flat_kernel import FlatMemory
from argosy.training.optim.parameter_buffer import aligned_rows
from argosy.training.programs.fused.device_draws import States
from argosy.training.programs.fused.draws import draw_masks
from argosy.training.programs.fused.layers import modules_in_order

__all__ = ["Waves", "layers_of", "layer_sort_key"]

aten = torch.ops.aten
Into = Callable[[Tensor, Tensor], object]


class Function(NamedTuple):
    """An activation that writes into given memory."""

    forward: Into
    """Write the activations of the first argument into the second; may leave in the first what `backward` needs."""
    backward: Callable[[Tensor, Tensor, Tensor], object]
    """Write into the third argument the input gradient, from the output gradient and what `forward` left in its first argument."""


def _of_result(function: Into, backward: Callable[[Tensor, Tensor, Tensor], object]) -> Function:
    """Return an activation whose gradient is computed from its values."""

    def forward(z: Tensor, into: Tensor) -> None:
        function(z, z)
        into.copy_(z)

    return Function(forward, backward)


FUNCTIONS: Mapping[type[nn.Module], Callable[[Any], Function]] = {
    nn.ReLU: lambda relu: Function(
        lambda z, into: torch.clamp_min(z, 0, out=into),
        lambda g, z, into: aten.threshold_backward.grad_input(g, z, 0, grad_input=into),
    ),
    nn.GELU: lambda gelu: Function(
        lambda z, into: aten.gelu.out(z, approximate=gelu.approximate, out=into),
        lambda g, z, into: aten.gelu_backward.grad_input(g, z, approximate=gelu.approximate, grad_input=into),
    ),
    nn.SiLU: lambda silu: Function(
        lambda z, into: aten.silu.out(z, out=into),
        lambda g, z, into: aten.silu_backward.grad_input(g, z, grad_input=into),
    ),
    nn.LeakyReLU: lambda leaky: Function(
        lambda z, into: aten.leaky_relu.out(z, leaky.negative_slope, out=into),
        lambda g, z, into: aten.leaky_relu_backward.grad_input(g, z, leaky.negative_slope, False, grad_input=into),
    ),
    nn.ELU: lambda elu: Function(
        lambda z, into: aten.elu.out(z, elu.alpha, out=into),
        lambda g, z, into: aten.elu_backward.grad_input(g, elu.alpha, 1, 1, False, z, grad_input=into),
    ),
    nn.Tanh: lambda tanh: _of_result(
        lambda z, into: torch.tanh(z, out=into),
        lambda g, y, into: aten.tanh_backward.grad_input(g, y, grad_input=into),
    ),
    nn.Sigmoid: lambda sigmoid: _of_result(
        lambda z, into: torch.sigmoid(z, out=into),
        lambda g, y, into: aten.sigmoid_backward.grad_input(g, y, grad_input=into),
    ),
    nn.Identity: lambda identity: Function(lambda z, into: into.copy_(z), lambda g, z, into: into.copy_(g)),
}
"""Activations by module class."""


class Layer(NamedTuple):
    """A linear layer with the activation and dropout that follow it."""

    linear: nn.Linear
    activation: nn.Module
    """A module whose class is in `FUNCTIONS`."""
    rate: float
    """Rate of the dropout after the activation."""


def layers_of(model: nn.Module) -> Sequence[Layer] | None:
    """Return the layers of an MLP in order, without a `Flatten` before the first; None for any other network."""
    modules = list(modules_in_order(model))
    if modules and type(modules[0]) is nn.Flatten and (modules[0].start_dim, modules[0].end_dim) == (1, -1):
        modules = modules[1:]
    layers: list[Layer] = []
    identity = nn.Identity()
    for before, module in zip([None, *modules], modules, strict=False):
        if type(module) is nn.Linear:
            layers.append(Layer(module, identity, 0.0))
        elif type(module) is nn.Dropout and module.p < 1 and type(before) in (nn.Linear, *FUNCTIONS):
            layers[-1] = layers[-1]._replace(rate=module.p)
        elif type(module) in FUNCTIONS and type(before) is nn.Linear:
            layers[-1] = layers[-1]._replace(activation=module)
        else:
            return None
    plain = layers and type(modules[-1]) is nn.Linear and all("forward" not in vars(module) for module in modules)
    weights = [weight for layer in layers for weight in layer.linear.parameters()]
    plain = plain and len(set(map(id, weights))) == len(weights) == len(list(model.parameters()))
    return layers if plain and all(weight.requires_grad for weight in weights) else None


class StackedLayers(NamedTuple):
    """Linear layers of one shape in one wave, one per row."""

    places: Sequence[tuple[int, int]]
    """Index of the member, and of the layer in it, by row."""
    first: bool
    """Whether the inputs of these layers are the samples."""
    weights: Tensor
    """``[rows, outputs, inputs]``; the members' own weights are views of it."""
    of_weights: Tensor
    """Gradients of the weights."""
    biases: Tensor | None
    """``[rows, outputs]``, likewise."""
    of_biases: Tensor | None
    """Gradients of the biases."""

    @classmethod
    def of(
        cls, places: Sequence[tuple[int, int]], linears: Sequence[nn.Linear], memory: FlatMemory | None
    ) -> "StackedLayers":
        """Move these layers into new memory, or into the common `memory`."""
        weights = _moved([linear.weight for linear in linears], memory)
        biases = [linear.bias for linear in linears if linear.bias is not None]
        return cls(places, places[0][1] == 0, *weights, *(_moved(biases, memory) if biases else (None, None)))


def _moved(parameters: Sequence[Tensor], memory: FlatMemory | None) -> tuple[Tensor, Tensor]:
    """Stack tensors of one shape, which become views of the stack; returns the stack and memory for its gradients."""
    size, shape = parameters[0].numel(), (len(parameters), *parameters[0].shape)
    if memory is None:
        rows = aligned_rows(parameters[0], len(parameters), size)
        gradients = rows.new_zeros(rows.shape)
    else:
        rows, gradients = memory.rows(len(parameters), size)
    for row, parameter in zip(rows, parameters, strict=True):
        parameter.data = row.view(parameter.shape).copy_(parameter.detach())
    return rows.view(shape), gradients.view(shape)


class Stretch(NamedTuple):
    """Adjacent rows with the same activation, whose next layers are adjacent too; tensors are ``[rows, samples, features]``."""

    function: Function
    outputs: Tensor
    slopes: Tensor
    """Gradients of the outputs."""
    inputs: Tensor
    """Inputs of the next layers."""
    input_slopes: Tensor
    """Gradients of those inputs."""


class Product:
    """A group of stacked layers with its memory for batches of one length; memory that passes do not use is not touched, except masks."""

    def __init__(
        self, group: StackedLayers, length: int, masks: Tensor | None, ends: tuple[Tensor, Tensor] | None
    ) -> None:
        rows, outs, ins = group.weights.shape
        self.group = group
        self.inputs, self.input_slopes = (
            group.weights.new_empty(rows, 0 if group.first else length, ins) for _ in range(2)
        )
        self.outputs, self.slopes = ends or (group.weights.new_empty(rows, length, outs) for _ in range(2))
        """For last layers, the given `ends`: parts of all members' outputs, and of their gradients."""
        self.masks = masks
        """Dropout masks of the inputs, ones for rows that do not drop out; None if no row does."""
        self.stretches: list[Stretch] = []
        """How outputs become the inputs of the next products."""

    def forward(self, samples: Tensor, *, train: bool) -> None:
        """Compute the outputs, and from them the inputs of the next products."""
        group, rows = self.group, self._rows(samples)
        if train and self.masks is not None:
            rows.mul_(self.masks)
        if group.biases is None:
            torch.bmm(rows, group.weights.mT, out=self.outputs)
        else:
            torch.baddbmm(group.biases.unsqueeze(1), rows, group.weights.mT, out=self.outputs)
        for stretch in self.stretches:
            stretch.function.forward(stretch.outputs, stretch.inputs)

    def backward(self, samples: Tensor) -> None:
        """Compute all gradients, from the input gradients that the next products have computed."""
        group = self.group
        for stretch in self.stretches:
            stretch.function.backward(stretch.input_slopes, stretch.outputs, stretch.slopes)
        torch.bmm(self.slopes.mT, self._rows(samples), out=group.of_weights)
        if group.of_biases is not None:
            torch.sum(self.slopes, 1, out=group.of_biases)
        if not group.first:
            torch.bmm(self.slopes, group.weights, out=self.input_slopes)
            if self.masks is not None:
                self.input_slopes.mul_(self.masks)

    def _rows(self, samples: Tensor) -> Tensor:
        return samples.expand(len(self.inputs), *samples.shape) if self.group.first else self.inputs


class WavePass:
    """Passes of all members on batches of one length, in their own memory."""

    def __init__(
        self, waves: Sequence[Sequence[StackedLayers]], layers: Sequence[Sequence[Layer]], length: int
    ) -> None:
        self._layers = layers
        groups = [group for wave in waves for group in wave]
        like, self._products = groups[-1].weights, list[Product]()
        self.outputs, self._slopes = (like.new_empty(len(layers), length, like.shape[1]) for _ in range(2))
        shapes = [(len(group.weights), length, group.weights.shape[2]) for group in groups]
        drops = [not one.first and any(layers[m][number - 1].rate for m, number in one.places) for one in groups]
        sizes = [math.prod(shape) * own for shape, own in zip(shapes, drops, strict=True)]
        self._drawn_into = like.new_ones(sum(sizes))
        parts = torch.split(self._drawn_into, sizes)
        masks = [part.view(shape) if len(part) else None for part, shape in zip(parts, shapes, strict=True)]
        last = 0
        for group, own_masks in zip(groups, masks, strict=True):
            member, number = group.places[0]
            ends = None
            if number == len(layers[member]) - 1:
                own = slice(last, last + len(group.places))
                ends, last = (self.outputs[own], self._slopes[own]), own.stop
            self._products.append(Product(group, length, own_masks, ends))
        products = iter(self._products)
        self._waves = [[next(products) for _ in wave] for wave in waves]
        self._rows = {place: (one, row) for one in self._products for row, place in enumerate(one.group.places)}
        for product in self._products:
            product.stretches.extend(self._stretches(product))
        self._masks = [
            [(1 - layer.rate, self._next_mask(member, number)) for number, layer in enumerate(own) if layer.rate]
            for member, own in enumerate(layers)
        ]
        """Each member's dropouts in the order of its layers: the share of inputs kept, and the mask of the next layer's inputs."""
        self._drawn = [
            MaskDraw(member, int(mask.storage_offset()), mask.numel(), kept)
            for member, masks in enumerate(self._masks)
            for kept, mask in masks
        ]

    def forward(self, samples: Tensor, states: States | None, in_branches: InBranches) -> Tensor:
        """Return the networks' outputs ``[members, samples, outputs]`` for ``[samples, inputs]``, valid until the next pass.

        With random `states`, for training, members draw dropout masks from them; without, nothing drops out.
        """
        if states is not None and states.on_device is not None:
            if self._drawn:
                states.on_device.masks(self._drawn, self._drawn_into)
        elif states is not None:
            draw_masks(states, self._masks)
        for wave in self._waves:
            in_branches([partial(product.forward, samples, train=states is not None) for product in wave])
        return self.outputs

    def backward(self, samples: Tensor, slopes: Tensor, in_branches: InBranches) -> None:
        """Compute the groups' gradients after a forward pass, from the gradients of its outputs."""
        self._slopes.copy_(slopes)
        for wave in reversed(self._waves):
            in_branches([partial(product.backward, samples) for product in wave])

    def _next_mask(self, member: int, number: int) -> Tensor:
        product, row = self._rows[member, number + 1]
        assert product.masks is not None
        return product.masks[row]

    def _stretches(self, product: Product) -> Iterator[Stretch]:
        """Yield the stretches of a product; last layers, which are a wave of their own, have none."""
        places = product.group.places
        if places[0][1] == len(self._layers[places[0][0]]) - 1:
            return

        def key(row: int) -> tuple[Any, ...]:
            member, number = places[row]
            after, next_row = self._rows[member, number + 1]
            return str(self._layers[member][number].activation), id(after), next_row - row

        for _, rows in itertools.groupby(range(len(places)), key):
            start, *others = rows
            member, number = places[start]
            layer, (after, next_row) = self._layers[member][number], self._rows[member, number + 1]
            mine, theirs = (slice(first, first + 1 + len(others)) for first in (start, next_row))
            yield Stretch(
                function=FUNCTIONS[type(layer.activation)](layer.activation),
                outputs=product.outputs[mine],
                slopes=product.slopes[mine],
                inputs=after.inputs[theirs],
                input_slopes=after.input_slopes[theirs],
            )


class Waves:
    """The layers of several members; their networks' own tensors are views of the groups' tensors until `dissolve`."""

    def __init__(self, models: Sequence[nn.Module], layers: Sequence[Sequence[Layer]]) -> None:
        self._tensors = [parameter for model in models for parameter in model.parameters()]
        self._layers = layers
        self._flat = all(any(type(module) is nn.Flatten for module in model.modules()) for model in models)
        depth = max(map(len, layers))
        waves: list[dict[tuple[Any, ...], list[tuple[int, int]]]] = [{} for _ in range(depth)]
        for member, own in enumerate(layers):
            for number, layer in enumerate(own):
                # All last layers are in the last wave, so that one call computes the losses.
                wave = waves[number if number < len(own) - 1 else -1]
                alike = (*layer.linear.weight.shape, layer.linear.bias is None, number == 0)
                wave.setdefault(alike, []).append((member, number))
        like = layers[0][0].linear.weight
        self.memory: FlatMemory | None = None
        """Common memory of all weights, if one kernel steps them."""
        if find_kernels(like.device) is not None:
            self.memory = FlatMemory(like, [parameter.numel() for parameter in self._tensors])
        self._waves = [
            [
                StackedLayers.of(places, [layers[member][number].linear for member, number in places], self.memory)
                for places in wave.values()
            ]
            for wave in waves
        ]
        self._passes: dict[int, WavePass] = {}

    @classmethod
    def of(cls, models: Sequence[nn.Module]) -> "Waves":
        """Move networks, which come in the order of `layer_sort_key`, into the memory of their groups."""
        layer_lists = [layers_of(model) for model in models]
        return cls(models, [layers for layers in layer_lists if layers is not None])

    def forward(self, samples: Tensor, states: States | None, in_branches: InBranches = run_in_turn) -> Tensor:
        """Run `WavePass.forward`; samples may have any shape if all networks flatten them."""
        if (own := self._passes.get(len(samples))) is None:
            own = self._passes[len(samples)] = WavePass(self._waves, self._layers, len(samples))
        return own.forward(self._flattened(samples), states, in_branches)

    def backward(self, samples: Tensor, slopes: Tensor, in_branches: InBranches = run_in_turn) -> None:
        """Run `WavePass.backward`."""
        self._passes[len(samples)].backward(self._flattened(samples), slopes, in_branches)

    def gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all weights and biases, each with its gradient from the last pass."""
        for group in (group for wave in self._waves for group in wave):
            for row, (member, number) in enumerate(group.places):
                linear = self._layers[member][number].linear
                yield linear.weight, group.of_weights[row]
                if group.of_biases is not None:
                    yield linear.bias, group.of_biases[row]

    def dissolve(self) -> None:
        """Give the networks' tensors their own memory; the shared memory is freed with its last view."""
        for tensor in self._tensors:
            tensor.data = tensor.data.clone()
        self._waves, self._passes, self.memory = [], {}, None

    def _flattened(self, samples: Tensor) -> Tensor:
        return samples.flatten(1) if self._flat else samples


def layer_sort_key(model: nn.Module) -> Sequence[tuple[Any, ...]]:
    """Return a sort key that makes networks with the same layers neighbours, compared from the last layer, so that stretches are long.

    It has each layer's shape, whether it has biases, its activation, whether it drops out, and whether it is the first. The bits of the
    layer's results depend on these.
    """
    return tuple(
        (*layer.linear.weight.shape, layer.linear.bias is None, str(layer.activation), bool(layer.rate), number == 0)
        for number, layer in reversed([*enumerate(layers_of(model) or ())])
    )
