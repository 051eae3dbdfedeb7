"""A decode-heavy image set and eight small networks for it, in plain PyTorch, which every side of `together.py` trains.

Each sample is a JPEG file of 384 x 384 pixels cut from scikit-learn's two photographs; it is decoded, cropped, scaled
to 64 x 64 and jittered, as in recipes for images. Its class says from which photograph, and from which third of it, it
was cut.
"""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import Dataset

__all__ = ["ALIKE", "BATCH", "MEMBERS", "NETWORKS", "Photographs", "normalize", "write_photographs"]

SIDE, BOX, PIXELS, CLASSES, BATCH = 384, 288, 64, 6, 32


def write_photographs(folder: Path, count: int, *, seed: int) -> None:
    """Write files ``<number>-<class>.jpg``."""
    from sklearn.datasets import load_sample_images  # its half a second must not count on any side

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        which = draw.randrange(len(photographs))
        image = photographs[which]
        left, top = draw.randint(0, image.width - SIDE), draw.randint(0, image.height - SIDE)
        third = 3 * left // (image.width - SIDE + 1)
        cut = image.crop((left, top, left + SIDE, top + SIDE))
        cut.save(folder / f"{number:06d}-{3 * which + third}.jpg", quality=90)


class Photographs(Dataset[tuple[Tensor, int]]):
    """The files of a folder: bytes ``[3, 64, 64]`` and a class; training samples are cropped and jittered at random."""

    def __init__(self, folder: Path, *, train: bool) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        self.classes = [int(path.stem.split("-")[1]) for path in self.files]
        self.train = train

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        room = SIDE - BOX
        left, top = (random.randint(0, room), random.randint(0, room)) if self.train else (room // 2, room // 2)
        box = (left, top, left + BOX, top + BOX)
        image = Image.open(self.files[index]).resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box=box)
        if self.train:
            image = ImageEnhance.Brightness(image).enhance(random.uniform(0.8, 1.2))
            image = ImageEnhance.Contrast(image).enhance(random.uniform(0.8, 1.2))
        return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy()), self.classes[index]


def normalize(batch: Any) -> Any:
    """Convert bytes ``[B, 3, H, W]`` to floats around zero."""
    image_BCHW, class_B = batch
    return (image_BCHW.float() - 110.0) / 70.0, class_B


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution, BatchNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def head(width: int) -> list[nn.Module]:
    """Return layers that average over pixels and then classify."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


class Residual(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(width, width), nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


def mlp(hidden: int) -> nn.Module:
    """Return two layers on pixels averaged four by four."""
    return nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3 * 16 * 16, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
    )


def plain(width: int) -> nn.Module:
    """Return convolutions, each of which halves the size."""
    layers = [convolution(3, width, kernel=5, stride=4), convolution(width, 2 * width, stride=2)]
    return nn.Sequential(*layers, convolution(2 * width, 2 * width, stride=2), *head(2 * width))


def narrow(width: int) -> nn.Module:
    """Return two convolutions without BatchNorm."""
    layers = nn.Conv2d(3, width, 5, 4, 2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*layers, *head(2 * width))


def residual(width: int, blocks: int) -> nn.Module:
    """Return a small ResNet after a coarse first layer."""
    body = [Residual(width) for _ in range(blocks)]
    return nn.Sequential(convolution(3, width, kernel=7, stride=4), nn.MaxPool2d(2), *body, *head(width))


def separable(width: int) -> nn.Module:
    """Return depthwise and pointwise convolutions in turn."""
    layers = [convolution(3, width, stride=2)]
    for _ in range(3):
        layers += [convolution(width, width, stride=2, groups=width), convolution(width, width, kernel=1)]
    return nn.Sequential(*layers, *head(width))


class Patches(nn.Module):
    """One attention layer over patches of 16 x 16 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 16, 16)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        patch_BNC = self.embed(image_BCHW).flatten(2).transpose(1, 2)
        return self.classify((patch_BNC + self.attend(patch_BNC, patch_BNC, patch_BNC)[0]).mean(1))


sgd = partial(SGD, lr=0.02, momentum=0.9)
MEMBERS: dict[str, tuple[Any, Any]] = {
    "mlp": (partial(mlp, hidden=256), sgd),
    "plain": (partial(plain, width=32), sgd),
    "plain-adam": (partial(plain, width=24), partial(Adam, lr=1e-3)),
    "residual": (partial(residual, width=24, blocks=2), sgd),
    "residual-deep": (partial(residual, width=20, blocks=4), partial(AdamW, lr=1e-3)),
    "separable": (partial(separable, width=32), sgd),
    "separable-adam": (partial(separable, width=24), partial(Adam, lr=2e-3)),
    "patches": (partial(Patches, width=64), partial(AdamW, lr=1e-3)),
}
"""Name -> (network, optimizer), both factories."""
ALIKE: dict[str, tuple[Any, Any]] = {
    f"{kind}-{number}": (network, partial(Adam, lr=3e-4 * 2**number))
    for kind, network in (("narrow", partial(narrow, width=8)), ("small", partial(mlp, hidden=32)))
    for number in range(4)
}
"""Two small architectures, each under four learning rates."""
NETWORKS = MEMBERS | ALIKE
