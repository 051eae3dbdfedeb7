"""Tests that unlike MLPs stepped by one program each get what they get alone."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import packs
import pytest
import torch
from packs import difference, state
from test_bits import binary, first_squared
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

import argosy
from argosy.running.directory.journal import read_journal
from argosy.study import Member
from argosy.training.choice.admission import admit
from argosy.training.programs.fused.grouped import Grouped, grouping_key
from argosy.training.programs.fused.waves import layers_of
from argosy.training.programs.program import MemberFaults
from argosy.training.programs.solo import Solo

ROUNDING = 1e-10
INPUTS, OUTPUTS = 16, 4


def mlp(sizes: Sequence[int], *behind: nn.Module, bias: bool = True, flat: bool = False) -> nn.Module:
    """Return an MLP with hidden layers of these sizes, each followed by these modules."""
    modules: list[nn.Module] = [nn.Flatten()] if flat else []
    last = INPUTS
    for size in sizes:
        modules += [nn.Linear(last, size, bias=bias), nn.Sequential(*behind)]
        last = size
    return nn.Sequential(*modules, nn.Linear(last, OUTPUTS, bias=bias))


class Optimistic(SGD):
    """Optimistic gradient descent, which keeps the gradient of the step before, and not a copy of it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                earlier = self.state[weight].get("gradient", weight.grad)
                weight.sub_(2 * weight.grad - earlier, alpha=group["lr"])
                self.state[weight]["gradient"] = weight.grad


UNLIKE: dict[str, dict[str, Any]] = {
    "shallow": {"model": partial(mlp, (24,), nn.ReLU(inplace=True)), "optimizer": partial(SGD, lr=0.1)},
    "deep": {
        "model": partial(mlp, (24, 24, 32), nn.GELU(), nn.Dropout(0.2, inplace=True)),
        "optimizer": partial(Adam, lr=0.01),
    },
    "smooth": {
        "model": partial(mlp, (32, 24), nn.SiLU()),
        "optimizer": partial(AdamW, lr=0.02, weight_decay=0.1),
        "schedule": partial(StepLR, step_size=1),
    },
    "bounded": {
        "model": partial(mlp, (24, 24), nn.Tanh(), nn.Dropout(0.4), flat=True),
        "optimizer": partial(SGD, lr=0.05, momentum=0.9, nesterov=True),
        "clip_grad_norm": 0.5,
    },
    "leaky": {"model": partial(mlp, (32,), nn.LeakyReLU(0.2), bias=False), "optimizer": partial(Adagrad, lr=0.05)},
    "matrices": {"model": partial(mlp, (24, 32), nn.ELU(0.5)), "optimizer": partial(packs.matrices, lr=0.02)},
    "sigmoid": {
        "model": partial(mlp, (24, 40), nn.Sigmoid(), nn.Dropout(0.0)),
        "optimizer": partial(Adam, lr=0.01),
        "schedule": partial(CosineAnnealingLR, T_max=9),
        "schedule_per": "step",
    },
    "linear": {"model": partial(mlp, ()), "optimizer": partial(RMSprop, lr=0.01)},
    "dropped": {"model": partial(mlp, (24,), nn.Dropout(0.5)), "optimizer": partial(SGD, lr=0.1)},
    "optimistic": {"model": partial(mlp, (24,), nn.Tanh()), "optimizer": partial(Optimistic, lr=0.1)},
    "tanh-shaped": {"model": partial(mlp, (24, 24), nn.GELU("tanh")), "optimizer": partial(AdamW, lr=0.01)},
}
LOSSES: dict[str, Any] = {
    "per sample": None,
    "mean": nn.functional.cross_entropy,
    "squares": first_squared,
    "binary": binary,
}


def members(dtype: torch.dtype = torch.float64, **rest: Any) -> list[Member]:
    return [packs.member(name, dtype=dtype, **own, **rest) for name, own in UNLIKE.items()]


@pytest.mark.parametrize(
    "how", [{}, {"holes": [3, 4, 50]}, {"size": 24}], ids=["whole", "broken samples", "small blocks"]
)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_unlike_members_are_what_each_is_alone(loss: Any, how: Any) -> None:
    given = members(loss=loss)
    alone, histories = packs.alone(given, 2, **how)
    lives = [packs.live(one) for one in given]
    program = Grouped.of(lives)
    found = packs.train(program, 2, **how)
    program.release()
    assert difference(histories, found) < ROUNDING
    for one, other in zip(alone, lives, strict=True):
        assert difference(state(one), state(other)) < ROUNDING, one.member.name


def test_they_have_the_bits_of_each_alone_where_they_were_found() -> None:
    """This holds in float32, for the batch lengths that admission found exact, and after some members have ended."""
    given = members(torch.float32)
    lives, alone = ([packs.live(one, exact=False) for one in given] for _ in range(2))
    for live in lives:
        live.begin_epoch(packs.Orders(0, {"train": packs.TRAIN, "val": packs.VAL}), 0)
    order = packs.Orders(0, {"train": packs.TRAIN}).epoch("train", 0)
    (block,) = packs.blocks(order, packs.TRAIN, arrays=packs.samples(torch.float32)[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Seems like `optimizer.step")  # a copy's schedule has not wrapped its step
        admission = admit(lives, block)
    assert tuple(admission.grouped) == (tuple(UNLIKE),) and not admission.alone, admission
    lengths = admission.grouped[tuple(UNLIKE)]
    assert lengths is not None and 16 in lengths.train
    for live in alone:
        packs.train(Solo(live), 3, dtype=torch.float32)
    for epochs, some in ((2, lives), (1, lives[::2]), (1, lives[1::2])):
        program = Grouped.of(some, lengths)
        packs.train(program, epochs, dtype=torch.float32)
        program.release()
    for one, other in zip(alone, lives, strict=True):
        assert difference(state(one), state(other)) == 0.0, one.member.name


def test_a_schedule_switches_momentum_on_and_off() -> None:
    cycle = partial(OneCycleLR, max_lr=0.05, total_steps=5, max_momentum=0.0, base_momentum=0.9)
    given = [
        packs.member(f"m{n}", model=partial(mlp, (n,), nn.ReLU()), optimizer=partial(SGD, lr=0.01), schedule=cycle)
        for n in (24, 32)
    ]
    alone, lives = ([packs.live(one, exact=False) for one in given] for _ in range(2))
    for one in alone:
        packs.train(Solo(one), 4)
    packs.train(Grouped.of(lives), 4)
    for one, other in zip(alone, lives, strict=True):
        assert difference(state(one), state(other)) < ROUNDING, one.member.name


class ModedSGD(SGD):
    """Steps from other weights than those that are validated, as schedule-free optimizers do."""

    def train(self) -> None:
        """Give the network the weights to train."""

    def eval(self) -> None:
        """Give the network the weights to validate."""


def test_optimizers_with_modes_are_alone() -> None:
    """The weights of their first step are the same in both modes, so a check up to rounding, of one step, would pass."""
    optimizer = partial(ModedSGD, lr=0.1)
    given = [packs.member(f"m{n}", model=partial(mlp, (n,), nn.ReLU()), optimizer=optimizer) for n in (24, 32)]
    found = packs.admission(given)
    assert not found.grouped
    assert set(found.alone.values()) == {"its optimizer steps from other weights than those that are validated"}


def test_a_step_is_undone_and_a_failing_optimizer_is_its_members_own() -> None:
    given = members()
    lives, others = ([packs.live(one) for one in given] for _ in range(2))
    program, like = Grouped.of(lives), Grouped.of(others)
    (block,) = packs.blocks(np.arange(16), 16, arrays=packs.samples()[0])
    for each in (program, like):
        for one in each.members:
            one.begin_epoch(packs.Orders(0, {"train": 16}), 0)
    failing = next(one for one in lives if one.member.name == "linear")
    failing.optimizer.step = lambda: 1 / 0
    with program.active():
        (turn,) = program.cut(block)
        program.begin(turn)
        program.undo()
        program.begin(turn)
        with pytest.raises(MemberFaults, match="linear"):
            program.finish()
    with like.active():
        (turn,) = like.cut(block)
        like.begin(turn)
        like.finish()
    for each in (program, like):
        each.release()
    for one, other in zip(lives, others, strict=True):
        if one is not failing:
            assert difference(one.model.state_dict(), other.model.state_dict()) == 0.0, one.member.name
            assert difference(one.randomness.state_dict(), other.randomness.state_dict()) == 0.0, one.member.name


def test_they_share_the_time_by_the_numbers_that_they_compute() -> None:
    lives = [packs.live(one) for one in members()]
    program = Grouped.of(lives)
    (block,) = packs.blocks(np.arange(16), 16, arrays=packs.samples()[0])
    for live in lives:
        live.begin_epoch(packs.Orders(0, {"train": 16}), 0)
    with program.active():
        (lockstep,) = program.cut(block)
        program.begin(lockstep)
        program.finish()
    program.release()
    seconds = {live.member.name: live.clock.seconds for live in lives}
    assert seconds["linear"] > 0
    of_one = seconds["linear"] / (32 + OUTPUTS)
    assert seconds["deep"] == pytest.approx(of_one * (32 + 24 + 24 + 32 + OUTPUTS))
    assert seconds["shallow"] == pytest.approx(seconds["dropped"]) == pytest.approx(of_one * (32 + 24 + OUTPUTS))


def tied() -> nn.Module:
    """Return a network with two layers that share one weight."""
    first, second = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def frozen() -> nn.Module:
    """Return an MLP with a frozen layer."""
    model = mlp((24,), nn.ReLU())
    next(model.parameters()).requires_grad_(False)
    return model


class Residual(nn.Sequential):
    """A subclass of Sequential with another forward."""

    def forward(self, x: Any) -> Any:
        return x + super().forward(x)


OTHERS: dict[str, Any] = {
    "a convolution": packs.convnet,
    "tied": tied,
    "frozen": frozen,
    "a subclass": lambda: Residual(nn.Linear(INPUTS, INPUTS)),
    "a replaced forward": lambda: _shadowed(mlp((24,), nn.ReLU())),
    "dropout first": lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(INPUTS, OUTPUTS)),
    "dropout before its activation": partial(mlp, (24,), nn.Dropout(0.1), nn.ReLU()),
    "dropout of everything": partial(mlp, (24,), nn.ReLU(), nn.Dropout(1.0)),
    "two activations": partial(mlp, (24,), nn.ReLU(), nn.Tanh()),
    "an activation last": lambda: nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.ReLU()),
    "norms": partial(mlp, (24,), nn.LayerNorm(24)),
    "no layer": nn.Flatten,
    "scripted": lambda: torch.jit.script(mlp((24,), nn.ReLU())),
}


def _shadowed(model: Any) -> nn.Module:
    model[0].forward = lambda x: x
    return model  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
@pytest.mark.parametrize("model", OTHERS.values(), ids=OTHERS)
def test_other_networks_have_no_such_layers(model: Any) -> None:
    assert layers_of(model()) is None


def test_a_module_that_is_called_twice_is_in_two_layers() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(INPUTS, 24), relu, nn.Linear(24, 24), relu, nn.Linear(24, OUTPUTS))
    found = layers_of(model)
    assert found is not None and [layer.activation for layer in found[:2]] == [relu, relu]


def test_members_remain_in_programs_of_their_sort() -> None:
    """New members join unlike ones only if they are few of their architecture; others stay in a program of the same sort."""
    (block,) = packs.blocks(np.arange(24), 24, arrays=packs.samples(torch.float32)[0])
    few, many = (packs.pack(partial(mlp, (size,), nn.ReLU()), count) for size, count in ((24, 3), (32, 5)))
    many = [replace(member, name=f"n{number}") for number, member in enumerate(many)]
    odd = packs.member("odd", model=partial(mlp, (40,), nn.ReLU()), dtype=torch.float32, batch_size=8)
    lives = [packs.live(member) for member in (*few, *many, odd)]
    found = admit(lives, block)
    assert tuple(found.grouped) == (("m0", "m1", "m2", "odd"),) and tuple(found.packs) == (
        ("n0", "n1", "n2", "n3", "n4"),
    )
    later = admit(lives, block, before={"m0": False, "odd": True, "n0": True})
    assert tuple(later.packs) == (("m0", "m1", "m2"), ("n1", "n2", "n3", "n4"))
    assert tuple(later.grouped) == (("n0", "odd"),)
    # Any one member that was stepped before is enough: the others of its program may have ended.
    assert tuple(admit(lives[:3], block, before={"m2": True}).grouped) == (("m0", "m1", "m2"),)
    assert tuple(admit(lives, block, single=True).grouped) == ()


@pytest.mark.parametrize(
    "other",
    [{"augment": lambda batch: batch}, {"accumulate": 2}, {"precision": "bfloat16"}, {"average": argosy.EMA(0.9)}],
    ids=["augment", "accumulate", "precision", "average"],
)
def test_members_that_compute_more_than_their_layers_are_not_asked(other: Any) -> None:
    assert grouping_key(packs.live(packs.member("a", model=partial(mlp, (24,)), dtype=torch.float32))) is not None
    assert grouping_key(packs.live(packs.member("a", model=partial(mlp, (24,)), dtype=torch.float32, **other))) is None


def test_a_study_of_unlike_members_has_the_figures_of_each_alone(tmp_path: Path) -> None:
    (x, y), (vx, vy) = packs.samples(torch.float32, train=320)
    data = argosy.Data(arrays=(x.numpy(), y.numpy()), val_arrays=(vx.numpy(), vy.numpy()))
    study = argosy.Study(data=data, members=members(torch.float32), stop=argosy.MaxEpochs(4))
    figures = {}
    for packing in ("auto", "interleaved"):
        report = argosy.train(study, directory=tmp_path / packing, launcher="inline", devices="cpu:1", packing=packing)
        figures[packing] = {row.name: row.metrics for row in report.rows}
    assert figures["auto"] == figures["interleaved"]
    packed = [event for event in read_journal(tmp_path / "auto") if type(event).__name__ == "Packed"]
    assert any(event.unlike and event.kind == "grouped" and event.exact for event in packed)


def test_released_members_share_no_memory() -> None:
    """Each weight of a released program has its own memory, so that a member that leaves keeps none of the others'."""
    lives = [packs.live(one) for one in members()]
    Grouped.of(lives).release()
    storages = {weight.untyped_storage().data_ptr() for live in lives for weight in live.model.parameters()}
    assert len(storages) == sum(len(list(live.model.parameters())) for live in lives)
