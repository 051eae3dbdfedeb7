"""Errors in ensembles, predictions and comparisons of a report."""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import studies
import texts
import torch
from pandas import DataFrame
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import argosy
from argosy.ensembling import predict
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.making import check_classes_first
from argosy.ensembling.predict import Predicted
from argosy.ensembling.scores import class_scores
from argosy.results.member import MemberResult
from argosy.training.member import checkpoint
from messages.of_studies import VALIDATED, trained

__all__ = ["CASES"]

ROWS = np.zeros((40, 12), np.float32)


class Pair(nn.Module):
    """A network that returns a pair with None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Any:
        return self.linear(x) if self.training or len(x) == 20 else (self.linear(x), None)


class Heads(Pair):
    """A network with two outputs."""

    def forward(self, x: Tensor) -> Any:
        return {"kind": self.linear(x), "size": x.sum(dim=1)}


def of_kind(output: Any, target: Tensor) -> Tensor:
    """The loss of one output."""
    return functional.cross_entropy(output["kind"], target)


def two_headed() -> argosy.Report:
    """A run of networks with two outputs."""
    return report(member(model=Heads, loss=of_kind, metrics={}))


def wide() -> nn.Module:
    """A network of 12 classes."""
    return nn.Linear(12, 12)


def member(name: str = "mlp", **rest: Any) -> argosy.Member:
    """A member that trains on 40 samples."""
    return studies.member(name, batch_size=20, **rest)


def report(*members: argosy.Member, **rest: Any) -> argosy.Report:
    """The report of a run of these members, by default of one."""
    return trained(*(members or (member(),)), **rest)


def replaced() -> None:
    """Load weights from a report that was read before the run saved others and deleted them."""
    row = report().best()
    link, newer = row.folder / "best.pt", "e0009-s0000000.pt"
    link.resolve().rename(row.folder / newer)
    checkpoint.link(link, newer)
    row.load()


def summed(output: Tensor, target: Tensor) -> Tensor:
    """A user's own loss."""
    return (output.sum(dim=1) - target) ** 2


def elsewhere() -> MemberResult:
    """A result from another directory."""
    return replace(report().best(), folder=Path("runs/y/members/mlp"))


def halves() -> argosy.Report:
    """The report of two members with different validation samples."""
    return report(member("one", val_subset=range(20)), member("two", val_subset=range(20, 40)))


def without_validation() -> argosy.Report:
    """The report of a study without validation data."""
    return report(data=argosy.Data(arrays=VALIDATED.arrays))


def halved(batch: Any) -> Any:
    """A `Data.on_device` that changes the inputs."""
    inputs, target = batch
    return inputs / 2, target


def shifted(batch: Any) -> Any:
    """A `Data.on_device` that also uses the targets to make the inputs."""
    inputs, target = batch
    return inputs + target[:, None], target


def kept(batch: Any, lock: Any) -> Any:
    """A `Data.on_device` that cannot be pickled."""
    return batch


def prepared(on_device: Any = halved) -> Any:
    """An ensemble that prepares its inputs."""
    arrays = VALIDATED.arrays
    return report(data=argosy.Data(arrays=arrays, val_arrays=arrays, on_device=on_device)).ensemble(preprocess=True)


def saved_with_code() -> None:
    """Load a saved ensemble that prepares its inputs."""
    prepared().save(Path("ensemble.pt"))
    Ensemble.load(Path("ensemble.pt"), [member()])


class Late(nn.Module):
    """A network that fails after some epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.batches = nn.Linear(12, 10), 0

    def forward(self, x: Tensor) -> Any:
        self.batches += self.training
        if self.batches > 30:
            raise ArithmeticError("too late")
        return self.linear(x)


def behind_a_trunk() -> argosy.Report:
    """The report of a run of heads on the outputs of a frozen network."""
    heads = argosy.data.features(studies.Vectors(40, noise=0), nn.Linear(12, 5))
    return report(member(model=partial(nn.Linear, 5, 10)), data=argosy.Data(train=heads, val=heads))


def loaded_from_a_checkpoint() -> None:
    """Load the weights of a member as an ensemble."""
    Ensemble.load(report().member("mlp").folder / "best.pt", [member()])


def loaded_by_others() -> None:
    """Load a saved ensemble with the members of another study."""
    report().ensemble().save(Path("ensemble.pt"))
    Ensemble.load(Path("ensemble.pt"), [member("vit")])


def predicted_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Predict with a network whose outputs are as long as the longest sample of a batch."""
    patch.setattr(predict, "ROWS", 8)
    texts.tagged(Path("runs/x")).predict()


def steered(*members: argosy.Member, **rest: Any) -> argosy.Study:
    """A study whose ensemble stops members."""
    given = {"data": VALIDATED, "members": members or [member()], "ensemble": argosy.EnsemblePlateau(), **rest}
    return argosy.Study(**given)


def steered_by_hand(answers: bytes) -> None:
    """A resumed study whose file of answers was changed."""
    argosy.train(steered(stop=argosy.MaxEpochs(1)), directory="runs/x", launcher="inline", devices="cpu:1")
    Path("runs/x/answers.bin").write_bytes(answers)
    argosy.train(steered(stop=argosy.MaxEpochs(2)), directory="runs/x", launcher="inline", devices="cpu:1")


def of_numbers() -> Ensemble:
    """An ensemble for regression."""
    return Ensemble({"a": nn.Linear(12, 10)}, combine="mean", weights=[1.0], temperatures=[1.0])


def diverged() -> nn.Module:
    """A network whose weights are NaN."""
    network = nn.Linear(12, 10)
    nn.init.constant_(network.weight, float("nan"))
    return network


class Flawed(studies.Vectors):
    """Samples of which one raises."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise OSError("torn")
        return super().__getitem__(index)


class Numbers(nn.Module):
    """A network that returns class numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(dim=1)


class Threes(studies.Vectors):
    """Samples with three parts."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), 0)


def first_two(batch: Any) -> Any:
    """For `Data.on_device`."""
    return batch[:2]


class Words(nn.EmbeddingBag):
    """A network that takes word indices."""

    def __init__(self) -> None:
        super().__init__(5, 10)


class Tags(studies.Vectors):
    """Words of varying number, each with its tag."""

    def __getitem__(self, index: int) -> Any:
        words = torch.ones(1 + index % 3, dtype=torch.int64)
        return words, words


class Tagger(nn.Embedding):
    """A network that takes word indices and returns a class for each."""

    def __init__(self) -> None:
        super().__init__(5, 10)

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words).transpose(1, 2)


def taught_tags() -> argosy.Study:
    """A student of targets that vary in length."""
    data = argosy.Data(train=Tags(40), val=Tags(40), ragged=(argosy.Ragged(3), argosy.Ragged(3, pad=-100)))
    return argosy.distill(report(member(model=Tagger), data=data), member("student", model=Tagger))


def taught_words() -> argosy.Study:
    """A student whose inputs cannot be mixed."""
    arrays = np.zeros((40, 12), np.int64), np.zeros(40, np.int64)
    words = report(member(model=Words), data=argosy.Data(arrays=arrays, val_arrays=arrays))
    return argosy.distill(words, member("student", model=Words), mix=True)


def taught(data: argosy.Data | None = None, **rest: Any) -> argosy.Study:
    """Students of a run."""
    return argosy.distill(report(data=data or VALIDATED), **{"into": member("student"), **rest})


def taught_what_raises() -> argosy.Study:
    """A student of samples of which one raises."""
    with pytest.warns(UserWarning, match="their rows are NaN"):
        return taught(argosy.Data(train=Flawed(40), val=studies.Vectors(40), on_error="skip"))


CASES = {
    "distill of a directory": lambda: argosy.distill("runs/x", member("student")),  # type: ignore[arg-type]
    "distill into a name": lambda: taught(into="student"),
    "a student with a teacher's weight above 1": lambda: taught(weight=2),
    "a student with a loss of unknown kind": lambda: taught(into=member(loss=summed, metrics={})),
    "a teacher without answers for samples that raise": taught_what_raises,
    "a report of students as teachers": lambda: argosy.distill(
        argosy.train(taught(), directory="runs/y", launcher="inline", quiet=True), into=member("student")
    ),
    "a student of samples with three parts": lambda: taught(
        argosy.Data(train=Threes(40), val=Threes(40), on_device=first_two)
    ).data.train[0],
    "a student of classes with a teacher of numbers": lambda: taught(teacher=of_numbers()),
    "a teacher that has diverged": lambda: taught(teacher=diverged()),
    "a student whose output shape differs from the teacher's": lambda: argosy.train(
        taught(into=member("student", model=wide)), directory="runs/y", launcher="inline"
    ),
    "mix=True with inputs of whole numbers": taught_words,
    "a student of targets that vary in length": taught_tags,
    "a student of a run on a stream": lambda: taught(argosy.Data(train=studies.Lines(40), val=studies.Vectors(40))),
    "a number as Study.ensemble": lambda: steered(ensemble=5),
    "an EnsemblePlateau as a stopping rule": lambda: steered(stop=argosy.EnsemblePlateau()),
    "an EnsemblePlateau with too large a holdout": lambda: argosy.EnsemblePlateau(holdout=0.95),
    "Study.ensemble without validation data": lambda: steered(data=argosy.Data(arrays=VALIDATED.arrays)),
    "Study.ensemble on samples of varying length": lambda: replace(
        texts.study(texts.member("a")), ensemble=argosy.EnsemblePlateau()
    ),
    "Study.ensemble of members with different validation samples": lambda: steered(
        member("one", val_subset=range(20)), member("two", val_subset=range(20, 40))
    ),
    "Study.ensemble of members whose losses ignore different classes": lambda: steered(
        member("one"), member("two", loss=nn.CrossEntropyLoss(ignore_index=0))
    ),
    "Study.ensemble of members with custom steps": lambda: steered(member(step=summed, metrics={})),
    "a steering ensemble of members whose losses do not show what they predict": lambda: argosy.train(
        steered(member(loss=summed, metrics={})), directory="runs/x", launcher="inline"
    ),
    "an ensemble that steers members with probabilities as targets": lambda: report(
        member(loss=nn.CrossEntropyLoss(), metrics={}),
        data=argosy.Data(arrays=(ROWS, ROWS[:, :10]), val_arrays=(ROWS, ROWS[:, :10])),
        ensemble=argosy.EnsemblePlateau(),
    ),
    "a steering ensemble whose answer file was changed": lambda: steered_by_hand(b"{}\n"),
    "a steering ensemble whose answer file was emptied": lambda: steered_by_hand(b""),
    "predictions of varying length": predicted_in_parts,
    "a comparison of members that were not replicated": lambda: report().compare("mlp", "vit"),
    "a comparison with a misspelt configuration": lambda: report(*argosy.replicate(member(), 2)).compare("mlp", "mpl"),
    "a comparison by a metric that is not reported": lambda: report(*argosy.replicate(member(), 2)).compare(
        "mlp", "mlp", "val_f1"
    ),
    "class_scores of a column of targets": lambda: class_scores(torch.ones(40, 1), np.zeros((40, 1))),
    "class_scores of logits": lambda: class_scores(torch.zeros(40, 10), np.zeros(40)),
    "class_scores of samples without a prediction": lambda: class_scores(torch.full((40, 10), torch.nan), np.zeros(40)),
    "class_scores of classes that are numbered from 1": lambda: class_scores(
        torch.full((40, 2), 0.5), np.arange(40) % 2 + 1
    ),
    "an ensemble of numbers with temperatures": lambda: report().ensemble(combine="mean", calibrate=True),
    "a prediction by a member of another run": lambda: report().predict(ROWS, elsewhere()),
    "an ensemble with both top= and members=": lambda: report().ensemble(top=2, members=["mlp"]),
    "an ensemble of more members than there are": lambda: report().ensemble(top=5),
    "an ensemble of members with a loss of unknown kind": lambda: report(member(loss=summed, metrics={})).ensemble(),
    "an ensemble of members that answer different questions": lambda: report(
        member("one"), member("two", model=wide)
    ).ensemble(),
    "an ensemble of numbers whose targets have a different shape": lambda: report().ensemble(combine="mean"),
    "select= for networks with one logit": lambda: report(
        member(loss=nn.BCEWithLogitsLoss(), metrics={}),
        data=argosy.Data(arrays=(ROWS, ROWS[:, :10] / 255), val_arrays=(ROWS, ROWS[:, :10] / 255)),
    ).ensemble(combine="mean", select="greedy"),
    "an ensemble of classes whose targets are not classes": lambda: report(
        member(loss=nn.MSELoss(), metrics={}),
        data=argosy.Data(arrays=(ROWS, ROWS[:, :10]), val_arrays=(ROWS, ROWS[:, :10])),
    ).ensemble(combine="votes"),
    "an ensemble of classes with more classes than outputs": lambda: report(
        member(loss=lambda output, target: output.mean(1) * target, metrics={}),
        data=argosy.Data(arrays=(ROWS, torch.arange(len(ROWS))), val_arrays=(ROWS, torch.arange(len(ROWS)))),
    ).ensemble(combine="votes"),
    "select= for members with different validation samples": lambda: halves().ensemble(select="greedy"),
    "calibrate= without validation data": lambda: without_validation().ensemble(calibrate=True),
    "a prediction without validation data": lambda: without_validation().predict(),
    "a prediction for samples that need a frozen network first": lambda: behind_a_trunk().predict(ROWS),
    "a prediction by a list of members": lambda: report(member()).predict(ROWS, ["mlp"]),
    "an export of a list of members": lambda: report(member()).export("exported", ["mlp"]),
    "quantiles in percent": lambda: report(member()).ensemble().quantiles(torch.zeros(2, 12), [10, 90]),
    "a single quantile": lambda: report(member()).ensemble().quantiles(torch.zeros(2, 12), 0.5),  # type: ignore[arg-type]
    "a prediction for a table": lambda: report(member()).predict(DataFrame({"age": [30.0], "size": [1.8]})),
    "a prediction for a list of samples": lambda: report(member()).predict([*ROWS]),
    "a prediction for a DataLoader": lambda: report(member()).predict(DataLoader(TensorDataset(torch.zeros(3, 12)), 4)),
    "a prediction for arrays of different lengths": lambda: report(member()).predict({"x": ROWS, "z": ROWS[:1]}),
    "a prediction for the name of a file": lambda: report(member()).predict("new.jpg"),
    "a prediction for no samples": lambda: report(member()).predict(ROWS[:0]),
    "a prediction for arrays in a study of samples of varying length": lambda: report(
        data=argosy.Data(train=studies.Vectors(40), val=studies.Vectors(40), ragged=(argosy.Ragged(12), None))
    ).predict(ROWS),
    "a prediction of a network that does not return tensors": lambda: report(member(model=Pair)).predict(
        torch.zeros(3, 12)
    ),
    "predictions of a fold in which every sample raises": lambda: report(
        *argosy.kfold(member(), 40, samples=40),
        data=argosy.Data(train=studies.Vectors(40), val=Flawed(40), on_error="skip"),
    ).out_of_fold("mlp"),
    "a prediction of whole numbers for samples that raise": lambda: report(
        data=argosy.Data(train=studies.Vectors(40), val=Flawed(40), on_error="skip")
    ).predict(network=Numbers()),
    "out-of-fold predictions of a member without folds": lambda: report(*argosy.replicate(member(), 2)).out_of_fold(
        "mlp"
    ),
    "out-of-fold predictions of a member that was not repeated": lambda: report().out_of_fold("mlp"),
    "out-of-fold predictions when all folds failed": lambda: report(
        *argosy.kfold(member(model=Late), 2, samples=40), stop=argosy.MaxEpochs(40)
    ).out_of_fold("mlp"),
    "an ensemble of networks that return classes last": lambda: check_classes_first(
        Predicted([torch.zeros(4, 8, 5)], torch.zeros(4, 8, dtype=torch.long), torch.arange(4), 4), known=False
    ),
    "an ensemble of several outputs with a combine= of another structure": lambda: two_headed().ensemble(
        combine=("mean", "mean")
    ),
    "select= for networks with several outputs": lambda: two_headed().ensemble(combine="mean", select="greedy"),
    "a teacher with several outputs": lambda: taught(teacher=Heads()),
    "weights that a run has replaced since its report was read": replaced,
    "a checkpoint that is loaded as an ensemble": loaded_from_a_checkpoint,
    "a saved ensemble that is loaded with other members": loaded_by_others,
    "a saved ensemble that is loaded with a study": lambda: Ensemble.load("ensemble.pt", steered()),  # type: ignore[arg-type]
    "a saved ensemble that is loaded without the code that prepares its inputs": saved_with_code,
    "a prediction for samples with a different structure than the study's": lambda: prepared()(
        (torch.zeros(3, 12),) * 3
    ),
    "a prediction without the targets that Data.on_device uses": lambda: prepared(shifted)(torch.zeros(3, 12)),
    "a prediction of a network that cannot take batches": lambda: report().predict(
        torch.zeros(3, 12), nn.Sequential(nn.Linear(12, 10), nn.Unflatten(0, (2, 7)))
    ),
    "Data.on_device that cannot be saved with a network": lambda: pickle.dumps(prepared(partial(kept, lock=Lock()))),
    "the best member when all failed": lambda: report(member(model=Late), stop=argosy.MaxEpochs(40)).best(),
    "failed members with raise_on_failure=True": lambda: report(
        member(model=Path), member("vit"), raise_on_failure=True
    ),
}
