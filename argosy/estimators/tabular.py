"""Default members for a table: three kinds of networks, with sizes that depend on the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.optim import AdamW

from argosy.described import document_fields
from argosy.designs.grid import grid
from argosy.errors.checks import check_choice, check_number, check_whole
from argosy.errors.spelling import known_keywords
from argosy.estimators.networks import LossOfCopies, Mlp, ResNet, TabM
from argosy.stopping import MaxEpochs, Plateau
from argosy.study import Member

__all__ = ["Shape", "Tabular", "tabular"]

COPIES = 8
LEAST_BATCH, MOST_BATCH, STEPS = 16, 256, 24
"""Batch sizes give about this many steps per epoch, within these bounds."""
KINDS = ("mlp", "resnet", "tabm")
SPACE = ("width", "depth", "dropout", "lr", "weight_decay")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The shape of a table that a member is trained on."""

    samples: int
    """Number of training rows."""
    inputs: int
    """Number of inputs of a network, after preparation."""
    outputs: int
    """Number of classes, or of targets."""
    of_classes: bool
    """Whether the targets are classes."""


@known_keywords("argosy.tabular")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Tabular:
    """Default members for a table, one per kind of network: ``argosy.Classifier(argosy.tabular(width=[64, 256]))``.

    `width`, `depth`, `dropout`, `lr` and `weight_decay` can be lists; the members are then all combinations, and the ensemble uses those
    that improve it. A member stops `patience` epochs after its best epoch, whose weights it keeps.
    """

    networks: Sequence[str] = KINDS
    """``mlp``, ``resnet`` (residual blocks), and ``tabm`` (eight MLPs that share most weights, arXiv:2410.24210)."""
    width: int | Sequence[int] = 96
    """Units per hidden layer."""
    depth: int | Sequence[int] = 2
    """Number of hidden layers or residual blocks."""
    dropout: float | Sequence[float] = 0.1
    """Dropout probability."""
    lr: float | Sequence[float] = 0.003
    """Learning rate of AdamW."""
    weight_decay: float | Sequence[float] = 0.01
    """Weight decay of AdamW."""
    batch_size: int | None = None
    """Samples per step; by default 16 to 256, depending on the table."""
    epochs: int = 60
    """Largest number of epochs."""
    patience: int = 8
    """Epochs without a better loss on the samples of its fold after which a member stops."""

    def __post_init__(self) -> None:
        for name in (*SPACE, "batch_size", "epochs", "patience"):
            object.__setattr__(self, name, _as_python(getattr(self, name)))
        for kind in _as_sequence(self.networks):
            check_choice("argosy.tabular: networks", kind, KINDS)
        for name, least in (("width", 1), ("depth", 1)):
            for value in _as_sequence(getattr(self, name)):
                check_whole(f"argosy.tabular: {name}", value, least=least)
        for name in ("dropout", "lr", "weight_decay"):
            for value in _as_sequence(getattr(self, name)):
                check_number(f"argosy.tabular: {name}", value, least=0.0)

    def __call__(self, shape: Shape) -> list[Member]:
        """Return the members for a table."""
        axes = {name: getattr(self, name) for name in SPACE}
        varied = {name: axis for name, axis in axes.items() if isinstance(axis, list | tuple)}
        fixed = {name: axis for name, axis in axes.items() if name not in varied}
        builds = [partial(self._member, kind, shape, **fixed) for kind in _as_sequence(self.networks)]
        return [member for build in builds for member in (grid(build, **varied) if varied else [build()])]

    def _member(self, kind: str, shape: Shape, *, lr: float, weight_decay: float, **sizes: Any) -> Member:
        model, loss = _network(kind, shape, sizes)
        return Member(
            kind,
            model=model,
            loss=loss,
            optimizer=partial(AdamW, lr=lr, weight_decay=weight_decay),
            batch_size=_batch_size(shape.samples) if self.batch_size is None else self.batch_size,
            eval_batch_size=MOST_BATCH,
            stop=MaxEpochs(self.epochs) | Plateau("val_loss", patience=self.patience),
        )


def _network(kind: str, shape: Shape, sizes: dict[str, Any]) -> tuple[Callable[[], nn.Module], nn.Module]:
    if kind == "tabm":
        copies = partial(TabM, shape.inputs, shape.outputs, copies=COPIES, of_classes=shape.of_classes, **sizes)
        return copies, LossOfCopies(of_classes=shape.of_classes)
    network = partial(Mlp if kind == "mlp" else ResNet, shape.inputs, shape.outputs, **sizes)
    return network, nn.CrossEntropyLoss() if shape.of_classes else nn.MSELoss()


def _as_python(value: Any) -> Any:
    """Return NumPy numbers as Python numbers, and an array or a range as a list, for a search or a grid."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    return list(plain) if isinstance(plain, range) else plain


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _batch_size(samples: int) -> int:
    """Return a power of two, or the number of samples if there are few."""
    return min(max(1 << (samples // STEPS).bit_length(), LEAST_BATCH), MOST_BATCH, samples)


tabular = Tabular
"""The name in the package, as that of a function that makes members."""
