"""What a member's own code does that cannot train: found when it is built, and tried on the first block."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import studies
import texts
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, ReduceLROnPlateau, StepLR

import argosy
from messages.of_studies import ARRAYS, trained

__all__ = ["CASES"]

NETWORK = nn.Linear(12, 10)
OPTIMIZER = SGD(NETWORK.parameters(), lr=0.1)


def linear() -> nn.Module:
    """A network without BatchNorm."""
    return nn.Linear(12, 10)


def tried(**fields: Any) -> None:
    """One member with these fields, trained."""
    trained(studies.member("mlp", **{"model": linear, "batch_size": 20, **fields}))


class Pair(nn.Linear):
    """Returns its outputs and one number about the whole batch."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = super().forward(x)
        return output, output.mean()


def with_labels(labels: Any) -> argosy.Data:
    """The data of `trained` with other labels."""
    return argosy.Data(arrays=(ARRAYS[0], np.asarray(labels)))


class Words(nn.Module):
    """A sparse embedding, whose gradients are sparse tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 10, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embedding(x[:, 0].long())


class Outside(nn.Module):
    """A function of it refers to the network itself, also in a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 10)
        self.acts = [lambda x: self.layer(x)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.acts[0](x)


class Locked(nn.Linear):
    """A layer with a lock."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.lock = threading.Lock()


def twice(batch: Any) -> Any:
    """Two views of each sample, one behind the other."""
    return torch.cat([batch[0], -batch[0]]), torch.cat([batch[1], batch[1]])


def training(model: nn.Module, batch: Any) -> torch.Tensor:
    """As copied from a script."""
    model.train()
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss of a step."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def unfreezing(optimizer: SGD) -> LambdaLR:
    """Return a schedule whose function freezes a weight until the first epoch has ended."""
    weight = optimizer.param_groups[0]["params"][0]
    return LambdaLR(optimizer, lambda epoch: float(weight.requires_grad_(epoch > 0).numel() > 0))


def calling_backward(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step that calls backward(), as loops do."""
    loss = mean_loss(model, batch)
    loss.backward()
    return loss


def differentiating(model: nn.Module, batch: Any) -> torch.Tensor:
    """A penalty on gradients by its inputs, in validation as well."""
    inputs = batch[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return slope.square().sum(1)


def on_numbers(**fields: Any) -> None:
    """One member with one output, trained on numbers."""
    rest = {"model": partial(nn.Linear, 12, 1), "loss": nn.BCEWithLogitsLoss(), "metrics": {}, **fields}
    study_of(with_labels(rest.pop("labels", np.zeros((40, 1), np.float32))), **rest)


def study_of(data: argosy.Data, **fields: Any) -> None:
    """One member with these fields, trained on this data."""
    trained(studies.member("mlp", **{"model": linear, "batch_size": 20, "metrics": {}, **fields}), data=data)


class Letters(nn.Linear):
    """A class for each of two letters, the classes last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).view(len(x), 2, 5)


class LockedCount:
    """A metric that counts samples under a lock."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        with self.lock:
            self.count += len(target)

    def compute(self) -> int:
        return self.count


GENERATOR = np.random.default_rng(0)


def pruning(model: Any, batch: Any) -> torch.Tensor:
    if model.training and not hasattr(model, "weight_mask"):
        prune.l1_unstructured(model, "weight", 0.5)
    return functional.cross_entropy(model(batch[0]), batch[1])


def growing(model: Any, batch: Any) -> torch.Tensor:
    """As progressive networks do."""
    if model.training and not hasattr(model, "further"):
        model.further = nn.Linear(10, 10)
    return functional.cross_entropy(model(batch[0]), batch[1])


class Around(torch.optim.Optimizer):
    """One around another, as many write it."""

    def __init__(self, parameters: Any) -> None:
        self.inner = SGD(parameters, lr=0.1)
        self.param_groups = self.inner.param_groups


class Decaying:
    """A schedule of one's own."""

    def step(self) -> None: ...


def shifted(batch: Any) -> Any:
    """An augmentation that draws from a generator of all members."""
    return batch[0] + GENERATOR.normal(), batch[1]


CASES = {
    "samples and weights of different dtypes": lambda: study_of(
        argosy.Data(arrays=(ARRAYS[0].astype(float), ARRAYS[1]))
    ),
    "flat outputs and cross-entropy": lambda: study_of(
        with_labels(ARRAYS[1]), model=lambda: nn.Sequential(nn.Linear(12, 1), nn.Flatten(0))
    ),
    "one-hot labels that are not floats": lambda: study_of(with_labels(np.zeros((40, 10), np.int64))),
    "labels as a column": lambda: study_of(with_labels(np.zeros((40, 1), np.int64))),
    "labels of int32": lambda: study_of(with_labels(np.zeros(40, np.int32))),
    "classes in the last dimension": lambda: study_of(
        with_labels(np.zeros((40, 2), np.int64)), model=lambda: Letters(12, 10)
    ),
    "unlabelled samples and the default loss": lambda: study_of(with_labels(np.where(np.arange(40) % 3, 1, -100))),
    "numeric targets and the default loss": lambda: on_numbers(loss=None),
    "several numeric targets and the default loss": lambda: on_numbers(
        loss=None, model=partial(nn.Linear, 12, 2), labels=np.full((40, 2), 2, np.float32)
    ),
    "outputs and targets of different shapes": lambda: on_numbers(labels=np.zeros(40, np.float32)),
    "outputs and targets of different dtypes": lambda: on_numbers(labels=np.zeros((40, 1), np.int64)),
    "a loss without gradients for targets of another dtype": lambda: on_numbers(
        loss=nn.HuberLoss(), labels=np.zeros((40, 1))
    ),
    "a loss that broadcasts": lambda: on_numbers(loss=nn.MSELoss(), labels=np.arange(40, dtype=np.float32)),
    "a step that broadcasts": lambda: study_of(
        argosy.Data(arrays=(np.eye(40, 12, dtype=np.float32), np.arange(40, dtype=np.float32))),
        model=partial(nn.Linear, 12, 1),
        step=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
    ),
    "a loss that sums over the samples": lambda: tried(loss=nn.CrossEntropyLoss(reduction="sum")),
    "a negative log-likelihood of outputs that are no logarithms": lambda: tried(loss=nn.NLLLoss()),
    "a loss that compares each sample with all others": lambda: tried(
        loss=lambda output, target: torch.cdist(output, output)
    ),
    "accuracy of a single logit": lambda: argosy.accuracy(torch.zeros(4, 1), torch.zeros(4)),
    "accuracy of one-hot targets": lambda: argosy.accuracy(torch.zeros(4, 3), torch.zeros(4, 3)),
    "accuracy of several outputs": lambda: argosy.accuracy((torch.zeros(4, 3), torch.zeros(4)), torch.zeros(4)),
    "a model factory that does not return a network": lambda: tried(model=dict),
    "a network with lazy modules": lambda: tried(model=lambda: nn.LazyLinear(10)),
    "an augmentation that adds samples, and micro-batches": lambda: tried(augment=twice, accumulate=2, metrics={}),
    "a step that calls train()": lambda: tried(step=training, metrics={}),
    "a step that calls backward() and detaches its loss": lambda: tried(
        step=lambda model, batch: calling_backward(model, batch).detach(), validate=mean_loss, metrics={}
    ),
    "a step that returns two values": lambda: tried(step=lambda model, batch: (mean_loss(model, batch), 0), metrics={}),
    "a step that calls backward() on its loss": lambda: tried(step=calling_backward, validate=mean_loss, metrics={}),
    "a validation step that needs gradients": lambda: tried(step=differentiating, metrics={}),
    "a network whose copies compute with the original": lambda: tried(model=Outside),
    "a schedule whose function unfreezes weights": lambda: tried(schedule=unfreezing),
    "a network that cannot be copied": lambda: tried(model=Locked),
    "a network that loses weights during training": lambda: tried(step=pruning, metrics={}),
    "a network that gains weights during training": lambda: tried(step=growing, metrics={}),
    "a network built before the call": lambda: tried(model=lambda: NETWORK),
    "an augmentation with its own generator": lambda: tried(augment=shifted),
    "an optimizer factory that does not return an optimizer": lambda: tried(optimizer=lambda parameters: {}),
    "an optimizer that needs a closure": lambda: tried(optimizer=LBFGS),
    "an optimizer that does not call Optimizer.__init__": lambda: tried(optimizer=Around),
    "an optimizer for another network": lambda: tried(optimizer=lambda _: SGD(NETWORK.parameters(), lr=0.1)),
    "a schedule for another optimizer": lambda: tried(schedule=lambda _: StepLR(OPTIMIZER, step_size=3)),
    "a schedule that cannot be saved": lambda: tried(schedule=lambda optimizer: Decaying()),
    "milestones that are text": lambda: tried(schedule=partial(MultiStepLR, milestones=["30", "60"])),
    "ReduceLROnPlateau at every step": lambda: tried(schedule=ReduceLROnPlateau, schedule_per="step"),
    "ReduceLROnPlateau in the opposite direction": lambda: tried(schedule=partial(ReduceLROnPlateau, mode="max")),
    "labels beyond the number of outputs": lambda: trained(
        studies.member("mlp", model=linear, batch_size=20), data=with_labels(np.arange(40) % 11)
    ),
    "a loss that is not a tensor": lambda: tried(loss=lambda output, target: 3.0),
    "a loss with one value too many": lambda: tried(
        loss=lambda output, target: functional.cross_entropy(
            torch.cat([output, output[:1]]), torch.zeros(21).long(), reduction="none"
        )
    ),
    "a loss without a gradient": lambda: tried(loss=lambda output, target: torch.zeros(len(target))),
    "sparse gradients with clip_grad_norm": lambda: tried(model=Words, clip_grad_norm=1.0),
    "BatchNorm and micro-batches of one sample": lambda: tried(model=studies.Mlp, batch_size=35, accumulate=4),
    "BatchNorm and a batch of one text sample": lambda: argosy.train(
        texts.study(texts.member("a", model=texts.Normed, batch_size=8, batch_tokens=31), length=80),
        directory="runs/x",
        launcher="inline",
        devices="cpu:1",
    ),
    "a metric without arguments that is not a factory": lambda: tried(metrics={"f1": lambda: 3}),
    "a metric that holds a lock": lambda: tried(metrics={"count": LockedCount()}),
    "a whole-set metric over outputs of varying length": lambda: texts.tagged(
        Path("runs/x"), metrics={"f1": lambda output, target: 1.0}
    ),
    "a whole-set metric over outputs that cannot be gathered": lambda: tried(
        model=lambda: Pair(12, 10),
        loss=lambda output, target: functional.cross_entropy(output[0], target),
        metrics={"f1": lambda output, target: output[0].mean()},
    ),
}
