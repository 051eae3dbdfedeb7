"""A side of `unlike.py`: unlike MLPs stepped at once, padded to the widest and deepest (`Padded`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from packing_sides import Task
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.optim._muon import _adjust_lr

from argosy.stream.blocks import Block
from argosy.training.optim.optimizer_list import OptimizerList
from argosy.training.optim.rules import orthogonal

__all__ = ["Padded"]


class Layer(NamedTuple):
    """A member's linear layer, with its activation and dropout."""

    linear: nn.Linear
    activation: type[nn.Module] | None
    rate: float
    """Rate of the dropout after the activation."""


def layers(model: nn.Module) -> list[Layer]:
    """Return the layers of an MLP, in their order."""
    found: list[Layer] = []
    assert isinstance(model, nn.Sequential)
    for module in model:
        if isinstance(module, nn.Linear):
            found.append(Layer(module, None, 0.0))
        elif isinstance(module, nn.Dropout):
            found[-1] = found[-1]._replace(rate=module.p)
        else:
            found[-1] = found[-1]._replace(activation=type(module))
    return found


class Padded:
    """MLPs packed as by TabPack, in PyTorch alone: layers are ``[members, widest, widest]``; members without a layer keep their outputs.

    `index_copy` puts back the outputs of members that have the layer. Numbers beyond a member's width are zero and stay
    so, since all four activations keep zero. Optimizers step all members of one type at once. Dropout masks of all
    members are drawn from one random state, so they differ from those of a member alone.
    """

    def __init__(self, task: Task) -> None:
        self._batch = task.batch
        lives = task.lives()
        self.models = [live.model for live in lives]
        lives.sort(key=lambda live: type(live.optimizer).__name__)
        self._lives = lives
        found = [layers(live.model) for live in lives]
        widest, deepest = max(own[0].linear.out_features for own in found), max(map(len, found)) - 1
        inputs, classes = found[0][0].linear.in_features, found[0][-1].linear.out_features
        like = found[0][0].linear.weight
        sizes = [(widest, inputs), *[(widest, widest)] * (deepest - 1), (classes, widest)]
        self._weights = [like.new_zeros(len(lives), *size) for size in sizes]
        self._biases = [like.new_zeros(len(lives), 1, size[0]) for size in sizes]
        self._active, self._kinds = [], []
        for depth in range(deepest):
            rows = [row for row, own in enumerate(found) if len(own) - 1 > depth]
            kinds: dict[Any, list[int]] = {}
            for at, row in enumerate(rows):
                kinds.setdefault(found[row][0].activation, []).append(at)
            self._active.append(torch.tensor(rows, device=like.device))
            self._kinds.append([(kind(), torch.tensor(own, device=like.device)) for kind, own in kinds.items()])
        self._drops = any(own[0].rate for own in found)
        self._keeps = like.new_tensor([1 - own[0].rate for own in found]).view(-1, 1, 1)
        self._own = [
            [(n if n < len(own) - 1 else deepest, layer.linear) for n, layer in enumerate(own)] for own in found
        ]
        for row, own_layers in enumerate(self._own):
            for depth, linear in own_layers:
                outs, ins = linear.weight.shape
                self._weights[depth][row, :outs, :ins] = linear.weight.detach()
                self._biases[depth][row, 0, :outs] = linear.bias.detach()
        self._leaves = [leaf.requires_grad_() for leaf in (*self._weights, *self._biases)]
        self._first, self._second = ([torch.zeros_like(leaf) for leaf in self._leaves] for _ in range(2))
        self._made = 0
        self._kept: dict[type[Optimizer], Sequence[Tensor]] = {}
        """The optimizers' hyper-parameters by type, which no schedule changes here."""

    def prepare(self, epoch: int) -> None:
        """See `Side.prepare`."""

    def run(self, block: Block) -> None:
        """See `Side.run`."""
        for x, y in zip(*(leaf.split(self._batch) for leaf in block.leaves), strict=True):
            output = self._output(x)
            target = y.expand(len(output), len(y)).flatten()
            losses = functional.cross_entropy(output.flatten(0, 1), target, reduction="sum") / len(y)
            self._step(torch.autograd.grad(losses, self._leaves))

    def show(self) -> None:
        """Write the weights into the members' networks."""
        for row, own in enumerate(self._own):
            for depth, linear in own:
                outs, ins = linear.weight.shape
                linear.weight.data.copy_(self._weights[depth].detach()[row, :outs, :ins])
                linear.bias.data.copy_(self._biases[depth].detach()[row, 0, :outs])

    def _output(self, x: Tensor) -> Tensor:
        hidden = x.expand(len(self._lives), *x.shape)
        for depth, (active, kinds) in enumerate(zip(self._active, self._kinds, strict=True)):
            weights, biases, inputs = self._weights[depth], self._biases[depth], hidden
            if depth:
                weights, biases, inputs = (tensor.index_select(0, active) for tensor in (weights, biases, hidden))
            z = torch.baddbmm(biases, inputs, weights.mT)
            made = torch.cat([kind(z.index_select(0, own)) for kind, own in kinds])
            made = torch.empty_like(made).index_copy(0, torch.cat([own for _, own in kinds]), made)
            keeps = self._keeps.index_select(0, active)
            if self._drops:
                made = made * (torch.rand_like(made) < keeps) / keeps
            hidden = made if not depth else hidden.index_copy(0, active, made)
        return torch.baddbmm(self._biases[-1], hidden, self._weights[-1].mT)

    @torch.no_grad()
    def _step(self, gradients: Sequence[Tensor]) -> None:
        self._made += 1
        if isinstance(self._lives[0].optimizer, OptimizerList):
            self._step_matrices(gradients)
            return
        kinds = [type(live.optimizer) for live in self._lives]
        for kind in dict.fromkeys(kinds):
            rows = slice(kinds.index(kind), kinds.index(kind) + kinds.count(kind))
            if kind not in self._kept:
                self._kept[kind] = self._numbers([live.optimizer for live in self._lives[rows]])
            numbers = self._kept[kind]
            tensors = zip(self._leaves, gradients, self._first, self._second, strict=True)
            for weight, gradient, first, second in [[tensor[rows] for tensor in own] for own in tensors]:
                lr, decay, momentum, _ = numbers
                if kind is SGD:
                    first.mul_(momentum).add_(gradient.addcmul_(weight, decay))
                    weight.addcmul_(first, -lr)
                    continue
                self._adam(weight, gradient, first, second, numbers)

    def _step_matrices(self, gradients: Sequence[Tensor]) -> None:
        """Step matrices by Muon and biases by AdamW; all members then have both."""
        muons, adams = ([live.optimizer.parts[n] for live in self._lives] for n in range(2))
        if AdamW not in self._kept:
            groups = [muon.param_groups[0] for muon in muons]
            own = [
                [dict(layers)[n].weight.shape if n in dict(layers) else None for layers in self._own]
                for n in range(len(self._weights))
            ]
            self._rates = [
                self._keeps.new_tensor(
                    [
                        _adjust_lr(g["lr"], None, shape) if shape else 0.0
                        for g, shape in zip(groups, shapes, strict=True)
                    ]
                ).view(-1, 1, 1)
                for shapes in own
            ]
            self._shrinks = self._keeps.new_tensor([1 - g["lr"] * g["weight_decay"] for g in groups]).view(-1, 1, 1)
            self._kept[AdamW] = self._numbers(adams)
        group, half = muons[0].param_groups[0], len(self._weights)
        for n in range(half):
            self._first[n].lerp_(gradients[n], 1 - group["momentum"])
            update = orthogonal(gradients[n].lerp(self._first[n], group["momentum"]), group)
            self._leaves[n].mul_(self._shrinks).addcmul_(update, -self._rates[n])
        for n in range(half, 2 * half):
            self._adam(self._leaves[n], gradients[n], self._first[n], self._second[n], self._kept[AdamW])

    def _adam(self, weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, numbers: Sequence[Tensor]) -> None:
        lr, decay, momentum, other = numbers
        weight.mul_(1 - lr * decay)
        first.lerp_(gradient, 1 - momentum)
        second.lerp_(gradient.square(), 1 - other)
        root = second.sqrt().div_((1 - other**self._made).sqrt()).add_(1e-8)
        weight.addcmul_(first.div(root), -lr / (1 - momentum**self._made))

    def _numbers(self, optimizers: Sequence[Optimizer]) -> Sequence[Tensor]:
        groups = [optimizer.param_groups[0] for optimizer in optimizers]
        rows = [(g["lr"], g["weight_decay"], *(g["betas"] if "betas" in g else (g["momentum"], 0.0))) for g in groups]
        return self._keeps.new_tensor(rows).t().reshape(4, -1, 1, 1).unbind()
