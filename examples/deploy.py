"""The best network of a run where its study is not, only the network's own code: `python examples/deploy.py runs/ensemble`."""

import sys

import torch
from torch import nn

import argosy


def cnn(width: int) -> nn.Module:
    """As it was trained by `ensemble.py`."""
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
    # Plain tensors, which torch alone opens: the file is all that needs to be taken along.
    network.load_state_dict(torch.load(best.folder / "best.pt", weights_only=True)["model"])
    image = torch.zeros(1, 64)
    print(f"{best.name}, loss {best.metrics['val_loss']:.4f}: this is a {int(network.eval()(image).argmax())}")
