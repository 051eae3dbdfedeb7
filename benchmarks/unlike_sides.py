"""Two ways to step unlike MLPs at once: products grouped by shape (`Grouped`), and all padded to the widest and deepest (`Padded`)."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from packing_sides import Task
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.training.device.clock import timed
from argosy.training.member.live import LiveMember
from argosy.training.member.tally import totals_of
from argosy.training.optim.kernels import adam_numbers, sgd_numbers
from argosy.training.optim.one_pass import one_pass
from argosy.training.programs.fused.made import Made
from argosy.training.programs.fused.turns import shared, turns
from argosy.training.programs.solo import cross_entropy

__all__ = ["Grouped", "Padded", "layers"]

aten = torch.ops.aten


class Layer(NamedTuple):
    """A linear layer of a member, and what follows it."""

    linear: nn.Linear
    activation: type[nn.Module] | None
    rate: float
    """Of the dropout behind the activation."""


def layers(model: nn.Module) -> list[Layer]:
    """The layers of an MLP, in their order."""
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


def _tanh(z: Tensor, into: Tensor) -> None:
    into.copy_(z.tanh_())  # its derivative is made of its result, and dropout goes over that which the next layer gets


ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., object], Callable[..., object]]] = {
    nn.ReLU: (
        lambda z, into: torch.clamp_min(z, 0, out=into),
        lambda g, z, into: aten.threshold_backward.grad_input(g, z, 0, grad_input=into),
    ),
    nn.GELU: (
        lambda z, into: aten.gelu.out(z, out=into),
        lambda g, z, into: aten.gelu_backward.grad_input(g, z, grad_input=into),
    ),
    nn.SiLU: (
        lambda z, into: aten.silu.out(z, out=into),
        lambda g, z, into: aten.silu_backward.grad_input(g, z, grad_input=into),
    ),
    nn.Tanh: (_tanh, lambda g, y, into: aten.tanh_backward.grad_input(g, y, grad_input=into)),
}
"""Of each activation: the function, and its derivative times a gradient."""


@dataclass(kw_only=True, eq=False)
class Group:
    """Linear layers of one shape at one depth, a row for each: one product."""

    rows: Sequence[tuple[int, int]]
    """Member and number of the layer."""
    weights: Tensor
    """``[rows, out, in]``; the members' own are views."""
    biases: Tensor
    gradients: tuple[Tensor, Tensor] = field(init=False)
    """Of weights and biases."""
    inputs: Tensor = field(init=False)
    """``[rows, batch, in]``; layers before write into it."""
    outputs: Tensor = field(init=False)
    slopes: Tensor = field(init=False)
    """Gradient of the outputs."""
    input_slopes: Tensor = field(init=False)
    runs: list[tuple[Callable[[], object], Callable[[], object]]] = field(default_factory=list)
    """Activations of rows that lie side by side here and where they go to: forward, backward."""
    dropouts: list[tuple[int, float, Tensor, Tensor]] = field(default_factory=list)
    """Member, rate, what is dropped from and its gradient."""
    masks: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gradients = torch.zeros_like(self.weights), torch.zeros_like(self.biases)

    @property
    def first(self) -> bool:
        """Whether the inputs are the samples."""
        return self.rows[0][1] == 0


class Grouped:
    """All members as one program: no number is padded, none is moved between two layers.

    A layer's activation writes into the input of the next product, whichever that is. The last layers of all members are one wave, and
    their losses one call. Gradients lie where the optimizers' kernels find them at each step, which is one call for each member.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        lives = task.lives()
        # Side by side lie those that go the same way: by width, by activation, deepest first.
        self._lives = sorted(lives, key=lambda live: _key(layers(live.model)))
        self._layers = [layers(live.model) for live in self._lives]
        self.models = [live.model for live in lives]
        self._made = Made(self._lives)
        deepest = max(map(len, self._layers))
        waves: list[dict[torch.Size, list[tuple[int, int]]]] = [{} for _ in range(deepest)]
        for member, own in enumerate(self._layers):
            for number, layer in enumerate(own):
                wave = waves[number if number < len(own) - 1 else -1]
                wave.setdefault(layer.linear.weight.shape, []).append((member, number))
        self._last = [self._group(rows) for rows in waves[-1].values()]
        self._groups = [self._group(rows) for wave in waves[:-1] for rows in wave.values()] + self._last
        self._places = {place: (group, row) for group in self._groups for row, place in enumerate(group.rows)}
        self._steps = [self._step_of(member) for member in range(len(lives))]
        self._length = 0

    def prepare(self, epoch: int) -> None:
        """See `Side.prepare`."""
        for live in self._lives:
            live.begin_epoch(self._task.orders, epoch)

    @torch.no_grad()
    def run(self, block: Block) -> None:
        """See `Side.run`; what a trainer asks for is done as `Fused` does it."""
        cutters = shared([live.cutter for live in self._lives if live.cutter is not None])
        for live, cutter in zip(self._lives, cutters, strict=True):
            live.cutter = cutter
            live.keep_best()
        with timed([live.clock for live in self._lives]), self._drawing():
            for turn in turns(cutters, block):
                assert turn[0] is not None
                losses = self._differentiated(turn[0])
                for step in self._steps:
                    step()
                self._made.add(turn, totals_of(losses, turn[0].rows))
            self._made.tell()

    @torch.no_grad()
    def least(self, block: Block) -> None:
        """Do of a block's steps what every way of making them has to: the products, and the draws of dropout."""
        with self._drawing():
            for samples in block.leaves[0].split(self._task.batch):
                for group in self._groups:
                    self._product(group, samples)
                    for member, rate, row, _ in group.dropouts:
                        torch.empty_like(row).bernoulli_(1 - rate, generator=self._generators[member])
                for group in self._groups:
                    self._gradient(group, samples)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """Draw from the members' random states inside, which move when it is left."""
        self._generators = [torch.Generator() for _ in self._lives]
        for generator, live in zip(self._generators, self._lives, strict=True):
            generator.set_state(live.randomness.torch_state)
        yield
        for generator, live in zip(self._generators, self._lives, strict=True):
            live.randomness.torch_state = generator.get_state()

    def _group(self, rows: Sequence[tuple[int, int]]) -> Group:
        own = [self._layers[member][number].linear for member, number in rows]
        weights, biases = (torch.stack([getattr(one, name).detach() for one in own]) for name in ("weight", "bias"))
        for row, linear in enumerate(own):
            linear.weight.data, linear.bias.data = weights[row], biases[row]
        return Group(rows=rows, weights=weights, biases=biases)

    # ---- gradients

    def _differentiated(self, batch: Batch) -> Tensor:
        """Losses ``[members, samples]``; gradients are where `_steps` finds them."""
        samples, target = batch.data
        if self._length != len(samples):
            self._allocate(samples)
        for group in self._groups:
            self._product(group, samples)
            for forward, _ in group.runs:
                forward()
            group.masks = [self._masked(member, rate, row) for member, rate, row, _ in group.dropouts]
        with torch.enable_grad():
            leaf = self._outputs.detach().requires_grad_()
            members, count, classes = leaf.shape
            losses = cross_entropy(leaf.view(-1, classes), target.expand(members, count).flatten()).view(members, count)
            (slopes,) = torch.autograd.grad(losses, leaf, torch.full_like(losses, 1 / count))
        self._slopes.copy_(slopes)
        for group in reversed(self._groups):
            for mask, (_, _, _, row_slopes) in zip(group.masks, group.dropouts, strict=True):
                row_slopes.mul_(mask)
            for _, backward in group.runs:
                backward()
            self._gradient(group, samples)
        return losses.detach()[self._in_order]

    def _product(self, group: Group, samples: Tensor) -> None:
        inputs = samples.expand(len(group.rows), *samples.shape) if group.first else group.inputs
        torch.baddbmm(group.biases.unsqueeze(1), inputs, group.weights.mT, out=group.outputs)

    def _gradient(self, group: Group, samples: Tensor) -> None:
        inputs = samples.expand(len(group.rows), *samples.shape) if group.first else group.inputs
        torch.bmm(group.slopes.mT, inputs, out=group.gradients[0])
        torch.sum(group.slopes, 1, out=group.gradients[1])
        if not group.first:
            torch.bmm(group.slopes, group.weights, out=group.input_slopes)

    def _masked(self, member: int, rate: float, row: Tensor) -> Tensor:
        """Apply dropout as the member draws it alone; returns the mask."""
        mask = torch.empty_like(row).bernoulli_(1 - rate, generator=self._generators[member])
        row.mul_(mask.div_(1 - rate))
        return mask

    def _allocate(self, samples: Tensor) -> None:
        """Allocate what the layers write for batches of this length, and plan which layer writes where."""
        self._length = length = len(samples)
        classes = self._last[0].weights.shape[1]
        self._outputs, self._slopes = (samples.new_zeros(len(self._lives), length, classes) for _ in range(2))
        first = 0
        for group in self._groups:
            rows, outs, ins = group.weights.shape
            group.inputs, group.input_slopes = (samples.new_zeros(rows, length, ins) for _ in range(2))
            if group in self._last:
                own = slice(first, first + rows)
                group.outputs, group.slopes, first = self._outputs[own], self._slopes[own], first + rows
            else:
                group.outputs, group.slopes = (samples.new_zeros(rows, length, outs) for _ in range(2))
        members = [member for group in self._last for member, _ in group.rows]
        self._in_order = torch.tensor(members).argsort()
        for group in self._groups:
            self._plan(group)

    def _plan(self, group: Group) -> None:
        group.runs, group.dropouts = [], []
        ends: list[tuple[Any, int, int, int]] = []
        for row, (member, number) in enumerate(group.rows):
            activation, rate = self._layers[member][number][1:]
            if activation is None:
                continue
            after, there = self._places[member, number + 1]
            if rate:
                group.dropouts.append((member, rate, after.inputs[there], after.input_slopes[there]))
            if ends and ends[-1][0] == (activation, id(after)) and ends[-1][2] + ends[-1][3] == there:
                ends[-1] = (*ends[-1][:3], ends[-1][3] + 1)
            else:
                ends.append(((activation, id(after)), row, there, 1))
        by_id = {id(other): other for other in self._groups}
        for (activation, to), row, there, count in ends:
            mine, theirs = slice(row, row + count), slice(there, there + count)
            forward, backward = ACTIVATIONS[activation]
            z, after = group.outputs[mine], by_id[to]
            into = group.slopes[mine]
            group.runs.append(
                (
                    partial(forward, z, after.inputs[theirs]),
                    partial(backward, after.input_slopes[theirs], z, into),
                )
            )

    # ---- steps

    def _step_of(self, member: int) -> Callable[[], None]:
        """The step of a member's optimizer along its gradients, by torch's kernel and with the numbers of that moment."""
        live, found = self._lives[member], [self._places[member, n] for n in range(len(self._layers[member]))]
        gradients = [gradient[row] for group, row in found for gradient in group.gradients]
        weights = list(live.model.parameters())
        optimizer = live.optimizer
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        self._begin(live, weights)
        (group,) = optimizer.param_groups
        weights = [weight.detach() for weight in weights]
        states = [optimizer.state[weight] for weight in group["params"]]
        if isinstance(optimizer, SGD):
            buffers = [state["momentum_buffer"] for state in states] if group["momentum"] else []
            return lambda: torch._fused_sgd_(weights, gradients, buffers, **sgd_numbers(group))
        kernel = torch._fused_adamw_ if isinstance(optimizer, AdamW) else torch._fused_adam_
        first, second, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))

        def step() -> None:
            torch._foreach_add_(steps, 1)
            kernel(weights, gradients, first, second, [], steps, **adam_numbers(group))

        return step

    def _begin(self, live: LiveMember, weights: Sequence[Tensor]) -> None:
        """Let the optimizer make its state: a step along nothing, which is then undone."""
        before = [weight.detach().clone() for weight in weights]
        assert one_pass(live.optimizer)
        for weight, value in zip(weights, before, strict=True):
            weight.data.copy_(value)
            weight.grad = None
            for state in live.optimizer.state[weight].values():
                state.zero_()


def _key(own: Sequence[Layer]) -> tuple[int, str, int]:
    return own[0].linear.out_features, str(own[0].activation), -len(own)


class Padded:
    """As TabPack packs MLPs, in PyTorch alone: each layer ``[members, widest, widest]``, outputs of members that have it put back by
    `index_copy`.

    Numbers beyond a member's width are zero and stay so, as all four activations keep zero. Optimizers step all members of one type at
    once. Masks are drawn for all members from one state: not those that a member draws alone.
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
            self._active.append(torch.tensor(rows))
            self._kinds.append([(kind(), torch.tensor(own)) for kind, own in kinds.items()])
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
            if self._keeps.min() < 1:
                made = made * (torch.rand_like(made) < keeps) / keeps
            hidden = made if not depth else hidden.index_copy(0, active, made)
        return torch.baddbmm(self._biases[-1], hidden, self._weights[-1].mT)

    @torch.no_grad()
    def _step(self, gradients: Sequence[Tensor]) -> None:
        self._made += 1
        kinds = [type(live.optimizer) for live in self._lives]
        for kind in dict.fromkeys(kinds):
            rows = slice(kinds.index(kind), kinds.index(kind) + kinds.count(kind))
            numbers = self._numbers([live.optimizer for live in self._lives[rows]])
            tensors = zip(self._leaves, gradients, self._first, self._second, strict=True)
            for weight, gradient, first, second in [[tensor[rows] for tensor in own] for own in tensors]:
                lr, decay, momentum, other = numbers
                if kind is SGD:
                    first.mul_(momentum).add_(gradient.addcmul_(weight, decay))
                    weight.addcmul_(first, -lr)
                    continue
                weight.mul_(1 - lr * decay)
                first.lerp_(gradient, 1 - momentum)
                second.lerp_(gradient.square(), 1 - other)
                root = second.sqrt().div_((1 - other**self._made).sqrt()).add_(1e-8)
                weight.addcmul_(first.div(root), -lr / (1 - momentum**self._made))

    def _numbers(self, optimizers: Sequence[Optimizer]) -> Sequence[Tensor]:
        groups = [optimizer.param_groups[0] for optimizer in optimizers]
        rows = [(g["lr"], g["weight_decay"], *(g["betas"] if "betas" in g else (g["momentum"], 0.0))) for g in groups]
        return self._keeps.new_tensor(rows).t().reshape(4, -1, 1, 1).unbind()
