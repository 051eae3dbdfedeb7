"""Tests that validation sums computed for all members at once have the bits of those that each member computes alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from packs import mlp
from torch import Tensor, nn

from argosy.stream.batches import Batch
from argosy.stream.order import Digest
from argosy.study import Member, accuracy
from argosy.training.device.devices import open_backend
from argosy.training.member.validation import Validation
from argosy.training.programs.fused.recorded import UnrecordedValidation

MEMBERS, CLASSES, BACKEND = 3, 4, open_backend("cpu:0")
DRAW = torch.Generator().manual_seed(0)


def validations(**more: Any) -> list[Validation]:
    """Return validations of members with differently named metrics, and of one without."""
    metrics: Sequence[dict[str, Any]] = ({"accuracy": accuracy}, {"right": accuracy, "again": accuracy}, {})
    made = [
        Member(f"m{n}", model=mlp, optimizer=torch.optim.SGD, batch_size=8, metrics=own)
        for n, own in enumerate(metrics)
    ]
    return [Validation(one, BACKEND, **more) for one in made]


def batch(rows: int, number: int) -> Batch:
    target = torch.randint(CLASSES, (rows,), generator=DRAW)
    return Batch((torch.zeros(rows, 2), target), rows, Digest(rows, number, number), rows)


def outputs(rows: int) -> tuple[Tensor, Tensor]:
    """Return random losses and network outputs of all members."""
    return torch.rand(MEMBERS, rows, generator=DRAW), torch.randn(MEMBERS, rows, CLASSES, generator=DRAW)


def add(into: Validation, own: Batch, losses: Tensor, output: Any) -> None:
    """Add a batch as a member alone does."""
    into.add(own.rows, own.digest, losses, output, own.data[1])


@pytest.mark.parametrize("shared", [True, False], ids=["of one batch", "of a batch each"])
def test_sums_of_all_are_those_of_each(shared: bool) -> None:
    together, apart, sums = validations(), validations(), UnrecordedValidation(BACKEND)
    for number, rows in enumerate((8, 8, 5, 8)):
        one = batch(rows, number)
        batches = [one if shared else batch(rows, number) for _ in range(MEMBERS)]
        losses, output = outputs(rows)
        for row, validation in enumerate(apart):
            add(validation, batches[row], losses[row], output[row])
        if number == 2:  # a batch that each member validates on its own
            sums.record()
            for row, validation in enumerate(together):
                add(validation, batches[row], losses[row], output[row])
        else:
            assert sums.add(tuple(together), batches, losses, output)
    sums.record()
    for one, other in zip(together, apart, strict=True):
        one.end()
        other.end()
        assert one.values() == other.values()
        assert one.digest == other.digest
    assert set(together[1].values()) == {"loss", "right", "again"}


def test_means_count_by_their_samples() -> None:
    together, apart, sums = validations(), validations(), UnrecordedValidation(BACKEND)
    for number, rows in enumerate((8, 3)):
        own, (losses, output) = batch(rows, number), outputs(rows)
        means = losses.mean(1)
        assert sums.add(tuple(together), [own] * MEMBERS, means, output)
        for row, validation in enumerate(apart):
            add(validation, own, means[row], output[row])
    sums.record()
    assert [one.values() for one in together] == [one.values() for one in apart]


@pytest.mark.parametrize("why", ["another metric", "answers", "one logit", "a tree"])
def test_others_add_their_own(why: str) -> None:
    into, sums, own = validations(), UnrecordedValidation(BACKEND), batch(8, 0)
    losses, output = outputs(8)
    found: Any = output
    if why == "another metric":
        into[0].member.metrics["own"] = lambda output, target: output[:, 0]  # type: ignore[index]
    if why == "answers":
        into = validations(answers=nn.Identity())
    if why == "one logit":
        found = output[..., :1]
    if why == "a tree":
        found = {"logits": output}
    assert not sums.add(tuple(into), [own] * MEMBERS, losses, found)
    sums.record()
    assert all(one.digest == Digest() for one in into)
