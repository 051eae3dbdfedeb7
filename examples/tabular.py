"""Five folds of three networks on scikit-learn's table of breast-cancer cells: `python examples/tabular.py`.

Columns are normalised by the statistics of a fold's training samples only.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.optim import AdamW

import argosy
from argosy.ensembling.scores import class_scores

table, y = load_breast_cancer(return_X_y=True)
x = table.astype(np.float32)


class Normalised(nn.Module):
    """Normalises columns; the statistics are saved with the weights."""

    def __init__(self, samples: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(samples.mean(axis=0)))
        self.register_buffer("std", torch.tensor(samples.std(axis=0)))

    def forward(self, x_BC: Tensor) -> Tensor:
        return (x_BC - self.mean) / self.std


def mlp(hidden: int, train: Any) -> nn.Module:
    """Return an MLP with one hidden layer, whose inputs are normalised by these samples."""
    return nn.Sequential(Normalised(x[train]), nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 2))


def member(hidden: int, train: Any) -> argosy.Member:
    """Return one of the three networks, for a fold with these training samples."""
    optimizer = partial(AdamW, lr=0.003)
    return argosy.Member(f"mlp-{hidden}", model=partial(mlp, hidden, train), optimizer=optimizer, batch_size=32)


study = argosy.Study(
    data=argosy.Data(arrays=(x, y), val_arrays=(x, y)),
    members=[fold for hidden in (4, 16, 64) for fold in argosy.kfold(partial(member, hidden), 5, stratify=y)],
    stop=argosy.MaxEpochs(10),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/tabular")
    for found in report.repetitions.configurations:
        right = class_scores(report.out_of_fold(found.name).softmax(dim=1), torch.tensor(y))["accuracy"]
        print(f"{found.name}: loss {found.metrics['val_loss']} over folds, {right:.4f} of all samples are right")
