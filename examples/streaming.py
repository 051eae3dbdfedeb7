"""From a stream without length or index to a sweep: `python examples/streaming.py`. It is read once, then shuffled like any data."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.utils.data import IterableDataset

import argosy


class Records(IterableDataset[Any]):
    """Your own stream: a WebDataset, a Hugging Face set with ``streaming=True``, lines of a pipe, shards of a bucket."""

    def __init__(self, part: slice) -> None:
        self.part = part

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for pixels, digit in zip(*(array[self.part] for array in load_digits(return_X_y=True)), strict=True):
            yield torch.tensor(pixels / 16, dtype=torch.float32), int(digit)


def member(lr: float) -> argosy.Member:
    """Return one network of the sweep."""
    model = partial(nn.Linear, 64, 10)
    return argosy.Member("linear", model=model, optimizer=partial(optim.SGD, lr=lr, momentum=0.9), batch_size=32)


study = argosy.Study(
    data=argosy.Data(train=Records(slice(1400)), val=Records(slice(1400, None))),
    members=argosy.grid(member, lr=[0.003, 0.01, 0.03, 0.1]),
    stop=argosy.MaxEpochs(5),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/streaming")
    print(f"best: {report.best().name}, loss {report.best().metrics['val_loss']:.4f}; {report.keeping['train']}")
