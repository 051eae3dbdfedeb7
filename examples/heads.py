"""Twenty heads on one frozen trunk, which processes each image only once: `python examples/heads.py`."""

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset

import argosy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)

torch.manual_seed(0)  # replace it by your own trunk with its weights
trunk = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
)


def head(lr: float, weight_decay: float) -> argosy.Member:
    """Return a linear layer on 576 features."""
    optimizer = partial(optim.AdamW, lr=lr, weight_decay=weight_decay)
    return argosy.Member("head", model=partial(nn.Linear, 576, 10), optimizer=optimizer, batch_size=64)


study = argosy.Study(
    data=argosy.Data(
        train=argosy.data.features(TensorDataset(x[:1400], y[:1400]), trunk),
        val=argosy.data.features(TensorDataset(x[1400:], y[1400:]), trunk),
    ),
    members=argosy.grid(head, lr=[0.001, 0.003, 0.01, 0.03], weight_decay=[0.0, 0.01, 0.1, 0.3, 1.0]),
    stop=argosy.MaxEpochs(5),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/heads")
    best = report.best()
    print(
        f"best of {len(report.rows)} heads: {best.name}, loss {best.metrics['val_loss']:.4f}; the trunk saw each image {report.preparations:.1f} times an epoch"
    )
