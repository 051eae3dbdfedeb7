"""The same six trials, at once: ``argosy run ours_skorch.py --numerics exact``."""

from functools import partial

from mine import mlp, train, val
from torch import optim

import argosy


def member(hidden, lr):
    adam = partial(optim.Adam, lr=lr)
    return argosy.Member("mlp", model=partial(mlp, hidden), optimizer=adam, batch_size=32, seed=0)


study = argosy.Study(
    data=argosy.Data(arrays=train, val_arrays=val),
    members=argosy.grid(member, hidden=[16, 64, 256], lr=[0.01, 0.001]),
    stop=argosy.MaxEpochs(4),
)
