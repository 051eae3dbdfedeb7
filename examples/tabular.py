"""A cross-validated grid over scikit-learn's real table of breast-cancer cells, straight from arrays.

Run it with ``argosy run examples/tabular.py --dir runs/tabular``.
"""

from functools import partial

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.optim import AdamW

import argosy

FOLDS = 4
table = load_breast_cancer()
x = ((table.data - table.data.mean(0)) / table.data.std(0)).astype(np.float32)
y = table.target.astype(np.int64)
fold_of = np.random.RandomState(0).permutation(len(x)) % FOLDS


def mlp(hidden: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 2))


def member(lr: float, hidden: int, fold: int) -> argosy.Member:
    """One point of the grid on one fold."""
    return argosy.Member(
        "mlp",
        model=partial(mlp, hidden=hidden),
        optimizer=partial(AdamW, lr=lr),
        batch_size=32,
        subset=np.flatnonzero(fold_of != fold).tolist(),
        val_subset=np.flatnonzero(fold_of == fold).tolist(),
        metrics={"accuracy": argosy.accuracy},
        drop_last=True,
    )


study = argosy.Study(
    data=argosy.Data(arrays=(x, y), val_arrays=(x, y)),
    members=argosy.grid(member, lr=[0.003, 0.01], hidden=[16, 64], fold=range(FOLDS)),
    stop=argosy.MaxEpochs(20),
)
