"""A GAN beside an autoencoder on scikit-learn's digits: ``argosy run examples/gan.py --dir runs/gan``."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import mse_loss
from torch.optim import Adam

import argosy

x = torch.tensor(load_digits().data / 8 - 1, dtype=torch.float32)


def mlp(*sizes: int) -> nn.Sequential:
    """Return layers of these widths."""
    layers = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


class Gan(nn.Module):
    """A generator of digits and its discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = mlp(16, 64, 64), mlp(64, 64, 1)

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise).tanh()


def optimizers(gan: Gan, lr: float) -> dict[str, Adam]:
    """Return one optimizer for each network."""
    parts = {"generator": gan.generator, "discriminator": gan.discriminator}
    return {name: Adam(part.parameters(), lr=lr, betas=(0.5, 0.9)) for name, part in parts.items()}


def step(gan: Gan, batch: Any, optimizers: Mapping[str, Adam]) -> Tensor:
    """Step the discriminator, then the generator, and return the generator's loss."""
    real = batch[0]
    ones, zeros = real.new_ones(len(real), 1), real.new_zeros(len(real), 1)
    fake = gan(torch.randn(len(real), 16, device=real.device))
    optimizers["discriminator"].zero_grad()
    (bce(gan.discriminator(real), ones) + bce(gan.discriminator(fake.detach()), zeros)).backward()
    optimizers["discriminator"].step()
    optimizers["generator"].zero_grad()
    loss = bce(gan.discriminator(fake), ones)
    loss.backward()
    optimizers["generator"].step()
    return loss


def believed(gan: Gan, batch: Any) -> Tensor:
    """Return for each held-out digit, as a loss, how sure the discriminator is that it is real."""
    scores = gan.discriminator(batch[0])
    return bce(scores, torch.ones_like(scores), reduction="none")


def rebuilt(network: nn.Module, batch: Any) -> Tensor:
    """Return the autoencoder's loss."""
    return mse_loss(network(batch[0]), batch[0])


study = argosy.Study(
    data=argosy.Data(arrays=(x[:1500],), val_arrays=(x[1500:],)),
    members=[
        argosy.Member(
            "gan",
            model=Gan,
            optimizers=partial(optimizers, lr=1e-3),
            step=step,
            validate=believed,
            batch_size=32,
        ),
        argosy.Member(
            "autoencoder", model=partial(mlp, 64, 16, 64), optimizer=partial(Adam, lr=1e-3), step=rebuilt, batch_size=32
        ),
    ],
    stop=argosy.MaxEpochs(20),
)
