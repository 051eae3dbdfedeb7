"""Eight small networks for photographs, in plain PyTorch, which every side of `kept.py` trains."""

from functools import partial
from typing import Any

from torch import nn
from torch.nn import functional
from torch.optim import SGD

__all__ = ["BATCH", "CLASSES", "MEMBERS", "PIXELS", "averaged"]

PIXELS, CLASSES, BATCH, CELL = 64, 6, 32, 8


def averaged(batch: Any) -> Any:
    """Average bytes ``[B, 3, H, W]`` over 8 x 8 pixels to floats around zero, ``[B, 192]``; computed once per batch for all members."""
    image_BCHW, class_B = batch
    return (functional.avg_pool2d(image_BCHW.float(), CELL).flatten(1) - 110.0) / 70.0, class_B


def network() -> nn.Module:
    """Return a network of two layers."""
    return nn.Sequential(nn.Linear(3 * (PIXELS // CELL) ** 2, 32), nn.ReLU(), nn.Linear(32, CLASSES))


MEMBERS: dict[str, tuple[Any, Any]] = {
    f"rate-{number}": (network, partial(SGD, lr=0.0002 * 2**number, momentum=0.9)) for number in range(8)
}
"""Name -> (network, optimizer), both factories."""
