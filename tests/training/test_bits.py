"""Tests that on a CPU a member has the same bits in a program of several as alone, whatever its neighbours are."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import packs
import pytest
import torch
from packs import difference, state
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from argosy.study import Member
from argosy.training.choice.admission import admit
from argosy.training.member.live import BatchLengths
from argosy.training.programs.fused.forward import Forward
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.solo import Solo


def mlp(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def pictures() -> nn.Module:
    """Return layers without weights that turn ``[B, 16]`` into ``[B, 1, 8, 8]``."""
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Upsample(scale_factor=2))


def cnn() -> nn.Module:
    convs = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
    return nn.Sequential(pictures(), *convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.convs[0](x)))
        return functional.relu(x + self.norms[1](self.convs[1](inner)))


def resnet() -> nn.Module:
    stem = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(
        pictures(), *stem, Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 64), nn.Linear(64, 10)
    )


def normed() -> nn.Module:
    """Return a network with LayerNorm, BatchNorm, dropout, smooth activations, and a layer without biases."""
    first = nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2)
    return nn.Sequential(*first, nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, 10))


ROUNDING = 1e-4
CONVOLUTIONS_DIFFER = "AVX512" in torch.backends.cpu.get_cpu_capability()
"""Whether small convolutions of several members round differently from those of one, as kernels for these processors do."""
NETWORKS: dict[str, Any] = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "normed": normed}
OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Nesterov": partial(SGD, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": partial(Adam, lr=0.01),
    "decay": partial(Adam, lr=0.01, weight_decay=0.1),
    "AdamW": partial(AdamW, lr=0.01, betas=(0.8, 0.99)),
    "Adagrad": partial(Adagrad, lr=0.05),
    "RMSprop": partial(RMSprop, lr=0.005),
    "Muon": partial(packs.matrices, lr=0.02),
    "Muon as Adam": partial(packs.matrices, lr=0.01, nesterov=False, adjust_lr_fn="match_rms_adamw", weight_decay=0.0),
}


def first_squared(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output[:, 0], target.to(output.dtype))


def binary(output: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output[:, 0], (target % 2).to(output.dtype))


LOSSES: dict[str, Any] = {
    "per sample": None,
    "mean": functional.cross_entropy,
    "module": nn.CrossEntropyLoss(),
    "squares": first_squared,
    "binary": binary,
}


def member(name: str, model: Any = mlp, **rest: Any) -> Member:
    return packs.member(name, model=model, dtype=torch.float32, **({"optimizer": OPTIMIZERS["Adam"]} | rest))


def rates(count: int, optimizer: Any = OPTIMIZERS["Adam"]) -> list[Any]:
    """Return `count` optimizers with two alternating learning rates."""
    return [partial(optimizer, lr=optimizer.keywords["lr"] * (1 + number % 2)) for number in range(count)]


def company(members: Sequence[Member], *, epochs: int = 2, **how: Any) -> BatchLengths | None:
    """Train members alone and as one program, and compare states and histories; return the batch lengths stepped as one."""
    alone, history = [packs.live(one, exact=False) for one in members], {}
    for live in alone:
        history |= packs.train(Solo(live), epochs, dtype=torch.float32, **how)
    lives = [packs.live(one, exact=False) for one in members]
    for live in lives:
        live.begin_epoch(packs.Orders(0, {"train": packs.TRAIN, "val": packs.VAL}), 0)
    order = packs.Orders(0, {"train": packs.TRAIN}).epoch("train", 0)
    (block,) = packs.blocks(order, packs.TRAIN, arrays=packs.samples(torch.float32)[0])
    admission = admit(lives, block)
    (lengths,) = (*admission.packs.values(), *admission.grouped.values())
    fused = Fused.of(lives, lengths=lengths)
    found = packs.train(fused, epochs, dtype=torch.float32, **how)
    fused.release()
    allowed = ROUNDING if lengths is None and CONVOLUTIONS_DIFFER else 0.0
    for one, other in zip(alone, lives, strict=True):
        assert difference(state(one), state(other)) <= allowed, one.member.name
    assert difference(history, found) <= allowed
    return lengths


def as_one(lengths: BatchLengths | None, *train: int) -> bool:
    """Return whether training batches of these lengths, and validation batches, were computed as one."""
    return lengths is not None and lengths.train >= set(train) and bool(lengths.val)


@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network: str) -> None:
    members = [member(f"m{n}", NETWORKS[network], optimizer=rate) for n, rate in enumerate(rates(5))]
    lengths = company(members)
    assert as_one(lengths, 16) or (network == "cnn" and lengths is None and CONVOLUTIONS_DIFFER)


def test_dropouts_with_rates_of_their_own() -> None:
    members = [member(f"m{n}", partial(packs.mlp, rate, 64)) for n, rate in enumerate((0.0, 0.2, 0.5, 1.0))]
    assert as_one(company(members), 16)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str) -> None:
    members = [member(f"m{n}", optimizer=rate) for n, rate in enumerate(rates(4, OPTIMIZERS[optimizer]))]
    assert as_one(company(members), 16)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss: str) -> None:
    assert as_one(company([member(name, loss=LOSSES[loss]) for name in "abc"]), 16)


@pytest.mark.parametrize("size", [2, 3, 17])
def test_any_number_of_neighbours(size: int) -> None:
    assert as_one(company([member(f"m{n}", resnet) for n in range(size)], epochs=1), 16)


@pytest.mark.parametrize("batch", [7, 13, 19, 95])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_what_is_left_at_the_end_of_an_epoch(network: str, batch: int) -> None:
    """The last batches have 5, 5, 1 and 1 of 96 samples. Those that would round differently as one are stepped one by one."""
    company([member(name, NETWORKS[network], batch_size=batch) for name in "abc"])


def test_a_last_validation_sample_is_not_made_as_one_by_chance() -> None:
    """The last layer rounds it differently for several members, which often does not show in one loss of each."""
    for names in ("abc", "def", "ghi"):
        company([member(name, partial(packs.mlp, 0.0, 40), eval_batch_size=packs.VAL - 1) for name in names])


@pytest.mark.parametrize(
    "rest",
    [
        {"clip_grad_norm": 0.1},
        {"accumulate": 2},
        {"drop_last": True, "batch_size": 20},
        {"subset": range(3, 80)},
        {"precision": "bfloat16"},
    ],
    ids=lambda rest: next(iter(rest)),
)
def test_options(rest: dict[str, Any]) -> None:
    company([member(name, **rest) for name in "abc"])


def test_members_with_subsets_of_their_own_and_broken_samples() -> None:
    members = [member(name, subset=[n for n in range(packs.TRAIN) if n % 4 != left]) for left, name in enumerate("abc")]
    assert as_one(company(members), 16)
    company(members, holes=[3, 4, 50])
    company([member(name) for name in "abc"], holes=[3, 4, 50])


@pytest.mark.parametrize("own", ["subset", "augment"])
def test_members_with_batches_of_their_own_validate_as_one_on_common_ones(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        member(name, **({"subset": range(n, n + 80)} if own == "subset" else {"augment": lambda batch: batch}))
        for n, name in enumerate("abc")
    ]
    values = Forward.values
    validated = []

    def noted(forward: Forward, *given: Any) -> Any:
        validated.append(not forward._training)
        return values(forward, *given)

    monkeypatch.setattr(Forward, "values", noted)
    lengths = company(members)
    assert as_one(lengths, 16) and lengths is not None and lengths.apart == (True, False)
    # Batches of 16 and 4 in each of two epochs, besides those of the check.
    assert sum(validated) >= 2 * 2 + 2


@pytest.mark.parametrize("network", [resnet] if CONVOLUTIONS_DIFFER else [resnet, cnn])
def test_neighbours_that_end(network: Any) -> None:
    """A member of a program of three keeps its bits in a program of two, and then alone."""
    members = [member(f"m{n}", network, optimizer=rate) for n, rate in enumerate(rates(3))]
    alone = [packs.live(one, exact=False) for one in members]
    for live, epochs in zip(alone, (3, 1, 2), strict=True):
        packs.train(Solo(live), epochs, dtype=torch.float32)
    lives = [packs.live(one, exact=False) for one in members]
    for go_on in ([0, 1, 2], [0, 2], [0]):
        program = Fused.of([lives[n] for n in go_on]) if len(go_on) > 1 else Solo(lives[0])
        packs.train(program, 1, dtype=torch.float32)
        program.release()
    for one, other in zip(alone, lives, strict=True):
        assert difference(state(one), state(other)) == 0.0, one.member.name


def test_a_pass_that_rounds_otherwise_is_no_promise() -> None:
    """Products of fewer than 400 multiplications, and convolutions of 6 channels, are fused without a promise of equal bits."""
    block = packs.blocks(packs.np.arange(24), 24, arrays=packs.samples(torch.float32)[0])[0]
    for model in (
        partial(mlp, 4),
        lambda: nn.Sequential(pictures(), nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3), nn.Flatten(), nn.Linear(96, 10)),
    ):
        lives = [packs.live(member(name, model), exact=False) for name in "ab"]
        assert list(admit(lives, block).packs.values()) == [None]


def test_the_test_would_see_another_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    cat = torch.cat

    def nudged(tensors: Any, dim: int = 0) -> Tensor:
        made = cat(tensors, dim)
        return made.nextafter(torch.full_like(made, torch.inf)) if made.dim() == 2 and len(made) == 3 else made

    monkeypatch.setattr(torch, "cat", nudged)
    with pytest.raises(AssertionError):
        assert as_one(company([member(name) for name in "abc"]), 16)
