"""Pictures with different numbers of boxes, as in detection: `python examples/boxes.py`."""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

import argosy


def picture(number: int) -> tuple[Tensor, Tensor]:
    """Return noise of 32 x 32 with one to five bright rectangles, and their corners ``[N, 4]``; load your own images and annotations here."""
    draw = np.random.RandomState(number)
    image, boxes = draw.rand(1, 32, 32).astype(np.float32) / 4, []
    for _ in range(draw.randint(1, 6)):
        (left, top), (width, height) = draw.randint(0, 22, 2), draw.randint(4, 11, 2)
        image[0, top : top + height, left : left + width] += 0.6
        boxes.append((left, top, left + width, top + height))
    return torch.from_numpy(image), torch.tensor(boxes) / 32


def detector(width: int) -> nn.Module:
    """Map ``[B, 1, 32, 32]`` to ``[B, 5, 8, 8]``: for each of 8 x 8 cells, whether a box has its centre there, and the box's corners."""
    layers = [nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, width, 7, padding=3), nn.ReLU(), nn.Conv2d(width, 5, 1))


def misses(output: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean distance of the corners predicted at the centres of boxes ``[B]``, and the cells of the centres ``[B, N]``."""
    x, y = ((boxes[..., :2] + boxes[..., 2:]) * 4).long().clamp(0, 7).unbind(-1)
    told = output.flatten(2).transpose(1, 2).gather(1, (y * 8 + x)[..., None].expand(-1, -1, 5))
    there = boxes[..., 2] > 0  # padding boxes are 0
    return ((told[..., 1:] - boxes).abs().mean(2) * there).sum(1) / there.sum(1), torch.where(there, y * 8 + x, 64)


def loss(output: Tensor, boxes: Tensor) -> Tensor:
    """Return each picture's loss ``[B]``: whether boxes are where the network says, and as it says."""
    far, cells = misses(output, boxes)
    centres = boxes.new_zeros(len(boxes), 65).scatter(1, cells, 1.0)[:, :64]
    return far + functional.binary_cross_entropy_with_logits(output[:, 0].flatten(1), centres, reduction="none").mean(1)


how = {"loss": loss, "metrics": {"miss": lambda output, boxes: misses(output, boxes)[0]}, "batch_size": 16}
adam = partial(optim.Adam, lr=0.003)
train, val = [picture(n) for n in range(1000)], [picture(n) for n in range(1000, 1200)]
study = argosy.Study(
    data=argosy.Data(train=train, val=val, ragged=(None, argosy.Ragged(5))),
    members=[argosy.Member(f"net-{n}", model=partial(detector, n), optimizer=adam, **how) for n in (8, 16)],
    stop=argosy.MaxEpochs(8),
)

if __name__ == "__main__":
    best = argosy.train(study, directory="runs/boxes").best()
    print(f"{best.name}: corners within {best.metrics['val_miss'] * 32:.2f} pixels in the mean")
