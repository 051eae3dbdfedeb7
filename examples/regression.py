"""Two targets at once, of scikit-learn's diabetes patients, compared by the RMSE of each: `python examples/regression.py`."""

from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn, optim

import argosy

table, progression = load_diabetes(return_X_y=True)
columns = torch.tensor(table / table.std(axis=0), dtype=torch.float32)
progression = torch.tensor((progression - progression.mean()) / progression.std(), dtype=torch.float32)
# Blood pressure (column 3) and the progression of the disease.
x, y = torch.cat([columns[:, :3], columns[:, 4:]], dim=1), torch.stack([columns[:, 3], progression], dim=1)
train, val = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split([350, 92])


def mlp(hidden: int) -> nn.Module:
    """Return an MLP with one hidden layer and two outputs."""
    return nn.Sequential(nn.Linear(9, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def rmse(outputs: Tensor, targets: Tensor, *, columns: Any = slice(None)) -> Tensor:
    """Return the RMSE over the whole validation set, of one target or of both."""
    return (outputs - targets)[:, columns].pow(2).mean().sqrt()


members = [
    argosy.Member(
        f"hidden-{hidden}",
        model=partial(mlp, hidden),
        optimizer=partial(optim.Adam, lr=0.01),
        batch_size=25,
        loss=nn.MSELoss(),
        metrics={"rmse": rmse, "rmse_pressure": partial(rmse, columns=0), "rmse_progression": partial(rmse, columns=1)},
    )
    for hidden in (2, 8, 32)
]
study = argosy.Study(
    data=argosy.Data(arrays=(x[train], y[train]), val_arrays=(x[val], y[val])),
    members=members,
    objective="val_rmse",
    stop=argosy.Plateau("val_rmse", patience=5) | argosy.MaxEpochs(40),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/regression")
    for row in report.rows:
        found = ", ".join(f"{name} {row.metrics[f'val_rmse_{name}']:.3f}" for name in ("pressure", "progression"))
        print(f"{row.name}: RMSE {row.metrics['val_rmse']:.3f} ({found}) after {row.epochs} epochs")
