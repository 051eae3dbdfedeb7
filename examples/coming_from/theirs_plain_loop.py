"""Three networks in a plain PyTorch loop, one after another."""

import copy

import torch
from mine import Published, mlp, train_set, val_set
from torch import optim
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

curves, networks = {}, {}
for hidden in (16, 64, 256):
    torch.manual_seed(0)
    model = mlp(hidden)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    train_loader = DataLoader(train_set, batch_size=32, sampler=Published(len(train_set)))
    val_loader = DataLoader(val_set, batch_size=32)
    curve = curves[f"mlp-{hidden}"] = []
    for _ in range(10):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses = [cross_entropy(model(x), y, reduction="none").double().sum().item() for x, y in val_loader]
        curve.append(sum(losses) / len(val_set))
        if curve[-1] == min(curve):
            networks[f"mlp-{hidden}"] = copy.deepcopy(model)
    print(f"mlp-{hidden}: {min(curve):.4f}")
