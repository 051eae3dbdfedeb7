"""From a CSV file to five folds: `python examples/csv_folds.py`."""

from functools import partial
from pathlib import Path
from typing import Any

from sklearn.datasets import load_wine
from torch import nn, optim

import argosy

if not Path("wine.csv").exists():  # your own file
    load_wine(as_frame=True).frame.to_csv("wine.csv", index=False)

table = argosy.data.table("wine.csv", target="target")


def mlp(hidden: int) -> nn.Module:
    """Return an MLP with one hidden layer; batch normalisation replaces scaling by the training samples of a fold."""
    columns = len(table.features)
    layers = nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, len(table.classes))
    return nn.Sequential(nn.BatchNorm1d(columns), *layers)


def member(hidden: int, train: Any) -> argosy.Member:
    """Return a network for one fold."""
    optimizer = partial(optim.AdamW, lr=0.01)
    return argosy.Member(f"mlp-{hidden}", model=partial(mlp, hidden), optimizer=optimizer, batch_size=16)


study = argosy.Study(
    data=argosy.Data(arrays=table.arrays, val_arrays=table.arrays),
    members=[fold for h in (8, 32) for fold in argosy.kfold(partial(member, h), 5, stratify=table.targets)],
    stop=argosy.MaxEpochs(15),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/csv_folds")
    for found in report.repetitions.configurations:
        print(f"{found.name}: loss {found.metrics['val_loss']} over five folds")
