"""The study of `sharing.py`: members of one structure that differ in learning rate and seed, as in SC'18.

With the three demands, a member's own training takes about 0.1, 0.4 and 0.75 of the time of preparing, as the limits of
SC'18's Fig 10 imply for Alexnet, Inception and VGG-A. A stripped member trains nothing: it takes each block as it
comes, for peak(n) and idle consumers. All processes count what they have prepared and trained.
"""

import os
import random
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import tally
from photographs import Photographs, normalize, plain
from torch import Tensor, nn
from torch.optim import SGD

import argosy

FOLDER = Path(os.environ["SHARING_FOLDER"])
EPOCHS = int(os.environ["SHARING_EPOCHS"])
DEMAND = os.environ["SHARING_DEMAND"]
COUNT = int(os.environ["SHARING_MEMBERS"])
BATCH = int(os.environ["SHARING_BATCH"])
PREPARED = Path(os.environ["SHARING_COUNTS"]) / "prepared"
TRAINED = Path(os.environ["SHARING_COUNTS"]) / "trained"
"""Tallies: samples that were prepared, and samples of all members that were trained on."""

WIDTHS = {"light": 16, "middle": 44, "heavy": 70}
MOVED_EVERY, HELD, LARGEST_STEP = 8, 8, 2**17
"""Samples decoded in the same buffers; pieces of the heap between buffers, and the most bytes of a piece."""
DRAW = random.Random(0)
"""A generator apart from that of the samples."""
STRIPPED = DEMAND == "stripped"


class Counted(Photographs):
    """Photographs that count how many of them were prepared, and move the buffers in which they are decoded.

    Otherwise a process would decode up to an eighth faster or slower than another for its whole life: it allocates and
    frees the same buffers again and again, and the speed depends on where they lie. All loader workers of a run are
    forked from one process and would share the same accident. Moving the buffers averages over many.
    """

    def __init__(self, folder: Path, *, train: bool) -> None:
        super().__init__(folder, train=train)
        self.between: deque[bytearray] = deque(maxlen=HELD)
        self.prepared = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        tally.add(PREPARED, 1)
        if self.prepared % MOVED_EVERY == 0:
            self.between.append(bytearray(DRAW.randrange(LARGEST_STEP)))
        self.prepared += 1
        return super().__getitem__(index)


def count_rows(module: nn.Module, inputs: tuple[Tensor]) -> None:
    """Count the samples of a step."""
    tally.add(TRAINED, len(inputs[0]))


def counted(width: int) -> nn.Module:
    """Return a network that counts its samples."""
    model = plain(width)
    model.register_forward_pre_hook(count_rows)
    return model


def touch(model: Any, batch: Any) -> Tensor:
    """Take a training step that has a gradient but does no work."""
    tally.add(TRAINED, len(batch[0]))
    return model.weight.sum()


study = argosy.Study(
    data=argosy.Data(train=Counted(FOLDER / "train", train=True), on_device=None if STRIPPED else normalize),
    members=[
        argosy.Member(
            f"{DEMAND}-{number:02d}",
            model=partial(nn.Linear, 1, 1) if STRIPPED else partial(counted, width=WIDTHS[DEMAND]),
            optimizer=partial(SGD, lr=0.02 / (1 + number), momentum=0.9),
            batch_size=BATCH,
            seed=number,
            step=touch if STRIPPED else None,
        )
        for number in range(COUNT)
    ],
    stop=argosy.MaxEpochs(EPOCHS),
)
