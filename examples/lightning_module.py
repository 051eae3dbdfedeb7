"""LightningModules as members, on scikit-learn's digits: ``argosy run examples/lightning_module.py --dir runs/lightning``."""

from functools import partial
from typing import Any

import lightning.pytorch as lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torchmetrics import F1Score

import argosy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


class Classifier(lightning.LightningModule):
    """An ordinary LightningModule, written without Argosy in mind."""

    def __init__(self, hidden: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10))
        self.f1 = F1Score(task="multiclass", num_classes=10, average="macro")

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self(batch[0])
        self.f1(scores, batch[1])
        self.log_dict({"val_loss": cross_entropy(scores, batch[1]), "val_f1": self.f1})

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [CosineAnnealingLR(optimizer, 10)]


def member(hidden: int, lr: float) -> argosy.Member:
    """Return a member that trains this module."""
    return argosy.from_lightning("mlp", partial(Classifier, hidden=hidden, lr=lr), batch_size=32, metrics=["val_f1"])


study = argosy.Study(
    data=argosy.Data(arrays=(x[:1200], y[:1200]), val_arrays=(x[1200:], y[1200:])),
    members=argosy.grid(member, hidden=[32, 128], lr=[1e-3, 1e-2]),
    objective="val_f1",
    stop=argosy.MaxEpochs(10),
)
