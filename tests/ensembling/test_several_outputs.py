"""Tests networks with several outputs: predictions have the network's structure, and ensembles combine each output separately."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

import argosy
from argosy.ensembling.ensemble import Ensemble
from argosy.errors import RunError, StudyError

X = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
TRAIN, VAL, NEW = slice(0, 200), slice(200, 300), slice(300, 600)


class Named(NamedTuple):
    kind: Any
    size: Any


@dataclass
class Fields:
    kind: Any
    size: Any


HEADS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda kind, size: (kind, size),
    "dict": lambda kind, size: {"kind": kind, "size": size},
    "named tuple": Named,
    "dataclass": Fields,
}


def both(output: Any) -> tuple[Any, Any]:
    """Return the two outputs, whatever structure holds them."""
    if isinstance(output, tuple):
        return output[0], output[1]
    values = output if isinstance(output, dict) else vars(output)
    return values["kind"], values["size"]


class TwoHeads(nn.Module):
    """A network that predicts a class, as logits, and a number, in the structure that `made` builds."""

    def __init__(self, made: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.made, self.body = made, nn.Linear(6, 8)
        self.kind, self.size = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        body = self.body(x).relu()
        return self.made(self.kind(body), self.size(body))


def loss(output: Any, target: Tensor) -> Tensor:
    kind, size = both(output)
    return functional.cross_entropy(kind, target) + functional.mse_loss(size[:, 0], target.float())


def trained(directory: Path, held: str, *, folds: bool = False) -> argosy.Report:
    model = partial(TwoHeads, HEADS[held])
    one = argosy.Member("heads", model=model, optimizer=partial(Adam, lr=0.01), batch_size=20, loss=loss)
    members = argosy.kfold(one, 2, samples=200) if folds else argosy.replicate(one, 3)
    val = TRAIN if folds else VAL
    data = argosy.Data(arrays=(X[TRAIN], Y[TRAIN]), val_arrays=(X[val], Y[val]))
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(4))
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", quiet=True)


@pytest.mark.parametrize("held", HEADS)
def test_predictions_and_ensembles_have_the_structure_of_the_networks(tmp_path: Path, held: str) -> None:
    report = trained(tmp_path, held)
    predicted, network = report.predict(X[NEW]), report.best().load()
    assert type(predicted) is type(network(X[:2]))
    for given, wanted in zip(both(predicted), both(network(X[NEW])), strict=True):
        torch.testing.assert_close(given, wanted)
    ways: Any = {"tuple": ("probabilities", "mean"), "named tuple": ("probabilities", "mean")}.get(
        held, {"size": "mean", "kind": "probabilities"}
    )
    ensemble = report.ensemble(combine=ways)
    assert ensemble.scores == () and "several outputs" in ensemble.note
    said = report.predict(X[NEW], ensemble)
    assert type(said) is type(predicted)
    alone = [both(report.member(name).load()(X[NEW])) for name in ensemble.names]
    torch.testing.assert_close(both(said)[0], torch.stack([kind.softmax(dim=1) for kind, _ in alone]).mean(dim=0))
    torch.testing.assert_close(both(said)[1], torch.stack([size for _, size in alone]).mean(dim=0))
    torch.testing.assert_close(
        both(ensemble.variance(X[NEW]))[1], torch.stack([size for _, size in alone]).var(0, correction=0)
    )
    kinds = torch.stack([kind.softmax(dim=1) for kind, _ in alone])
    torch.testing.assert_close(both(ensemble.variance(X[NEW]))[0], kinds.var(0, correction=0))
    torch.testing.assert_close(
        both(ensemble.quantiles(X[NEW], [0.0, 1.0]))[0], torch.stack([kinds.amin(0), kinds.amax(0)])
    )
    ensemble.save(tmp_path / "ensemble.pt")
    again = Ensemble.load(tmp_path / "ensemble.pt", report.networks().known_study().members)
    assert torch.equal(both(again(X[NEW]))[0], both(ensemble(X[NEW]))[0])


def test_one_word_is_for_all_outputs(tmp_path: Path) -> None:
    report = trained(tmp_path, "dict")
    ensemble = report.ensemble(combine="mean")
    alone = [report.member(name).load()(X[NEW])["kind"] for name in ensemble.names]
    torch.testing.assert_close(ensemble(X[NEW])["kind"], torch.stack(alone).mean(dim=0))


def test_out_of_fold_each_output_is_predicted_by_the_member_that_held_the_sample_out(tmp_path: Path) -> None:
    report = trained(tmp_path, "dict", folds=True)
    told = report.out_of_fold("heads")
    study: argosy.Study = report.networks().known_study()
    for member in study.members:
        rows = torch.as_tensor(member.val_subset)
        for name, output in report.member(member.name).load()(X[rows]).items():
            torch.testing.assert_close(told[name][rows], output)
    assert "several outputs" in report.ensemble(combine="mean").note


class Decided(nn.Module):
    """A network that says in eval() which class it is, as a byte, and whether it is the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        logits = self.line(x)
        kind = logits.argmax(dim=1)
        return logits if self.training else {"kind": (kind + 250).byte(), "first": kind == 0}


def loss_of_decisions(output: Any, target: Tensor) -> Tensor:
    if isinstance(output, dict):
        return (output["kind"] != target + 250).float()
    return functional.cross_entropy(output, target)


def test_bytes_and_flags_are_averaged_as_numbers(tmp_path: Path) -> None:
    member = argosy.Member(
        "net", model=Decided, optimizer=partial(Adam, lr=0.01), batch_size=50, loss=loss_of_decisions
    )
    study = argosy.Study(
        data=argosy.Data(arrays=(X[TRAIN], Y[TRAIN]), val_arrays=(X[TRAIN], Y[TRAIN])),
        members=argosy.kfold(member, 2, samples=200, repeats=2),
        stop=argosy.MaxEpochs(1),
    )
    report = argosy.train(study, directory=tmp_path, launcher="inline", quiet=True)
    networks = {one.name: report.member(one.name).load() for one in study.members}
    said, ensemble = report.out_of_fold("net"), report.ensemble(combine="mean")
    for name in ("kind", "first"):
        alone = {one: network(X[TRAIN])[name].float() for one, network in networks.items()}
        torch.testing.assert_close(ensemble(X[TRAIN])[name], torch.stack([*alone.values()]).mean(dim=0))
        wanted = torch.zeros(200)
        for one in study.members:
            wanted[list(one.val_subset or ())] += alone[one.name][list(one.val_subset or ())] / 2
        torch.testing.assert_close(said[name], wanted)


def pinball(output: Tensor, target: Tensor) -> Tensor:
    error, share = target - output, torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum((share - 1) * error, share * error).mean(1)


def test_quantiles_of_one_number_are_combined_each_by_itself(tmp_path: Path) -> None:
    adam, model = partial(Adam, lr=0.01), partial(nn.Linear, 6, 3)
    several = argosy.Member("net", model=model, optimizer=adam, loss=pinball, batch_size=50)
    arrays = X[TRAIN], X[TRAIN][:, :1]
    study = argosy.Study(
        data=argosy.Data(arrays=arrays, val_arrays=arrays),
        members=argosy.replicate(several, seeds=2),
        stop=argosy.MaxEpochs(1),
    )
    report = argosy.train(study, directory=tmp_path, launcher="inline")
    ensemble = report.ensemble(combine="mean")
    alone = torch.stack([report.member(name).load()(X[NEW]) for name in ensemble.names])
    torch.testing.assert_close(ensemble(X[NEW]), alone.mean(dim=0))
    assert (ensemble.scores, ensemble.note) == ((), "no scores: the networks have several outputs")


@pytest.mark.parametrize("held", ["tuple", "dict"])
def test_an_export_has_all_outputs(tmp_path: Path, held: str) -> None:
    report = trained(tmp_path / "run", held)
    for number, network in enumerate([None, report.ensemble(combine="mean")]):
        folder = report.export(tmp_path / f"{number}", network, format="torch-export")
        said = torch.export.load(folder / "model.pt2").module()(X[NEW])
        wanted = both((network or report.best().load())(X[NEW]))
        for given, output in zip(both(said), wanted, strict=True):
            torch.testing.assert_close(given, output)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "combine={'class': 'probabilities', 'age': 'mean'}"),
        ({"combine": {"kind": "mean"}}, "does not match the outputs of these networks, {'kind': ·, 'size': ·}"),
        ({"combine": ("mean", "mean")}, "a tuple for a tuple, else a dict"),
        ({"combine": {"kind": "mean", "size": "men"}}, "did you mean 'mean'"),
        ({"combine": "mean", "select": "greedy"}, "scores, select= and calibrate= need a single one"),
    ],
)
def test_a_combination_that_does_not_fit_the_outputs_is_refused_in_one_sentence(
    tmp_path: Path, asked: Mapping[str, Any], said: str
) -> None:
    report = trained(tmp_path, "dict")
    with pytest.raises((RunError, StudyError)) as raised:
        report.ensemble(**asked)
    assert said in str(raised.value)
