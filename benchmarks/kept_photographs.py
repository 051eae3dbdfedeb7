"""Photographs that take a few milliseconds each to decode, without randomness: the samples of `kept.py`, which counts how many are prepared.

Each sample is a JPEG file of 600 x 600 pixels cut from one of scikit-learn's two photographs, enlarged by half. It is
decoded, cropped and scaled to 64 x 64, as for validation.
"""

import random
from pathlib import Path

import numpy as np
import torch
from kept_networks import CLASSES, PIXELS
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["Decoded", "Several", "prepared", "write"]

LARGER, SIDE, BOX = 1.5, 600, 540


def write(folder: Path, count: int) -> None:
    """Write files ``<number>-<class>.jpg``."""
    from sklearn.datasets import load_sample_images  # its half a second must not count on any side

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    photographs = [image.resize((int(LARGER * image.width), int(LARGER * image.height))) for image in photographs]
    draw, thirds = random.Random(0), CLASSES // len(photographs)
    folder.mkdir(parents=True)
    for number in range(count):
        which = draw.randrange(len(photographs))
        image = photographs[which]
        left, top = draw.randint(0, image.width - SIDE), draw.randint(0, image.height - SIDE)
        third = thirds * left // (image.width - SIDE + 1)
        cut = image.crop((left, top, left + SIDE, top + SIDE))
        cut.save(folder / f"{number:06d}-{thirds * which + third}.jpg", quality=90)


class Decoded(Dataset[tuple[Tensor, int]]):
    """The files of a folder: bytes ``[3, 64, 64]`` and a class. A file beside the folder gets a byte for each sample prepared."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        self.classes = [int(path.stem.split("-")[1]) for path in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.files[index].parent.with_suffix(".prepared").open("ab", 0) as count:
            count.write(b".")
        edge = (SIDE - BOX) // 2
        box = (edge, edge, edge + BOX, edge + BOX)
        image = Image.open(self.files[index]).resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box=box)
        return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy()), self.classes[index]


class Several(Decoded):
    """The files repeated `times` times, one pass after another."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def __len__(self) -> int:
        return self.times * len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return super().__getitem__(index % len(self.files))


def prepared(folder: Path) -> int:
    """Return how many samples of a folder were prepared, by any process."""
    count = folder.with_suffix(".prepared")
    return count.stat().st_size if count.exists() else 0
