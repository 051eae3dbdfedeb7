"""A grid of six trials as a sweep of Weights & Biases, which asks its server for each."""

import torch
import wandb
from loop import losses_of
from mine import mlp
from torch import optim

sweep = {
    "method": "grid",
    "metric": {"name": "val_loss", "goal": "minimize"},
    "parameters": {"hidden": {"values": [16, 64, 256]}, "lr": {"values": [0.01, 0.001]}},
}


def trial():
    with wandb.init() as run:
        torch.manual_seed(0)
        model = mlp(run.config["hidden"])
        for loss in losses_of(model, optim.Adam(model.parameters(), lr=run.config["lr"]), epochs=4):
            run.log({"val_loss": loss})


wandb.agent(wandb.sweep(sweep, project="digits"), trial)
