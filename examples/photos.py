"""From a folder of images, with a folder for each class, to an ensemble: `python examples/photos.py`. Images are decoded only once."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn, optim

import argosy

if not Path("photos").exists():  # replace it by your own: photos/train/CLASS/1.png and photos/val/CLASS/2.png
    for number, (pixels, digit) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        folder = Path("photos", "val" if number % 5 == 0 else "train", str(digit))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8").reshape(8, 8)).save(folder / f"{number}.png")


def cnn(width: int) -> nn.Module:
    """Return a network of two convolutions."""
    first, second = nn.Conv2d(3, width, 3, stride=2), nn.Conv2d(width, width, 3, stride=2)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(9 * width, 10))


def normalise(batch: Any) -> Any:
    """Convert bytes to numbers around zero, once for all networks."""
    image, digit = batch
    return image.float() / 128 - 1, digit


member = argosy.Member("cnn", model=partial(cnn, 8), optimizer=partial(optim.Adam, lr=0.01), batch_size=32)
train, val = (argosy.data.image_folder(f"photos/{split}", size=16) for split in ("train", "val"))
study = argosy.Study(
    data=argosy.Data(train=train, val=val, on_device=normalise),
    members=argosy.replicate(member, seeds=3),
    stop=argosy.MaxEpochs(4),
)

if __name__ == "__main__":
    report = argosy.train(study, directory="runs/photos")
    answers = report.predict(torch.stack([image for image, _ in val]), report.ensemble())
    right = argosy.accuracy(answers, torch.tensor(val.labels))
    print(f"{right.mean():.4f} of {len(val)} images of {len(val.classes)} classes are right; {report.keeping['train']}")
