"""Small studies that the tests share: datasets, networks and members."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import Dataset, IterableDataset

import argosy
from argosy.stopping import History, Stop


class Vectors(Dataset[tuple[Tensor, int]]):
    """Samples of ten classes with noise from torch, NumPy and `random`; element 0 of a sample is its index / length."""

    def __init__(self, length: int, noise: float = 0.5) -> None:
        self.length, self.noise = length, noise

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = np.zeros(12, np.float32)  # three times as fast as torch for so few values
        x[1 + index % 10] = 2.0
        if self.noise:
            x[1:] += self.noise * (torch.randn(11).numpy() + (np.random.rand() + random.random()))
        x[0] = index / self.length
        return torch.from_numpy(x), index % 10


class Lines(IterableDataset[tuple[Tensor, int]]):
    """An iterable dataset of the samples of `Vectors`, without noise."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        vectors = Vectors(self.length, noise=0.0)
        return (vectors[index] for index in range(self.length))


def sharded(length: int) -> Any:
    """Return the samples of `Vectors`, without noise, in five shards."""
    cuts = [length * n // 5 for n in range(6)]
    vectors = Vectors(length, noise=0.0)

    def read(shard: int, row: int) -> Iterator[tuple[Tensor, int]]:
        return (vectors[index] for index in range(cuts[shard] + row, cuts[shard + 1]))

    return argosy.data.from_shards(range(5), read=read)


def noisy(sample: Any) -> Any:
    """Add noise from all three generators to a sample, as `Data.then`."""
    x, y = sample
    x[1:] += 0.5 * (torch.randn(11) + float(np.random.rand()) + random.random())
    return x, y


def data(kind: str, length: int, val: int = 41) -> argosy.Data:
    """Return data of one kind.

    "drawn" draws noise while it prepares samples, so it cannot be kept. For the others `then` adds the noise: "sharded" reads shards in
    each epoch, "streamed" is an iterable dataset, and any other kind an indexed dataset whose samples are kept.
    """
    if kind == "sharded":
        return argosy.Data(train=sharded(length), val=sharded(val), then=noisy, keep=False)
    if kind == "drawn":
        return argosy.Data(train=Vectors(length), val=Vectors(val))
    sort = Lines if kind == "streamed" else partial(Vectors, noise=0.0)
    return argosy.Data(train=sort(length), val=sort(val), then=noisy)


class Mlp(nn.Module):
    """A network of one hidden layer, with BatchNorm for buffers, and dropout so that random states matter."""

    def __init__(self, hidden: int = 16, inputs: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Merging(nn.Linear):
    """A LoRA layer that adds its two matrices to the weight in eval(), as loralib's layers do."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 12)), nn.Parameter(torch.zeros(10, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if self.merged is mode:
            self.weight.data += (self.up @ self.down).detach() * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.merged else self.weight + self.up @ self.down
        return nn.functional.linear(x, weight, self.bias)


def member(
    name: str = "mlp", *, hidden: int = 16, batch_size: int = 20, lr: float = 0.05, **rest: Any
) -> argosy.Member:
    """Return a small member; `rest` are fields of Member."""
    optimizer = rest.pop("optimizer", partial(SGD, lr=lr, momentum=0.9))
    model = rest.pop("model", partial(Mlp, hidden=hidden))
    rest.setdefault("metrics", {"accuracy": argosy.accuracy})
    return argosy.Member(name, model=model, optimizer=optimizer, batch_size=batch_size, **rest)


def members() -> list[argosy.Member]:
    """Return four members: plain, with clipped gradients, a bootstrap, and Adam with micro-batches; their batches cut blocks differently."""
    return [
        member("plain"),
        member("odd", hidden=24, batch_size=33, clip_grad_norm=1.0),
        member("bootstrap", batch_size=16, subset=[3, 3, 5, *range(40, 130)], drop_last=True),
        member("adam", batch_size=50, optimizer=partial(Adam, lr=0.01), accumulate=3, eval_batch_size=7),
    ]


def study(
    length: int = 170, *, fleet: Sequence[argosy.Member] | None = None, epochs: int = 2, val: int = 41, **rest: Any
) -> argosy.Study:
    """Return a study on `Vectors`; `rest` are fields of Study."""
    data = rest.pop("data", None) or argosy.Data(train=Vectors(length), val=Vectors(val) if val else None)
    rest.setdefault("stop", argosy.MaxEpochs(epochs))
    return argosy.Study(data=data, members=members() if fleet is None else fleet, **rest)


def steered(patience: int = 2, epochs: int = 8, **rest: Any) -> argosy.Study:
    """Return a study of six members, of which three hardly learn, with an ensemble that decides which go on."""
    rates = {"a": 0.3, "b": 0.1, "c": 0.03, "d": 1e-4, "e": 1e-5, "f": 3e-6}
    fleet = [member(name, optimizer=partial(SGD, lr=rate), **rest) for name, rate in rates.items()]
    rule = argosy.EnsemblePlateau(patience=patience, holdout=0.25)
    return study(fleet=fleet, length=120, val=60, epochs=epochs, ensemble=rule)


def dawdle(batch: Any) -> Any:
    """An augmentation that waits, so that there is time to interrupt training."""
    time.sleep(0.02)
    return batch


def dawdle_until(there: str, batch: Any) -> Any:
    """An augmentation that waits until a file exists; `partial` gives it the path."""
    return batch if Path(there).exists() else dawdle(batch)


@dataclass(frozen=True, slots=True)
class Unsure(Stop):
    """A rule like `MaxEpochs` that is certain of few sections at a time, so no member finishes before the driver knows of its first ones.

    However far behind the driver is, there is time to do something to a run.
    """

    epochs: float
    sections: int = 1

    def reason(self, history: History) -> str | None:
        """See `Stop.reason`."""
        return argosy.MaxEpochs(self.epochs).reason(history)

    @property
    def max_epochs(self) -> float | None:
        """The number of epochs."""
        return self.epochs

    def certain(self, history: History, sections: int) -> int:
        """See `Stop.certain`."""
        return min(self.sections, argosy.MaxEpochs(self.epochs).certain(history, sections))
