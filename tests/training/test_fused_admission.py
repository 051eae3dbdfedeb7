"""Tests which differences between members keep them from being one program."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import packs
import pytest
import torch
from blocks import blocks
from packs import admission, pack
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, StepLR

from argosy.study import Member
from argosy.training.choice.admission import PassedChecks, admit
from argosy.training.programs.fused.fingerprint import token


def lookahead(optimizer: Any) -> Any:
    return Unfreezing(optimizer, lambda epoch: 0.9)


def hooked(parameters: Any) -> SGD:
    optimizer = SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: parameters[0].requires_grad_(requires_grad=False))
    return optimizer


class Freezing(SGD):
    """An optimizer that freezes weights."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            group["params"][0].requires_grad = False


class Unfreezing(LambdaLR):
    """A user-defined schedule."""


def odd(**rest: Any) -> Member:
    return packs.member("odd", dtype=torch.float32, batch_size=8, **rest)


def compiled() -> nn.Module:
    """Return a network whose forward is compiled by torch.compile."""
    network = packs.mlp()
    network.forward = torch.compile(network.forward, backend="eager")
    return network


def aliased(of: Any) -> nn.Module:
    """Return a network with two weights in the same memory, which each step would update twice."""
    network = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
    network[2].weight = of(network[0].weight)
    return network


ODD = {
    "another width": (odd(model=partial(packs.mlp, hidden=13)), "differs in 'out_features' of layer '0'"),
    "another batch size": (replace(odd(), batch_size=9), "differs in batch_size"),
    "another loss": (odd(loss=partial(functional.cross_entropy, label_smoothing=0.1)), "differs in loss"),
    "another precision": (odd(precision="bfloat16"), "differs in precision"),
    "other groups": (
        odd(optimizer=lambda parameters: SGD([{"params": [p]} for p in parameters], lr=0.1)),
        "differs in the weight '0.bias'",
    ),
    "a schedule of its own": (odd(schedule=lookahead), "its schedule Unfreezing is not from torch"),
    "an optimizer with a hook": (odd(optimizer=hooked), "a hook of its optimizer is not from torch"),
    "an optimizer that freezes weights": (
        odd(optimizer=partial(Freezing, lr=0.1)),
        "its optimizer Freezing is not from torch",
    ),
    "one that is chained": (
        odd(schedule=lambda optimizer: ChainedScheduler([StepLR(optimizer, 1), lookahead(optimizer)])),
        "its schedule Unfreezing is not from torch",
    ),
    "compiled code": (odd(model=compiled), "'forward' of the network is compiled by torch.compile"),
    "weights in one memory": (
        odd(model=partial(aliased, nn.Parameter)),
        "'0.weight' and '2.weight' share memory",
    ),
    "part of the weights": (
        odd(optimizer=lambda parameters: SGD(parameters[:1], lr=0.1)),
        "the weight '0.bias' requires a gradient but is not in any parameter group",
    ),
}


def test_members_like_each_other_are_one_program_beside_others() -> None:
    members = [*pack(packs.mlp, 4), *(replace(member, name=f"odd{n}") for n, (member, _) in enumerate(ODD.values()))]
    found = admission(members)
    assert tuple(found.packs) == (("m0", "m1", "m2", "m3"),)
    assert tuple(found.grouped) == (("odd0", "odd4"),)
    for number, (kind, (_, reason)) in enumerate(ODD.items()):
        assert number in (0, 4) or reason in found.alone[f"odd{number}"], kind
    alone = admission([member for member in members if member.name != "odd4"])
    assert "differs in 'out_features' of layer '0'" in alone.alone["odd0"]


VALUES: dict[str, Callable[[int], Any]] = {
    "a number": float,
    "a tensor": lambda n: torch.tensor([n, 1]),
    "an array": lambda n: np.array([n, 1]),
    "a list": lambda n: [n],
    "a set": lambda n: {n},
    "a dict": lambda n: {"key": n},
    "a partial": lambda n: partial(functional.cross_entropy, label_smoothing=n / 10),
    "a default": lambda n: lambda output, scale=n: output * scale,
    "a closure": lambda n: lambda output: output * n,
    "a method": lambda n: nn.Dropout(n / 10).forward,
    "an object": lambda n: nn.Dropout(n / 10),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_members_are_compared_by_content(kind: str) -> None:
    once, again, other = (token(VALUES[kind](n)) for n in (1, 1, 2))
    assert once == again != other


def test_tied_weights_and_constants_in_one_memory_keep_no_member_apart() -> None:
    def constant() -> nn.Module:
        network = aliased(lambda weight: weight)
        network.register_buffer("mask", torch.ones(9))
        network.register_buffer("part", network.mask[:4])
        return network

    found = admission([odd(model=constant), replace(odd(model=constant), name="other")])
    assert (tuple(found.packs), found.alone) == ((("odd", "other"),), {})


def test_what_may_differ_does_not_part_members() -> None:
    same = [
        odd(),
        odd(optimizer=partial(torch.optim.Adam, lr=0.01), clip_grad_norm=1.0),
        odd(model=partial(packs.mlp, dropout=0.5), subset=[1, 2, 3, 3, *range(9, 20)], drop_last=True),
        odd(augment=lambda batch: (batch[0] + torch.randn(16), batch[1]), seed=5),
        odd(optimizer=torch.optim.RMSprop, schedule=partial(LambdaLR, lr_lambda=lambda epoch: 0.9**epoch)),
    ]
    found = admission([replace(member, name=f"m{n}") for n, member in enumerate(same)])
    assert (tuple(found.packs), found.alone, found.failed) == ((tuple(f"m{n}" for n in range(5)),), {}, {})


def test_a_single_member_cannot_be_fused() -> None:
    assert admission([odd()]).alone == {"odd": "no other member could be fused with it"}


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4))


@pytest.mark.parametrize("rest", [{}, {"subset": range(90)}, {"accumulate": 4}, {"accumulate": 3, "batch_size": 8}])
@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_the_last_few_samples_of_an_epoch_are_enough_to_try_members(rows: int, rest: dict[str, Any]) -> None:
    """A resumed run may begin with so few. No micro-batch may have one sample, which BatchNorm refuses, and holes do not count."""
    (*_, last) = blocks(np.arange(96), 95 - rows, arrays=packs.samples(torch.float32)[0], holes=[95])
    assert int(last.sound.sum()) == rows
    members = [packs.member(name, model=normed, dtype=torch.float32, **rest) for name in "abc"]
    assert tuple(admit([packs.live(member) for member in members], last).packs) == (("a", "b", "c"),)


def test_two_are_spared_where_each_takes_one_pass() -> None:
    """Two members are not checked if their optimizers step in one pass, unless they were admitted before with more."""
    (arrays, _), known = packs.samples(), PassedChecks()
    (block,) = packs.blocks(packs.Orders(0, {"train": packs.TRAIN}).epoch("train", 0), packs.TRAIN, arrays=arrays)

    def packed(*members: Member, exact: bool = False) -> int:
        lives = [packs.live(member, exact=exact) for member in members]
        return len(admit(lives, block, known, pairs=False).packs)

    two, third = [packs.member(name) for name in "ab"], packs.member("c")
    slow = [replace(member, optimizer=partial(torch.optim.RMSprop, lr=0.01)) for member in two]
    assert packed(*two) == 0
    assert packed(*two, exact=True) == 1
    known.clear()
    assert packed(*slow) == 1
    known.clear()
    assert packed(*two, third) == 1
    assert packed(*two) == 1
