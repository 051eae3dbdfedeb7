"""The same three modules, at once, with their class unchanged: ``argosy run ours_lightning.py``."""

from functools import partial

from mine import train, val
from theirs_lightning import Classifier

import argosy

study = argosy.Study(
    data=argosy.Data(arrays=train, val_arrays=val),
    members=[
        argosy.from_lightning(f"mlp-{hidden}", partial(Classifier, hidden), batch_size=32, seed=0)
        for hidden in (16, 64, 256)
    ],
    stop=argosy.MaxEpochs(10),
)
