"""The networks that `packing.py` packs; a sample is a vector of numbers, which a network may reshape."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["WORKLOADS", "Workload"]

PIXELS = 3 * 16 * 16


def mlp(inputs: int, hidden: int) -> nn.Module:
    """Return an MLP with two hidden layers."""
    layers = nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    return nn.Sequential(*layers)


def cnn(width: int = 8) -> nn.Module:
    """Return two convolutions on pictures of 16 x 16."""
    return nn.Sequential(
        nn.Unflatten(1, (3, 16, 16)),
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, width, H, W]`` to the same shape."""
        inner = functional.relu(self.norms[0](self.convs[0](x)))
        return functional.relu(x + self.norms[1](self.convs[1](inner)))


def resnet(width: int = 8) -> nn.Module:
    """Return five convolutions with BatchNorm on pictures of 16 x 16."""
    stem = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.AvgPool2d(2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    return nn.Sequential(nn.Unflatten(1, (3, 16, 16)), *stem, Residual(width), Residual(width), *head)


class Attention(nn.Module):
    """Self-attention without biases, since the gradient of the keys' bias would be nothing but noise."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, width]`` to the same shape."""
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """One layer over sequences of 16 vectors."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(16, width), Attention(width, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, 256]`` to ``[B, 10]``."""
        x = self.embed(x.unflatten(1, (16, 16)))
        x = x + self.attention(self.norms[0](x))
        return self.head((x + self.inner(self.norms[1](x))).mean(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Members of some networks, and their samples."""

    models: Sequence[Callable[[], nn.Module]]
    """Networks that the members take in turn."""
    inputs: int
    """Numbers in a sample."""
    batch: int
    steps: int
    """Steps of each member in a round."""
    wanted: Mapping[int, float]
    """By how much the fused program must be faster than the strongest sequential side, by the number of members."""

    def model(self, number: int, dtype: torch.dtype) -> nn.Module:
        """Return the network of a member."""
        return self.models[number % len(self.models)]().to(dtype)


WORKLOADS = {
    "tiny MLP": Workload(models=[partial(mlp, 4, 4)], inputs=4, batch=4, steps=8, wanted={32: 5.0}),
    "MLP h64": Workload(models=[partial(mlp, 64, 64)], inputs=64, batch=32, steps=8, wanted={32: 3.5}),
    "MLP h256": Workload(models=[partial(mlp, 64, 256)], inputs=64, batch=32, steps=4, wanted={}),
    "small CNN": Workload(models=[cnn], inputs=PIXELS, batch=32, steps=4, wanted={8: 1.35}),
    "BN-ResNet": Workload(models=[resnet], inputs=PIXELS, batch=16, steps=2, wanted={}),
    "transformer": Workload(models=[Transformer], inputs=256, batch=16, steps=4, wanted={}),
    "unlike": Workload(models=[cnn, partial(mlp, PIXELS, 32)], inputs=PIXELS, batch=32, steps=2, wanted={}),
    "compute-bound": Workload(models=[partial(mlp, 256, 512)], inputs=256, batch=256, steps=1, wanted={}),
}
"""Workloads by name. The last one fills the device by itself, to show that there is nothing to gain then."""
