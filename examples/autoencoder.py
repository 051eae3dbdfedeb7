"""Autoencoders of three widths on scikit-learn's digits, with a custom training step: `python examples/autoencoder.py`."""

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim

import argosy

x = torch.tensor(load_digits().data / 16, dtype=torch.float32)


def autoencoder(width: int) -> nn.Module:
    """Return a network that encodes 64 pixels as `width` numbers and decodes them again."""
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))
    return nn.Sequential(encoder, nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64)))


def reconstruct(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    """Return the loss of a whole batch; in training, noise is added to the inputs."""
    (pixels,) = batch
    noisy = pixels + 0.1 * torch.randn_like(pixels) if model.training else pixels
    return nn.functional.mse_loss(model(noisy), pixels)


study = argosy.Study(
    data=argosy.Data(arrays=(x[:1500],), val_arrays=(x[1500:],)),
    members=[
        argosy.Member(
            f"code-{width}",
            model=partial(autoencoder, width),
            optimizer=partial(optim.Adam, lr=0.003),
            batch_size=50,
            step=reconstruct,
        )
        for width in (2, 8, 32)
    ],
    stop=argosy.MaxEpochs(10),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/autoencoder")
    for row in report.rows:
        print(f"{row.name}: squared error {row.metrics['val_loss']:.4f} a pixel")
    encoder = report.best().load()[0]
    print(f"the codes of the first digits have shape {tuple(encoder(x[:5]).shape)}")
