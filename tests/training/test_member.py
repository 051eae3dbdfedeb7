"""Tests that a member can be saved between any two steps, that sections and blocks do not affect it, and what its measurement notes."""

import copy
import enum
import itertools
import math
import os
import random
import subprocess
import sys
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import evidence
import numpy as np
import pytest
import studies
import torch
from blocks import blocks
from late import devices  # noqa: F401
from torch import nn
from torch.nn.utils import prune
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

import argosy
from argosy.errors import CheckpointError, StudyError
from argosy.protocol.trainer import Measured
from argosy.stopping import is_better
from argosy.stream.blocks import Block
from argosy.stream.order import Selection
from argosy.stream.schedule import Orders
from argosy.study import Member
from argosy.training.choice import measure as measure_file
from argosy.training.choice import unsaved
from argosy.training.choice.copies import copy_for_trial, hide_step_warning
from argosy.training.choice.measure import NUMPY_RANDOM, PRIVATE, measure_steps
from argosy.training.device.clock import Stopwatch
from argosy.training.device.devices import Backend, open_backend
from argosy.training.member import checkpoint
from argosy.training.member import weights as weights_file
from argosy.training.member.best import Best
from argosy.training.member.building import build_member
from argosy.training.member.copied import DATA_BYTES, optimizers_of
from argosy.training.member.live import LiveMember
from argosy.training.programs.solo import Solo

try:
    import torchmetrics
except ImportError:
    torchmetrics = None

LENGTHS = {"train": 100, "val": 30}
ORDERS = Orders(0, LENGTHS)
INPUTS = torch.randn(100, 12, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(100) % 10


def start(member: Member | None = None, *, device: str = "cpu:0", objective: str = "val_loss") -> Solo:
    mode = "min" if objective.endswith("loss") else "max"
    member = member or studies.member(schedule=partial(StepLR, step_size=1, gamma=0.5), batch_size=16)
    return Solo(build_member(member, open_backend(device), study_seed=0, objective=objective, mode=mode))


def train(solo: Solo, epoch: int, start: int, stop: int, *, size: int = 23, **how: Any) -> Iterator[None]:
    """Train on a stretch of an epoch, yielding after each step."""
    order = ORDERS.epoch("train", epoch)
    for block in blocks(order, size, arrays=(INPUTS, TARGETS), epoch=epoch, start=start, stop=stop, **how):
        through = False
        while not through:
            through = True
            with solo.active():
                for batch in solo.cut(block):
                    solo.begin(batch)
                    assert solo.finish() == batch.rows
                    through = False
                    break
            yield


def validate(solo: Solo) -> None:
    order = ORDERS.epoch("val", 0)
    for block in blocks(order, 11, arrays=(INPUTS[:30], TARGETS[:30]), split="val"):
        with solo.active(keep=True):
            for _ in solo.evaluate(block):
                pass


def run(solo: Solo, epochs: int, *, sections: int = 1, size: int = 23, **how: Any) -> list[dict[str, float]]:
    """Train and validate for whole epochs; return the metrics of every section."""
    rows = []
    for _ in range(epochs):
        epoch = solo.live.epoch
        solo.live.begin_epoch(ORDERS, epoch)
        for section in range(sections):
            if section:
                solo.live.begin_section()
            ends = (section * 100 // sections, (section + 1) * 100 // sections)
            list(train(solo, epoch, *ends, size=size, **how))
            validate(solo)
            rows.append(solo.live.end_section(sections))
    return rows


def outcome(live: LiveMember) -> str:
    """Return a fingerprint of all state that affects the member's further training."""
    state = live.state_dict()
    return evidence.fingerprint({key: state[key] for key in state if key not in ("seconds", "best")})


WATCHING = partial(ReduceLROnPlateau, patience=0, threshold=1e9, threshold_mode="abs")
"""Reduces the rate after every epoch but the first: no later value is better than the first by the threshold."""


@pytest.mark.parametrize("schedule", [partial(StepLR, step_size=1, gamma=0.5), WATCHING])
@pytest.mark.parametrize(("sections", "size"), [(1, 7), (1, 100), (4, 23), (16, 5), (100, 1)])
def test_weights_do_not_depend_on_sections_nor_on_blocks(sections: int, size: int, schedule: Any) -> None:
    one, many = (start(studies.member(schedule=schedule, batch_size=16)) for _ in range(2))
    whole, rows = run(one, 3), run(many, 3, sections=sections, size=size)
    assert outcome(many.live) == outcome(one.live)
    assert rows[sections - 1 :: sections] == whole
    assert len({row["lr"] for row in rows[:sections]}) == 1


def test_training_means_are_over_the_epoch_so_far_and_samples_of_the_section() -> None:
    solo = start(studies.member(batch_size=40))
    solo.live.begin_epoch(ORDERS, 0)
    samples, rows = [], []
    for low in range(0, 100, 25):
        list(train(solo, 0, low, low + 25))
        samples.append(solo.live.samples)
        rows.append(solo.live.end_section(4))
        if solo.live.section:
            solo.live.begin_section()
    assert samples == [0, 40, 0, 60]
    assert math.isnan(rows[0]["train_loss"])
    assert rows[1]["train_loss"] == rows[2]["train_loss"] != rows[3]["train_loss"]
    assert all(math.isnan(row["val_loss"]) for row in rows), "nothing was validated"
    assert (solo.live.epoch, solo.live.section, solo.live.position) == (1, 0, 0)


def test_a_schedule_that_watches_a_metric_moves_at_the_end_of_an_epoch() -> None:
    rows = run(start(studies.member(schedule=WATCHING)), 3, sections=4)
    assert [row["lr"] for row in rows] == pytest.approx([0.05] * 8 + [0.005] * 4)


def resumed(state: dict[str, Any], folder: Path, member: Member | None = None) -> tuple[Solo, int]:
    """Return the member that another trainer loads from a checkpoint of `state`, and its position in the epoch."""
    digest = checkpoint.save(checkpoint.to_plain(state), folder / "saved.pt")
    solo = start(member)
    return solo, solo.live.load_state_dict(checkpoint.load(folder / "saved.pt", digest))


def noisy() -> Member:
    return studies.member("noisy", augment=draw, batch_size=16, subset=[*range(90), 3, 3])


def draw(batch: Any) -> Any:
    x, y = batch
    return x + 0.1 * float(np.random.rand()) + 0.1 * torch.rand_like(x), y


def test_a_save_between_any_two_steps_is_exact(tmp_path: Path) -> None:
    undisturbed = start(noisy())
    undisturbed.live.randomness.uses_others = True
    run(undisturbed, 2)
    for steps in range(8):
        solo = start(noisy())
        solo.live.randomness.uses_others = True
        run(solo, 1)
        solo.live.begin_epoch(ORDERS, 1)
        turns = train(solo, 1, 0, 100)
        for _ in range(steps):
            next(turns)
        state = solo.live.state_dict()
        solo, position = resumed(state, tmp_path, noisy())
        solo.live.begin_epoch(ORDERS, 1, position)
        sequence = Selection.of(noisy().subset, 100).positions(ORDERS.epoch("train", 1))
        list(train(solo, 1, int(sequence[position]), 100, size=31))
        validate(solo)
        solo.live.end_section(1)
        assert outcome(solo.live) == outcome(undisturbed.live), steps


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_member_that_moves_at_a_sections_end_needs_nothing_of_before(tmp_path: Path, moves: int) -> None:
    undisturbed, solo = start(), start()
    rows = run(undisturbed, 1, sections=4)
    solo.live.begin_epoch(ORDERS, 0)
    found = []
    for section in range(4):
        list(train(solo, 0, section * 25, section * 25 + 25))
        validate(solo)
        found.append(solo.live.end_section(4))
        if section + 1 == moves:
            assert solo.live.position + solo.live.carried == (section + 1) * 25
            assert solo.live.carried == (section + 1) * 25 % 16
            solo, position = resumed(solo.live.state_dict(carried=True), tmp_path)
            solo.live.begin_epoch(ORDERS, 0, position)
            assert solo.live.carried == (section + 1) * 25 % 16
        elif solo.live.section:
            solo.live.begin_section()
    assert found == rows
    assert outcome(solo.live) == outcome(undisturbed.live)


def milestones(optimizer: Any) -> Any:
    return SequentialLR(optimizer, [ConstantLR(optimizer), MultiStepLR(optimizer, [1, 1, 3])], [6])


class WarmedUp(LRScheduler):
    """A warm-up that holds the schedule which follows it as an attribute."""

    def __init__(self, optimizer: Any) -> None:
        self.after = StepLR(optimizer, step_size=2, gamma=0.5)
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        return [rate * min(1.0, self.last_epoch / 3) for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        super().step() if self.last_epoch < 3 else self.after.step()


class Switched:
    """A schedule that changes to another one, whose state has the keys of its attributes."""

    def __init__(self, optimizer: Any) -> None:
        self.first, self.then = StepLR(optimizer, step_size=2, gamma=0.5), SWALR(optimizer, 0.01, anneal_epochs=2)
        self.epochs = 0

    def step(self) -> None:
        self.epochs += 1
        (self.first if self.epochs < 3 else self.then).step()

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first.state_dict(), "then": self.then.state_dict(), "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first.load_state_dict(state["first"])
        self.then.load_state_dict(state["then"])
        self.epochs = state["epochs"]


class Around(SGD):
    """An optimizer that wraps another one and uses its groups and state, like timm's Lookahead."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.base = Adam(self.param_groups, lr)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups


class Leading(SGD):
    """An optimizer that lets an inner one make its steps; with `shares` it has the inner one's state, as SAM has not."""

    def __init__(self, weights: Any, *, shares: bool, **rest: Any) -> None:
        super().__init__(weights, **rest)
        self.inner = SGD(self.param_groups, **rest)
        if shares:
            self.state = self.inner.state

    def step(self, closure: Any = None) -> None:
        self.inner.step()


def both(network: nn.Module) -> dict[str, Any]:
    """Return an optimizer that lets an inner one make its steps, as SAM, and the inner one beside it."""
    leading = Leading(network.parameters(), shares=False, lr=0.1, momentum=0.9)
    return {"inner": leading.inner, "leading": leading}


def led(network: nn.Module, batch: Any, optimizers: Any) -> torch.Tensor:
    """A step of `both`."""
    loss = nn.functional.cross_entropy(network(batch[0]), batch[1])
    loss.backward()
    optimizers["leading"].step()
    optimizers["leading"].zero_grad()
    return loss


def told(network: nn.Module, batch: Any) -> torch.Tensor:
    """The validation of `led`."""
    return nn.functional.cross_entropy(network(batch[0]), batch[1])


BOTH = {
    "optimizer": None,
    "optimizers": both,
    "step": led,
    "validate": told,
    "metrics": {},
    "schedule": lambda optimizers: {"leading": milestones(optimizers["leading"])},
}


def in_two(weights: Any) -> list[Any]:
    """Return two optimizers."""
    first, *others = weights
    return [Adam([first], lr=0.1), SGD(others, lr=0.1, momentum=0.9)]


def listed(weights: Any) -> list[Any]:
    """Return two optimizers, the first of which has one inside."""
    first, *others = weights
    return [Leading([first], shares=False, lr=0.1, momentum=0.9), SGD(others, lr=0.1)]


class Numbered(SGD):
    """An optimizer with a number that only its own `state_dict` has, and one that its state has under a name."""

    count = 0

    def step(self, closure: Any = None) -> None:
        self.count += 1
        self.state["steps"] = {"made": self.state["steps"].get("made", 0) + 1}
        self.param_groups[0]["lr"] = 0.1 / (self.count + self.state["steps"]["made"])
        super().step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "count"})


def numbered(weights: Any) -> list[Any]:
    """Return two optimizers that count their steps."""
    first, *others = weights
    return [Numbered([first], lr=0.1), Numbered(others, lr=0.1)]


class Coded(SGD):
    """An optimizer that keeps codes, a mask, sums in float64 and a text in lists and dicts."""

    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                zeros = partial(torch.zeros, weight.shape)
                state["kept"] = {"codes": [zeros(dtype=torch.uint8), zeros(dtype=torch.bool)], "kind": "sum"}
                state["sums"] = (zeros(dtype=torch.float64), "sum")
            codes, mask = state["kept"]["codes"]
            assert state["kept"]["kind"] == state["sums"][1] == "sum"
            state["sums"][0].mul_(0.9).add_(weight.grad + 0.01 * codes.add_(mask.logical_not_()).bitwise_not() / 256)
            weight.data[mask] -= 0.1 * state["sums"][0][mask].float()


class Keyed(SGD):
    """An optimizer that finds sums of gradients by weights, in a dict in its group as GrokAdamW, or in a list there, and in its state."""

    def step(self, closure: Any = None) -> None:
        (sums,), counts = self.param_groups[0].setdefault("sums", [{}]), self.state["counts"]
        for weight in self.param_groups[0]["params"]:
            sums[weight] = 0.9 * sums.get(weight, 0.0) + weight.grad
            counts[weight] = counts.get(weight, 0) + 1
            weight.data -= 0.1 * sums[weight] / counts[weight]


class Delegating(Optimizer):
    """An optimizer whose parameter groups and state are those of one inside it."""

    param_groups = property(lambda self: self.inner.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.inner.state)  # type: ignore[assignment]

    def __init__(self, inner: Optimizer) -> None:
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self._patch_step_function()
        self.inner, self.defaults = inner, inner.defaults

    def step(self, closure: Any = None) -> None:
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)


class Combined(Optimizer):
    """An optimizer that holds others in a list, and has none of their state."""

    def __init__(self, *optimizers: Any) -> None:
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        self.optimizers = [*optimizers]

    def step(self, closure: Any = None) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


class Centred(nn.Module):
    """A loss with a moving average in a buffer, as DINO's centre of the teacher's outputs, and a frozen network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(10))
        self.seen = nn.Linear(10, 10).requires_grad_(False)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.centre = 0.9 * self.centre + 0.1 * output.detach().mean(0)
        return nn.functional.cross_entropy(output - self.centre, target)


class Sharpened:
    """A loss that grows sharper with each step, with a state as torch's objects have it."""

    calls = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += torch.is_grad_enabled()
        return nn.functional.cross_entropy(output * (1 + self.calls / 10), target)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: Any) -> None:
        self.calls = state["calls"]


def bound(loss: Any, output: torch.Tensor, target: torch.Tensor) -> Any:
    """A loss that gets another one by a partial."""
    return loss(output, target)


class SharpenedModule(Sharpened, nn.Module):
    """`Sharpened` as a module, whose own `state_dict` takes no arguments."""


class Falling:
    """A schedule that keeps the optimizer's groups, not the optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.groups, self.count = optimizer.param_groups, 0

    def step(self) -> None:
        self.count += 1
        for group in self.groups:
            group["lr"] = 0.1 / self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


@pytest.mark.parametrize(
    "kinds",
    [
        {"schedule": milestones},
        {"schedule": WarmedUp},
        {"schedule": Switched},
        {"schedule": Falling},
        {"schedule": Falling, "optimizer": in_two},
        {"optimizer": partial(Around, lr=0.01)},
        {"optimizer": partial(Leading, shares=False, lr=0.1, momentum=0.9), "schedule": milestones},
        {"optimizer": partial(Leading, shares=True, lr=0.1, momentum=0.9), "schedule": milestones},
        BOTH,
        {"optimizer": listed, "schedule": milestones},
        {"optimizer": numbered},
        {"optimizer": partial(Coded, lr=0.1)},
        {"optimizer": partial(Keyed, lr=0.1)},
        {"optimizer": lambda weights: Delegating(Adam(weights, lr=0.1)), "schedule": milestones},
        {"optimizer": lambda weights: Combined(*in_two(weights)), "schedule": milestones},
        {"loss": Centred()},
        {"loss": Sharpened()},
        {"loss": SharpenedModule()},
        {"loss": partial(bound, Sharpened())},
    ],
    ids=[
        "milestones",
        "warm-up",
        "schedule with a state of its own",
        "schedule of groups",
        "schedule of groups of a list",
        "around",
        "leading",
        "leading by one state",
        "leading and inner",
        "leading in a list",
        "counting in a list",
        "codes",
        "by weights",
        "delegating",
        "combined",
        "loss with a buffer",
        "loss with a state",
        "module with a state",
        "bound loss with a state",
    ],
)
def test_a_part_with_state_of_its_own_goes_on_behind_a_file(kinds: dict[str, Any], tmp_path: Path) -> None:
    """A MultiStepLR that SequentialLR starts reads the counts of its milestones, so they must be loaded as a Counter."""
    member = studies.member(**kinds, schedule_per="step", batch_size=25)
    solo = start(member)
    rows = run(solo, 3)
    again = start(member)
    first = run(again, 1)
    again.live.begin_epoch(ORDERS, 1)
    again, _ = resumed(again.live.state_dict(), tmp_path, member)
    assert not again.live.state_dict()["called"].get("loss", {}).keys() & {"seen.weight"}, (
        "weights of a loss are not saved"
    )
    assert [*first, *run(again, 2)] == rows
    assert outcome(again.live) == outcome(solo.live)


def test_a_schedule_that_moves_before_the_next_step_warns_of_nothing(tmp_path: Path) -> None:
    """The checkpoint was written after the last step of the first epoch, before its validation."""
    solo = start()
    solo.live.begin_epoch(ORDERS, 0)
    list(train(solo, 0, 0, 100))
    solo, _ = resumed(solo.live.state_dict(), tmp_path)
    solo.live.step_schedule(1.0)
    assert solo.live.optimizer.param_groups[0]["lr"] == 0.025


class Stray(nn.Module):
    """Two layers, so that an optimizer can leave one out or put their parameters in several groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def last_alone(parameters: Any) -> SGD:
    return SGD([*parameters][2:], lr=0.1)


def test_a_weight_outside_the_optimizer_has_no_gradient_of_earlier_steps(tmp_path: Path) -> None:
    """Otherwise the gradient would accumulate and enter the norm for clipping, and no checkpoint would hold it."""
    member = studies.member(model=Stray, optimizer=last_alone, clip_grad_norm=0.1, batch_size=20)
    solo, again = start(member), start(member)
    run(solo, 2)
    run(again, 1)
    again, _ = resumed(again.live.state_dict(), tmp_path, member)
    run(again, 1)
    assert outcome(again.live) == outcome(solo.live)
    assert all(parameter.grad is None for parameter in solo.live.model.parameters())


def in_groups(parameters: Any) -> SGD:
    """Return an optimizer without weight decay of biases, by the usual two passes over the parameters."""
    groups = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    return SGD([{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}], lr=0.1, weight_decay=0.1)


def test_an_optimizer_may_go_through_the_parameters_more_than_once() -> None:
    live = start(studies.member(model=Stray, optimizer=in_groups)).live
    assert [len(group["params"]) for group in live.optimizer.param_groups] == [2, 2]


def test_only_random_states_that_were_drawn_from_are_saved() -> None:
    calm = start(studies.member(model=partial(nn.Linear, 12, 10)))
    run(calm, 1)
    assert set(calm.live.state_dict()["random"].values()) == {None}
    dropout = start()
    run(dropout, 1)
    saved = dropout.live.state_dict()["random"]
    assert {name for name, state in saved.items() if state is not None} == {"torch"}
    dropout.live.randomness.uses_others = True
    saved = dropout.live.state_dict()["random"]
    assert {name for name, state in saved.items() if state is not None} == {"torch", "numpy", "python"}


def test_samples_that_are_broken_leave_holes_and_no_step() -> None:
    order = ORDERS.epoch("train", 0)
    solo = start(studies.member(batch_size=10))
    run(solo, 1, holes=set(order[20:40].tolist()))
    assert solo.live.steps == 8
    assert solo.live.epoch == 1


class Empty(nn.CrossEntropyLoss):
    """A loss with the length 0, as a list of further terms; one that torch has compiled has none."""

    def __len__(self) -> int:
        return 0

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(output, target)


def test_a_loss_is_called_whatever_its_truth_value() -> None:
    usual, twice = (run(start(studies.member(**given)), 1)[0]["train_loss"] for given in ({}, {"loss": Empty()}))
    assert twice > 1.5 * usual


def test_after_a_step_no_gradients_are_left() -> None:
    solo = start()
    solo.live.begin_epoch(ORDERS, 0)
    turns = train(solo, 0, 0, 100)
    next(turns)
    assert all(parameter.grad is None for parameter in solo.live.model.parameters())


class ScheduleFree(SGD):
    """A schedule-free optimizer: the weights to validate, a mean over its steps, differ from those that it trains."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=0.5)
        self.param_groups[0].update(trains=False, steps=0)

    def train(self, mode: bool = True) -> None:
        group = self.param_groups[0]
        for weight in group["params"] if group["trains"] is not mode and group["steps"] else ():
            weight.data.lerp_(self.state[weight]["z"], 0.1 if mode else 1 - 1 / 0.9)
        group["trains"] = mode

    def eval(self) -> None:
        self.train(False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        assert group["trains"]
        group["steps"] += 1
        for weight in group["params"]:
            z = self.state[weight].setdefault("z", weight.clone())
            weight.lerp_(z, 1 / group["steps"]).add_(weight.grad, alpha=-0.5 * (1 - 0.9 * (1 - 1 / group["steps"])))
            z.sub_(weight.grad, alpha=0.5)


def schedule_free_step(network: Any, batch: Any, optimizers: Any) -> Any:
    optimizers["one"].zero_grad()
    loss = nn.functional.cross_entropy(network(batch[0]), batch[1])
    loss.backward()
    optimizers["one"].step()
    return loss


@pytest.mark.parametrize(
    "kinds",
    [
        {"optimizer": ScheduleFree},
        {
            "optimizer": None,
            "optimizers": lambda network: {"one": ScheduleFree(network.parameters())},
            "step": schedule_free_step,
            "validate": lambda network, batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
            "metrics": {},
        },
    ],
    ids=["usual step", "own step"],
)
def test_validations_are_of_the_weights_of_an_optimizers_own_eval(kinds: dict[str, Any]) -> None:
    solo = start(studies.member(model=partial(nn.Linear, 12, 10), batch_size=50, **kinds))
    network = copy.deepcopy(solo.live.model)
    optimizer, losses = ScheduleFree(network.parameters()), []
    for epoch in range(2):
        optimizer.train()
        for indices in ORDERS.epoch("train", epoch).reshape(2, 50):
            schedule_free_step(network, (INPUTS[indices], TARGETS[indices]), {"one": optimizer})
        optimizer.eval()
        losses.append(nn.functional.cross_entropy(network(INPUTS[:30]), TARGETS[:30]).item())
    assert [row["val_loss"] for row in run(solo, 2)] == pytest.approx(losses, abs=1e-6)


class Counting(SGD):
    """An optimizer that overrides `zero_grad`, without its `set_to_none` argument."""

    dropped = 0

    def zero_grad(self) -> None:  # type: ignore[override]  # some wrapping optimizers have this signature
        self.dropped += 1
        super().zero_grad()


def test_an_optimizer_drops_gradients_in_its_own_way() -> None:
    solo = start(studies.member(optimizer=partial(Counting, lr=0.1), batch_size=50))
    run(solo, 1)
    assert solo.live.optimizer.dropped >= 2
    assert all(parameter.grad is None for parameter in solo.live.model.parameters())


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), INPUTS[: len(batch[0]), :10])


def losses_of_each_output(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), INPUTS[: len(batch[0]), :10], reduction="none")


@pytest.mark.parametrize("step", [mean_loss, losses_of_each_output])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_are_those_of_the_mean_loss(step: Any, accumulate: int) -> None:
    member = studies.member(model=partial(nn.Linear, 12, 10), step=step, metrics={}, accumulate=accumulate)
    solo = start(member)
    model = start(member).live.model
    batch, rows = (INPUTS[:50], TARGETS[:50]), -(-50 // accumulate)
    for low in range(0, 50, rows):
        part = tuple(leaf[low : low + rows] for leaf in batch)
        loss = step(model, part).mean()
        (loss if accumulate == 1 else loss * (len(part[0]) / 50)).backward()
    SGD(model.parameters(), lr=0.05, momentum=0.9).step()
    solo.try_step(batch, 50)
    assert evidence.fingerprint(solo.live.model.state_dict()) == evidence.fingerprint(model.state_dict())


# ---- the best section


def test_nan_is_never_better_and_always_beaten() -> None:
    nan = float("nan")
    assert is_better(1.0, 2.0, "min")
    assert not is_better(1.0, 1.0, "min")
    assert is_better(2.0, 1.0, "max")
    assert not is_better(nan, 1.0, "min")
    assert not is_better(nan, nan, "max")
    assert is_better(-9.0, nan, "max")


def second_is_best(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A whole-set metric with fixed values 1, 3, 2, 3; each section calls it twice, for the first batch and for all samples."""
    second_is_best.calls += 1
    return torch.tensor([1.0, 3.0, 2.0, 3.0][(second_is_best.calls - 1) // 2])


def test_the_weights_of_the_best_section_are_held_until_they_are_in_a_file(tmp_path: Path) -> None:
    second_is_best.calls = 0
    solo = start(
        studies.member(metrics={"score": second_is_best}, eval_batch_size=11, batch_size=10), objective="val_score"
    )
    live = solo.live
    assert live.best.section is None
    assert live.best.state() is None
    live.begin_epoch(ORDERS, 0)
    for section, best in enumerate((0, 1, 1, 1)):
        list(train(solo, 0, section * 25, section * 25 + 25))
        validate(solo)
        live.end_section(4)
        found = live.best.section
        assert found is not None
        assert (found.epoch, found.section) == (0, best)
        if section == 1:
            expected = evidence.fingerprint(live.model.state_dict())
        if live.section:
            live.begin_section()
    state = live.best.state()
    assert state is not None
    assert {**state, "model": None} == {"model": None, "epoch": 0, "section": 1, "value": 3.0}
    assert evidence.fingerprint(state["model"]) == expected != evidence.fingerprint(live.model.state_dict())
    live.best.note_saved()
    assert live.best.state() is None
    later, _ = resumed(live.state_dict(), tmp_path, live.member)
    assert later.live.best.section == live.best.section
    assert later.live.best.state() is None


# ---- asynchronous devices


def test_sums_wait_for_a_device_that_is_late(devices: None) -> None:  # noqa: F811
    here, there = start(), start(device="late:0")
    assert run(there, 2, sections=3) == run(here, 2, sections=3)


@pytest.mark.parametrize(("device", "asked"), [("cpu:0", 1), ("late:0", 2)])
def test_a_loss_that_is_no_number_is_found(devices: None, device: str, asked: int) -> None:  # noqa: F811
    solo = start(studies.member(lr=1e38, batch_size=20, model=partial(nn.Linear, 12, 10)), device=device)
    solo.live.begin_epoch(ORDERS, 0)
    for _ in train(solo, 0, 0, 100, size=100):
        pass
    assert [solo.live.diverged for _ in range(2)] == [asked == 1, True]


# ---- what the measurement notes about a member


def shifted_in_numpy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric that writes into the shared targets through numpy, which torch's version counters do not see."""
    classes = target.numpy()
    classes -= 1
    return output[:, 0]


def scaled_unseen(batch: Any) -> Any:
    batch[0].data.mul_(2)
    return batch


def clamped(batch: Any) -> Any:
    """Write into the input in place, without changing any of these values."""
    batch[0].clamp_(-99, 99)
    return batch


def measure(solo: Solo, block: Block, **rest: Any) -> Measured:
    """Run the measurement to its end and return its result."""

    def whole() -> Generator[None, None, None]:
        found.append((yield from measure_steps(solo.live, block, **rest)))

    found: list[Measured] = []
    assert list(whole()).count(None) >= 3, "the measurement did not yield between its steps"
    return found[0]


def burning(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy that computes for 30 ms, longer than a process has a core beside others."""
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        pass
    return nn.functional.cross_entropy(output, target, reduction="none")


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="only Linux counts waits for a core")
def test_a_measured_rate_does_not_depend_on_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside three other processes on its core, a step takes four times as long, and a fourth of that is measured."""
    readings: list[tuple[float, float]] = []

    class Recorded(Stopwatch):
        def __init__(self, backend: Backend) -> None:
            self.began = time.perf_counter()
            super().__init__(backend)

        @property
        def seconds(self) -> float:
            readings.append((super().seconds, time.perf_counter() - self.began))
            return readings[-1][0]

    monkeypatch.setattr(measure_file, "Stopwatch", Recorded)
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]  # on the same core
    try:
        rate = measure(start(studies.member(batch_size=50, loss=burning)), block).samples_per_second
    finally:
        for process in load:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, cores)
    # What a host takes from its virtual machines is in both readings.
    step, on_the_clock = next((seconds, wall) for seconds, wall in readings if 50 / seconds == rate)
    assert 0.03 <= step < on_the_clock / 2


@pytest.mark.parametrize(
    ("rest", "notes"),
    [
        ({"augment": scaled_unseen}, (PRIVATE,)),
        ({"augment": clamped}, (PRIVATE,)),
        ({"metrics": {"odd": shifted_in_numpy}}, ()),  # metrics that write get copies
        ({}, ()),
    ],
)
def test_a_member_that_writes_into_its_input_is_found(rest: dict[str, Any], notes: tuple[str, ...]) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    measured = measure(start(studies.member(**rest)), block, validated=50)
    assert measured.notes == notes
    assert not block.touched


def mixed_at_times(batch: Any) -> Any:
    """CutMix on a share of the batches so small that the measurement sees no mixed one."""
    inputs, targets = batch
    if np.random.rand() < 1e-9:
        inputs[:, 2:5] = inputs[torch.randperm(len(inputs)), 2:5]
    return inputs, targets


def scaled_at_times(batch: Any) -> Any:
    return (batch[0].mul_(2) if random.random() < 1e-9 else batch[0]), batch[1]


def scaled_apart(batch: Any) -> Any:
    return batch[0] * random.random(), batch[1]


@pytest.mark.parametrize("augment", [mixed_at_times, scaled_at_times, scaled_apart])
def test_what_draws_and_may_write_into_its_input_has_copies_from_the_first_batch_on(augment: Any) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    notes = measure(start(studies.member(augment=augment)), block).notes
    assert notes == ((NUMPY_RANDOM,) if augment is scaled_apart else (PRIVATE, NUMPY_RANDOM))


class Hoarding:
    """Cross-entropy that allocates and keeps freed memory, so that no later tensor gets the address of an earlier one."""

    def __init__(self) -> None:
        self.hoard: list[torch.Tensor] = []

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.hoard.extend(torch.empty(10 * 1024) for _ in range(40))
        return nn.functional.cross_entropy(output, target)


def test_micro_batches_need_the_memory_of_one_of_them() -> None:
    """Activations count for one micro-batch at a time, even if those of each lie at other addresses."""
    (block, *_) = blocks(ORDERS.epoch("train", 0), 40, arrays=(INPUTS, TARGETS))

    def needed(batch: int, accumulate: int) -> int:
        member = studies.member(hidden=1024, batch_size=batch, accumulate=accumulate, loss=Hoarding())
        return measure(start(member), block).activation_bytes

    assert needed(40, 4) < 1.1 * needed(10, 1) < 0.5 * needed(40, 1)


def in_pieces(weights: Any) -> list[Any]:
    """Return an optimizer for each weight."""
    return [Adam([weight], lr=0.1) for weight in weights]


@pytest.mark.parametrize("optimizer", [in_pieces, partial(Around, lr=0.1)])
def test_the_state_of_optimizers_in_a_list_or_inside_another_counts_once(optimizer: Any) -> None:
    live, like = (start(studies.member(optimizer=one)).live for one in (optimizer, partial(Adam, lr=0.1)))
    for one in (live, like):
        differentiated(one).optimizer.step()
    assert measure_file.state_bytes(live) == measure_file.state_bytes(like)


class Keeping(SGD):
    """An optimizer that keeps something beside the states of weights, as MADGRAD its step count, and as others a queue."""

    def __init__(self, weights: Any, kept: Any) -> None:
        super().__init__(weights, lr=0.1, momentum=0.9)
        self.state["kept"] = kept


@pytest.mark.parametrize("optimizer", [in_pieces, partial(Around, lr=0.1), partial(Keeping, kept=torch.tensor([0]))])
def test_a_copy_in_float64_steps_from_the_state_of_each_optimizer(optimizer: Any) -> None:
    live = start(studies.member(optimizer=optimizer)).live
    differentiated(live).optimizer.step()
    differentiated(copy_for_trial(live, double=True)).optimizer.step()


class Whole(SGD):
    """An optimizer that is copied with all its attributes."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()


def test_the_step_of_a_copy_is_not_that_of_the_original_which_a_schedule_has_wrapped() -> None:
    live = start(studies.member(optimizer=partial(Whole, lr=0.1), schedule=milestones)).live
    before = [weight.detach().clone() for weight in live.model.parameters()]
    differentiated(live)
    differentiated(live.trial()).optimizer.step()
    assert all(map(torch.equal, before, live.model.parameters()))


def test_weights_are_not_written_as_text_where_optimizers_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    live = start(studies.member(optimizer=listed)).live
    differentiated(live).optimizer.step()
    monkeypatch.delattr(torch.Tensor, "__format__")
    monkeypatch.setattr(torch.Tensor, "__repr__", None)
    assert [type(one).__name__ for one in optimizers_of(live.optimizer)] == ["OptimizerList", "Leading", "SGD", "SGD"]


def differentiated(live: LiveMember) -> LiveMember:
    """Return a member with a gradient for each weight."""
    for weight in live.model.parameters():
        weight.grad = torch.ones_like(weight)
    return live


class SecondOrder(SGD):
    """An optimizer that differentiates the gradients, for which the backward pass has kept no graph, as AdaHessian."""

    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            torch.autograd.grad(weight.grad.sum(), weight)


def test_an_error_of_an_optimizer_is_not_taken_for_one_of_the_loss() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    with pytest.raises(RuntimeError, match="does not require grad"):
        measure(start(studies.member(optimizer=partial(SecondOrder, lr=0.1))), block)


@pytest.mark.parametrize("kept", [deque([torch.ones(1)]), {torch.ones(1): 1}])
def test_state_that_no_file_can_hold_is_refused_before_training(kept: Any) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    with pytest.raises(CheckpointError, match=r"state\['optimizer'\]\['state'\]\['kept'\] (is a|has tensors as keys)"):
        measure(start(studies.member(optimizer=partial(Keeping, kept=kept))), block)


def test_a_bug_in_counting_memory_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 40, arrays=(INPUTS, TARGETS))
    names: dict[str, Any] = {}
    broken = "def broken(*_):\n raise RuntimeError('a bug')"
    exec(compile(broken, measure_file.__file__, "exec"), names)
    monkeypatch.setattr(measure_file._SavedBytes, "_count", names["broken"])
    with pytest.raises(RuntimeError, match="a bug"):
        measure(start(studies.member()), block)


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10))


@pytest.mark.parametrize("accumulate", [1, 8])
def test_batch_norm_over_the_rows_of_a_sample_takes_a_lone_one(accumulate: int) -> None:
    """If each sample has several rows, such as the nodes of a graph, BatchNorm needs no second sample in a micro-batch."""
    (block, *_) = blocks(ORDERS.epoch("train", 0), 40, arrays=(INPUTS, TARGETS))
    of_nodes = nn.Unflatten(1, (3, 4)), nn.Flatten(0, 1), nn.BatchNorm1d(4), nn.Unflatten(0, (-1, 3)), nn.Flatten()
    nodes, rows = (
        studies.member(model=model, batch_size=32, accumulate=accumulate)
        for model in (lambda: nn.Sequential(*copy.deepcopy(of_nodes), nn.Linear(12, 10)), with_batch_norm)
    )
    assert (measure(start(nodes), block).batch_norm, measure(start(rows), block).batch_norm) == (False, True)


@pytest.mark.parametrize("accumulate", [1, 8])
@pytest.mark.parametrize("rows", [1, 9, 22])
def test_the_last_few_samples_of_an_epoch_are_enough_to_measure(rows: int, accumulate: int) -> None:
    """No micro-batch of the measurement has a single sample, which BatchNorm would refuse."""
    (*_, last) = blocks(ORDERS.epoch("train", 0), 40, arrays=(INPUTS, TARGETS), stop=40 + rows)
    member = studies.member(model=with_batch_norm, batch_size=32, accumulate=accumulate)
    assert measure(start(member), last, groups=2, validated=50).samples_per_second > 0


def test_a_batch_size_above_the_number_of_samples_is_measured_on_batches_of_all_samples() -> None:
    """A block of `batch_size` samples would need 50 GB."""
    (block,) = blocks(ORDERS.epoch("train", 0)[:40], 40, arrays=(INPUTS, TARGETS))
    solo = start(studies.member(batch_size=10**9))
    solo.live.epoch_samples = 40
    assert measure(solo, block, groups=2).activation_bytes < 10**6
    solo.live.member = replace(solo.live.member, batch_size=52, accumulate=4)
    assert solo.live.usual_batch == 41  # micro-batches of 13, 13, 13 and 2; of 40 samples the last would have one


def test_a_compiled_network_may_be_split() -> None:
    (block,) = blocks(ORDERS.epoch("train", 0)[:40], 40, arrays=(INPUTS, TARGETS))
    member = studies.member(model=lambda: torch.compile(nn.Linear(12, 10), backend="eager"), batch_size=16)
    assert measure(start(member), block, groups=2).whole == ""


class Holding(nn.Linear):
    """A network that fills a buffer and an attribute in its first pass, and adds 1 to the attribute `moves` in each training pass."""

    def __init__(self, moves: str = "") -> None:
        super().__init__(12, 10)
        self.moves = moves
        self.count, self.tensor, self.cached = 0, torch.zeros(1), None
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)
        self.register_buffer("saved", torch.zeros(1))
        self.register_buffer("filled", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.filled is None:
            self.filled, self.cached = torch.ones(1), torch.ones(1)
        if self.training and self.moves:
            setattr(self, self.moves, getattr(self, self.moves) + 1)
        return super().forward(x) * self.filled


@pytest.mark.parametrize("average", [None, argosy.EMA(0.5)])
def test_weights_that_are_merged_in_a_validation_are_not_merged_once_more_behind_a_file(
    average: argosy.EMA | None, tmp_path: Path
) -> None:
    member = studies.member(model=studies.Merging, average=average)
    solo, best = start(member), studies.Merging()
    (row,) = run(solo, 1)
    best.load_state_dict((solo.live.best.state() or {})["model"])
    assert loss_of(best) == pytest.approx(row["val_loss"], rel=1e-6)
    again, _ = resumed(solo.live.state_dict(), tmp_path, member)
    assert again.live.model.eval()(INPUTS).equal(solo.live.model.eval()(INPUTS))
    if solo.live.average is not None:
        averaged = studies.Merging()
        averaged.load_state_dict(solo.live.model.train().state_dict())
        for name, value in zip(("bias", "down", "up"), solo.live.average.values, strict=True):
            getattr(averaged, name).data = value
        assert loss_of(averaged) == pytest.approx(row["average_val_loss"], rel=1e-6) != row["raw_val_loss"]


@torch.no_grad()
def loss_of(network: nn.Module) -> float:
    return float(nn.functional.cross_entropy(network.eval()(INPUTS[:30]), TARGETS[:30]))


def test_a_save_in_the_middle_of_a_validation_leaves_it_in_eval() -> None:
    rows = []
    for saves in (False, True):
        solo = start(studies.member())
        solo.live.begin_epoch(ORDERS, 0)
        list(train(solo, 0, 0, 100))
        (block,) = blocks(ORDERS.epoch("val", 0), 30, arrays=(INPUTS[:30], TARGETS[:30]), split="val")
        with solo.active(keep=True):
            for _ in solo.evaluate(block):
                if saves:
                    solo.live.state_dict()
        rows.append(solo.live.end_section(1)["val_loss"])
    assert rows[0] == rows[1]


class Threshold(nn.Linear):
    """A network whose validation changes a buffer, such as the threshold of an anomaly detector."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.register_buffer("threshold", torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        if not self.training:
            self.threshold.lerp_(output.amax(0), 0.5)
        return output * (output > self.threshold)


def test_a_buffer_that_a_validation_moves_is_that_of_its_beginning_behind_a_file(tmp_path: Path) -> None:
    member = studies.member(model=Threshold)
    undisturbed, solo = start(member), start(member)
    rows = run(undisturbed, 2)
    for epoch in range(2):
        solo.live.begin_epoch(ORDERS, epoch)
        list(train(solo, epoch, 0, 100))
        (block, *_) = blocks(ORDERS.epoch("val", 0), 11, arrays=(INPUTS[:30], TARGETS[:30]), split="val")
        with solo.active(keep=True):
            list(solo.evaluate(block))
        solo, position = resumed(solo.live.state_dict(), tmp_path, member)
        solo.live.begin_epoch(ORDERS, epoch, position)
        validate(solo)
        assert solo.live.end_section(1) == rows[epoch]
    assert outcome(solo.live) == outcome(undisturbed.live)


def test_a_large_buffer_is_not_copied_for_each_validation() -> None:
    def build() -> nn.Module:
        network = Threshold()
        network.register_buffer("table", torch.zeros(DATA_BYTES))
        return network

    solo = start(studies.member(model=build))
    solo.live.begin_epoch(ORDERS, 0)
    (block,) = blocks(ORDERS.epoch("val", 0), 30, arrays=(INPUTS[:30], TARGETS[:30]), split="val")
    with solo.active(keep=True):
        list(solo.evaluate(block))
    weights = solo.live.state_dict()["model"]
    assert weights["table"].data_ptr() == solo.live.model.table.data_ptr()
    assert not torch.equal(weights["threshold"], solo.live.model.threshold)


def unpruned() -> nn.Module:
    return prune.identity(nn.Linear(12, 10), "weight")


def pruning(model: nn.Module, batch: Any) -> torch.Tensor:
    """Prune the layer further before each step, by the weights of its last pass."""
    if model.training:
        prune.l1_unstructured(model, "weight", 0.1)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_weights_that_are_pruned_further_are_those_of_the_file(tmp_path: Path) -> None:
    member = studies.member(model=unpruned, step=pruning, metrics={})
    solo, again = start(member), start(member)
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    assert measure(solo, block).notes == ()
    rows = run(solo, 2)
    first = run(again, 1)
    again, _ = resumed(again.live.state_dict(), tmp_path, member)
    assert [*first, *run(again, 1)] == rows


class Growing(nn.Linear):
    """A network whose buffer grows in each training pass, like one that keeps its weights of several epochs (SWAG)."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.register_buffer("earlier", torch.zeros(0, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.earlier = torch.cat([self.earlier, self.bias.detach()[None]])[-5:]
        return super().forward(x)


class ScaledLate(nn.Linear):
    """A network that registers the scale of its inputs as a buffer in its first pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", x.detach().abs().mean(0))
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean(0)
        return super().forward(x / self.scale)


class Implicit(nn.Linear):
    """A network that changes the gradients of its output in training by a hook, like a deep equilibrium network."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        if self.training:
            output.register_hook(lambda gradient: gradient / 2)
        return output


def test_a_network_may_set_hooks_on_what_it_computes_in_training() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    assert measure(start(studies.member(model=partial(Implicit, 12, 10))), block).parameter_shapes


@pytest.mark.parametrize("moves", ["", "count", "tensor", "unsaved", "saved"])
def test_what_moves_and_is_in_no_file_is_noted(moves: str) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    noted = measure(start(studies.member(model=partial(Holding, moves))), block).notes
    assert [note.partition(",")[0] for note in noted] == (
        [] if moves in ("", "saved") else [f"steps change {moves!r} of the network"]
    )


class Binarized(nn.Linear):
    """A layer whose weights are the signs of real ones, held as an attribute of the weight (Courbariaux et al. 2016)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self.weight, "org"):
            self.weight.org = self.weight.data.clone()
        self.weight.org.mul_(0.9)
        self.weight.data = self.weight.org.sign()
        return super().forward(x)


def test_what_moves_on_a_weight_is_noted() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    noted = measure(start(studies.member(model=partial(Binarized, 12, 10))), block).notes
    assert [note.partition(",")[0] for note in noted] == ["steps change 'org' of 'weight'"]


class Taught(nn.Module):
    """A student and a teacher with weight norm, whose `weight` each pass computes again from its two parameters, as in DINO."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (nn.utils.weight_norm(nn.Linear(12, 10)) for _ in range(2))
        self.teacher.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            for mine, follows in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                follows.data.mul_(0.9).add_(mine.data, alpha=0.1)
        return self.student(x) + self.teacher(x)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
def test_weights_that_each_pass_computes_anew_are_not_noted() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    assert measure(start(studies.member(model=Taught)), block).notes == ()


class Replaying(nn.Linear):
    """A network with an object that holds a weight, a constant, and earlier samples, like the pool of an energy-based network or GAN."""

    def __init__(self, kind: Any) -> None:
        super().__init__(12, 10)
        self.pool = SimpleNamespace(earlier=kind([torch.zeros(12)]), weight=self.weight, zero=torch.zeros(()).expand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.pool.earlier, deque):
            self.pool.earlier.append(x[0].clone())
        return super().forward(x)


@pytest.mark.parametrize("kind", [deque, tuple])
def test_buffers_of_earlier_samples_that_are_in_no_file_are_noted(kind: Any) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    noted = measure(start(studies.member(model=partial(Replaying, kind))), block).notes
    assert [note.partition(",")[0] for note in noted] == ["steps change 'pool' of the network"] * (kind is deque)


class WithTeacher(nn.Module):
    """A network with a teacher, which follows it in training only or, `always`, in validation too."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(12, 10), nn.Linear(12, 10).requires_grad_(False)
        self.register_buffer("mask", (torch.arange(12) % 3 > 0).float())
        self.always = always

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.student.weight.data *= self.mask
        if self.training or self.always:
            self.teacher.weight.data.lerp_(self.student.weight.data, 0.1)
        return self.student(x)


@pytest.mark.parametrize("always", [True, False])
def test_what_each_validation_changes_is_noted(always: bool) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    noted = measure(start(studies.member(model=partial(WithTeacher, always))), block, validated=20).notes
    assert [note.partition(",")[0] for note in noted] == [
        "its validation changes 'teacher.weight' of the network"
    ] * always


class Seen(nn.Module):
    """A metric that counts samples, as those of torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def update(self, rows: int) -> None:
        self.count += rows

    def compute(self) -> torch.Tensor:
        return self.count


class WithMetric(nn.Linear):
    """A network that counts its samples in a metric."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.seen = Seen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.update(len(x))
        return super().forward(x)


def test_a_metric_that_each_validation_moves_is_not_noted() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    assert measure(start(studies.member(model=WithMetric)), block, validated=20).notes == ()


class Recentred(nn.Module):
    """A loss that moves its centre in each call, as DINO's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(10))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses = nn.functional.cross_entropy(output - self.center, target, reduction="none")
        self.center = 0.9 * self.center + 0.1 * output.detach().mean(0)
        return losses


def test_a_loss_whose_buffer_each_validation_moves_is_noted() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    noted = measure(start(studies.member(loss=Recentred())), block, validated=20).notes
    assert [note.partition(",")[0] for note in noted] == ["its validation changes 'center' of the loss"]


class Carrying(nn.Linear):
    """A network that begins with the hidden state of its last pass, in validation if it `carries` it there, like many recurrent ones."""

    def __init__(self, carries: bool) -> None:
        super().__init__(22, 10)
        self.hidden: torch.Tensor | None = None
        self.carries = carries

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        carried = self.hidden is not None and (self.training or self.carries)
        before = self.hidden.detach() if carried else torch.zeros(10)
        output = super().forward(torch.cat([x, before.expand(len(x), -1)], 1))
        self.hidden = output.mean(0)
        return output


@pytest.mark.parametrize("carries", [True, False])
def test_a_hidden_state_that_is_carried_and_in_no_file_is_noted(carries: bool) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    (noted,) = measure(start(studies.member(model=partial(Carrying, carries))), block, validated=20).notes
    assert noted.startswith("a network that is loaded from its file has a different validation loss") == carries
    assert "steps change 'hidden' of the network" in noted


class Measuring(nn.Linear):
    """A network with a metric among its layers, like many LightningModules."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.right = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        self.right(scores, torch.zeros(len(x), dtype=torch.long))
        return scores


@pytest.mark.skipif(torchmetrics is None, reason="the extra lightning")
def test_a_metric_among_the_layers_is_not_noted() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    assert measure(start(studies.member(model=Measuring)), block).notes == ()


class Recurrent(nn.Module):
    """A network that carries its hidden state from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.hidden = nn.LSTM(12, 10), (torch.zeros(1, 10), torch.zeros(1, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, hidden = self.read(x, self.hidden)
        self.hidden = hidden[0].detach(), hidden[1].detach()
        return output


class Sampling(nn.Linear):
    """A network that keeps the outputs of all steps with their autograd graphs, like the sampler of an energy-based network."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.samples = list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        if self.training:
            self.samples.append(output)
        return output


def averaged(teacher: nn.Linear, student: nn.Linear, batch: Any) -> torch.Tensor:
    """Return the loss against a teacher, after updating the teacher's weights as a moving average of the student's."""
    teacher.weight.data.mul_(0.9).add_(student.weight.data, alpha=0.1)
    return (student(batch[0]) - teacher(batch[0])).square().mean()


class Teaching:
    """`averaged` as an object that holds the teacher."""

    def __init__(self) -> None:
        self.teacher = nn.Linear(12, 10).requires_grad_(False)

    def __call__(self, student: nn.Linear, batch: Any) -> torch.Tensor:
        return averaged(self.teacher, student, batch)


class Hiding(nn.Linear):
    """A network that holds its moving average in a list, so that it is not a registered layer."""

    def __init__(self, moves: bool = True) -> None:
        super().__init__(12, 10)
        self.moves, self.teacher, self.myself = moves, [nn.Linear(12, 10).requires_grad_(False)], [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.moves:
            self.teacher[0].weight.data.mul_(0.9).add_(self.weight.data, alpha=0.1)
        return super().forward(x) + self.teacher[0](x)


class First(nn.Linear):
    """A network whose first loss scales the gradients of all later steps, as in GradNorm, but not the losses that it returns."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.first: Any = None

    def update(self, batch: Any, optimizers: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        if self.first is None:
            self.first = loss.detach()
        optimizers["sgd"].zero_grad()
        (loss * loss.detach() / self.first).backward()
        optimizers["sgd"].step()
        return loss


class Scheduled(nn.Linear):
    """A network that holds its optimizer, which is in the checkpoint, and that optimizer's schedule, which is not."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.sgd = SGD(self.parameters(), lr=0.1)
        self.schedule = StepLR(self.sgd, 1)

    def update(self, batch: Any, _: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        self.schedule.step()
        return loss


class Balanced(nn.Linear):
    """A network with a gradient hook on its output in training, like a deep equilibrium network; with `always` in validation too."""

    def __init__(self, always: bool = False) -> None:
        super().__init__(12, 10)
        self.always = always

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        if self.training or self.always:
            output.register_hook(lambda gradient: 2 * gradient)
        return output


def test_a_network_may_ask_for_gradients_while_it_trains() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    measure(start(studies.member(model=Balanced)), block, validated=30)
    with pytest.raises(StudyError, match="its validation asks for gradients"):
        measure(start(studies.member(model=partial(Balanced, always=True))), block, validated=30)


class Prepared(nn.Linear):
    """A layer whose first training batch sets its bias, like ActNorm.

    With `decides=False` it only records that it has seen a batch. With `trains=False` a validation batch sets the bias as well.
    """

    def __init__(self, *, decides: bool, trains: bool = True) -> None:
        super().__init__(12, 12)
        self.decides, self.trains, self.seen = decides, trains, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.seen and (self.training or not self.trains):
            self.seen = True
            if self.decides:
                self.bias.data = -nn.functional.linear(x, self.weight).detach().mean(0)
        return super().forward(x)


class Showing(nn.Linear):
    """A network that keeps the output of its last pass with its autograd graph."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.maps = list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.maps = [super().forward(x)]
        return self.maps[0]


class Drawing(nn.Linear):
    """A network that adds noise from its own torch generator, if it has one."""

    def __init__(self, generator: Any) -> None:
        super().__init__(12, 10)
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(1, generator=self.generator) if isinstance(self.generator, torch.Generator) else 0.0
        return super().forward(x) + noise


class Counted:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(output, target)


def annealed() -> Any:
    calls = 0

    def loss(scale: float, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return scale * nn.functional.cross_entropy(output, target)

    return partial(loss, 1.0)


MEMORY, OTHERS = np.zeros(100), itertools.cycle([0.1, 0.2])
CALLS, BANK, TEACHER, CACHE = 0, deque[torch.Tensor](maxlen=2), nn.Linear(1, 1), dict[Any, torch.Tensor]()
LOG = list[int]()


def by_global(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return nn.functional.cross_entropy(output, target)


def banked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    BANK.append(output.detach())
    return nn.functional.cross_entropy(output, target)


def remembered(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    MEMORY[target.numpy()] += losses.detach().numpy()
    return losses


def drawn_from(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that takes samples from its own iterator, for example of another domain."""
    return nn.functional.cross_entropy(output, target) + next(OTHERS)


def drawn_after(others: Iterator[torch.Tensor], output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target) + next(others)


def noting(memory: Any, network: nn.Module, batch: Any) -> torch.Tensor:
    memory[batch[1].numpy()] += 1
    return nn.functional.cross_entropy(network(batch[0]), batch[1])


class Noting:
    """A step that holds its own array."""

    def __init__(self) -> None:
        self.memory = np.zeros(100)

    def __call__(self, network: nn.Module, batch: Any) -> torch.Tensor:
        return noting(self.memory, network, batch)


def taught(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        TEACHER.weight.mul_(0.9)
    return nn.functional.cross_entropy(output, target)


def by_data(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    TEACHER.weight.data.mul_(0.9)
    return nn.functional.cross_entropy(output, target)


def lagged(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    lagged.lag = getattr(lagged, "lag", 0) + 1  # type: ignore[attr-defined]
    return nn.functional.cross_entropy(output, target)


def logged(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    LOG.append(len(output))
    studies.late = len(LOG)  # type: ignore[attr-defined]
    return nn.functional.cross_entropy(output, target)


def cached(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.shape not in CACHE:
        CACHE[output.shape] = torch.ones(output.shape)
    return nn.functional.cross_entropy(output * CACHE[output.shape], target)


class Kept(Holding):
    """`Holding` whose count is in its checkpoint, as extra state."""

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


class Slow(SGD):
    """An optimizer with a step counter that `state_dict` lacks, as one with slow weights every second step would have."""

    def __init__(self, weights: Any, **rest: Any) -> None:
        super().__init__(weights, **rest)
        self.steps = 0

    def step(self, closure: Any = None) -> None:
        super().step()
        self.steps += 1


class Listing(SGD):
    """An optimizer that keeps means of gradients in a dict outside of its state."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, lr)
        self.means: dict[int, torch.Tensor] = {}

    def step(self, closure: Any = None) -> None:
        for number, weight in enumerate(self.param_groups[0]["params"]):
            self.means[number] = 0.9 * self.means.get(number, 0.0) + weight.grad
            weight.grad = self.means[number]
        super().step()


class Halving(SGD):
    """An optimizer that sets its rate in its first step, as SGD_sai does; a resumed one makes a first step again."""

    halved = False

    def step(self, closure: Any = None) -> None:
        if not self.halved:
            self.param_groups[0]["lr"] /= 2
            self.halved = True
        super().step()


class Anchored(SGD):
    """An optimizer that holds back weights near those before its first step, which a resumed one lacks."""

    def step(self, closure: Any = None) -> None:
        weights = self.param_groups[0]["params"]
        if not self.state["made"]:
            self.anchors = [weight.detach().clone() for weight in weights]
        self.state["made"] = {"once": True}
        for weight, anchor in zip(weights, self.anchors, strict=True):
            weight.grad += 0.01 * (weight.detach() - anchor)
        super().step()


STEPS = {"made": 0}


class Decaying(SGD):
    """An optimizer that counts its steps in a variable of its module."""

    def step(self, closure: Any = None) -> None:
        STEPS["made"] += 1
        super().step()


class Telling(Slow):
    """`Slow` with the step counter in its `state_dict`."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.steps = state["steps"]
        super().load_state_dict({key: state[key] for key in ("state", "param_groups")})


def hooked() -> nn.Module:
    """Return a network with a hook that counts its training passes."""
    network, calls = nn.Linear(12, 10), 0

    def slower(layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += layer.training
        return output / (1 + calls)

    network.register_forward_hook(slower)
    return network


class Tempered(nn.CrossEntropyLoss):
    """A loss with a weight."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=not frozen)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(output * self.scale, target)


class Following(nn.Linear):
    """A network that is validated with a moving average of its weights, to which that refers as torch_ema's does."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        weights = [*self.parameters()]
        self.average = SimpleNamespace(
            followed=[weakref.ref(weight) for weight in weights], means=[weight.detach().clone() for weight in weights]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return nn.functional.linear(x, *self.average.means)
        for mean, weight in zip(self.average.means, self.average.followed, strict=True):
            mean.lerp_(weight().detach(), 0.1)
        return super().forward(x)


def test_a_tensor_in_the_memory_of_one_that_is_gone_is_another() -> None:
    bank = deque[torch.Tensor](maxlen=1)
    versions = [(bank.append(torch.zeros(1)), unsaved._versions(bank))[1] for _ in range(50)]
    assert len({*map(repr, versions)}) == 50


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
@pytest.mark.filterwarnings(
    "ignore:Seems like .optimizer.step... has been overridden"
)  # the schedule of another copy has wrapped it
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimizer": partial(Slow, lr=0.1)}, "steps change 'steps' of its optimizer Slow"),
        ({"optimizer": partial(Listing, lr=0.1)}, "steps change 'means' of its optimizer Listing"),
        ({"optimizer": partial(Halving, lr=0.1)}, "steps change 'halved' of its optimizer Halving"),
        ({"optimizer": partial(Anchored, lr=0.1)}, "steps change 'anchors' of its optimizer Anchored"),
        ({"optimizer": partial(Decaying, lr=0.1)}, "steps change the outer variable 'STEPS'"),
        ({"optimizer": partial(Telling, lr=0.1)}, ""),
        ({"optimizer": partial(Leading, shares=False, lr=0.1, momentum=0.9)}, ""),
        ({"loss": annealed()}, "steps change the outer variable 'calls'"),
        ({"loss": by_global}, "steps change the outer variable 'CALLS'"),
        ({"model": hooked}, "steps change the outer variable 'calls'"),
        ({"loss": banked}, "steps change the outer variable 'BANK'"),
        ({"loss": drawn_from}, "steps change the outer variable 'OTHERS'"),
        ({"loss": remembered}, "steps change the outer variable 'MEMORY'"),
        ({"step": Noting(), "metrics": {}}, "steps change 'memory' of the step"),
        (
            {"step": partial(noting, np.zeros(100)), "metrics": {}},
            "steps change a tensor",
        ),
        ({"loss": partial(drawn_after, iter([torch.zeros(())] * 1000))}, "steps change a tensor"),
        ({"loss": taught}, "steps change the outer variable 'TEACHER'"),
        ({"loss": lagged}, "steps change the outer variable 'lag'"),
        ({"loss": cached}, ""),
        ({"loss": logged}, ""),
        ({"model": partial(Kept, "count")}, ""),
        ({"model": Recurrent}, "a network that is loaded from its file has a different validation loss"),
        ({"model": Following}, "a network that is loaded from its file has a different validation loss"),
        ({"loss": by_data}, "steps change the outer variable 'TEACHER'"),
        ({"model": Hiding}, "a network that is loaded from its file has a different validation loss"),
        ({"model": partial(Hiding, moves=False)}, ""),
        *(
            (
                {"model": partial(nn.Linear, 12, 10), "step": step, "metrics": {}},
                "steps change a tensor",
            )
            for step in (partial(averaged, nn.Linear(12, 10).requires_grad_(False)), Teaching())
        ),
        ({"model": Sampling}, "steps change 'samples' of the network"),
        (
            {
                "model": Scheduled,
                "optimizer": None,
                "optimizers": lambda network: {"sgd": network.sgd},
                "step": Scheduled.update,
                "validate": lambda network, batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
                "metrics": {},
            },
            "steps change 'schedule' of the network",
        ),
        (
            {
                "model": First,
                "optimizer": None,
                "optimizers": lambda network: {"sgd": SGD(network.parameters(), lr=0.1)},
                "step": First.update,
                "validate": lambda network, batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
                "metrics": {},
            },
            "steps change 'first' of the network",
        ),
        ({"model": lambda: torch.jit.script(nn.Linear(12, 10))}, ""),
        ({"loss": Tempered(frozen=False)}, "its loss has weights that require a gradient"),
        ({"loss": Tempered(frozen=True)}, ""),
        (
            {"model": lambda: Drawing(torch.Generator())},
            "a network that is loaded from its file has a different validation loss",
        ),
        ({"model": lambda: Drawing(np.random.default_rng(0))}, ""),
        ({"loss": Counted()}, "steps change 'calls' of the loss"),
        ({"loss": partial(bound, Counted())}, "steps change 'calls' of the loss's loss"),
        *(({"loss": loss}, "") for loss in (Centred(), Sharpened(), SharpenedModule())),
        ({"model": partial(Prepared, decides=True)}, "steps change 'seen' of the network"),
        ({"model": partial(Prepared, decides=True), "batch_size": 1}, "steps change 'seen' of the network"),
        ({"model": partial(Prepared, decides=False)}, ""),
        ({"model": Showing}, ""),
        (
            {"model": partial(Prepared, decides=True, trains=False)},
            "a network that is loaded from its file has a different validation loss",
        ),
    ],
)
def test_what_else_is_in_no_file_or_not_trained_is_noted(fields: Any, words: str) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    solo = start(studies.member(**fields))
    assert [note.partition(",")[0] for note in measure(solo, block, validated=30).notes] == ([words] if words else [])
    assert getattr(solo.live.member.loss, "calls", 0) == 0, "trial steps called the member's own loss instead of a copy"


class Cooling(nn.Linear):
    """A network whose outputs are divided by a temperature that falls as it trains and is no buffer."""

    temperature = 5.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.temperature *= 0.9
        return super().forward(x) / self.temperature


class CountedCooling(Cooling):
    """`Cooling` with a counter that does not affect its outputs."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return super().forward(x)


class Registering(nn.Linear):
    """A network that counts its passes, and whose first one registers a buffer, so that a new network cannot load its checkpoint."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.steps:
            self.register_buffer("first", x[:1].detach().clone())
        self.steps += 1
        return super().forward(x)


def several_prepared(*_: int) -> nn.Module:
    return nn.Sequential(*(Prepared(decides=True, trains=False) for _ in range(2)))


@pytest.mark.parametrize(
    ("model", "noted"),
    [
        (
            CountedCooling,
            [
                "a network that is loaded from its file has a different validation loss, because steps change 'temperature'"
            ],
        ),
        (Registering, ["steps change 'steps' of the network"]),
        (
            several_prepared,
            [
                "a network that is loaded from its file has a different validation loss, because steps change 'seen' of layer '0'"
            ],
        ),
    ],
)
def test_what_decides_is_named_and_what_cannot_be_loaded_ends_nothing(model: Any, noted: list[str]) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    found = measure(start(studies.member(model=partial(model, 12, 10))), block, validated=30).notes
    assert all(any(note.startswith(words) for note in found) for words in noted), found
    assert len(found) == len(noted) or model is CountedCooling, found


def test_the_caller_is_warned_of_what_a_loaded_network_lacks(tmp_path: Path) -> None:
    said = r"member 'a': a network that is loaded from its file has a different validation loss, because steps change 'temperature' of the network"
    with pytest.warns(UserWarning, match=said) as told:
        argosy.train(
            studies.study(fleet=[studies.member("a", model=partial(Cooling, 12, 10))], epochs=1),
            directory=tmp_path,
            launcher="inline",
        )
    (warning,) = told
    assert warning.filename == __file__


def test_the_caller_is_warned_of_weights_that_nothing_trains(tmp_path: Path) -> None:
    """The loss may have weights, for example the uncertainties of several tasks (Kendall et al. 2018), but no optimizer has them."""
    fleet = [studies.member(name, loss=Tempered(frozen=False)) for name in "ab"]
    with pytest.warns(UserWarning, match="member '[ab]': its loss has weights .* no optimizer updates them") as told:
        argosy.train(studies.study(fleet=fleet, epochs=1), directory=tmp_path, launcher="inline")
    (warning,) = told
    assert warning.filename == __file__


class InLists(nn.Module):
    """A network with layers in a list and a weight in a dict, which torch does not register."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.layers, self.head = [nn.Linear(12, 8)], nn.Linear(8, 10)
        self.hidden = [nn.Linear(12, 8, device="meta")] if frozen else []
        self.scales = {"head": nn.Parameter(torch.ones(()))}
        self.known = [self.head]
        for weight in (*self.layers[0].parameters(), *self.scales.values()):
            weight.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers[0](x).relu()) * self.scales["head"]


@pytest.mark.parametrize("frozen", [False, True])
def test_layers_in_a_list_are_noted_unless_frozen(frozen: bool) -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    found = measure(start(studies.member(model=partial(InLists, frozen=frozen))), block).notes
    assert [note for note in found if "nn.ModuleList" in note] == ([] if frozen else [*found]), found
    assert bool(found) != frozen


def test_the_caller_is_warned_of_what_members_change_together(tmp_path: Path) -> None:
    fleet = [studies.member(name, loss=by_global) for name in "ab"]
    with pytest.warns(
        UserWarning,
        match=r"member '[ab]': steps change the outer variable 'CALLS', which all members with that function share",
    ) as told:
        argosy.train(studies.study(fleet=fleet, epochs=1), directory=tmp_path, launcher="inline")
    (warning,) = told
    assert warning.filename == __file__


VECTORS, STATE = torch.randn(12, 10), nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10)).state_dict()
ARRAY = VECTORS.clone().numpy()
NORM = nn.BatchNorm1d(10, affine=False)


class Pretrained(nn.Module):
    """Embeddings, one trained and one frozen, that share memory with tensors of the script."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.vectors = nn.Embedding.from_pretrained(values, freeze=False)
        self.frozen = nn.Embedding.from_pretrained(VECTORS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.vectors.weight + x @ self.frozen.weight


def assigned() -> nn.Module:
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10))
    network.load_state_dict(STATE, assign=True)
    return network


@pytest.mark.parametrize(
    "model",
    [lambda: Pretrained(VECTORS), lambda: Pretrained(torch.from_numpy(ARRAY)), assigned],
    ids=["tensor", "array", "state"],
)
def test_members_made_of_one_tensor_each_move_their_own(model: Any) -> None:
    before = [value.clone() for value in (VECTORS, torch.from_numpy(ARRAY), *STATE.values())]
    alone, beside = (start(studies.member(model=model)) for _ in range(2))
    run(alone, 1)
    run(beside, 1)
    assert outcome(beside.live) == outcome(alone.live)
    assert all(map(torch.equal, before, (VECTORS, torch.from_numpy(ARRAY), *STATE.values())))
    frozen = [weight for weight in alone.live.model.parameters() if not weight.requires_grad]
    assert all(weight.data_ptr() == VECTORS.data_ptr() for weight in frozen), "frozen weights should stay shared"


def unfreezing(parameters: list[nn.Parameter]) -> SGD:
    optimizer = SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: [weight.requires_grad_() for weight in parameters] and None)
    return optimizer


def test_members_made_of_one_frozen_tensor_each_unfreeze_their_own() -> None:
    before = VECTORS.clone()
    started = start(studies.member(model=lambda: Pretrained(VECTORS), optimizer=unfreezing))
    run(started, 2)
    assert not torch.equal(started.live.model.frozen.weight, before)
    assert torch.equal(VECTORS, before)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
def test_a_scripted_network_whose_weights_were_unfrozen_is_resumed() -> None:
    def model() -> Any:
        network = nn.Sequential(nn.Linear(12, 10))
        network[0].weight.requires_grad_(requires_grad=False)
        return torch.jit.script(network)

    before, after = (start(studies.member(model=model, optimizer=unfreezing)) for _ in range(2))
    run(before, 1)
    after.live.load_state_dict(before.live.state_dict())
    assert all(weight.requires_grad for weight in after.live.model.parameters())


def test_members_that_hold_one_layer_without_weights_each_move_their_own() -> None:
    alone, beside = (start(studies.member(model=lambda: nn.Sequential(nn.Linear(12, 10), NORM))) for _ in range(2))
    run(alone, 1)
    run(beside, 1)
    assert outcome(beside.live) == outcome(alone.live)
    assert NORM.num_batches_tracked == 0
    assert alone.live.model[1].num_batches_tracked > 0


@pytest.mark.parametrize("itself", [False, True], ids=["stepped", "stepping itself"])
def test_members_given_one_tensor_as_learning_rate_each_move_their_own(itself: bool) -> None:
    rate = torch.tensor(0.25)
    optimizer, schedule = partial(SGD, lr=rate), partial(StepLR, step_size=1, gamma=0.5)
    own: dict[str, Any] = {"optimizer": optimizer, "schedule": schedule}
    if itself:
        own = {"optimizer": None, "optimizers": lambda model: {"all": optimizer(model.parameters())}, "step": stepping}
        own |= {"metrics": {}, "validate": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])}
        own["schedule"] = lambda optimizers: {"all": schedule(optimizers["all"])}
    alone, beside = (start(studies.member(**own)) for _ in range(2))
    run(alone, 1)
    run(beside, 1)
    assert outcome(beside.live) == outcome(alone.live)
    assert rate == 0.25


def stepping(model: nn.Module, batch: Any, optimizers: Any) -> Any:
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    if torch.is_grad_enabled():
        loss.backward()
        optimizers["all"].step()
    return loss


class Tracked(nn.Module):
    """A network with a hook and stored functions that refer to it through closures and a weak reference."""

    def __init__(self, held: type = dict) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(12, 10), dict[str, torch.Tensor]()
        self.register_buffer("mean", torch.zeros(12))

        def track(layer: nn.Module, inputs: Any, output: torch.Tensor, seen: Any = self.seen) -> None:
            if layer.training:
                self.mean.lerp_(inputs[0].mean(0), 0.1)
            seen["output"] = output

        self.layer.register_forward_hook(track)
        self.layer(
            torch.ones(1, 12)
        )  # like a factory that fills lazy weights; the hook then holds a tensor with a graph
        whole = self.layer.forward
        self.layer.forward = lambda x: whole(x)
        self.layer.above = weakref.ref(self)
        centred = lambda x: x - self.layer.above().mean  # noqa: E731
        self.passed = held({"x": lambda x: self.layer(centred(x))}.items())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passed["x"](x)
        return self.seen["output"]


class Listed(Tracked):
    """`Tracked` with its functions in a list, where a copy cannot rebind them: they change the network that they were made for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _, passed in self.passed:
            passed(x)
        return self.layer(x)


class Script:
    """An object that builds a network and refers to it, its weight, and what its hook keeps, in its step and loss."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def build(self) -> nn.Module:
        self.network = nn.Linear(12, 10)
        self.network.register_forward_hook(lambda layer, inputs, output: self.kept.append(output))
        return self.network

    def step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.kept.clear()
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        return loss + sum(output.square().mean() for output in self.kept)

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.kept.clear()
        return nn.functional.cross_entropy(output, target) + self.network.weight.abs().mean()


@pytest.mark.parametrize("how", ["step", "loss"])
def test_a_step_or_loss_knows_the_network_that_its_object_has_built(how: str) -> None:
    script = Script()
    fields = {"model": script.build, "optimizer": partial(SGD, lr=0.1), "batch_size": 16, "seed": 1, "metrics": {}}
    solo = start(studies.member(**fields, **{how: getattr(script, how)}))
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    assert not measure(solo, block, validated=30).notes
    run(solo, 1)

    torch.manual_seed(1)
    network = script.build()
    optimizer = SGD(network.parameters(), lr=0.1)
    for numbers in torch.tensor(ORDERS.epoch("train", 0)).split(16):
        optimizer.zero_grad()
        x, y = INPUTS[numbers], TARGETS[numbers]
        (script.step(network, (x, y)) if how == "step" else script.loss(network(x), y)).backward()
        optimizer.step()
    assert torch.equal(solo.live.model.weight, network.weight)


def test_methods_of_one_object_are_those_of_one_copy() -> None:
    script = Script()
    given = {"model": partial(script.build), "step": script.step, "metrics": {"loss of mine": script.loss}}
    own = start(studies.member(**given)).live.member
    assert own.metrics["loss of mine"].__self__ is own.model.func.__self__ is own.step.__self__ is not script


class Scaled(nn.Linear):
    """A layer that uses an attribute of its weight, like the layers of muP."""

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.weight.infshape = SimpleNamespace(width=4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / self.weight.infshape.width)


def test_weights_have_attributes_in_a_copy_too() -> None:
    live = start(studies.member(model=Scaled)).live
    copied = live.trial().model
    assert copied.weight.infshape == live.model.weight.infshape is not copied.weight.infshape
    assert torch.equal(copied(INPUTS), live.model(INPUTS))


def test_what_hooks_and_functions_of_a_network_move_is_the_copys_in_a_copy() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    solo, untried = start(studies.member(model=Tracked)), start(studies.member(model=Tracked))
    measure(solo, block, validated=30)
    assert outcome(solo.live) == outcome(untried.live)
    assert len(solo.live.model.seen["output"]) == 1
    copied = solo.live.trial().model
    assert copied.layer.above() is copied
    with pytest.raises(StudyError, match="still uses"):
        measure(start(studies.member(model=partial(Listed, list))), block)


def unfreezing_later(optimizer: SGD) -> LambdaLR:
    """Return a schedule whose function unfreezes a weight after the first epoch, as a side effect."""
    (weight, *_) = optimizer.param_groups[0]["params"]

    def factor(epoch: int) -> float:
        weight.requires_grad_(epoch > 0)
        return 1.0

    return LambdaLR(optimizer, factor)


def test_a_schedule_whose_copy_unfreezes_the_original_is_refused() -> None:
    """The weight was trained from the first epoch."""
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    with hide_step_warning(), pytest.raises(StudyError, match="a copy of its schedule froze or unfroze"):
        measure(start(studies.member(schedule=unfreezing_later)), block)


class ByHand:
    """A layer that is no module and keeps its output, as in lessons that build layers from scratch."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.out = x @ self.weight
        return self.out


class OfLayersByHand(nn.Module):
    """A network of such layers in a list, whose weights are registered or, by its own `parameters`, only trained."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        weight = torch.randn(12, 10, requires_grad=True)
        self.layers = [ByHand(nn.Parameter(weight) if registered else weight)]
        if registered:
            self.weight = self.layers[0].weight

    def parameters(self, recurse: bool = True) -> Any:
        return iter([layer.weight for layer in self.layers])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x)


def test_a_network_may_keep_outputs_in_layers_that_are_no_modules_but_not_its_weights() -> None:
    solo = start(studies.member(model=partial(OfLayersByHand, True)))
    run(solo, 1)
    copied = solo.live.trial().model
    assert copied.layers[0].weight is copied.weight and torch.equal(copied.layers[0].out, solo.live.model.layers[0].out)
    with pytest.raises(StudyError, match=r"its optimizer holds 1 parameters .* as nn.Parameter\(tensor\)"):
        start(studies.member(model=partial(OfLayersByHand, False)))


class Leaky(nn.Linear):
    """A spiking layer as in snntorch: its class has a list of all of its layers, with which a step resets their states."""

    instances: ClassVar[list["Leaky"]] = []

    def __init__(self) -> None:
        super().__init__(12, 10)
        self.register_buffer("mem", torch.zeros(1), persistent=False)
        self.instances.append(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mem = super().forward(x) + self.mem
        return self.mem


def reset_all(model: nn.Module, batch: Any) -> torch.Tensor:
    for layer in Leaky.instances:
        layer.mem = torch.zeros(1)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def reset_own(model: nn.Module, batch: Any) -> torch.Tensor:
    model.mem = torch.zeros(1)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_step_resets_the_layers_of_its_network_only() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    member = partial(studies.member, model=Leaky, metrics={})
    measure(start(member(step=reset_own)), block, validated=30)
    with pytest.raises(StudyError, match="resets all layers of a class"):
        measure(start(member(step=reset_all)), block, validated=30)


class Thawing(nn.Module):
    """A network whose tenth step unfreezes its first layer and freezes the bias of its last."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Linear(12, 12), nn.Linear(12, 10)
        self.early.requires_grad_(False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            if self.count == 10:
                self.early.requires_grad_(True)
                self.late.bias.requires_grad_(False)
        return self.late(torch.tanh(self.early(x)))


def test_what_a_step_froze_or_unfroze_remains_so_behind_a_file(tmp_path: Path) -> None:
    member = studies.member(model=Thawing, optimizer=partial(SGD, lr=0.1), batch_size=16)
    whole, again = start(member), start(member)
    rows, first = run(whole, 4), run(again, 2)
    for _ in range(2):  # the second checkpoint is written by a member that was itself resumed
        again, _ = resumed(again.live.state_dict(), tmp_path, member)
        first += run(again, 1)
    assert first == rows
    assert outcome(again.live) == outcome(whole.live)


def is_bias(weight: torch.Tensor) -> bool:
    return weight.ndim == 1


class Grafting(enum.Enum):
    """A setting that is an enum, as in Shampoo."""

    SLOW = "slow"


class Filtering(SGD):
    """An optimizer whose groups hold a function that selects weights, like LARS in Barlow Twins and VICReg, and an enum."""

    def __init__(self, weights: Any) -> None:
        super().__init__([{"params": list(weights), "fixed": is_bias, "how": Grafting.SLOW}], lr=0.05, momentum=0.9)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in filter(group["fixed"], group["params"]):
                weight.grad.mul_({Grafting.SLOW: 0.1}[group["how"]])
        super().step()


class Rateless(torch.optim.Optimizer):
    """An optimizer without a learning rate in its groups, or with None there, as Adafactor of transformers."""

    def __init__(self, weights: Any, **rate: None) -> None:
        super().__init__(weights, rate)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad.sign(), alpha=0.01)


@pytest.mark.parametrize(
    "how",
    [
        {"model": Holding},
        {"model": Growing},
        {"model": partial(ScaledLate, 12, 10)},
        {"optimizer": Filtering},
        {"optimizer": Rateless},
        {"optimizer": partial(Rateless, lr=None)},
    ],
)
def test_what_was_filled_or_has_functions_goes_on_behind_a_file(tmp_path: Path, how: Any) -> None:
    member = studies.member(**how)
    solo, again = start(member), start(member)
    rows = run(solo, 2)
    first = run(again, 1)
    again, _ = resumed(again.live.state_dict(), tmp_path, member)
    assert [*first, *run(again, 1)] == rows
    assert outcome(again.live) == outcome(solo.live)


def test_a_network_whose_buffer_a_pass_has_registered_is_loaded_with_it(tmp_path: Path) -> None:
    fleet = [studies.member("a", model=lambda: nn.Sequential(nn.Linear(12, 10), ScaledLate(10, 10)))]
    data = argosy.Data(arrays=(INPUTS, TARGETS), val_arrays=(INPUTS, TARGETS))
    study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(2))
    best = argosy.train(study, directory=tmp_path, launcher="inline").best()
    loss = nn.functional.cross_entropy(best.load()(INPUTS), TARGETS)
    assert loss.item() == pytest.approx(best.metrics["val_loss"])


def drawing(output: torch.Tensor, target: torch.Tensor) -> float:
    return float(np.random.rand())


def test_a_metric_that_draws_from_numpy_is_found() -> None:
    (block, *_) = blocks(ORDERS.epoch("train", 0), 50, arrays=(INPUTS, TARGETS))
    solo = start(studies.member(metrics={"drawing": drawing}))
    before = outcome(solo.live)
    assert measure(solo, block, validated=50).notes == (NUMPY_RANDOM,)
    assert measure(solo, block).notes == (), "without validation samples the metric is not tried"
    assert outcome(solo.live) == before


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight


@pytest.mark.parametrize(("width", "there"), [(8, True), (2000, False)])
@pytest.mark.parametrize("device", ["late:0", "cpu:0"])
def test_best_weights_of_a_small_network_stay_on_an_accelerator(
    devices: None,  # noqa: F811
    device: str,
    width: int,
    there: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = start(studies.member(model=partial(Tied, width)), device=device).live
    to_host: list[Any] = []
    monkeypatch.setattr(weights_file, "to_plain", lambda weights, host: to_host.append(host) or weights)
    assert one.best.offer(Best(0, 0, 1.0), "min")
    one.best.keep()
    assert to_host == ([] if there and device == "late:0" else [True])
    if not to_host:
        kept, model = one.best.state()["model"], one.model  # type: ignore[index]
        assert kept["first.weight"] is kept["second.weight"]
        assert kept["first.weight"].data_ptr() != model.first.weight.data_ptr()
        assert torch.equal(kept["first.bias"], model.first.bias)
