"""Members that one program can step together, and functions to compare such programs with each member alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from blocks import blocks
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon
from torch.optim.lr_scheduler import CosineAnnealingLR

from argosy.stream.blocks import Block
from argosy.stream.schedule import Orders
from argosy.study import Member, accuracy
from argosy.training.choice.admission import Admission, admit
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import open_backend
from argosy.training.member.building import build_member
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

TRAIN, VAL = 96, 20
FOLD, BOOTSTRAP = [*range(10, 90)], np.random.RandomState(0).randint(0, TRAIN, TRAIN).tolist()


class ResNet(nn.Module):
    """A network of convolutions with BatchNorm and residual connections."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.stem(x.unflatten(1, (1, 4, 4)))))
        for conv, norm in zip(self.convs, self.norms[1:], strict=True):
            x = torch.relu(x + norm(conv(x)))
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """A transformer layer before a linear head; samples are sequences of four vectors."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 16, dropout, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x.unflatten(1, (4, 4)))).mean(1))


class Masked(nn.Module):
    """A layer with a boolean buffer, which the first call fills with ``filled=False``; each feature becomes a mean without later ones."""

    def __init__(self, width: int = 12, *, filled: bool = True) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("mask", self._made() if filled else None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = self._made()
        return x.unsqueeze(1).expand(len(x), self.width, self.width).masked_fill(self.mask, 0.0).mean(2)

    def _made(self) -> Tensor:
        return torch.ones(self.width, self.width, dtype=torch.bool).triu(1)


class Empty(nn.Module):
    """A layer with a weight that has no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(12, 0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight.sum(1)


def mlp(dropout: float = 0.0, hidden: int = 12) -> nn.Module:
    """Return a network of one hidden layer."""
    return nn.Sequential(nn.Linear(16, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, 4))


def convnet(dropout: float = 0.2) -> nn.Module:
    """Return a network of a convolution with dropout of channels and of features."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 6, 3),
        nn.Dropout2d(dropout),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 12),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(12, 4),
    )


def matrices(parameters: Any, *, lr: float, **rest: Any) -> list[Any]:
    """Return two optimizers: Muon for matrices, AdamW for the rest."""
    return [
        Muon([p for p in parameters if p.dim() == 2], lr=lr, **rest),
        AdamW([p for p in parameters if p.dim() != 2], lr=lr),
    ]


def double(model: Any) -> nn.Module:
    """Build a network in float64."""
    return model().double()


def member(name: str, *, model: Any = mlp, dtype: torch.dtype = torch.float64, **rest: Any) -> Member:
    """Return a member of a pack, by default in float64; `rest` are fields of Member."""
    rest.setdefault("optimizer", partial(SGD, lr=0.1))
    rest.setdefault("batch_size", 16)
    rest.setdefault("metrics", {"accuracy": accuracy})
    return Member(name, model=partial(double, model) if dtype == torch.float64 else model, **rest)


class Pulled:
    """A step that pulls the mean output towards its moving average, which it keeps."""

    def __init__(self) -> None:
        self.mean: Tensor | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        output = model(batch[0])
        mean = torch.zeros_like(output[0]) if self.mean is None else self.mean
        if model.training:
            self.mean = 0.9 * mean + 0.1 * output.detach().mean(0)
        return nn.functional.cross_entropy(output, batch[1]) + (output.mean(0) - mean).square().mean()

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the average."""
        self.mean = state["mean"]


class Drifting:
    """An augmentation that adds the sum of the mean samples so far, which it keeps."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None

    def __call__(self, batch: Any) -> Any:
        mean = batch[0].mean(0)
        self.sum = mean if self.sum is None else self.sum + mean
        return batch[0] + self.sum, batch[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the sum."""
        return {"sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the sum."""
        self.sum = state["sum"]


UNWAITING: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum, nesterov": {"optimizer": partial(SGD, lr=0.1, momentum=0.9, nesterov=True)},
    "clipped": {"clip_grad_norm": 1.0, "optimizer": AdamW},
    "augmented": {"augment": lambda batch: (batch[0].flip(1), batch[1])},
    "scheduled": {"optimizer": Adam, "schedule": partial(CosineAnnealingLR, T_max=9), "schedule_per": "step"},
    "dropout": {"model": convnet},
    "norms": {"model": ResNet},
    "attention": {"model": Transformer, "optimizer": AdamW},
    "a list of optimizers": {"optimizer": partial(matrices, lr=0.01)},
    "micro-batched": {"accumulate": 4},
    "of a fold": {"subset": FOLD},
    "of a bootstrap": {"subset": BOOTSTRAP, "optimizer": Adam},
    "across blocks": {"batch_size": 24, "subset": BOOTSTRAP},
}
"""Fields of members whose steps never make the host wait for the device."""


def live(member: Member, device: str = "cpu:0", *, exact: bool = True) -> LiveMember:
    """Build a member on a device, as it is before its first step."""
    return build_member(member, open_backend(device), study_seed=0, objective="val_loss", mode="min", exact=exact)


def samples(
    dtype: torch.dtype = torch.float64, train: int = TRAIN
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training and validation arrays of vectors in four classes."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(4, 16, generator=generator, dtype=dtype)
    splits = []
    for length in (train, VAL):
        targets = torch.arange(length) % 4
        splits.append((centres[targets] + torch.randn(length, 16, generator=generator, dtype=dtype), targets))
    return splits[0], splits[1]


def there(block: Block, program: Program) -> Block:
    """Return a block on the device of the program's members."""
    return DeviceCopies(program.members[0].backend).start(block)


def train(
    program: Program,
    epochs: int,
    *,
    size: int = 40,
    dtype: torch.dtype = torch.float64,
    data: Any = None,
    ends: Mapping[str, int] | None = None,
    holes: Sequence[int] = (),
) -> dict[str, list[dict[str, float]]]:
    """Train in blocks of `size` and return each member's metrics by epoch; members in `ends` leave after that many epochs."""
    arrays, val = data or samples(dtype)
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    history: dict[str, list[dict[str, float]]] = {one.member.name: [] for one in program.members}
    for epoch in range(program.members[0].epoch, program.members[0].epoch + epochs):
        for one in program.members:
            one.begin_epoch(orders, epoch, one.position)
        for block in blocks(orders.epoch("train", epoch), size, arrays=arrays, epoch=epoch, holes=holes):
            with program.active():
                for batch in program.cut(there(block, program)):
                    program.begin(batch)
                    program.finish()
        for block in blocks(orders.epoch("val", epoch), size, arrays=val, split="val"):
            with program.active(keep=True):
                for _ in program.evaluate(there(block, program)):
                    pass
        for one in program.members:
            history[one.member.name].append(one.end_section(1))
        gone = [one.member.name for one in program.members if (ends or {}).get(one.member.name) == epoch + 1]
        if gone and isinstance(program, Fused):
            program.release()
            program = Fused.of([one for one in program.members if one.member.name not in gone])
    return history


def step_through(
    watched: Callable[[], AbstractContextManager[None]], program: Program, *, holes: Sequence[int] = ()
) -> int:
    """Train an epoch and validate, inside `watched` except for the first blocks; returns the number of watched steps."""
    arrays, val = samples(next(program.members[0].model.parameters()).dtype)
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for one in program.members:
        one.begin_epoch(orders, 0)
    steps = 0
    for number, block in enumerate(blocks(orders.epoch("train", 0), 40, arrays=arrays, holes=holes)):
        brought = there(block, program)
        with program.active(), watched() if number else nullcontext():
            for batch in program.cut(brought):
                program.begin(batch)
                steps += program.finish() > 0 and number > 0
    for number, block in enumerate(blocks(orders.epoch("val", 0), 10, arrays=val, split="val", holes=holes)):
        brought = there(block, program)
        with program.active(keep=True), watched() if number else nullcontext():
            for _ in program.evaluate(brought):
                pass
    return steps


def alone(
    members: Sequence[Member], epochs: int, *, ends: Mapping[str, int] | None = None, **how: Any
) -> tuple[Any, Any]:
    """Train each member alone and return the members and their histories."""
    lives = [live(one) for one in members]
    history: dict[str, Any] = {}
    for one in lives:
        history |= train(Solo(one), (ends or {}).get(one.member.name, epochs), **how)
    return lives, history


def together(members: Sequence[Member], epochs: int, **how: Any) -> tuple[Any, Any]:
    """Train the members as one program and return them and their histories."""
    lives = [live(one) for one in members]
    return lives, train(Fused.of(lives), epochs, **how)


def difference(one: Any, other: Any) -> float:
    """Return the largest difference between two states of one structure: weights, buffers, optimizers, generators, numbers."""
    if isinstance(one, Tensor):
        one, other = one.cpu(), other.cpu()
        assert one.shape == other.shape and one.dtype == other.dtype
        gaps = (one.double() - other.double()).abs()[(one != other) & ~(one.isnan() & other.isnan())]
        return float(gaps.nan_to_num(nan=math.inf).max()) if gaps.numel() else 0.0
    if isinstance(one, Mapping):
        assert one.keys() == other.keys(), (one.keys(), other.keys())
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        return max(map(difference, one, other), default=0.0)
    if isinstance(one, float):
        return difference(torch.tensor(one), torch.tensor(other))
    assert one == other, (one, other)
    return 0.0


def state(one: LiveMember) -> dict[str, Any]:
    """Return the part of a member's state that decides how it goes on."""
    return {key: value for key, value in one.state_dict().items() if key != "seconds"}


def admission(members: Sequence[Member]) -> Admission:
    """Return which members may be one program, by a check on 24 samples."""
    block = blocks(np.arange(24), 24, arrays=samples(torch.float32)[0])[0]
    return admit([live(member) for member in members], block)


def pack(model: Any, count: int = 3, **rest: Any) -> list[Member]:
    """Return members of one network in float32."""
    return [member(f"m{n}", model=model, dtype=torch.float32, batch_size=8, **rest) for n in range(count)]
