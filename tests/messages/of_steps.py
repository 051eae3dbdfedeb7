"""Mistakes in steps that move the weights themselves, in adapters, and in trackers."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pytest
import studies
import torch
from pandas import DataFrame
from scipy.sparse import csr_matrix
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import MeanMetric

import argosy
import argosy.adapters
from argosy.adapters import loop
from argosy.tracking import make_trackers
from argosy.training.member.own import load_optimizer_state
from argosy.training.optim.optimizer_list import OptimizerList
from messages.of_studies import ARRAYS, trained

__all__ = ["CASES"]

NETWORK = nn.Linear(12, 10)


def linear() -> nn.Module:
    """Return a network without BatchNorm."""
    return nn.Linear(12, 10)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss of a batch."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def adding_up(model: nn.Module, batch: Any, optimizers: Any) -> torch.Tensor:
    """A step that accumulates gradients over several batches."""
    value = loss(model, batch)
    value.backward()
    return value


def step(model: nn.Module, batch: Any, optimizers: Any) -> torch.Tensor:
    """A step that moves the weights."""
    found = loss(model, batch)
    found.backward()
    optimizers["all"].step()
    return found


def optimizers(model: nn.Module) -> dict[str, Any]:
    """Return one optimizer of all parameters."""
    return {"all": SGD(model.parameters(), lr=0.1)}


def member(**fields: Any) -> argosy.Member:
    """Return a member whose step moves the weights, with these fields changed."""
    given = {"model": linear, "step": step, "validate": loss, "optimizers": optimizers, **fields}
    return argosy.Member("gan", batch_size=20, **given)


class Lit(lightning.LightningModule):
    """A LightningModule without mistakes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(12, 10)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", 1.0)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class Hooked(Lit):
    """Has a hook that Argosy does not call."""

    def on_after_backward(self) -> None:
        """Nothing."""


class Two(Lit):
    """Has two optimizers and no manual optimization."""

    def configure_optimizers(self) -> Any:
        return [SGD([parameter], lr=0.1) for parameter in self.parameters()]


class Watching(Lit):
    """Has a schedule that watches a metric at every step."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        plateau = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss", "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": plateau}


class Largest(Lit):
    """Logs the largest value of all batches."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_largest", 1.0, reduce_fx="max")


class Following(Lit):
    """Has a schedule that watches a metric that is not logged."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": ReduceLROnPlateau(optimizer), "monitor": "train_acc"}


class Objective(Following):
    """Logs a torchmetrics object in training, which its schedule watches."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train_acc", MeanMetric())
        return super().training_step(batch, batch_idx)


class Skipping(Lit):
    """Has a training step that returns nothing."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Nothing."""


class Silent(Lit):
    """Has a validation step that logs and returns nothing."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Nothing."""


class Asking(Lit):
    """Reads or sets an attribute of its trainer at its first step."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        exec(self.words, {"trainer": self.trainer})
        return super().training_step(batch, batch_idx)


def asking(words: str, **fields: Any) -> None:
    """Train a LightningModule that uses this attribute of its trainer."""
    lit(partial(Asking, words), **fields)


def lit(module: Any, epochs: int = 1, **fields: Any) -> None:
    """Train a LightningModule."""
    trained(argosy.from_lightning("lit", module, batch_size=20, **fields), stop=argosy.MaxEpochs(epochs))


def without_lightning(patch: pytest.MonkeyPatch) -> None:
    """Act as if the package were not installed."""
    patch.setitem(sys.modules, "argosy.adapters.loop", None)
    patch.delattr(argosy.adapters, "loop", raising=False)  # another test may have imported it
    argosy.from_lightning("lit", Lit, batch_size=20)


def without_wandb(patch: pytest.MonkeyPatch) -> None:
    """Act as if the package were not installed."""
    patch.setattr("importlib.util.find_spec", lambda name: None)
    tracked("wandb")


def tracked(*trackers: Any) -> None:
    """Start a run with these trackers."""
    study = argosy.Study(data=argosy.Data(arrays=ARRAYS), members=[studies.member("mlp")])
    argosy.train(study, directory="runs/x", trackers=trackers)


def torn_by_a_kill() -> None:
    """Continue to track with MLflow after a kill while it wrote."""
    run = Path("runs/x/mlruns/1/2")
    run.mkdir(parents=True)
    (run / "meta.yaml").touch()
    make_trackers(["mlflow"])["mlflow"].open(Path("runs/x").absolute(), "x")


def resumed_without_parts() -> None:
    """Resume a list of optimizers from a checkpoint in which it is one."""
    alone = SGD(NETWORK.parameters(), lr=0.1)
    load_optimizer_state(OptimizerList([alone]), alone.state_dict())


def fitted(samples: Any = ARRAYS[0], **rest: Any) -> Any:
    """Fit a regression."""
    net = argosy.Member("net", model=linear, optimizer=partial(SGD, lr=0.1), batch_size=20, loss=nn.MSELoss())
    how: dict[str, Any] = {"stop": argosy.MaxEpochs(1), "launcher": "inline", "devices": "cpu:1", **rest}
    return argosy.fit(samples, np.zeros((40, 10), np.float32), net, **how)


def another_order() -> None:
    """Predict for a table with two columns exchanged."""
    table = DataFrame(ARRAYS[0], columns=list("abcdefghijkl"))
    fitted(table).predict(table[list("bacdefghijkl")])


TOKENS: Any = [{"input_ids": [1, 2], "labels": 0}] * 40
INLINE: dict[str, Any] = {"launcher": "inline", "devices": "cpu:1"}

CASES = {
    "a member without an optimizer": lambda: member(optimizers=None, validate=None),
    "optimizers without a step": lambda: member(step=None, validate=None),
    "a step that updates the weights, with micro-batches": lambda: member(accumulate=2),
    "a step that updates the weights, with validation data": lambda: trained(member(validate=None)),
    "a step that accumulates gradients over several batches": lambda: trained(member(step=adding_up)),
    "an optimizers factory that returns a list": lambda: trained(member(optimizers=lambda model: [1])),
    "optimizers of another network": lambda: trained(member(optimizers=lambda model: optimizers(NETWORK))),
    "BatchNorm, an average over epochs and a step that moves the weights": lambda: trained(
        member(model=studies.Mlp, average=argosy.LastK(5))
    ),
    "one schedule for several optimizers": lambda: trained(member(schedule=lambda optimizers: 3)),
    "metrics with a step that returns only a loss": lambda: trained(member(metrics={"accuracy": argosy.accuracy})),
    "lightning is not installed": without_lightning,
    "a LightningModule with an unsupported hook": lambda: lit(Hooked),
    "argosy.fit of classes with too many outputs": lambda: argosy.fit(
        ARRAYS[0],
        np.arange(40) % 2,
        argosy.Member("net", model=linear, optimizer=partial(SGD, lr=0.1), batch_size=20),
        stop=argosy.MaxEpochs(1),
        **INLINE,
    ),
    "a LightningModule with an average": lambda: lit(Lit, average=argosy.EMA(0.9)),
    "a network that is not a LightningModule": lambda: lit(linear),
    "a LightningModule with two optimizers": lambda: lit(Two),
    "a LightningModule whose schedule watches a metric at every step": lambda: lit(Watching),
    "a LightningModule whose schedule watches a metric that is not logged": lambda: lit(Following, epochs=2),
    "a LightningModule whose schedule watches a torchmetrics object of training": lambda: lit(Objective),
    "a LightningModule that logs the largest value": lambda: lit(Largest),
    "a LightningModule without a training loss": lambda: lit(Skipping),
    "a LightningModule without a validation loss": lambda: lit(Silent),
    "a LightningModule that uses an unknown trainer attribute": lambda: asking("trainer.datamodule"),
    "a LightningModule that stops its trainer": lambda: asking("trainer.should_stop = True"),
    "a LightningModule that uses max_epochs without a rule that sets it": lambda: asking(
        "trainer.max_epochs", stop=argosy.MaxSteps(2)
    ),
    "a LightningModule that uses its trainer outside a run": lambda: loop.Loop(Lit()).max_epochs,
    "a LightningModule that does not log a metric": lambda: lit(Lit, metrics=["val_acc"]),
    "a Hugging Face network with batches of pairs": lambda: trained(
        argosy.from_huggingface("bert", linear, optimizer=partial(SGD, lr=0.1), batch_size=20)
    ),
    "a Hugging Face network with lists of numbers": lambda: trained(
        argosy.from_huggingface("bert", linear, optimizer=partial(SGD, lr=0.1), batch_size=20),
        data=argosy.Data(train=TOKENS, val=TOKENS),
    ),
    "argosy.fit of a sparse matrix": lambda: fitted(csr_matrix(ARRAYS[0])),
    "argosy.fit of strings": lambda: fitted(np.full((40, 12), "red")),
    "argosy.fit of integers with a network that needs floats": lambda: fitted(ARRAYS[0].astype(int)),
    "argosy.fit of a table with missing values": lambda: fitted(
        np.where(np.arange(40)[:, None] % 10, ARRAYS[0], np.nan)
    ),
    "a prediction of a fit for a single sample": lambda: fitted(ARRAYS[0]).predict(ARRAYS[0][0]),
    "argosy.fit with all samples held out": lambda: fitted(validation=1.0),
    "a table whose columns are in a different order than in argosy.fit": another_order,
    "probabilities of a regression": lambda: fitted().predict_proba(ARRAYS[0]),
    "an unknown tracker": lambda: tracked("comet"),
    "a file of MLflow that a kill has left empty": torn_by_a_kill,
    "a checkpoint without the states of optimizers in a list": resumed_without_parts,
    "a tracker twice": lambda: tracked("tensorboard", "tensorboard"),
    "an object that is not a tracker": lambda: tracked(3),
    "a tracker whose library is not installed": without_wandb,
}
