"""What becomes one program gets from it what it would get alone; all else is refused, with its reason."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import packs
import pytest
import torch
from blocks import blocks
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from argosy.stream.blocks import Block
from argosy.study import Member
from argosy.training.fused_admission import Admission, admit

Forward = Callable[[nn.Module, Tensor], Tensor]


def block(dtype: torch.dtype = torch.float32) -> Block:
    return blocks(np.arange(24), 24, arrays=packs.samples(dtype)[0])[0]


def admission(members: list[Member]) -> Admission:
    return admit([packs.live(member) for member in members], block())


def pack(model: Any, **rest: Any) -> list[Member]:
    return [packs.member(f"m{n}", model=model, dtype=torch.float32, batch_size=8, **rest) for n in range(3)]


class Around(nn.Module):
    """A part between two layers: what happens to the output of the first ``[rows, 12]``."""

    def __init__(self, forward: Forward, part: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(16, 12), part(), nn.Linear(12, 4)
        self.register_buffer("seen", torch.zeros(12))
        self.between = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)).flatten(1))


def through(part: Callable[[], nn.Module], *shape: int) -> Any:
    """A network with this layer, whose input has this shape."""
    return partial(Around, lambda self, x: self.part(x.unflatten(1, shape) if shape else x), part)


def doing(forward: Forward, part: Callable[[], nn.Module] = nn.Identity) -> Any:
    """A network that does this."""
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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).tanh()))


class Frozen(nn.Module):
    """The first layer is not trained, and `spare` has no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.spare = nn.Linear(16, 8).requires_grad_(False), nn.Linear(8, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu_())


def tokens(self: Any, x: Tensor) -> Tensor:
    return x + self.part((x.detach().abs() * 10).long() % 5).mean(2)


EXACT = {
    "Conv1d": through(partial(nn.Conv1d, 3, 3, 3, padding=1, padding_mode="circular"), 3, 4),
    "Conv2d in groups": through(partial(nn.Conv2d, 2, 2, 3, padding=2, dilation=2, groups=2), 2, 2, 3),
    "Conv3d": through(partial(nn.Conv3d, 1, 1, 3, padding=1), 1, 2, 2, 3),
    "ConvTranspose2d": through(partial(nn.ConvTranspose2d, 3, 3, 1), 3, 2, 2),
    "BatchNorm1d": through(partial(nn.BatchNorm1d, 12)),
    "BatchNorm2d without affine": through(partial(nn.BatchNorm2d, 3, affine=False), 3, 2, 2),
    "InstanceNorm1d": through(partial(nn.InstanceNorm1d, 3, affine=True, track_running_stats=True), 3, 4),
    "GroupNorm": through(partial(nn.GroupNorm, 3, 12)),
    "LayerNorm": through(partial(nn.LayerNorm, 12)),
    "RMSNorm": through(partial(nn.RMSNorm, 12)),
    "MaxPool2d": through(lambda: nn.Sequential(nn.MaxPool2d(2), nn.Upsample(scale_factor=2)), 3, 2, 2),
    "AdaptiveAvgPool1d": through(partial(nn.AdaptiveAvgPool1d, 4), 3, 4),
    "PixelShuffle": through(partial(nn.PixelShuffle, 2), 12, 1, 1),
    "Unfold": through(partial(nn.Unfold, 1), 3, 2, 2),
    "PReLU": through(partial(nn.PReLU, 12)),
    "ReLU in place": through(partial(nn.ReLU, inplace=True)),
    "Embedding": doing(tokens, partial(nn.Embedding, 5, 6)),
    "MultiheadAttention": doing(
        lambda self, x: self.part(*[x.unflatten(1, (3, 4))] * 3)[0],
        partial(nn.MultiheadAttention, 4, 2, batch_first=True),
    ),
    "encoder with dropout": through(partial(nn.TransformerEncoderLayer, 4, 2, 8, 0.3, batch_first=True), 3, 4),
    "attention with dropout": doing(attention),
    "Dropout": through(partial(nn.Dropout, 0.3, inplace=True)),
    "AlphaDropout": through(partial(nn.AlphaDropout, 0.3)),
    "Dropout1d": through(partial(nn.Dropout1d, 0.3), 3, 4),
    "dropout as a function": doing(lambda self, x: functional.dropout(x, 0.4, self.training)),
    "noise": doing(lambda self, x: x + 0.1 * torch.randn(12, dtype=x.dtype) * torch.rand_like(x)),
    "stochastic depth": doing(lambda self, x: x * torch.bernoulli(torch.full((x.shape[0], 1), 0.5, dtype=x.dtype))),
    "gumbel": doing(lambda self, x: functional.gumbel_softmax(x)),
    "a buffer moved in place": doing(average_in_place),
    "a buffer assigned anew": doing(average_anew),
    "sort, gather, cumsum": doing(lambda self, x: x.sort(1).values.cumsum(1) + x.gather(1, x.argsort(1))),
    "cdist, fft, topk": doing(
        lambda self, x: torch.cdist(x, x).mean() * torch.fft.rfft(x).abs().sum() + x.topk(12).values
    ),
    "autograd.Function with a rule": doing(lambda self, x: Cube.apply(x)),
    "weight norm": doing(lambda self, x: self.part(x), lambda: parametrizations.weight_norm(nn.Linear(12, 12))),
    "tied weights": Tied,
    "frozen and unused weights": Frozen,
}


@pytest.mark.parametrize("kind", EXACT)
def test_exact(kind: str) -> None:
    found = admission(pack(EXACT[kind]))
    assert (found.packs, dict(found.alone)) == ((("m0", "m1", "m2"),), {})


def one_hot(target: Tensor, like: Tensor) -> Tensor:
    return functional.one_hot(target, 4).to(like.dtype)


def own_step(model: nn.Module, batch: Any) -> Tensor:
    """Two passes, of which the second is compared with the first."""
    x, target = batch
    first, second = model(x), model(x * 0.5)
    return functional.cross_entropy(first, target) + functional.mse_loss(first, second, reduction="none").mean(1)


LOSSES: dict[str, dict[str, Any]] = {
    "cross-entropy, its mean": {"loss": nn.CrossEntropyLoss()},
    "label smoothing": {"loss": partial(functional.cross_entropy, label_smoothing=0.1, reduction="none")},
    "weights and an ignored class": {
        "loss": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5, 1.0]).double(), ignore_index=3)
    },
    "squares": {"loss": lambda output, target: (output - one_hot(target, output)).square()},
    "binary": {
        "loss": lambda output, target: functional.binary_cross_entropy_with_logits(output, one_hot(target, output))
    },
    "divergence": {
        "loss": lambda output, target: functional.kl_div(
            output.log_softmax(1), one_hot(target, output), reduction="batchmean"
        )
    },
    "Huber": {"loss": lambda output, target: functional.huber_loss(output, one_hot(target, output), reduction="none")},
    "an own step": {"step": own_step, "metrics": {}},
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses(kind: str) -> None:
    found = admission(pack(packs.mlp, **LOSSES[kind]))
    assert (found.packs, dict(found.alone)) == ((("m0", "m1", "m2"),), {})


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


REFUSED = {
    "a branch on a value": (
        doing(lambda self, x: x if x.sum() > 0 else -x),
        "as one program it raises RuntimeError: vmap",
    ),
    "item": (doing(lambda self, x: x * x.max().item()), "as one program it raises RuntimeError: vmap"),
    "a mask": (doing(lambda self, x: x + x[x > 0].sum()), "as one program it raises"),
    "LSTM": (
        doing(lambda self, x: self.part(x.unflatten(1, (3, 4)))[0], partial(nn.LSTM, 4, 4, batch_first=True)),
        "as one program it raises",
    ),
    "BatchNorm over all time": (through(partial(nn.BatchNorm1d, 12, momentum=None)), "as one program it raises"),
    "spectral norm": (
        doing(lambda self, x: self.part(x), lambda: parametrizations.spectral_norm(nn.Linear(12, 12))),
        "as one program it raises",
    ),
    "an old autograd.Function": (doing(lambda self, x: old(x)), "as one program it raises"),
    "checkpointing": (doing(rerun, lambda: nn.Sequential(nn.Linear(12, 12), nn.Tanh())), "as one program it raises"),
    "RReLU": (through(nn.RReLU), "as one program it raises"),
    "sparse": (doing(tokens, partial(nn.Embedding, 5, 6, sparse=True)), "as one program it raises"),
    "in place into what is not stacked": (doing(unstacked), "as one program it raises"),
    "draws in place": (doing(lambda self, x: x * torch.empty_like(x).bernoulli_(0.5)), "as one program it raises"),
    "Python's random": (doing(lambda self, x: x * random.random()), "its steps draw from numpy or random"),
    "NumPy's random": (doing(lambda self, x: x * float(np.random.rand())), "its steps draw from numpy or random"),
    "a note of a step": (Noting, "a step changes 'last' of the network, which is no buffer"),
    "a tensor that is no buffer": (Counting, "a step changes 'seen' of the network, which is no buffer"),
    "a hook": (partial(hooked, "layer"), "layer '1' has hooks, which would see all members at once"),
    "a weight's hook": (partial(hooked, "weight"), "the weight '0.weight' has hooks, which would never be called"),
    "channels last": (
        lambda: packs.ResNet().to(memory_format=torch.channels_last),
        "lies in memory in an order of its own",
    ),
    "writing into the input": (partial(Writing, 16, 4), "it writes into its input"),
    "an error of its own": (partial(nn.Linear, 15, 4), "its own step raises RuntimeError: mat1 and mat2"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    model, reason = REFUSED[kind]
    found = admission(pack(model))
    assert found.packs == () and found.alone.keys() == {"m0", "m1", "m2"}
    assert all(words.startswith(reason) or reason in words for words in found.alone.values()), found.alone


def lookahead(optimizer: Any) -> Any:
    return Unfreezing(optimizer, lambda epoch: 0.9)


class Unfreezing(LambdaLR):
    """A schedule of one's own."""


def odd(**rest: Any) -> Member:
    return packs.member("odd", dtype=torch.float32, batch_size=8, **rest)


ODD = {
    "another width": (odd(model=partial(packs.mlp, hidden=13)), "differs in 'out_features' of layer '0'"),
    "another batch size": (replace(odd(), batch_size=9), "differs in batch_size"),
    "another loss": (odd(loss=partial(functional.cross_entropy, label_smoothing=0.1)), "differs in loss"),
    "another precision": (odd(precision="bfloat16"), "differs in precision"),
    "other groups": (
        odd(optimizer=lambda parameters: SGD([{"params": [p]} for p in parameters], lr=0.1)),
        "differs in the weight '0.bias'",
    ),
    "a schedule of its own": (odd(schedule=lookahead), "its schedule Unfreezing is none of torch's"),
    "part of the weights": (
        odd(optimizer=lambda parameters: SGD([next(parameters)], lr=0.1)),
        "the weight '0.bias' wants a gradient and is in no group",
    ),
}


def test_members_like_each_other_are_one_program_beside_others() -> None:
    members = [*pack(packs.mlp), *(replace(member, name=f"odd{n}") for n, (member, _) in enumerate(ODD.values()))]
    found = admission(members)
    assert found.packs == (("m0", "m1", "m2"),)
    for number, (kind, (_, reason)) in enumerate(ODD.items()):
        assert reason in found.alone[f"odd{number}"], kind


def test_what_may_differ_does_not_part_members() -> None:
    same = [
        odd(),
        odd(optimizer=partial(torch.optim.Adam, lr=0.01), clip_grad_norm=1.0),
        odd(model=partial(packs.mlp, dropout=0.5), subset=[1, 2, 3, 3, *range(9, 20)], drop_last=True),
        odd(augment=lambda batch: (batch[0] + torch.randn(16), batch[1]), seed=5),
        odd(optimizer=torch.optim.RMSprop, schedule=partial(LambdaLR, lr_lambda=lambda epoch: 0.9**epoch)),
    ]
    found = admission([replace(member, name=f"m{n}") for n, member in enumerate(same)])
    assert found == Admission(packs=(tuple(f"m{n}" for n in range(5)),), alone={})


def test_a_single_member_has_nobody_to_be_fused_with() -> None:
    assert admission([odd()]).alone == {"odd": "there is no other member that could be fused with it"}
