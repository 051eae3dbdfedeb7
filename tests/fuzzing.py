"""Random studies over the whole API: valid ones, which must equal a plain loop, and invalid ones, which one sentence must refuse."""

import dataclasses
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from differing import figure
from hypothesis import strategies as st
from plain_loop import Trained, trained
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import Dataset

import argosy
from argosy.errors import ArgosyError, MemberError, PlanError
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal

__all__ = ["BAD", "Asked", "Samples", "differences", "invalid", "network", "refusal", "spoilt", "table", "valid"]

INPUTS, CLASSES = 6, 4
CLOSE = 1e-9
"""Tolerance for programs that may round differently."""


# ---- what members are made of


class Samples(Dataset[tuple[Tensor, int]]):
    """A dataset with noise from torch, NumPy and `random` if `noise` is above 0; samples in `broken` raise."""

    def __init__(self, length: int, dtype: torch.dtype, noise: float = 0.0, broken: Sequence[int] = ()) -> None:
        self.x, self.y = table(length)
        self.x, self.dtype, self.noise, self.broken = self.x.astype(np.float64), dtype, noise, frozenset(broken)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index in self.broken:
            raise ZeroDivisionError(index)
        x = torch.from_numpy(self.x[index])
        if self.noise:
            x = x + self.noise * (torch.randn(INPUTS) + float(np.random.rand()) + random.random())
        return x.to(self.dtype), int(self.y[index])


def table(length: int) -> tuple[Any, Any]:
    """Return samples of four classes, and their labels."""
    state = np.random.RandomState(length)
    x = state.normal(size=(length, INPUTS))
    return x, (x[:, 0] > 0).astype(np.int64) + 2 * (x[:, 1] > x[:, 2])


class Residual(nn.Module):
    """A network that uses one layer twice and does not train another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(INPUTS, width), nn.Linear(width, width), nn.Linear(width, CLASSES)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h + torch.tanh(self.again(torch.tanh(self.again(h)))))


def network(kind: str, width: int, rate: float, dtype: torch.dtype) -> nn.Module:
    """Return a small network of one kind.

    Layers before a BatchNorm have no bias. Its gradient would be zero except for rounding errors, and optimizers that divide by the
    gradient's size would amplify these.
    """
    parts: dict[str, Callable[[], Sequence[nn.Module]]] = {
        "linear": lambda: [nn.Linear(INPUTS, CLASSES)],
        "mlp": lambda: [nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, CLASSES)],
        "batchnorm": lambda: [
            nn.Linear(INPUTS, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        ],
        "dropout": lambda: [nn.Linear(INPUTS, width), nn.ReLU(), nn.Dropout(rate), nn.Linear(width, CLASSES)],
        "layernorm": lambda: [nn.Linear(INPUTS, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, CLASSES)],
        "cnn": lambda: [
            nn.Unflatten(1, (1, INPUTS)),
            nn.Conv1d(1, width, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool1d(2),
            nn.Flatten(),
            nn.Linear(width * INPUTS // 2, CLASSES),
        ],
        "cnn2d": lambda: [
            nn.Unflatten(1, (1, 2, 3)),
            nn.Conv2d(1, width, 2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, CLASSES),
        ],
        "residual": lambda: [Residual(width)],
    }
    return nn.Sequential(*parts[kind]()).to(dtype)


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss per sample."""
    return ((output - functional.one_hot(target, CLASSES)) ** 2).mean(1)


def of_each_class(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss per sample and class."""
    return (output - functional.one_hot(target, CLASSES)) ** 2


def noisy(batch: Any) -> Any:
    """An augmentation that draws a random number for each element."""
    return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]


def shuffled(batch: Any) -> Any:
    """An augmentation that mixes each sample with another of its batch, in a random order."""
    return 0.8 * batch[0] + 0.2 * batch[0][torch.randperm(len(batch[0]))], batch[1]


def turned(batch: Any) -> Any:
    """An augmentation that draws no random numbers."""
    return batch[0].flip(1), batch[1]


def scaled(batch: Any) -> Any:
    """The study's `on_device`."""
    return batch[0] * 0.5 - 0.1, batch[1]


def loss_alone(model: Any, batch: Any) -> Any:
    """A step that returns the loss only, so there can be no metrics."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def all_three(model: Any, batch: Any) -> Any:
    """A step that returns losses, outputs and targets, as metrics need them."""
    output = model(batch[0])
    return functional.cross_entropy(output, batch[1], reduction="none"), output, batch[1]


def doubled(model: Any, batch: Any) -> Any:
    """A member's own validation, which differs from its step."""
    losses, output, target = all_three(model, batch)
    return 2 * losses, output, target


def two_optimizers(model: Any) -> Mapping[str, Any]:
    """Return the optimizers of `moving`."""
    first, *rest = model.parameters()
    return {"first": optim.SGD([first], lr=0.05), "rest": optim.Adam(rest, lr=0.01)}


def moving(model: Any, batch: Any, optimizers: Mapping[str, Any]) -> Any:
    """A step in which the second optimizer uses the gradient after the first one's step."""
    for optimizer in optimizers.values():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
    return loss


def right(output: Tensor, target: Tensor) -> Tensor:
    """A metric with one value per sample."""
    return (output.argmax(1) == target).double()


def spread(output: Tensor, target: Tensor) -> Tensor:
    """A metric of the whole validation set."""
    return output.double().std(correction=0) + target.double().mean()


class Highest:
    """A metric with its own state."""

    def __init__(self) -> None:
        self.value = -math.inf

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add a batch."""
        self.value = max(self.value, float(output.double().max()))

    def compute(self) -> Tensor:
        """Return the value of all batches."""
        return torch.tensor(self.value, dtype=torch.float64)


def one_cycle(optimizer: optim.Optimizer) -> lr_scheduler.OneCycleLR:
    """Return a schedule that changes the momentum too if the optimizer has any."""
    moves = not optimizer.defaults.keys().isdisjoint({"momentum", "betas"})
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=500, cycle_momentum=moves)


OPTIMIZERS: tuple[Callable[..., Any], ...] = (
    partial(optim.SGD, lr=0.05),
    partial(optim.SGD, lr=0.05, momentum=0.9),
    partial(optim.SGD, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3),
    partial(optim.SGD, lr=0.02, momentum=0.5, dampening=0.1, maximize=False),
    partial(optim.Adam, lr=0.01),
    partial(optim.Adam, lr=0.01, amsgrad=True, weight_decay=1e-3),
    partial(optim.AdamW, lr=0.01, betas=(0.8, 0.99)),
    partial(optim.RMSprop, lr=0.005),
    partial(optim.RMSprop, lr=0.005, momentum=0.5, centered=True),
    partial(optim.Adagrad, lr=0.02),
    partial(optim.Adadelta, lr=0.5),
    partial(optim.NAdam, lr=0.005),
    partial(optim.RAdam, lr=0.01),
    partial(optim.Adamax, lr=0.01),
    partial(optim.ASGD, lr=0.02),
)
SCHEDULES: tuple[tuple[Callable[..., Any] | None, str], ...] = (
    (None, "epoch"),
    (partial(lr_scheduler.StepLR, step_size=1, gamma=0.5), "epoch"),
    (partial(lr_scheduler.StepLR, step_size=2, gamma=0.8), "step"),
    (partial(lr_scheduler.ExponentialLR, gamma=0.9), "step"),
    (partial(lr_scheduler.CosineAnnealingLR, T_max=5), "step"),
    (partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2), "epoch"),
    (one_cycle, "step"),
    (partial(lr_scheduler.LinearLR, start_factor=0.2, total_iters=4), "step"),
    (partial(lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5), "epoch"),
    (partial(lr_scheduler.LambdaLR, lr_lambda=lambda number: 1 / (1 + number)), "epoch"),
)
LOSSES = (
    None,
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(label_smoothing=0.1),
    nn.CrossEntropyLoss(reduction="none"),
    squared,
    of_each_class,
)
KINDS = ("linear", "mlp", "batchnorm", "dropout", "layernorm", "cnn", "cnn2d", "residual")


# ---- valid studies


@dataclass(frozen=True)
class Asked:
    """A study and the settings of its run."""

    study: argosy.Study
    settings: Mapping[str, Any]
    first: argosy.Study | None = None
    """The same study with fewer epochs, which is run before it in the same directory."""

    def __repr__(self) -> str:
        """Describe what the study is made of."""
        data = {f.name: _short(getattr(self.study.data, f.name)) for f in dataclasses.fields(self.study.data)}
        members = [
            {f.name: _short(getattr(m, f.name)) for f in dataclasses.fields(m) if getattr(m, f.name) is not f.default}
            for m in self.study.members
        ]
        study = {n: getattr(self.study, n) for n in ("stop", "objective", "mode", "seed", "validations_per_epoch")}
        lines = (f"data {data}", *(f"member {member}" for member in members), f"study {study}")
        resumed = "" if self.first is None else f", resumed after {self.first.stop}"
        return "\n".join((*lines, f"settings {dict(self.settings)}{resumed}"))


def _short(value: Any) -> Any:
    if isinstance(value, tuple) and value and hasattr(value[0], "dtype"):
        return [(str(item.dtype), tuple(item.shape)) for item in value]
    if isinstance(value, Samples):
        return f"Samples({len(value)}, {value.dtype}, {value.noise}, {sorted(value.broken)})"
    return value


Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def valid(draw: Draw, launcher: str = "inline") -> Asked:
    """Draw a study that can be trained, and settings for it."""
    exact = draw(st.booleans())
    dtype = draw(st.sampled_from([torch.float64, torch.float32])) if exact else torch.float64
    data = draw(_data(dtype))
    length, held_out = (_length(data, split) for split in ("train", "val"))
    sections = draw(st.sampled_from([1, 1, 1, 2, 3]))
    count = draw(st.integers(1, 6))
    # Most members are alike, so that some programs step several members.
    alike = draw(_kind(exact=exact, dtype=dtype, has_val=data.has_val))
    members = []
    for number in range(count):
        kind = alike if draw(st.integers(0, 3)) else draw(_kind(exact=exact, dtype=dtype, has_val=data.has_val))
        own = draw(_own(kind, length, held_out, data))
        if "optimizers" in kind:
            own = {name: value for name, value in own.items() if name not in ("optimizer", "clip_grad_norm")}
            own |= {"schedule": None, "schedule_per": "epoch"}
        members.append(argosy.Member(f"m{number}", **kind, **own))
    objective = draw(st.sampled_from(["", "train_loss", *(["val_loss"] if data.has_val else [])]))
    terms = {"objective": objective, "seed": draw(st.integers(0, 5)), "validations_per_epoch": sections}
    study = argosy.Study(data=data, members=members, stop=draw(_stop(data.has_val)), **terms)
    first = dataclasses.replace(study, stop=argosy.MaxEpochs(1)) if draw(st.integers(0, 7)) == 7 else None
    if first is not None:
        members = [dataclasses.replace(member, stop=None) for member in members]
        study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(2), **terms)
        first = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(1), **terms)
    settings = {
        "launcher": launcher,
        "devices": draw(st.sampled_from(["cpu:1", "cpu:1", "cpu:2"])),
        "policy": draw(st.sampled_from(["balanced"] * 4 + ["solo", "rounds", "fleet", "fleet-local"])),
        "numerics": "exact" if exact else "equivalent",
        "packing": draw(st.sampled_from(["auto", "auto", "auto", "interleaved"])),
        "block_size": draw(st.sampled_from([None, 1, 5, 11, 24, 100])),
    }
    return Asked(study, settings, first)


@st.composite
def _data(draw: Draw, dtype: torch.dtype) -> argosy.Data:
    length, held_out = draw(st.integers(24, 60)), draw(st.sampled_from([0, 1, 7, 20]))
    on_device = draw(st.sampled_from([None, None, scaled]))
    if draw(st.booleans()):
        wanted = {torch.float64: np.float64, torch.float32: np.float32}[dtype]
        arrays, val = ((x.astype(wanted), y) if len(x) else None for x, y in (table(length), table(held_out or 1)))
        if draw(st.booleans()):
            arrays = tuple(map(torch.from_numpy, arrays))
        return argosy.Data(arrays=arrays, val_arrays=val if held_out else None, on_device=on_device)
    noise = draw(st.sampled_from([0.0, 0.3]))
    broken = draw(st.sampled_from([(), (), (3, 4, 11)]))
    train = Samples(length, dtype, noise, broken)
    val = Samples(held_out, dtype, noise, broken if held_out == 20 else ()) if held_out else None
    if held_out == 7 and not noise:
        val = train  # one dataset object for both splits, so its samples are prepared once
    how = {"on_error": "skip"} if broken or draw(st.booleans()) else {}
    return argosy.Data(train=train, val=val, on_device=on_device, **how)


def _length(data: argosy.Data, split: str) -> int:
    arrays, dataset = (data.arrays, data.train) if split == "train" else (data.val_arrays, data.val)
    return len(arrays[0]) if arrays is not None else 0 if dataset is None else len(dataset)


@st.composite
def _kind(draw: Draw, *, exact: bool, dtype: torch.dtype, has_val: bool) -> dict[str, Any]:
    """Draw what members of one program have in common."""
    kind, width = draw(st.sampled_from(KINDS)), draw(st.integers(2, 8))
    found: dict[str, Any] = {
        "model": partial(network, kind, width, draw(st.sampled_from([0.2, 0.5])), dtype),
        "batch_size": draw(st.sampled_from([2, 5, 8, 13, 24])),
        "eval_batch_size": draw(st.sampled_from([None, None, 1, 6, 50])),
        "accumulate": draw(st.sampled_from([1, 1, 1, 2, 3])),
        "metrics": draw(st.sampled_from([{}, {"right": right}, {"spread": spread}, {"right": right, "top": Highest}])),
        "precision": draw(st.sampled_from(["float32", "float32", "bfloat16", "float16"])) if exact else "float32",
    }
    step = draw(st.sampled_from(["", "", "", "loss", "three", "validate", "optimizers"]))
    if not step:
        return found | {"loss": draw(st.sampled_from(LOSSES))}
    if step == "loss":
        return found | {"step": loss_alone, "metrics": {}}
    if step == "three" or not has_val:
        return found | {"step": all_three}
    if step == "validate":
        return found | {"step": loss_alone, "validate": doubled}
    found |= {"optimizers": two_optimizers, "step": moving, "validate": doubled, "precision": "float32"}
    return found | {"model": partial(network, "mlp", width, 0.0, dtype), "accumulate": 1}


@st.composite
def _own(draw: Draw, kind: Mapping[str, Any], length: int, held_out: int, data: argosy.Data) -> dict[str, Any]:
    """Draw what members of one program may differ in."""
    schedule, per = draw(st.sampled_from(SCHEDULES))
    found: dict[str, Any] = {
        "optimizer": draw(st.sampled_from(OPTIMIZERS)),
        "schedule": schedule,
        "schedule_per": per,
        "augment": draw(st.sampled_from([None, None, noisy, shuffled, turned])),
        "clip_grad_norm": draw(st.sampled_from([None, None, 0.1, 1.0])),
        "seed": draw(st.sampled_from([None, None, 3])),
        "stop": draw(st.one_of(st.none(), st.none(), _stop(data.has_val))),
    }
    if draw(st.integers(0, 2)) == 0:
        found["subset"] = draw(st.lists(st.integers(0, length - 1), min_size=kind["batch_size"] + 1, max_size=40))
    if held_out and draw(st.integers(0, 3)) == 0:
        found["val_subset"] = draw(st.lists(st.integers(0, held_out - 1), min_size=1, max_size=10))
    if kind["batch_size"] <= min(length, len(found.get("subset", range(length)))):
        found["drop_last"] = draw(st.booleans())
    return found


@st.composite
def _stop(draw: Draw, has_val: bool) -> argosy.stopping.Stop:
    rule = draw(st.sampled_from(["epochs", "epochs", "part", "steps", "samples", "plateau", "target", "both"]))
    metric, epochs = "val_loss" if has_val else "train_loss", argosy.MaxEpochs(draw(st.integers(1, 3)))
    if rule == "part":
        return argosy.MaxEpochs(draw(st.sampled_from([0.5, 1.5])))
    if rule == "steps":
        return argosy.MaxSteps(draw(st.integers(1, 12))) | argosy.MaxEpochs(3)
    if rule == "samples":
        return argosy.MaxSamples(draw(st.integers(1, 120))) | argosy.MaxEpochs(3)
    if rule == "plateau":
        return argosy.Plateau(metric, patience=1, min_delta=0.05) | epochs
    if rule == "target":
        return argosy.Target("train_loss", 1.2, mode="min") | epochs
    return argosy.MaxEpochs(1) & argosy.MaxSteps(4) | epochs if rule == "both" else epochs


# ---- comparison with the plain loop


def differences(asked: Asked, directory: Path) -> list[str]:
    """Run a study and return in what its members differ from a plain loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        try:
            for study in (asked.first, asked.study):
                if study is not None:
                    argosy.train(study, directory=directory, **asked.settings)
        except (PlanError, MemberError) as error:
            one_sample = any(words in str(error) for words in ("BatchNorm", "more than 1 value")) and any(
                map(partial(_raises, asked.study), asked.study.members)
            )
            return [] if one_sample else [f"raises {error}"]
        state, found = RunState.of(read_journal(directory)), list[str]()
        for member in asked.study.members:
            found += _of_member(asked, member, state, directory)
    return found


def _raises(study: argosy.Study, member: argosy.Member) -> bool:
    """Return whether the plain loop raises for this member too, because BatchNorm gets a batch of one sample.

    Several epochs are tried, because in some of them the one sample may be a broken one.
    """
    try:
        trained(study, dataclasses.replace(member, stop=argosy.MaxEpochs(8)), range(8))
    except ValueError:
        return True
    return False


def _of_member(asked: Asked, member: argosy.Member, state: RunState, directory: Path) -> list[str]:
    known, exact = state.members[member.name], asked.settings["numerics"] == "exact"
    ended = {section.epoch: section.stream_epoch for section in known.sections}
    if known.status == "failed" and (not ended or known.sections[-1].section == asked.study.validations_per_epoch - 1):
        ended[len(ended)] = known.stream_epoch(len(ended)) or 0  # the epoch in which it failed
    fails = f"{member.name} is {known.status}: {known.reason}"
    try:
        expected = trained(asked.study, member, list(ended.values()))
    except ValueError as error:
        # BatchNorm got a batch of one sample; a run may describe this in its own words.
        tells = str(error) in known.reason or "BatchNorm got a batch of 1 sample" in known.reason
        return [] if known.status == "failed" and tells else [f"{fails}, and alone raises {error}"]
    if any(map(_diverged, [{"samples": 0}, *expected.rows], expected.rows[:-1])):
        return []
    if known.status != "done":
        return [fails]
    weights = torch.load(directory / "members" / member.name / "last.pt", weights_only=True)["model"]
    return [f"{member.name}: {words}" for words in _apart(expected, weights, known.history, exact=exact)]


def _diverged(before: Mapping[str, float], row: Mapping[str, float]) -> bool:
    """Return whether a section has a train loss that is not finite, although it trained on samples."""
    return row["samples"] > before["samples"] and not math.isfinite(row["train_loss"])


def _apart(expected: Trained, weights: Mapping[str, Tensor], history: Sequence[Any], *, exact: bool) -> list[str]:
    found = []
    if len(expected.rows) != len(history):
        return [f"{len(history)} sections, and alone {len(expected.rows)}"]
    for number, (row, mine) in enumerate(zip(history, expected.rows, strict=True)):
        for name in dict.fromkeys([*mine, *row]):
            if name != "seconds" and not _near(row.get(name, 1e99), mine.get(name, -1e99), exact=exact):
                found.append(f"section {number}: {figure(name, row.get(name), mine.get(name))}")
    if weights.keys() != expected.weights.keys():
        return [*found, f"weights {sorted(weights.keys() ^ expected.weights.keys())}"]
    for name, tensor in weights.items():
        other = expected.weights[name]
        if tensor.dtype != other.dtype or not (torch.equal(tensor, other) if exact else _close(tensor, other)):
            found.append(f"{name} differs by {float((tensor.double() - other.double()).abs().max()):.3g}")
    return found


def _near(one: float, other: float, *, exact: bool) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    # The plain loop adds float64 losses of batches in another order.
    return abs(one - other) <= (1e-12 if exact else CLOSE) * max(1.0, abs(other))


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool(((one - other).abs() <= CLOSE * max(1.0, float(other.abs().max()))).all())


# ---- invalid studies

WHOLE: tuple[Any, ...] = (0, -1, 2.5, True, "8", None, float("nan"))
BAD: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "Member": {
        "name": ("", "a/b", "..", ".x", "a b", 3, None, "m" * 300),
        "model": (None, 3, nn.Linear(2, 2), "mlp", lambda: 7, lambda: None, lambda width: None),
        "optimizer": (None, 3, "adam", lambda parameters: 7, lambda parameters: optim.SGD([torch.zeros(2)], lr=0.1)),
        "batch_size": WHOLE,
        "loss": (
            "mse",
            3,
            nn.CrossEntropyLoss,
            lambda output: output,
            lambda output, target: 7,
            lambda output, target: None,
        ),
        "schedule": (
            3,
            "cosine",
            lambda: None,
            lr_scheduler.StepLR,
            lambda optimizer: lr_scheduler.StepLR(optim.SGD([torch.zeros(2)], lr=0.1), 1),
        ),
        "schedule_per": ("batch", None, 1, ""),
        "stop": (3, "done", None.__class__),
        "augment": (3, "flip", dict, lambda x, y: (x, y)),
        "subset": ([], [-1], [0.5], "abc", [[1, 2]], np.array([True, False]), 5, [10**6], {1, 2}),
        "val_subset": ([], [-1], [0.5], "abc", [[1, 2]], 5, [10**6]),
        "drop_last": (1, "yes", None),
        "eval_batch_size": WHOLE[:-2],
        "metrics": (
            3,
            ["accuracy"],
            {"a,b": right},
            {"loss": right},
            {"right": 3},
            {3: right},
            {"r": lambda o, t: "x"},
        ),
        "precision": ("fp16", 16, None, torch.float16),
        "clip_grad_norm": (0, -1.0, "1", True, float("inf"), float("nan")),
        "accumulate": WHOLE,
        "seed": (-1, 2**63, 1.5, "3", True),
        "step": (3, "train", dict, lambda model: 0.0, moving),
        "validate": (3, loss_alone, lambda batch: 0.0),
        "optimizers": (3, two_optimizers),
    },
    "Data": {
        "arrays": (
            3,
            [],
            (np.zeros((3, 2)), np.zeros(4)),
            (np.zeros((0, 2)), np.zeros(0)),
            (np.array(["a", "b"]),),
            "x",
        ),
        "val_arrays": (3, (), (np.zeros((3, 2)), np.zeros(4)), (np.array(["a"]),), (np.float64(3.0),)),
        "train": (3, "imagenet", iter([1, 2]), (number for number in range(3))),
        "val": (3, "imagenet", iter([1, 2])),
        "on_device": (3, "cuda", nn.Linear, lambda x, y: (x, y), lambda batch: None, lambda batch: batch[0].sum()),
        "on_error": ("ignore", None, 3),
    },
    "Study": {
        "members": ([], None, 3, "mlp", [3]),
        "stop": (3, None, "done", argosy.MaxEpochs),
        "objective": (3, "val_f1", "loss", ["val_loss"]),
        "mode": ("lowest", 3, ""),
        "seed": (-1, 1.5, "3", None, True),
        "validations_per_epoch": WHOLE,
    },
    "train": {
        "launcher": ("threads", "", "slurm"),
        "devices": ("tpu", "cpu:0", "cpu:x", "", "cpu:-1", "gpu"),
        "policy": ("best", ""),
        "numerics": ("fast", None),
        "packing": ("never", None),
        "block_size": WHOLE[:-2],
        "nodes": (0, -1, 2.5, "2", 200),
        "threads": (0, -1, 1.5, "2"),
        "sharing": ("some", "none", "single", None),
        "preparing_nodes": (0, 1, 5),
        "time_limit": (-1, "1 h", float("nan")),
        "checkpoint_seconds": (-1, "often", float("inf"), None),
        "hang_seconds": (0, -1, "never", None),
        "loader_workers": (-1, 2.5, 5000),
        "trackers": (("nobody",), (3,)),
    },
}
"""Invalid values by class or function, and by argument."""


@st.composite
def invalid(draw: Draw) -> tuple[str, Callable[[Path], Any]]:
    """Draw an invalid study: its description, and a function that runs it in a directory."""
    asked = draw(valid())
    where = draw(st.sampled_from(sorted(BAD)))
    name = draw(st.sampled_from(sorted(BAD[where])))
    value = draw(st.sampled_from(list(BAD[where][name])))

    return f"{where}({name}={value!r})\n{asked!r}", spoilt(asked, where, name, value)


def spoilt(asked: Asked, where: str, name: str, value: Any) -> Callable[[Path], Any]:
    """Return a function that runs a study in a directory, with this value for one argument in `BAD`."""

    def run(directory: Path) -> Any:
        study, settings = asked.study, {**asked.settings, "directory": directory}
        made = {"Data": _fields(study.data), "Study": _fields(study), "train": settings, "Member": {}}
        members = list(study.members)
        made[where][name] = value
        if where == "Member":
            members[0] = argosy.Member(**{**_fields(members[0]), name: value})
        made["Study"] = {"members": members, "data": argosy.Data(**made["Data"]), **made["Study"]}
        return argosy.train(argosy.Study(**made["Study"]), **settings)

    return run


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields that `run` does not build from others."""
    names = [one.name for one in dataclasses.fields(value) if one.init and one.name not in ("data", "members")]
    return {name: getattr(value, name) for name in names}


def refusal(run: Callable[[Path], Any], directory: Path, *, ends: bool = False) -> list[str]:
    """Run an invalid study and return what is wrong with its error message, or with the reasons of its failed members.

    With `ends` some member has to fail.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            report = run(directory)
        except ArgosyError as error:
            return _unlike_a_sentence(str(error))
        except Exception as error:
            return [f"raises {type(error).__name__}: {error}"]
    reasons = [row.reason for row in report.rows if row.status == "failed"]
    if ends and not reasons:
        return ["it is trained"]
    return [words for reason in reasons for words in _unlike_a_sentence(reason.partition("Error: ")[2] or reason)]


def _unlike_a_sentence(words: str) -> list[str]:
    """Return why a message is not one useful sentence, or a traceback through code of the study."""
    if "Traceback" in words:
        return [] if "fuzzing.py" in words or "<dynamic-code>" in words else [f"a traceback of Argosy's own: {words}"]
    one = "\n" not in words.strip() and words.strip().endswith((".", ")", "]"))
    return [] if one and len(words) < 700 else [f"no sentence: {words!r}"]
