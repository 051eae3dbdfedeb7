"""Tests that a clone has the hyper-parameters of a member built with them, even if schedules or groups set their own."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import packs
import pytest
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from argosy.study import Member
from argosy.training.member.changes import apply_changes
from argosy.training.member.live import LiveMember


def optimizer(parameters: Any, *, lr: float = 0.1, weight_decay: float = 0.1) -> SGD:
    """Return an optimizer whose biases have no weight decay and twice the rate, except for the last one, whose rate is fixed."""
    weights, biases = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": biases[:-1], "lr": 2 * lr}]
    return SGD([*groups, {"params": biases[-1:], "lr": 0.01}], lr=lr)


def sequence(optimizer: Any) -> Any:
    parts = [LinearLR(optimizer), MultiStepLR(optimizer, [1, 3]), CosineAnnealingLR(optimizer, 4)]
    return SequentialLR(optimizer, parts, [3, 7])


def chain(optimizer: Any) -> Any:
    return ChainedScheduler([ExponentialLR(optimizer, 0.9), sequence(optimizer)], optimizer)


SCHEDULES = {
    "none": None,
    "one": partial(StepLR, step_size=2),
    "a sequence": sequence,
    "a chain with a sequence": chain,
}


def member(schedule: Any, **numbers: float) -> Member:
    return packs.member("clone", optimizer=partial(optimizer, **numbers), schedule=schedule)


def rates(live: LiveMember, count: int) -> Iterator[list[float]]:
    """Make `count` steps, yielding the rates of all groups before each."""
    for _ in range(count):
        yield [group["lr"] for group in live.optimizer.param_groups]
        live.optimizer.step()
        if live.schedule is not None:
            live.schedule.step()


@pytest.mark.parametrize("kind", SCHEDULES)
def test_rates_go_on_as_those_of_a_member_that_was_built_so(kind: str) -> None:
    source, clone, other = (packs.live(member(SCHEDULES[kind], lr=lr)) for lr in (0.1, 0.3, 0.3))
    list(rates(source, 5))
    built = [dict(group) for group in clone.optimizer.param_groups]
    clone.load_state_dict(source.state_dict())
    apply_changes(clone, {"optimizer.lr": (0.1, 0.3)}, built)
    for found, expected in zip(rates(clone, 8), list(rates(other, 13))[5:], strict=True):
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "schedule",
    [
        partial(CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3, cycle_momentum=False),
        partial(OneCycleLR, max_lr=0.1, total_steps=20, cycle_momentum=False),
    ],
)
def test_rates_that_a_schedule_names_itself_are_scaled(schedule: Any) -> None:
    source, clone = (packs.live(member(schedule, lr=lr)) for lr in (0.1, 0.3))
    list(rates(source, 5))
    built = [dict(group) for group in clone.optimizer.param_groups]
    clone.load_state_dict(source.state_dict())
    apply_changes(clone, {"optimizer.lr": (0.1, 0.3)}, built)
    for found, (weights, biases, last) in zip(rates(clone, 8), rates(source, 8), strict=True):
        assert found == pytest.approx([3 * weights, 3 * biases, last])


def test_a_number_is_that_of_each_group() -> None:
    source, clone = packs.live(member(None)), packs.live(member(None, weight_decay=0.2))
    built = [dict(group) for group in clone.optimizer.param_groups]
    clone.load_state_dict(source.state_dict())
    apply_changes(clone, {"optimizer.weight_decay": (0.1, 0.2)}, built)
    assert [group["weight_decay"] for group in clone.optimizer.param_groups] == [0.2, 0.0, 0.0]
