"""A grid of six trials with Ray Tune."""

import torch
from loop import losses_of
from mine import mlp
from ray import tune
from torch import optim


def trainable(config):
    torch.manual_seed(0)
    model = mlp(config["hidden"])
    for loss in losses_of(model, optim.Adam(model.parameters(), lr=config["lr"]), epochs=4):
        tune.report({"val_loss": loss})


tuner = tune.Tuner(
    trainable,
    param_space={"hidden": tune.grid_search([16, 64, 256]), "lr": tune.grid_search([0.01, 0.001])},
    tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
)
results = tuner.fit()
print(f"best: {results.get_best_result().config}, {results.get_best_result().metrics['val_loss']:.4f}")
