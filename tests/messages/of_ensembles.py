"""What is wrong with an ensemble, a prediction, or a comparison that a report is asked for."""

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
from argosy.ensembling.scores import class_scores, number_scores
from argosy.results.member import MemberResult
from messages.of_studies import VALIDATED, trained

__all__ = ["CASES"]

ROWS = np.zeros((40, 12), np.float32)


class Pair(nn.Module):
    """A network that returns more than one thing."""

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
    """The loss of one of them."""
    return functional.cross_entropy(output["kind"], target)


def two_headed() -> argosy.Report:
    """A run of networks with two outputs."""
    return report(member(model=Heads, loss=of_kind, metrics={}))


def wide() -> nn.Module:
    """A network of 12 classes."""
    return nn.Linear(12, 12)


def member(name: str = "mlp", **rest: Any) -> argosy.Member:
    """One that trains on 40 samples."""
    return studies.member(name, batch_size=20, **rest)


def report(*members: argosy.Member, **rest: Any) -> argosy.Report:
    """Of a run of these members, or of one."""
    return trained(*(members or (member(),)), **rest)


def summed(output: Tensor, target: Tensor) -> Tensor:
    """A loss of a person's own."""
    return (output.sum(dim=1) - target) ** 2


def elsewhere() -> MemberResult:
    """Of another directory."""
    return replace(report().best(), folder=Path("runs/y/members/mlp"))


def halves() -> argosy.Report:
    """Of two members that are validated on samples of their own."""
    return report(member("one", val_subset=range(20)), member("two", val_subset=range(20, 40)))


def without_validation() -> argosy.Report:
    """Of a study without validation data."""
    return report(data=argosy.Data(arrays=VALIDATED.arrays))


def halved(batch: Any) -> Any:
    """What a study does to batches of inputs and targets."""
    inputs, target = batch
    return inputs / 2, target


def shifted(batch: Any) -> Any:
    """One that makes inputs of targets as well."""
    inputs, target = batch
    return inputs + target[:, None], target


def kept(batch: Any, lock: Any) -> Any:
    """One that holds what no file can."""
    return batch


def prepared(on_device: Any = halved) -> Any:
    """An ensemble that prepares its inputs."""
    arrays = VALIDATED.arrays
    return report(data=argosy.Data(arrays=arrays, val_arrays=arrays, on_device=on_device)).ensemble(preprocess=True)


def saved_with_code() -> None:
    """An ensemble that was saved, and prepares its inputs."""
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
    """A run of heads on what a frozen network makes."""
    heads = argosy.data.features(studies.Vectors(40, noise=0), nn.Linear(12, 5))
    return report(member(model=partial(nn.Linear, 5, 10)), data=argosy.Data(train=heads, val=heads))


def loaded_by_others() -> None:
    """An ensemble that was saved, and members of another study."""
    report().ensemble().save(Path("ensemble.pt"))
    Ensemble.load(Path("ensemble.pt"), [member("vit")])


def predicted_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Of a network with outputs as long as the longest sample of a batch."""
    patch.setattr(predict, "ROWS", 8)
    texts.tagged(Path("runs/x")).predict()


def steered(*members: argosy.Member, **rest: Any) -> argosy.Study:
    """A study whose ensemble ends members."""
    given = {"data": VALIDATED, "members": members or [member()], "ensemble": argosy.EnsemblePlateau(), **rest}
    return argosy.Study(**given)


def steered_by_hand() -> None:
    """One whose file of answers was changed."""
    argosy.train(steered(stop=argosy.MaxEpochs(1)), directory="runs/x", launcher="inline", devices="cpu:1")
    Path("runs/x/answers.bin").write_bytes(b"{}\n")
    argosy.train(steered(stop=argosy.MaxEpochs(2)), directory="runs/x", launcher="inline", devices="cpu:1")


def of_numbers() -> Ensemble:
    """An ensemble of a regression."""
    return Ensemble({"a": nn.Linear(12, 10)}, combine="mean", weights=[1.0], temperatures=[1.0])


def diverged() -> nn.Module:
    """A network whose weights are not numbers."""
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
    """A network that names classes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(dim=1)


class Threes(studies.Vectors):
    """Samples of three parts."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), 0)


def first_two(batch: Any) -> Any:
    """For `Data.on_device`."""
    return batch[:2]


class Words(nn.EmbeddingBag):
    """A network that takes numbers of words."""

    def __init__(self) -> None:
        super().__init__(5, 10)


def taught_words() -> argosy.Study:
    """A student whose inputs have nothing between them."""
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
    "a student that learns from its teacher alone and more": lambda: taught(weight=2),
    "a student whose loss does not tell what it says": lambda: taught(into=member(loss=summed, metrics={})),
    "a student of samples that the teacher could not be asked about": taught_what_raises,
    "a student of students": lambda: argosy.distill(
        argosy.train(taught(), directory="runs/y", launcher="inline", quiet=True), into=member("student")
    ),
    "a student of samples of three parts": lambda: taught(
        argosy.Data(train=Threes(40), val=Threes(40), on_device=first_two)
    ).data.train[0],
    "a student of classes whose teacher says numbers": lambda: taught(teacher=of_numbers()),
    "a student whose teacher has diverged": lambda: taught(teacher=diverged()),
    "a student whose network returns something else than its teacher": lambda: argosy.train(
        taught(into=member("student", model=wide)), directory="runs/y", launcher="inline"
    ),
    "a student of mixed inputs that are numbers of words": taught_words,
    "a student of a stream": lambda: taught(argosy.Data(train=studies.Lines(40), val=studies.Vectors(40))),
    "an ensemble that steers and is none": lambda: steered(ensemble=5),
    "an ensemble that steers and is given as a rule of members": lambda: steered(stop=argosy.EnsemblePlateau()),
    "an ensemble that is chosen on next to nothing": lambda: argosy.EnsemblePlateau(holdout=0.95),
    "an ensemble that steers without validation": lambda: steered(data=argosy.Data(arrays=VALIDATED.arrays)),
    "an ensemble that steers on samples of unlike length": lambda: replace(
        texts.study(texts.member("a")), ensemble=argosy.EnsemblePlateau()
    ),
    "an ensemble that steers members of different samples": lambda: steered(
        member("one", val_subset=range(20)), member("two", val_subset=range(20, 40))
    ),
    "an ensemble that steers members with steps of their own": lambda: steered(member(step=summed, metrics={})),
    "an ensemble that steers members whose loss does not tell what they say": lambda: argosy.train(
        steered(member(loss=summed, metrics={})), directory="runs/x", launcher="inline"
    ),
    "an ensemble that steers members whose targets are probabilities": lambda: report(
        member(loss=nn.CrossEntropyLoss(), metrics={}),
        data=argosy.Data(arrays=(ROWS, ROWS[:, :10]), val_arrays=(ROWS, ROWS[:, :10])),
        ensemble=argosy.EnsemblePlateau(),
    ),
    "an ensemble that steers, whose file was changed": steered_by_hand,
    "a prediction of unlike length": predicted_in_parts,
    "a comparison with what was not replicated": lambda: report().compare("mlp", "vit"),
    "a comparison with a misspelt configuration": lambda: report(*argosy.replicate(member(), 2)).compare("mlp", "mpl"),
    "a comparison by what is not reported": lambda: report(*argosy.replicate(member(), 2)).compare(
        "mlp", "mlp", "val_f1"
    ),
    "scores of classes of a column of targets": lambda: class_scores(torch.ones(40, 1), np.zeros((40, 1))),
    "scores of logits": lambda: class_scores(torch.zeros(40, 10), np.zeros(40)),
    "scores of classes that are numbered from 1": lambda: class_scores(torch.full((40, 2), 0.5), np.arange(40) % 2 + 1),
    "scores of a column of numbers": lambda: number_scores(torch.zeros(40, 1), np.zeros(40)),
    "scores of samples that nothing was predicted for": lambda: number_scores(
        torch.full((40,), torch.nan), np.zeros(40)
    ),
    "an ensemble of numbers with temperatures": lambda: report().ensemble(combine="mean", calibrate=True),
    "a prediction by a member of another run": lambda: report().predict(ROWS, elsewhere()),
    "an ensemble of the best and of named members": lambda: report().ensemble(top=2, members=["mlp"]),
    "an ensemble of more members than there are": lambda: report().ensemble(top=5),
    "an ensemble of members whose loss does not tell what they say": lambda: report(
        member(loss=summed, metrics={})
    ).ensemble(),
    "an ensemble of members that answer different questions": lambda: report(
        member("one"), member("two", model=wide)
    ).ensemble(),
    "an ensemble of numbers whose targets have another shape": lambda: report().ensemble(combine="mean"),
    "a selection among networks of one logit": lambda: report(
        member(loss=nn.BCEWithLogitsLoss(), metrics={}),
        data=argosy.Data(arrays=(ROWS, ROWS[:, :10] / 255), val_arrays=(ROWS, ROWS[:, :10] / 255)),
    ).ensemble(combine="mean", select="greedy"),
    "an ensemble of classes whose targets are none": lambda: report(
        member(loss=nn.MSELoss(), metrics={}),
        data=argosy.Data(arrays=(ROWS, ROWS[:, :10]), val_arrays=(ROWS, ROWS[:, :10])),
    ).ensemble(combine="votes"),
    "an ensemble of classes that networks do not tell apart": lambda: report(
        member(loss=lambda output, target: output.mean(1) * target, metrics={}),
        data=argosy.Data(arrays=(ROWS, torch.arange(len(ROWS))), val_arrays=(ROWS, torch.arange(len(ROWS)))),
    ).ensemble(combine="votes"),
    "a selection among members that were validated on different samples": lambda: halves().ensemble(select="greedy"),
    "a selection without validation data": lambda: without_validation().ensemble(calibrate=True),
    "a prediction without validation data": lambda: without_validation().predict(),
    "a prediction of samples that a frozen network was to be run on first": lambda: behind_a_trunk().predict(ROWS),
    "a prediction of a table": lambda: report(member()).predict(DataFrame({"age": [30.0], "size": [1.8]})),
    "a prediction of a loader": lambda: report(member()).predict(DataLoader(TensorDataset(torch.zeros(3, 12)), 4)),
    "a prediction of arrays of unlike lengths": lambda: report(member()).predict({"x": ROWS, "z": ROWS[:1]}),
    "a prediction of samples of unlike length as arrays": lambda: report(
        data=argosy.Data(train=studies.Vectors(40), val=studies.Vectors(40), ragged=(argosy.Ragged(12), None))
    ).predict(ROWS),
    "a prediction of a network that returns no tensor": lambda: report(member(model=Pair)).predict(torch.zeros(3, 12)),
    "predictions of a fold of which every sample raises": lambda: report(
        *argosy.kfold(member(), 40, samples=40),
        data=argosy.Data(train=studies.Vectors(40), val=Flawed(40), on_error="skip"),
    ).out_of_fold("mlp"),
    "a prediction of samples that raise, of whole numbers": lambda: report(
        data=argosy.Data(train=studies.Vectors(40), val=Flawed(40), on_error="skip")
    ).predict(network=Numbers()),
    "predictions of folds of a member that has none": lambda: report(*argosy.replicate(member(), 2)).out_of_fold("mlp"),
    "predictions of folds of a member that was not repeated": lambda: report().out_of_fold("mlp"),
    "predictions of folds that all failed": lambda: report(
        *argosy.kfold(member(model=Late), 2, samples=40), stop=argosy.MaxEpochs(40)
    ).out_of_fold("mlp"),
    "an ensemble of networks of which classes are last": lambda: check_classes_first(
        Predicted([torch.zeros(4, 8, 5)], torch.zeros(4, 8, dtype=torch.long), torch.arange(4), 4), known=False
    ),
    "an ensemble of several outputs that are combined as others": lambda: two_headed().ensemble(
        combine=("mean", "mean")
    ),
    "a selection among networks with several outputs": lambda: two_headed().ensemble(combine="mean", select="greedy"),
    "a student whose teacher has several outputs": lambda: taught(teacher=Heads()),
    "a saved ensemble without its members": loaded_by_others,
    "a saved ensemble that prepares its inputs, without the code for that": saved_with_code,
    "a prediction of samples of another form than the study's": lambda: prepared()((torch.zeros(3, 12),) * 3),
    "a prediction without the targets that inputs are made of": lambda: prepared(shifted)(torch.zeros(3, 12)),
    "a prediction of a network that takes no batch of the study": lambda: report().predict(
        torch.zeros(3, 12), nn.Sequential(nn.Linear(12, 10), nn.Unflatten(0, (2, 7)))
    ),
    "a network whose preparation cannot be saved": lambda: pickle.dumps(prepared(partial(kept, lock=Lock()))),
    "the best of members that all failed": lambda: report(member(model=Late), stop=argosy.MaxEpochs(40)).best(),
    "members that failed, and are to be an error": lambda: report(
        member(model=Path), member("vit"), raise_on_failure=True
    ),
}
