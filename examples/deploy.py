"""Load the best network of a run without its study, with only the network's own code: `python examples/deploy.py runs/ensemble`."""

import sys

import torch
from torch import nn

import argosy


def cnn(width: int) -> nn.Module:
    """Return the network as `ensemble.py` trained it."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9 * width, 10),
    )


if __name__ == "__main__":
    best = argosy.load(sys.argv[1]).best()
    network = cnn(best.hyperparameters["model.width"])
    # Plain tensors that torch alone can load: this file is all you need to take along.
    network.load_state_dict(torch.load(best.folder / "best.pt", weights_only=True)["model"])
    image = torch.zeros(1, 64)
    print(f"{best.name}, loss {best.metrics['val_loss']:.4f}: this is a {int(network.eval()(image).argmax())}")
