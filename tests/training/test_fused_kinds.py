"""Tests which kinds of modules, operators, losses and side effects a fused program supports.

Admission compares losses, gradients, buffers and random states of a step and an evaluation in float64. Each kind is either
exact or refused with its reason; none is silently wrong.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import packs
import pytest
import torch
from packs import admission, pack
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from argosy.training.choice import fused_check

Forward = Callable[[nn.Module, Tensor], Tensor]


class Around(nn.Module):
    """Two layers, with `forward` between them, which gets the network and the first layer's output ``[rows, 12]``."""

    def __init__(self, forward: Forward, part: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(16, 12), part(), nn.Linear(12, 4)
        self.register_buffer("seen", torch.zeros(12))
        self.between = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)).flatten(1))


def through(part: Callable[[], nn.Module], *shape: int) -> Any:
    """Return the factory of a network with the layer `part()` on inputs of this shape."""
    return partial(Around, lambda self, x: self.part(x.unflatten(1, shape) if shape else x), part)


def doing(forward: Forward, part: Callable[[], nn.Module] = nn.Identity) -> Any:
    """Return the factory of a network that computes `forward` between its layers."""
    return partial(Around, forward, part)


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class OldCube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def average_in_place(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return x - self.seen


def average_anew(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
    return x - self.seen


def attention(self: Any, x: Tensor) -> Tensor:
    heads = x.unflatten(1, (2, 3, 2))
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3 if self.training else 0.0)


def attending(self: Any, x: Tensor) -> Tensor:
    return self.part(*[x.unflatten(1, (3, 4))] * 2)


def in_place(self: Any, x: Tensor) -> Tensor:
    """Write in place into a tensor that the network has computed."""
    made = x * 2
    made[:, ::2] += 1
    return made.mul_(x.sigmoid()).clamp_(-1, 1)


def bounded(self: Any, x: Tensor) -> Tensor:
    """Clamp the last layer's weights by writing into them."""
    with torch.no_grad():
        self.last.weight.clamp_(-0.1, 0.1)
    return x


def solved(self: Any, x: Tensor) -> Tensor:
    rows = x.unflatten(1, (3, 4))
    return torch.linalg.solve(rows @ rows.mT + torch.eye(3, dtype=x.dtype), rows)


def mixed(self: Any, x: Tensor) -> Tensor:
    rows = x.unflatten(1, (3, 4))
    return torch.einsum("nik,njk->nij", rows, rows).softmax(-1) @ rows


def scattered(self: Any, x: Tensor) -> Tensor:
    places = torch.arange(12).flip(0)
    added = torch.zeros_like(x).index_add(1, places, x)
    return added + x.scatter_add(1, places.expand(len(x), 12), x) + torch.where(x > 0, x, 0.1 * x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).tanh()))


class Frozen(nn.Module):
    """A network whose first layer is frozen, and whose `spare` layer is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.spare = nn.Linear(16, 8).requires_grad_(False), nn.Linear(8, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu_())


def tokens(self: Any, x: Tensor) -> Tensor:
    return x + self.part((x.detach().abs() * 10).long() % 5).mean(2)


def bags(self: Any, x: Tensor) -> Tensor:
    return x + self.part((x.detach().abs() * 10).long() % 5)


def sized(*parts: nn.Module, back: Any = 2) -> Any:
    """Return the factory of layers with a smaller output, followed by an upsampling to the original size."""
    return lambda: nn.Sequential(*parts, nn.Upsample(scale_factor=back))


ACTIVATIONS = (
    nn.GELU(),
    nn.SiLU(inplace=True),
    nn.ELU(inplace=True),
    nn.Softplus(),
    nn.LeakyReLU(inplace=True),
    nn.Hardswish(),
    nn.LogSigmoid(),
    nn.Softmax(1),
)

EXACT = {
    "Conv1d": through(partial(nn.Conv1d, 3, 3, 3, padding=1, padding_mode="circular"), 3, 4),
    "Conv1d after padding": through(lambda: nn.Sequential(nn.ReflectionPad1d(1), nn.Conv1d(3, 3, 3, bias=False)), 3, 4),
    "Conv2d in groups": through(partial(nn.Conv2d, 2, 2, 3, padding=2, dilation=2, groups=2), 2, 2, 3),
    "Conv3d": through(partial(nn.Conv3d, 1, 1, 3, padding=1), 1, 2, 2, 3),
    "ConvTranspose1d": through(partial(nn.ConvTranspose1d, 3, 3, 3, padding=1), 3, 4),
    "ConvTranspose2d": through(partial(nn.ConvTranspose2d, 3, 3, 1), 3, 2, 2),
    "ConvTranspose3d": through(partial(nn.ConvTranspose3d, 3, 3, 1), 3, 1, 2, 2),
    "Bilinear": doing(lambda self, x: self.part(x, x), partial(nn.Bilinear, 12, 12, 12)),
    "BatchNorm1d": through(partial(nn.BatchNorm1d, 12)),
    "BatchNorm1d without statistics": through(partial(nn.BatchNorm1d, 12, track_running_stats=False)),
    "BatchNorm2d without affine": through(partial(nn.BatchNorm2d, 3, affine=False), 3, 2, 2),
    "BatchNorm3d": through(partial(nn.BatchNorm3d, 3), 3, 2, 2, 1),
    "InstanceNorm1d": through(partial(nn.InstanceNorm1d, 3, affine=True, track_running_stats=True), 3, 4),
    "GroupNorm": through(partial(nn.GroupNorm, 3, 12)),
    "LayerNorm": through(partial(nn.LayerNorm, 12)),
    "RMSNorm": through(partial(nn.RMSNorm, 12)),
    "LocalResponseNorm": through(partial(nn.LocalResponseNorm, 2), 3, 2, 2),
    "MaxPool1d": through(sized(nn.MaxPool1d(2)), 3, 4),
    "MaxPool2d": through(sized(nn.MaxPool2d(2)), 3, 2, 2),
    "MaxPool3d": through(sized(nn.MaxPool3d((2, 2, 1)), back=(2, 2, 1)), 3, 2, 2, 1),
    "AvgPool1d": through(partial(nn.AvgPool1d, 3, 1, 1), 3, 4),
    "AvgPool2d": through(partial(nn.AvgPool2d, 3, 1, 1), 3, 2, 2),
    "AvgPool3d": through(sized(nn.AvgPool3d((2, 2, 1)), back=(2, 2, 1)), 3, 2, 2, 1),
    "LPPool2d": through(partial(nn.LPPool2d, 2, 1), 3, 2, 2),
    "AdaptiveAvgPool1d": through(partial(nn.AdaptiveAvgPool1d, 4), 3, 4),
    "AdaptiveMaxPool2d": through(partial(nn.AdaptiveMaxPool2d, 2), 3, 2, 2),
    "interpolation": through(lambda: nn.Sequential(nn.AvgPool2d(2), nn.UpsamplingBilinear2d((2, 2))), 3, 2, 2),
    "PixelShuffle": through(partial(nn.PixelShuffle, 2), 12, 1, 1),
    "PixelUnshuffle": through(partial(nn.PixelUnshuffle, 2), 3, 2, 2),
    "Unfold and Fold": through(lambda: nn.Sequential(nn.Unfold(2, padding=1), nn.Fold((2, 2), 2, padding=1)), 3, 2, 2),
    "PReLU": through(partial(nn.PReLU, 12)),
    "ReLU in place": through(partial(nn.ReLU, inplace=True)),
    "activations": through(lambda: nn.Sequential(*ACTIVATIONS)),
    "Embedding": doing(tokens, partial(nn.Embedding, 5, 6)),
    "Embedding with a norm": doing(tokens, partial(nn.Embedding, 5, 6, max_norm=0.5)),
    "Embedding by frequency": doing(tokens, partial(nn.Embedding, 5, 6, scale_grad_by_freq=True)),
    "EmbeddingBag": doing(bags, partial(nn.EmbeddingBag, 5, 12)),
    "MultiheadAttention": doing(
        lambda self, x: self.part(*[x.unflatten(1, (3, 4))] * 3)[0],
        partial(nn.MultiheadAttention, 4, 2, batch_first=True),
    ),
    "encoder with dropout": through(partial(nn.TransformerEncoderLayer, 4, 2, 8, 0.3, batch_first=True), 3, 4),
    "decoder with dropout": doing(attending, partial(nn.TransformerDecoderLayer, 4, 2, 8, 0.3, batch_first=True)),
    "attention with dropout": doing(attention),
    "Dropout": through(partial(nn.Dropout, 0.3, inplace=True)),
    "AlphaDropout": through(partial(nn.AlphaDropout, 0.3)),
    "Dropout1d": through(partial(nn.Dropout1d, 0.3), 3, 4),
    "dropout as a function": doing(lambda self, x: functional.dropout(x, 0.4, self.training)),
    "noise": doing(lambda self, x: x + 0.1 * torch.randn(12, dtype=x.dtype) * torch.rand_like(x)),
    "stochastic depth": doing(lambda self, x: x * torch.bernoulli(torch.full((x.shape[0], 1), 0.5, dtype=x.dtype))),
    "gumbel": doing(lambda self, x: functional.gumbel_softmax(x)),
    "a buffer changed in place": doing(average_in_place),
    "a buffer replaced": doing(average_anew),
    "in place on an own tensor": doing(in_place),
    "a weight that it writes into": doing(bounded),
    "scatter, index_add, where": doing(scattered),
    "solve": doing(solved),
    "einsum, softmax, matmul": doing(mixed),
    "sort, gather, cumsum": doing(lambda self, x: x.sort(1).values.cumsum(1) + x.gather(1, x.argsort(1))),
    "cdist, fft, topk": doing(
        lambda self, x: torch.cdist(x, x).mean() * torch.fft.rfft(x).abs().sum() + x.topk(12).values
    ),
    "autograd.Function with a rule": doing(lambda self, x: Cube.apply(x)),
    "GRUCell": doing(lambda self, x: self.part(x), partial(nn.GRUCell, 12, 12)),
    "a derivative inside": doing(
        lambda self, x: x + torch.func.grad(lambda z: self.part(z).square().sum())(x), partial(nn.Linear, 12, 12)
    ),
    "vmap inside": doing(lambda self, x: torch.vmap(self.part)(x), partial(nn.Linear, 12, 12)),
    "weight norm": doing(lambda self, x: self.part(x), lambda: parametrizations.weight_norm(nn.Linear(12, 12))),
    "a bool buffer": through(packs.Masked),
    "an empty weight": through(packs.Empty),
    "tied weights": Tied,
    "frozen and unused weights": Frozen,
}


@pytest.mark.parametrize("kind", EXACT)
def test_exact(kind: str) -> None:
    found = admission(pack(EXACT[kind]))
    assert (tuple(found.packs), dict(found.alone)) == ((("m0", "m1", "m2"),), {})


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(16, 4), None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last


class Counting(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return self.layer(x)


def hooked(kind: str) -> nn.Module:
    model = packs.mlp()
    if kind == "weight":
        model[0].weight.register_hook(lambda gradient: gradient * 2)
    elif kind == "accumulated":
        model[0].weight.register_post_accumulate_grad_hook(lambda weight: None)
    elif kind == "backward":
        model[1].register_full_backward_hook(lambda module, inputs, outputs: None)
    else:
        model[1].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def old(x: Tensor) -> Tensor:
    return OldCube.apply(x)


def rerun(self: Any, x: Tensor) -> Tensor:
    return checkpoint(self.part, x, use_reentrant=False)


def unstacked(self: Any, x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=x.dtype).add_(x)


class Writing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


def recurrent(layer: Any) -> Any:
    return doing(lambda self, x: self.part(x.unflatten(1, (3, 4)))[0], partial(layer, 4, 4, batch_first=True))


REFUSED = {
    "a branch on a value": (
        doing(lambda self, x: x if x.sum() > 0 else -x),
        "as one program it raises RuntimeError: vmap",
    ),
    "item": (doing(lambda self, x: x * x.max().item()), "as one program it raises RuntimeError: vmap"),
    "a mask": (doing(lambda self, x: x + x[x > 0].sum()), "as one program it raises"),
    "nonzero": (doing(lambda self, x: x + x.nonzero().sum()), "as one program it raises"),
    "unique": (doing(lambda self, x: x + x.detach().unique().sum()), "as one program it raises"),
    "a random branch": (doing(lambda self, x: 2 * x if torch.rand(1) < 0.5 else x), "as one program it raises"),
    "LSTM": (recurrent(nn.LSTM), "as one program it raises"),
    "GRU": (recurrent(nn.GRU), "as one program it raises"),
    "RNN": (recurrent(nn.RNN), "as one program it raises"),
    "LSTMCell": (doing(lambda self, x: self.part(x)[0], partial(nn.LSTMCell, 12, 12)), "as one program it raises"),
    "BatchNorm over all time": (through(partial(nn.BatchNorm1d, 12, momentum=None)), "as one program it raises"),
    "spectral norm": (
        doing(lambda self, x: self.part(x), lambda: parametrizations.spectral_norm(nn.Linear(12, 12))),
        "as one program it raises",
    ),
    "an old autograd.Function": (doing(lambda self, x: old(x)), "as one program it raises"),
    "checkpointing": (doing(rerun, lambda: nn.Sequential(nn.Linear(12, 12), nn.Tanh())), "as one program it raises"),
    "RReLU": (through(nn.RReLU), "as one program it raises"),
    "sparse": (doing(tokens, partial(nn.Embedding, 5, 6, sparse=True)), "as one program it raises"),
    "in place into an unstacked tensor": (doing(unstacked), "as one program it raises"),
    "draws in C++": (
        through(lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.FractionalMaxPool2d(2, 2)), 3, 2, 2),
        "as one program it raises",
    ),
    "draws in place": (doing(lambda self, x: x * torch.empty_like(x).bernoulli_(0.5)), "as one program it raises"),
    "Python's random": (doing(lambda self, x: x * random.random()), "its steps draw from numpy or random"),
    "NumPy's random": (doing(lambda self, x: x * float(np.random.rand())), "its steps draw from numpy or random"),
    "an attribute set by a step": (Noting, "a step changes 'last' of the network, which is not a buffer"),
    "a tensor that is no buffer": (Counting, "a step changes 'seen' of the network, which is not a buffer"),
    "a buffer that a step fills": (
        through(partial(packs.Masked, filled=False)),
        "as one program, different buffers are filled: part.mask",
    ),
    "a hook": (partial(hooked, "layer"), "layer '1' has hooks, which would see all members at once"),
    "a weight's hook": (partial(hooked, "weight"), "the weight '0.weight' has hooks, which would never be called"),
    "a weight's later hook": (partial(hooked, "accumulated"), "the weight '0.weight' has hooks"),
    "a hook of the backward pass": (partial(hooked, "backward"), "layer '1' has hooks, which would see all members"),
    "channels last": (
        lambda: packs.ResNet().to(memory_format=torch.channels_last),
        "has its own memory format",
    ),
    "writing into the input": (partial(Writing, 16, 4), "it writes into its input"),
    "an error of the network": (partial(nn.Linear, 15, 4), "its own step raises RuntimeError: mat1 and mat2"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    model, reason = REFUSED[kind]
    found = admission(pack(model))
    assert tuple(found.packs) == () and found.alone.keys() == {"m0", "m1", "m2"}
    assert all(words.startswith(reason) or reason in words for words in found.alone.values()), found.alone


def test_a_program_that_raises_is_not_tried_in_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check is in the type that the members train in, so other types would not help."""
    tried, compare = list[str](), fused_check._compare_steps

    def comparing(*given: Any, by: fused_check.Comparison, **named: Any) -> fused_check.CheckOutcome:
        tried.append(by)
        return compare(*given, by=by, **named)

    monkeypatch.setattr(fused_check, "_compare_steps", comparing)
    assert admission(pack(recurrent(nn.LSTM))).failed
    assert tried == ["bits"]


class Shrinking(nn.Dropout):
    """A user-defined subclass of Dropout that computes with its rate."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 - self.p)


def test_the_rate_of_a_dropout_of_ones_own_parts_members() -> None:
    """Admission tries only four members, so a difference in the fifth must be found from its attributes."""
    networks = [through(partial(Shrinking, rate)) for rate in (0.1, 0.1, 0.1, 0.1, 0.2)]
    found = admission([packs.member(f"m{n}", model=model, dtype=torch.float32) for n, model in enumerate(networks)])
    assert tuple(found.packs) == (("m0", "m1", "m2", "m3"),)
    assert "differs in 'p' of layer 'part'" in found.alone["m4"]
