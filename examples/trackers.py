"""TensorBoard and MLflow show every network, on scikit-learn's digits: `python examples/trackers.py`. Needs the extras `tensorboard`, `mlflow`."""

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def mlp(hidden: int) -> nn.Module:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def member(hidden: int, lr: float) -> argosy.Member:
    """Return one point of the grid."""
    return argosy.Member("mlp", model=partial(mlp, hidden), optimizer=partial(optim.Adam, lr=lr), batch_size=32)


study = argosy.Study(
    data=argosy.Data(arrays=(x[:1200], y[:1200]), val_arrays=(x[1200:], y[1200:])),
    members=argosy.grid(member, hidden=[16, 64], lr=[0.001, 0.01]),
    stop=argosy.MaxEpochs(20),
)

if __name__ == "__main__":
    argosy.train(study, directory="runs/trackers", trackers=["tensorboard", "mlflow"])
    print("tensorboard --logdir runs/trackers")
    print("MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri runs/trackers/mlruns")
