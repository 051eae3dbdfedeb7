"""Thirty trials, half of which end at every rung, on scikit-learn's digits: `python examples/sweep.py`. Needs the extra `tune`."""

from functools import partial
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def mlp(hidden: int) -> nn.Module:
    """Return an MLP with one hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def build(p: dict[str, Any]) -> argosy.Member:
    """Return the member of a trial."""
    optimizer = partial(optim.SGD, lr=p["lr"], momentum=0.9)
    return argosy.Member("mlp", model=partial(mlp, p["hidden"]), optimizer=optimizer, batch_size=50)


if __name__ == "__main__":
    report = argosy.tune(
        build,
        {"hidden": IntDistribution(4, 128, log=True), "lr": FloatDistribution(1e-3, 1.0, log=True)},
        data=argosy.Data(arrays=(x[:1400], y[:1400]), val_arrays=(x[1400:], y[1400:])),
        scheduler="asha",
        eta=2,
        n_trials=30,
        max_epochs=8,
        directory="runs/sweep",
    )
    best = report.best()
    print(f"best of {len(set(report.trials.values()))}: {report.best_parameters}, loss {best.metrics['val_loss']:.4f}")
    print(f"{report.epochs:g} epochs instead of {30 * 8}")
