"""Three LightningModules, one after another, each with its own Trainer."""

import lightning.pytorch as lightning
import torch
from mine import Published, mlp, train_set, val_set
from torch import optim
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self, hidden):
        super().__init__()
        self.net = mlp(hidden).double()

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch[0].double()), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", cross_entropy(self.net(batch[0].double()), batch[1]))

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=0.01)


if __name__ == "__main__":
    losses, networks = {}, {}
    for hidden in (16, 64, 256):
        torch.manual_seed(0)
        module = networks[f"mlp-{hidden}"] = Classifier(hidden)
        trainer = lightning.Trainer(max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False)
        train_loader = DataLoader(train_set, batch_size=32, sampler=Published(len(train_set)))
        trainer.fit(module, train_loader, DataLoader(val_set, batch_size=32))
        losses[f"mlp-{hidden}"] = trainer.callback_metrics["val_loss"].item()
        print(f"mlp-{hidden}: {losses[f'mlp-{hidden}']:.4f}")
