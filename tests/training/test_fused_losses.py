"""Tests that each kind of loss is exact in a fused program, or refused with its reason."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import packs
import pytest
import torch
from blocks import blocks
from packs import admission, pack
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from argosy.stream.schedule import Orders
from argosy.training.choice.admission import admit


def one_hot(target: Tensor, like: Tensor) -> Tensor:
    return functional.one_hot(target, 4).to(like.dtype)


def own_step(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss of two passes, of which the second is compared with the first."""
    x, target = batch
    first, second = model(x), model(x * 0.5)
    return functional.cross_entropy(first, target) + functional.mse_loss(first, second, reduction="none").mean(1)


def alignment(output: Tensor, target: Tensor) -> Tensor:
    """Return the CTC loss of each sample's output, repeated five times, against a sequence of one label."""
    scores, labels = output.log_softmax(1).expand(5, -1, -1), (target % 3 + 1).unsqueeze(1)
    return functional.ctc_loss(scores, labels, torch.full_like(target, 5), torch.ones_like(target), reduction="none")


def triplets(output: Tensor, target: Tensor) -> Tensor:
    right = one_hot(target, output)
    return functional.triplet_margin_loss(output, right, right.roll(1, 1), reduction="none")


def angles(output: Tensor, target: Tensor) -> Tensor:
    ones = torch.ones(len(output), dtype=output.dtype)
    return functional.cosine_embedding_loss(output, one_hot(target, output), ones, reduction="none")


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
    "soft targets": {
        "loss": lambda output, target: functional.cross_entropy(output, one_hot(target, output) * 0.7 + 0.1)
    },
    "likelihood": {"loss": lambda output, target: functional.nll_loss(output.log_softmax(1), target, reduction="none")},
    "counts": {"loss": lambda output, target: functional.poisson_nll_loss(output, one_hot(target, output))},
    "absolute": {"loss": lambda output, target: functional.l1_loss(output, one_hot(target, output), reduction="none")},
    "margins": {"loss": lambda output, target: functional.multilabel_soft_margin_loss(output, one_hot(target, output))},
    "sequences": {"loss": alignment},
    "triplets": {"loss": triplets},
    "angles": {"loss": angles},
    "an own step": {"step": own_step, "metrics": {}},
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses(kind: str) -> None:
    found = admission(pack(packs.mlp, **LOSSES[kind]))
    assert (tuple(found.packs), dict(found.alone)) == ((("m0", "m1", "m2"),), {})


def likely(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss that checks whether a variance is negative."""
    return functional.gaussian_nll_loss(output, one_hot(target, output), output.exp(), reduction="none")


def test_a_loss_that_looks_at_values_is_refused() -> None:
    found = admission(pack(packs.mlp, loss=likely))
    assert tuple(found.packs) == ()
    assert all(words.startswith("as one program it raises") for words in found.alone.values())


class Returning(nn.Module):
    """An MLP that returns its output in a tuple or another object."""

    def __init__(self, how: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.how = packs.mlp(), how

    def forward(self, x: Tensor) -> Any:
        return self.how(self.inner(x))


def of_output(output: Any, target: Tensor) -> Tensor:
    if isinstance(output, Categorical):
        return -output.log_prob(target)
    return functional.cross_entropy(output[0], target, reduction="none")


@pytest.mark.parametrize("how", [lambda output: (output, None), lambda output: Categorical(logits=output)])
def test_networks_that_return_no_tensors_are_refused(how: Any) -> None:
    lives = [packs.live(member) for member in pack(partial(Returning, how), loss=of_output, metrics={})]
    for live in lives:
        live.begin_epoch(Orders(0, {"train": 24, "val": 24}), 0)
    (block,) = blocks(np.arange(24), 24, arrays=packs.samples(torch.float32)[0])
    found = admit(lives, block)
    assert all("which is not a tensor" in words for words in found.alone.values())
    assert (found.packs, found.failed) == ({}, {})
