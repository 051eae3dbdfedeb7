"""A complete study file, run by ``argosy demo``: eight different networks on scikit-learn's real handwritten digits.

The digits are written once as JPEG files. Each sample is decoded, cropped and jittered like an image recipe, once for
all members, and travels as bytes; normalising happens once per block on the device.
"""

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import Dataset

import argosy
from argosy.data.pillow import Image, ImageEnhance
from argosy.disk.cached import cache_folder

FOLDER = cache_folder() / "digits"
SIDE, CROP, EPOCHS = 32, 28, 12


class Digits(Dataset[tuple[Tensor, int]]):
    """JPEG files ``<number>-<digit>.jpg``: the first 80 % for training, jittered; the rest as they are."""

    def __init__(self, *, train: bool) -> None:
        files = sorted(write_digits(FOLDER).glob("*.jpg"))
        border = len(files) * 8 // 10
        self.files: list[Path] = files[:border] if train else files[border:]
        self.train = train

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, room = self.files[index], SIDE - CROP
        image = Image.open(path).convert("L")
        left, top = (random.randint(0, room), random.randint(0, room)) if self.train else (room // 2, room // 2)
        image = image.crop((left, top, left + CROP, top + CROP))
        if self.train:
            image = ImageEnhance.Brightness(image).enhance(random.uniform(0.8, 1.2))
            image = ImageEnhance.Contrast(image).enhance(random.uniform(0.8, 1.2))
        return torch.from_numpy(np.array(image)[None]), int(path.stem.split("-")[1])


def write_digits(folder: Path) -> Path:
    """Write the digits as JPEG files, once."""
    if not folder.exists():
        from sklearn.datasets import load_digits  # takes seconds, and only the first demo needs it

        digits = load_digits()
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
            image = Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            image.save(unfinished / f"{number:04d}-{digit}.jpg", quality=90)
        unfinished.rename(folder)
    return folder


def normalize(batch: Any) -> Any:
    """Bytes ``[B, 1, H, W]`` -> floats around zero."""
    image_BCHW, digit_B = batch
    return (image_BCHW.float() - 80.0) / 90.0, digit_B


def mlp(hidden: int) -> nn.Module:
    """Two hidden layers on pixels."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(CROP * CROP, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Residual(nn.Module):
    """Two convolutions beside a shortcut (ResNet)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body: nn.Sequential = nn.Sequential(
            convolution(width, width), nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


class Dense(nn.Module):
    """A layer that adds channels to all it has seen (DenseNet)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body: nn.Sequential = convolution(inputs, growth)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], dim=1)


def head(width: int) -> list[nn.Module]:
    """Average over pixels, then classes."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


def resnet(width: int) -> nn.Module:
    """Return a ResNet: a stem and two residual blocks at a quarter of the side length."""
    return nn.Sequential(
        convolution(1, width, stride=2),
        Residual(width),
        convolution(width, 2 * width, stride=2),
        Residual(2 * width),
        *head(2 * width),
    )


def mobilenet(width: int) -> nn.Module:
    """Depthwise and pointwise convolutions in turn."""
    layers: list[nn.Module] = [convolution(1, width, stride=2)]
    for stride in (1, 2, 1):
        layers += [convolution(width, width, stride=stride, groups=width), convolution(width, 2 * width, kernel=1)]
        width *= 2
    return nn.Sequential(*layers, *head(width))


def densenet(growth: int) -> nn.Module:
    """Six dense layers in two blocks."""
    layers: list[nn.Module] = [convolution(1, growth, stride=2)]
    width = growth
    for _ in range(2):
        for _ in range(3):
            layers.append(Dense(width, growth))
            width += growth
        layers.append(nn.AvgPool2d(2))
    return nn.Sequential(*layers, *head(width))


class Vit(nn.Module):
    """Patches of 7 pixels behind a convolution, two transformer layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches: nn.Sequential = nn.Sequential(
            convolution(1, width, stride=2), nn.Conv2d(width, width, 4, 4, padding=1)
        )
        self.places: nn.Parameter = nn.Parameter(torch.randn(1, (CROP // 7) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers: nn.TransformerEncoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes: nn.Linear = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens_BNC = self.patches(x).flatten(2).transpose(1, 2) + self.places
        classes: Tensor = self.classes(self.layers(tokens_BNC).mean(1))
        return classes


def member(name: str, model: Any, optimizer: Any, batch_size: int = 32) -> argosy.Member:
    """Return a member that reports its accuracy and decays its learning rate along a cosine."""
    return argosy.Member(
        name,
        model=model,
        optimizer=optimizer,
        schedule=partial(CosineAnnealingLR, T_max=EPOCHS),
        batch_size=batch_size,
        metrics={"accuracy": argosy.accuracy},
    )


sgd: partial[SGD] = partial(SGD, lr=0.05, momentum=0.9)
adamw: partial[AdamW] = partial(AdamW, lr=2e-3)

study: argosy.Study = argosy.Study(
    data=argosy.Data(train=partial(Digits, train=True), val=partial(Digits, train=False), on_device=normalize),
    members=[
        member("mlp-64", partial(mlp, hidden=64), sgd),
        member("mlp-256", partial(mlp, hidden=256), sgd, batch_size=64),
        member("resnet", partial(resnet, width=12), sgd),
        member("resnet-adamw", partial(resnet, width=12), adamw),
        member("resnet-batch-50", partial(resnet, width=12), sgd, batch_size=50),
        member("mobilenet", partial(mobilenet, width=12), adamw),
        member("densenet", partial(densenet, growth=8), adamw),
        member("vit", partial(Vit, width=48), adamw, batch_size=16),
    ],
    stop=argosy.MaxEpochs(EPOCHS),
)
