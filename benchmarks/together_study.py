"""The study of `together.py`: the same files, networks, orders and seeds as on the hand-written sides."""

import os
from pathlib import Path

from photographs import BATCH, NETWORKS, Photographs, normalize

import argosy

FOLDER = Path(os.environ["TOGETHER_FOLDER"])
EPOCHS = int(os.environ["TOGETHER_EPOCHS"])
NAMES = os.environ["TOGETHER_MEMBERS"].split()
BATCH_SIZE = int(os.environ.get("TOGETHER_BATCH", BATCH))

study = argosy.Study(
    data=argosy.Data(
        train=Photographs(FOLDER / "train", train=True),
        val=Photographs(FOLDER / "val", train=False),
        on_device=normalize,
    ),
    members=[
        argosy.Member(name, model=NETWORKS[name][0], optimizer=NETWORKS[name][1], batch_size=BATCH_SIZE)
        for name in NAMES
    ],
    stop=argosy.MaxEpochs(EPOCHS),
)
