# %% [markdown]
# The cells of a notebook: train, look, train further, use the best network.
# Functions and classes of a notebook are sent to the processes that train; none has to be in a file.

# %%
from dataclasses import replace
from functools import partial

import torch
from sklearn.datasets import load_wine
from torch import nn, optim

import argosy

x, y = load_wine(return_X_y=True)
x = torch.tensor((x - x.mean(axis=0)) / x.std(axis=0), dtype=torch.float32)
rows = x, torch.tensor(y)


# %%
def mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def member(hidden: int, lr: float) -> argosy.Member:
    return argosy.Member("mlp", model=partial(mlp, hidden), optimizer=partial(optim.Adam, lr=lr), batch_size=16)


study = argosy.Study(
    data=argosy.Data(arrays=[part[::2] for part in rows], val_arrays=[part[1::2] for part in rows]),
    members=argosy.grid(member, hidden=[8, 32], lr=[0.003, 0.03]),
    stop=argosy.MaxEpochs(3),
)

# %%
report = argosy.train(study, directory="runs/notebook", progress=True)
report.to_pandas()[["member", "epochs", "val_loss"]]

# %% [markdown]
# The same call on the same directory continues the run, here for more epochs.

# %%
report = argosy.train(replace(study, stop=argosy.MaxEpochs(6)), directory="runs/notebook", progress=True)
report.to_pandas()[["member", "epochs", "val_loss"]]

# %%
network = report.best().load()
network(rows[0][:3]).softmax(dim=1)
