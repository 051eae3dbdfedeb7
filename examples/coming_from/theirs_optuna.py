"""A search of eight trials with Optuna, one after another."""

import optuna
import torch
from loop import losses_of
from mine import mlp, trial_seed
from optuna.samplers import RandomSampler
from torch import optim


def space(trial):
    return {"hidden": trial.suggest_int("hidden", 8, 64), "lr": trial.suggest_float("lr", 1e-4, 0.1, log=True)}


def objective(trial):
    parameters = space(trial)
    torch.manual_seed(0)
    model = mlp(parameters["hidden"])
    return min(losses_of(model, optim.Adam(model.parameters(), lr=parameters["lr"]), epochs=4))


def reseed(study, trial):
    study.sampler = RandomSampler(seed=trial_seed(trial.number + 1))


study = optuna.create_study(sampler=RandomSampler(seed=trial_seed(0)))
study.optimize(objective, n_trials=8, callbacks=[reseed])
print(f"best: {study.best_params}, {study.best_value:.4f}")
