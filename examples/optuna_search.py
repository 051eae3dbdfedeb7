"""Hyperband over Optuna's distributions: `argosy tune examples/optuna_search.py --dir runs/search`."""

from functools import partial

from optuna.distributions import CategoricalDistribution, FloatDistribution
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

x, y = load_digits(return_X_y=True)
x = x.astype("float32")
data = argosy.Data(arrays=(x[:1400], y[:1400]), val_arrays=(x[1400:], y[1400:]))


def build(p: dict) -> argosy.Member:
    optimizer = partial(getattr(optim, p["optimizer"]), lr=p["lr"])
    return argosy.Member("linear", model=partial(nn.Linear, 64, 10), optimizer=optimizer, batch_size=32)


space = {
    "optimizer": CategoricalDistribution(["SGD", "Adam"]),
    "lr": FloatDistribution(1e-4, 1.0, log=True),
}
search = argosy.Search(build=build, space=space, data=data, max_epochs=9)
