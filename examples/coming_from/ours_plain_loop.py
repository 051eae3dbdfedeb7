"""The same three networks, at once: ``argosy run ours_plain_loop.py --numerics exact``."""

from functools import partial

from mine import mlp, train, val
from torch import optim

import argosy

adam = partial(optim.Adam, lr=0.01)
study = argosy.Study(
    data=argosy.Data(arrays=train, val_arrays=val),
    members=[
        argosy.Member(f"mlp-{hidden}", model=partial(mlp, hidden), optimizer=adam, batch_size=32, seed=0)
        for hidden in (16, 64, 256)
    ],
    stop=argosy.MaxEpochs(10),
)
