"""The same eight trials, at once: ``argosy tune ours_optuna.py --numerics exact``."""

from functools import partial

from mine import mlp, train, val
from optuna.samplers import RandomSampler
from torch import optim

import argosy


def space(trial):
    return {"hidden": trial.suggest_int("hidden", 8, 64), "lr": trial.suggest_float("lr", 1e-4, 0.1, log=True)}


def build(parameters):
    adam = partial(optim.Adam, lr=parameters["lr"])
    return argosy.Member("mlp", model=partial(mlp, parameters["hidden"]), optimizer=adam, batch_size=32, seed=0)


data = argosy.Data(arrays=train, val_arrays=val)
search = argosy.Search(
    build=build, space=space, data=data, max_epochs=4, scheduler="random", sampler=RandomSampler, n_trials=8
)
