"""Five seeds of one network on scikit-learn's digits, as one ensemble: `python examples/ensemble.py`."""

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
train, val, test = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split([600, 300, 897])


def cnn(width: int) -> nn.Module:
    """Return a network of two convolutions."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9 * width, 10),
    )


member = argosy.Member("cnn", model=partial(cnn, 8), optimizer=partial(optim.Adam, lr=0.01), batch_size=32)
study = argosy.Study(
    data=argosy.Data(arrays=(x[train], y[train]), val_arrays=(x[val], y[val])),
    members=argosy.replicate(member, seeds=5),
    stop=argosy.MaxEpochs(8),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/ensemble")
    for name, network in {"best member": None, "ensemble": report.ensemble()}.items():
        right = argosy.accuracy(report.predict(x[test], network), y[test])
        print(f"{name}: {right.mean():.4f} of the test samples are right")
