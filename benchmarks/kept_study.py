"""The study of `kept.py`: on cached photographs, on the same ones prepared anew, or on arrays of the prepared samples.

A stripped member trains nothing: it takes each block as it comes, so that preparing is the bottleneck.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kept_networks import BATCH, MEMBERS, averaged
from torch import Tensor, nn
from torch.optim import SGD

import argosy

FOLDER = Path(os.environ["KEPT_FOLDER"])
EPOCHS = int(os.environ["KEPT_EPOCHS"])
DATA = os.environ["KEPT_DATA"]
STRIPPED = "KEPT_STRIPPED" in os.environ
STRIPPED_BATCH = 128


def touch(model: Any, batch: Any) -> Tensor:
    """Take a training step that has a gradient but does no work."""
    return model.weight.sum()


def data() -> argosy.Data:
    """Return one of the three kinds of data, with the same samples."""
    on_device = None if STRIPPED else averaged
    if DATA == "arrays":
        arrays = [np.load(FOLDER / f"{name}.npy", mmap_mode="r") for name in "xy"]
        return argosy.Data(arrays=arrays, on_device=on_device)
    from kept_photographs import Decoded  # arrays need no PIL

    return argosy.Data(train=Decoded(FOLDER / "train"), keep=DATA == "kept", on_device=on_device)


def member(name: str) -> argosy.Member:
    """Return a member that trains, or a stripped one."""
    if STRIPPED:
        return argosy.Member(
            name, model=partial(nn.Linear, 1, 1), optimizer=partial(SGD, lr=0.0), step=touch, batch_size=STRIPPED_BATCH
        )
    model, optimizer = MEMBERS[name]
    return argosy.Member(name, model=model, optimizer=optimizer, batch_size=BATCH)


study = argosy.Study(data=data(), members=[member(name) for name in MEMBERS], stop=argosy.MaxEpochs(EPOCHS))
