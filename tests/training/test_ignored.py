"""Tests that labels which cross-entropy ignores, of tokens or pixels, affect neither losses nor accuracies."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import Dataset

import argosy


class Tokens(Dataset[Any]):
    """Sequences of 2 to 31 tokens, each with itself as its label."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 5, (2 + index * 7 % 30,), generator=generator)
        return tokens, tokens


class Table(nn.Module):
    """A table of logits by token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.table(x).transpose(1, 2)
        return logits


def trained(directory: Path, data: argosy.Data, model: Any, **members: Any) -> argosy.Report:
    """Train members that differ only in the given fields."""
    make = partial(argosy.Member, model=model, optimizer=partial(SGD, lr=0.1), batch_size=8, seed=0)
    fleet = [make(name, metrics={"accuracy": argosy.accuracy}, **fields) for name, fields in members.items()]
    study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(1))
    return argosy.train(study, directory=directory, launcher="inline")


def test_padded_tokens_count_neither_in_losses_nor_in_accuracies(tmp_path: Path) -> None:
    data = argosy.Data(
        train=Tokens(), val=Tokens(), ragged=(argosy.Ragged(40), argosy.Ragged(40, pad=argosy.study.IGNORED))
    )
    sizes = {f"eval{size}": {"eval_batch_size": size} for size in (1, 7, 40)}
    report = trained(tmp_path, data, Table, **sizes)
    network = report.member("eval1").load()
    losses, right = [], []
    for tokens, _ in map(Tokens().__getitem__, range(40)):
        logits = network(tokens[None])
        losses.append(functional.cross_entropy(logits, tokens[None]).item())
        right.append((logits.argmax(1) == tokens).float().mean().item())
    for name in sizes:
        metrics = report.member(name).metrics
        assert metrics["val_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert metrics["val_accuracy"] == pytest.approx(sum(right) / len(right))


def test_pixels_of_no_class_are_left_out_as_torch_does_it(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 3, 4, 4, generator=generator)
    y = torch.randint(0, 3, (64, 4, 4), generator=generator)
    y[:, :2] = argosy.study.IGNORED
    data = argosy.Data(arrays=(x, y), val_arrays=(x, y))
    report = trained(tmp_path, data, partial(nn.Conv2d, 3, 3, 1), default={}, torchs={"loss": nn.CrossEntropyLoss()})
    default, torchs = (report.member(name).metrics for name in ("default", "torchs"))
    assert default["val_loss"] == pytest.approx(torchs["val_loss"], rel=1e-5)
    assert default["train_loss"] == pytest.approx(torchs["train_loss"], rel=1e-5)
    network = report.member("default").load()
    known = y != argosy.study.IGNORED
    right = (network(x).argmax(1) == y)[known].float().mean().item()
    assert default["val_accuracy"] == pytest.approx(right)


def test_a_sample_of_no_class_has_no_loss() -> None:
    output, target = torch.zeros(2, 3, 4), torch.full((2, 4), argosy.study.IGNORED)
    assert argosy.accuracy(output, target).tolist() == [0.0, 0.0]
