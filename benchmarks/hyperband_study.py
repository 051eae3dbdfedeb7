"""What `hyperband.py` searches: the space of the paper on packing, for an MLP and a small CNN on real digits that are shifted at random.

It is one module, so that every side trains the same networks on the same samples with the same steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from optuna.distributions import CategoricalDistribution
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import argosy

__all__ = ["MODELS", "SPACE", "Alone", "build", "data"]

TRAINING = 1400
SPACE: dict[str, CategoricalDistribution] = {
    "batch_size": CategoricalDistribution([*range(20, 75, 5)]),
    "optimizer": CategoricalDistribution(["Adam", "SGD", "Adagrad", "Momentum"]),
    "lr": CategoricalDistribution([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
    "activation": CategoricalDistribution(["Sigmoid", "LeakyReLU", "Tanh", "ReLU"]),
}


class Digits(Dataset[tuple[Tensor, int]]):
    """8x8 images; in training each is shifted by up to a pixel and made a little brighter or darker."""

    def __init__(self, *, training: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(None, TRAINING) if training else slice(TRAINING, None)
        self.images, self.labels, self.training = images.reshape(-1, 8, 8)[part], labels[part], training

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index] / 16.0 - 0.5
        if self.training:
            image = np.roll(image, np.random.randint(-1, 2, size=2), axis=(0, 1)) * np.random.uniform(0.8, 1.2)
        return torch.from_numpy(image[None].astype(np.float32)), int(self.labels[index])


def mlp(activation: str) -> nn.Module:
    """Return a network of three layers."""
    act = getattr(nn, activation)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 10))


def cnn(activation: str) -> nn.Module:
    """Return a network of two convolutions and a layer."""
    act = getattr(nn, activation)
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
    return nn.Sequential(first, act(), nn.MaxPool2d(2), second, act(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


MODELS: dict[str, Callable[[str], nn.Module]] = {"mlp": mlp, "cnn": cnn}


def optimizer_of(parameters: dict[str, Any]) -> Callable[[Any], optim.Optimizer]:
    """Return a factory of a configuration's optimizer."""
    if parameters["optimizer"] == "Momentum":
        return partial(optim.SGD, lr=parameters["lr"], momentum=0.9)
    return partial(getattr(optim, parameters["optimizer"]), lr=parameters["lr"])


class Alone:
    """One configuration as people train it today: a plain loop over its own loader."""

    def __init__(self, model: str, parameters: dict[str, Any], *, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.device = device
        self.network = MODELS[model](parameters["activation"]).to(device)
        self.optimizer = optimizer_of(parameters)(self.network.parameters())
        self.training = DataLoader(Digits(training=True), batch_size=parameters["batch_size"], shuffle=True)
        self.validation = DataLoader(Digits(training=False), batch_size=128)

    def epoch(self) -> float:
        """Train one more epoch, and return the accuracy."""
        self.network.train()
        for x, y in self.training:
            self.optimizer.zero_grad()
            functional.cross_entropy(self.network(x.to(self.device)), y.to(self.device)).backward()
            self.optimizer.step()
        self.network.eval()
        with torch.no_grad():
            right = sum((self.network(x.to(self.device)).argmax(1).cpu() == y).sum().item() for x, y in self.validation)
        return right / len(self.validation.dataset)  # type: ignore[arg-type]


def build(model: str, parameters: dict[str, Any]) -> argosy.Member:
    """Return the member of a trial."""
    return argosy.Member(
        model,
        model=partial(MODELS[model], parameters["activation"]),
        optimizer=optimizer_of(parameters),
        batch_size=parameters["batch_size"],
        eval_batch_size=128,
        metrics={"accuracy": argosy.accuracy},
    )


def data() -> argosy.Data:
    """Return the data of all sides."""
    return argosy.Data(train=partial(Digits, training=True), val=partial(Digits, training=False))
