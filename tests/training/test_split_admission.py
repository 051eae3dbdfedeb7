"""Tests that a member stays on one device, with a reason, if shares of a batch would give other results than the whole batch."""

import random
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import packs
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import SWALR

from argosy.training.choice.split_check import why_not_split


def reason(model: Any = packs.mlp, *, dtype: torch.dtype = torch.float32, **rest: Any) -> str:
    one = packs.member("m", model=model, dtype=dtype, **rest)
    (x, y), _ = packs.samples(dtype)
    live = packs.live(one)
    before = packs.state(live)
    found = why_not_split(live, (x[:16], y[:16]), 16)
    assert packs.difference(before, packs.state(live)) == 0.0
    return found


class Unfreezing(LambdaLR):
    """A user-defined schedule."""


class Thawing(SGD):
    """An optimizer that unfreezes weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.param_groups[0]["params"][0].requires_grad_()


class Moded(SGD):
    """Trains other weights than those that are validated, as schedule-free optimizers do."""

    trains = False

    @torch.no_grad()
    def train(self, mode: bool = True) -> None:
        if self.trains is not mode:
            torch._foreach_mul_(self.param_groups[0]["params"], 3.0 if mode else 1 / 3)
        self.trains = mode

    def eval(self) -> None:
        self.train(False)


def chained(optimizer: Any) -> ChainedScheduler:
    return ChainedScheduler([StepLR(optimizer, 1), Unfreezing(optimizer, lambda epoch: 0.9)])


def clamped() -> nn.Module:
    model = packs.mlp()
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return model


class Counted(nn.CrossEntropyLoss):
    """A loss that counts its calls."""

    calls = 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(output, target)


class Timed:
    """An augmentation that begins after 10 batches."""

    calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        return (batch[0] + 1 if self.calls > 10 else batch[0]), batch[1]


class Rotated(nn.Module):
    """A network with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.to(torch.complex64)).abs()


class Doing(nn.Module):
    """A network that applies a function to the output of a layer."""

    def __init__(self, act: Callable[["Doing", Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.act, self.seen = nn.Linear(16, 4), act, 0
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, self.layer(x))


def remember(module: Doing, x: Tensor) -> Tensor:
    module.mean = 0.9 * module.mean + 0.1 * x.detach().mean(0)
    return x


def count(module: Doing, x: Tensor) -> Tensor:
    module.seen += 1
    return x


@torch.no_grad()
def renormed(module: Doing, x: Tensor) -> Tensor:
    next(module.parameters()).renorm_(2, 0, 0.1)
    return x


def renormed_data(module: Doing, x: Tensor) -> Tensor:
    next(module.parameters()).data.renorm_(2, 0, 0.1)
    return x


def replaced_data(module: Doing, x: Tensor) -> Tensor:
    weight = next(module.parameters())
    weight.data = weight.data * 1.0
    return x


def strict(module: Doing, x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise TypeError("float32 alone")
    return x


def doing(act: Callable[[Doing, Tensor], Tensor]) -> Any:
    return partial(Doing, act)


def summed(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="sum")


def known(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output[target >= 0], target[target >= 0])


def flooded(model: nn.Module, batch: Any) -> Tensor:
    return (functional.cross_entropy(model(batch[0]), batch[1]) - 0.1).abs() + 0.1


def each(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def early(module: Doing, x: Tensor) -> Tensor:
    return x if x.softmax(1).amax(1).mean() > 0.99 else 2 * x


def branched(module: Doing, x: Tensor) -> Tensor:
    return x * torch.cond(x.detach().mean() > 9, lambda z: z.sin(), lambda z: z.cos(), (torch.ones(1),))


def attended(module: Doing, x: Tensor) -> Tensor:
    each = x.detach().float().view(-1, 1, 2, 2)
    with warnings.catch_warnings(action="ignore"):  # it is not compiled
        return x + flex_attention(each, each, each).view(-1, 4)


def compiled(module: Doing, x: Tensor) -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch's own, about gradients
        return torch.compile(torch.tanh, backend="eager", fullgraph=True)(x)


class OfGraph(nn.Module):
    """A network with a sparse matrix among its buffers, as that of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.register_buffer("neighbours", torch.eye(16).to_sparse(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.sparse.mm(self.neighbours, x.t()).t())


class OfMeans(OfGraph):
    """A network that sums up its batches in a sparse matrix, for its validation."""

    def forward(self, x: Tensor) -> Tensor:
        self.neighbours.mul_(0.9)
        return self.layer(x)


class Causal(nn.Module):
    """A network whose layers, of torch, read whether the mask is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 1)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=x.dtype)
        return self.layers(x.unflatten(1, (4, 4)), mask=mask).mean(1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"loss": nn.SmoothL1Loss(), "model": doing(lambda m, x: x[:, 0])}, ""),
        ({"loss": partial(functional.cross_entropy, label_smoothing=0.1)}, ""),
        ({"loss": known}, "its loss returns one number for a batch"),
        ({"step": flooded, "metrics": {}}, "its step returns one number for a batch"),
        ({"step": each, "metrics": {}, "accumulate": 2}, ""),
        ({"model": Causal}, ""),
        ({"model": doing(early)}, "reads values of a batch"),
        ({"model": doing(lambda m, x: x if torch.allclose(x, 2 * x) else 2 * x)}, "reads values of a batch"),
        ({"model": doing(branched)}, "reads values of a batch"),
        ({"model": doing(lambda m, x: x * float(m.layer.bias[0]))}, ""),
        ({"model": doing(attended), "dtype": torch.float32}, ""),
        ({"model": doing(compiled)}, ""),
        ({"model": OfGraph}, ""),
        ({"model": OfMeans}, "the buffer 'neighbours'"),
        ({"loss": nn.CrossEntropyLoss(reduction="none").forward, "accumulate": 16}, ""),
        ({"loss": nn.CrossEntropyLoss(torch.ones(4)).forward}, "its loss returns one number for a batch"),
        ({"dtype": torch.float64}, ""),
        ({"model": packs.Transformer, "optimizer": AdamW, "accumulate": 3}, ""),
        ({"model": doing(strict)}, ""),
        ({"model": lambda: nn.Sequential(nn.Linear(16, 12), packs.Empty(), nn.Linear(12, 4))}, ""),
        ({"model": doing(lambda m, x: x - x.mean(1, keepdim=True))}, ""),
        ({"model": packs.ResNet}, "BatchNorm"),
        ({"model": packs.convnet}, "draws random numbers"),
        ({"model": doing(lambda m, x: x + random.random())}, "numpy or random"),
        ({"model": doing(remember)}, "the buffer 'mean'"),
        ({"model": doing(count)}, "a step changes"),
        *(({"model": doing(moves)}, "a step changes the weight") for moves in (renormed, renormed_data, replaced_data)),
        ({"optimizer": partial(Moded, lr=0.1)}, ""),
        ({"schedule": partial(SWALR, swa_lr=0.01)}, ""),
        ({"model": doing(lambda m, x: x - x.mean(0))}, "not a mean over samples"),
        ({"model": doing(lambda m, x: x.view(16, 4))}, "on a share of a batch, its step raises"),
        ({"loss": summed}, "not a mean over samples"),
        (
            {"loss": nn.CrossEntropyLoss(torch.ones(4))},
            "weights of classes",
        ),  # equal ones, as those of the classes in one batch may be
        ({"loss": partial(functional.cross_entropy, weight=torch.ones(4))}, "weights of classes"),
        ({"loss": nn.CrossEntropyLoss(torch.ones(4), reduction="none")}, ""),
        ({"loss": Counted()}, "a step changes its loss"),
        ({"augment": Timed()}, "a step changes its augmentation"),
        ({"model": clamped}, "its weights have hooks"),
        ({"schedule": ReduceLROnPlateau}, "watches a metric"),
        ({"schedule": chained}, "its schedule Unfreezing is not from torch"),
        ({"optimizer": partial(Thawing, lr=0.1)}, "its optimizer Thawing is not from torch"),
    ],
)
def test_what_may_be_split(fields: dict[str, Any], words: str) -> None:
    found = reason(**fields)
    assert (words in found) if words else not found, found


@pytest.mark.parametrize(("distinct", "rows"), [(16, 48), (6, 18), (4, 12), (4, 36), (64, 192)])
def test_a_block_that_is_repeated_in_the_tried_batch_hides_no_statistics(distinct: int, rows: int) -> None:
    live = packs.live(packs.member("m", model=doing(lambda m, x: x - x.mean(0)), dtype=torch.float32))
    repeated = torch.arange(rows) % distinct
    (x, y), _ = packs.samples(torch.float32)
    assert "not a mean" in why_not_split(live, (x[repeated], y[repeated]), rows, distinct=distinct)


def test_complex_weights_are_not_split() -> None:
    live = packs.live(packs.member("m", model=Rotated, dtype=torch.float32))
    (x, y), _ = packs.samples(torch.float32)
    assert "its weights are complex" in why_not_split(live, (x[:16], y[:16]), 16)


def test_copies_are_not_in_memory_together() -> None:
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    together = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            alive.add(self)
            together.append(len(alive))
            return super().forward(x)

    assert reason(lambda: nn.Sequential(Watched(16, 4))) == ""
    assert set(together) == {1}
