"""Networks of another library: ResNet, MobileNetV2 and ConvNeXt of transformers, built from their configs.

Nothing is downloaded. Run it with ``argosy run examples/hub_nets.py --dir runs/hub``.
"""

from functools import partial
from typing import Any

import torch
from torch.optim import SGD, AdamW
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

import argosy
from argosy.cli.demo import Digits, normalize

CLASSES = {"num_labels": 10, "num_channels": 1}
resnet = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", **CLASSES)
mobilenet = MobileNetV2Config(image_size=28, depth_multiplier=0.25, **CLASSES)
convnext = ConvNextConfig(image_size=28, patch_size=2, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, **CLASSES)


def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the library's output object, per sample."""
    return torch.nn.functional.cross_entropy(output.logits, target, reduction="none")


def accuracy(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the share of right answers, per sample."""
    return argosy.accuracy(output.logits, target)


def member(name: str, model: Any, optimizer: Any) -> argosy.Member:
    """Return a member whose loss and metric take the library's outputs."""
    return argosy.Member(
        name, model=model, optimizer=optimizer, batch_size=32, loss=loss, metrics={"accuracy": accuracy}
    )


study = argosy.Study(
    data=argosy.Data(train=partial(Digits, train=True), val=partial(Digits, train=False), on_device=normalize),
    members=[
        member("resnet", partial(ResNetForImageClassification, resnet), partial(SGD, lr=0.05, momentum=0.9)),
        member("mobilenet-v2", partial(MobileNetV2ForImageClassification, mobilenet), partial(AdamW, lr=2e-3)),
        member("convnext", partial(ConvNextForImageClassification, convnext), partial(AdamW, lr=2e-3)),
    ],
    stop=argosy.MaxEpochs(5),
)
