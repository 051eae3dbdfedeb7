"""A cross-validated grid over scikit-learn's real table of breast-cancer cells, straight from arrays.

Run it with ``argosy run examples/tabular.py --dir runs/tabular``.
"""

from functools import partial

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.optim import AdamW

import argosy

table = load_breast_cancer()
x = ((table.data - table.data.mean(0)) / table.data.std(0)).astype(np.float32)
y = table.target.astype(np.int64)


def mlp(hidden: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 2))


def member(lr: float, hidden: int) -> argosy.Member:
    """One point of the grid."""
    return argosy.Member(
        "mlp",
        model=partial(mlp, hidden=hidden),
        optimizer=partial(AdamW, lr=lr),
        batch_size=32,
        metrics={"accuracy": argosy.accuracy},
        drop_last=True,
    )


grid = argosy.grid(member, lr=[0.003, 0.01], hidden=[16, 64])
study = argosy.Study(
    data=argosy.Data(arrays=(x, y), val_arrays=(x, y)),
    members=[fold for point in grid for fold in argosy.kfold(point, 4, stratify=y)],
    stop=argosy.MaxEpochs(20),
)
