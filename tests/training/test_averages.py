"""Tests that averages of weights equal torch's AveragedModel in every program, and that raw weights do not depend on them."""

import copy
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import replays
import studies
import test_bits
import test_member
import torch
from blocks import blocks
from groups import Placed, trained
from packs import ResNet, Transformer, convnet, mlp
from test_graphed import DEVICES
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn, update_bn

import argosy
from argosy import EMA, SWA, LastK
from argosy.errors import StudyError
from argosy.stream.schedule import Orders
from argosy.study import Member
from argosy.training.choice.measure import LATE, state_bytes
from argosy.training.member import checkpoint
from argosy.training.member.live import LiveMember
from argosy.training.member.snapshots import MAX_SECTIONS, Snapshots
from argosy.training.programs.fused.forward import Forward
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed.graphed import Graphed
from argosy.training.programs.solo import Solo

replayable = replays.replayable
RULES = {"ema": EMA(0.9), "swa": SWA(from_epoch=2), "last": LastK(2)}


def member(name: str = "m", **rest: Any) -> Member:
    """Return a member in float32 with a rate so high that its averages are better than its raw weights."""
    return packs.member(name, dtype=torch.float32, **{"optimizer": partial(SGD, lr=0.5, momentum=0.9), **rest})


def followed(one: Member, epochs: int) -> tuple[LiveMember, dict[str, nn.Module], list[dict[str, float]]]:
    """Train a member; return it, torch's averages of its weights, and its metrics.

    The averages are over steps (`ema`), over epochs from the second on (`swa`), and over the last two epochs (`last`).
    """
    live = packs.live(one)
    program, ema = Solo(live), AveragedModel(live.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa = AveragedModel(live.model, multi_avg_fn=get_swa_multi_avg_fn())
    ends, rows = [], []
    arrays, val = packs.samples(torch.float32)
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for epoch in range(epochs):
        live.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), 40, arrays=arrays, epoch=epoch):
            with program.active():
                for batch in program.cut(block):
                    program.begin(batch)
                    program.finish()
                    ema.update_parameters(live.model)
        ends.append(packs.live(one).model)
        ends[-1].load_state_dict(live.model.state_dict())
        if epoch:
            swa.update_parameters(live.model)
        for block in blocks(orders.epoch("val", epoch), 40, arrays=val, split="val"):
            with program.active(keep=True):
                for _ in program.evaluate(block):
                    pass
        rows.append(live.end_section(1))
    last = AveragedModel(live.model, multi_avg_fn=get_swa_multi_avg_fn())
    for model in ends[-2:]:
        last.update_parameters(model)
    return live, {"ema": ema.module, "swa": swa.module, "last": last.module}, rows


class Codebook(nn.Linear):
    """A network that assigns a new Parameter in each step, like some codebooks of moving averages (VQ-VAE)."""

    def __init__(self) -> None:
        super().__init__(16, 4)
        self.code = nn.Parameter(torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.code = nn.Parameter(0.9 * self.code.detach() + 0.1 * x.mean(0))
        return super().forward(x - self.code.detach())


@pytest.mark.parametrize(
    ("rule", "model"),
    [
        ("ema", mlp),
        ("ema", Codebook),
        ("swa", Codebook),
        ("ema", ResNet),
        ("ema", Transformer),
        ("swa", mlp),
        ("last", Transformer),
    ],
)
def test_it_is_torchs_averaged_model_bit_for_bit(rule: str, model: Any) -> None:
    live, torchs, rows = followed(member(model=model, average=RULES[rule]), 3)
    assert live.average is not None
    with live.average.held():
        found = {name: value.clone() for name, value in live.model.state_dict().items()}
    assert packs.difference(found, dict(torchs[rule].state_dict())) == 0.0
    val = packs.samples(torch.float32)[1]
    torchs[rule].eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(torchs[rule](val[0]), val[1]).item()
    assert rows[-1]["average_val_loss"] == pytest.approx(loss, rel=1e-5)


def frozen_at_first() -> nn.Module:
    """Return a network whose first layer is frozen until a step or schedule unfreezes it, with a frozen mask that holds -inf."""
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    model.steps = nn.Parameter(torch.tensor(0.0), requires_grad=False)
    model.mask = nn.Parameter(torch.tensor([0.0, -torch.inf]), requires_grad=False)
    return model


def thawing(model: Any, batch: Any) -> Any:
    if model.training:
        with torch.no_grad():
            model.steps += 1
        model[0].requires_grad_(bool(model.steps > 5))
    outputs = model[:4](batch[0])
    return nn.functional.cross_entropy(outputs, batch[1]), outputs, batch[1]


class Thawing(LRScheduler):
    """A schedule that unfreezes the first layer after five steps."""

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        for weight in self.optimizer.param_groups[0]["params"]:
            if self.last_epoch > 5 and weight.dim() and len(weight) == 12:
                weight.requires_grad_()


@pytest.mark.parametrize(
    "by", [{"step": thawing}, {"schedule": Thawing, "schedule_per": "step"}], ids=["step", "schedule"]
)
@pytest.mark.parametrize("rule", RULES)
def test_weights_that_are_thawed_are_in_it_as_in_torchs(rule: str, by: dict[str, Any]) -> None:
    live, torchs, _ = followed(member(model=frozen_at_first, average=RULES[rule], **by), 3)
    assert live.average is not None
    with live.average.held():
        found = {name: value.clone() for name, value in live.model.state_dict().items()}
    wanted = dict(torchs[rule].state_dict())
    assert found.pop("mask").tolist() == [0.0, -torch.inf]
    del wanted["mask"]  # NaN in torch's: the difference of infinite values
    assert packs.difference(found, wanted) == 0.0


def hooked(parameters: Any) -> SGD:
    optimizer = SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def test_copies_whose_optimizers_lack_its_hook_average_the_same_weights() -> None:
    live = packs.live(member(model=frozen_at_first, optimizer=hooked, average=EMA(0.9)))
    copied = live.trial()
    assert copied.average is not None and live.average is not None
    assert packs.difference(copied.average.state_dict(), live.average.state_dict()) == 0.0


@pytest.mark.parametrize("rule", ["ema", "last"])
def test_checkpoints_in_which_it_has_no_frozen_weights_are_resumed(rule: str) -> None:
    """As those of a version that left out frozen weights unless the member has a step."""
    by: dict[str, Any] = {"model": frozen_at_first, "average": RULES[rule]}
    averages = [packs.live(member(**by, **schedule)).average for schedule in ({}, {"schedule": Thawing})]
    for average in averages:
        for epoch in range(2):
            average.step()
            average.end_epoch(epoch)
    earlier, full = (average.state_dict() for average in averages)
    assert 0 < len(earlier["values"]) < len(full["values"])
    resumed = packs.live(member(**by, schedule=Thawing)).average
    resumed.load_state_dict(earlier)
    assert packs.difference(resumed.state_dict(), full) == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_raw_weights_are_those_of_a_member_without_an_average(rule: str) -> None:
    plateau = partial(ReduceLROnPlateau, patience=0)
    noisy = {"model": convnet, "optimizer": partial(SGD, lr=0.5), "schedule": plateau, "metrics": DRAWING}
    (with_it,), one = packs.alone([member(average=RULES[rule], **noisy)], 4, dtype=torch.float32)
    (without,), other = packs.alone([member(**noisy)], 4, dtype=torch.float32)
    apart = {"average": None, "best": None}
    assert packs.difference({**packs.state(with_it), **apart}, {**packs.state(without), **apart}) == 0.0
    assert [row["raw_val_drawing"] for row in one["m"]] == [row["val_drawing"] for row in other["m"]]


# ---- statistics of BatchNorm


class Normed(nn.Module):
    """A network with BatchNorm, dropout, and a buffer that each training pass changes."""

    def __init__(self, inputs: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 16)
        self.norm = nn.BatchNorm1d(16)
        rest = [nn.Dropout(0.2), nn.Linear(16, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, outputs)]
        self.rest = nn.Sequential(*rest)
        self.register_buffer("seen", torch.zeros(()))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the outputs."""
        if self.training:
            self.count()
        return self.rest(self.norm(self.first(x).relu()))

    def count(self) -> None:
        """Count the pass."""
        self.seen += 1


class Replacing(Normed):
    """`Normed` that replaces its buffer instead of writing into it."""

    def count(self) -> None:
        """Count the pass."""
        self.seen = self.seen + 1


MEANS = {"swa": SWA(from_epoch=2), "last": LastK(2)}


@pytest.mark.parametrize(
    ("rule", "model", "late"), [(LastK(2), ResNet, True), (LastK(2), mlp, False), (EMA(0.9), ResNet, False)]
)
def test_it_is_said_of_a_member_that_its_average_waits_an_epoch(rule: Any, model: Any, late: bool) -> None:
    solo = Solo(packs.live(member(model=model, average=rule)))
    (block,) = packs.blocks(
        Orders(0, {"train": packs.TRAIN}).epoch("train", 0), packs.TRAIN, arrays=packs.samples(torch.float32)[0]
    )
    assert (LATE in test_member.measure(solo, block).notes) == late


@pytest.mark.parametrize("rule", MEANS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_statistics_are_those_of_update_bn_on_the_batches_of_the_next_epoch(rule: str, accumulate: int) -> None:
    one = member(model=ResNet, average=MEANS[rule], accumulate=accumulate)
    live, arrays, val = packs.live(one), *packs.samples(torch.float32)
    program, ends, checked = Solo(live), list[nn.Module](), 0
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for epoch in range(5):
        mean = AveragedModel(live.model, multi_avg_fn=get_swa_multi_avg_fn())
        for model in ends[1:] if rule == "swa" else ends[-2:]:
            mean.update_parameters(model)
        live.begin_epoch(orders, epoch)
        seen: list[torch.Tensor] = []
        for block in blocks(orders.epoch("train", epoch), 40, arrays=arrays, epoch=epoch):
            with program.active():
                for batch in program.cut(block):
                    seen += [part[0].clone() for part, _ in program._parts(batch.data, batch.rows)]
                    program.begin(batch)
                    program.finish()
        assert (live.averaged is not None) == (len(ends) > (rule == "swa"))
        if live.averaged is not None:
            update_bn(seen, mean)
            mean.module.eval()
            with live.averaged.held():
                found = {name: value.clone() for name, value in live.model.state_dict().items()}
            assert packs.difference(found, dict(mean.module.state_dict())) == 0.0
            checked += 1
        ends.append(packs.live(one).model)
        ends[-1].load_state_dict(live.model.state_dict())
        for block in blocks(orders.epoch("val", epoch), 40, arrays=val, split="val"):
            with program.active(keep=True):
                for _ in program.evaluate(block):
                    pass
        row = live.end_section(1)
        if checked:
            with torch.no_grad():
                loss = nn.functional.cross_entropy(mean.module(val[0]), val[1]).item()
            assert row["average_val_loss"] == pytest.approx(loss, rel=1e-5)
    assert checked == (3 if rule == "swa" else 4)


class Frozen(Normed):
    """`Normed` with BatchNorm layers that keep the statistics of a pretrained network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.running_mean.fill_(0.3)
        self.rest[2].running_mean.fill_(0.3)

    def train(self, mode: bool = True) -> Any:
        """Set the mode of all other layers."""
        super().train(mode)
        self.norm.eval()
        self.rest[2].eval()
        return self


@pytest.mark.parametrize("rule", MEANS)
def test_layers_frozen_in_eval_keep_their_statistics(rule: str) -> None:
    (live,), _ = packs.alone([member(model=Frozen, average=MEANS[rule])], 4, dtype=torch.float32)
    assert live.averaged is not None
    means = {name: buffer for name, buffer in live.averaged.buffers.items() if name.endswith("mean")}
    assert len(means) == 2
    assert all(bool((mean == 0.3).all()) for mean in means.values())


class Writing(Normed):
    """`Normed` that writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the outputs."""
        return super().forward(x.mul_(1.5))


class Following(Normed):
    """`Normed` with a frozen layer that follows a trained one, as a momentum encoder does, and a number of its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.slow = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the outputs."""
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.first.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
            self.passes += 1
        return super().forward(self.first(x) + self.slow(x))


class Adversarial:
    """A step that needs a gradient of its own, and keeps a number that its loss depends on."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        (x, y), loss = batch, nn.functional.cross_entropy
        if not model.training:
            return loss(model(x), y)
        self.steps += 1
        moved = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(moved), y), moved)
        return loss(model(x + 0.01 * gradient.sign()), y) / self.steps


@pytest.mark.parametrize(
    "own",
    [
        {"model": Normed},
        {"model": Replacing},
        {"model": Following},
        {"model": Normed, "step": Adversarial(), "metrics": {}},
    ],
    ids=["normed", "replacing", "following", "adversarial"],
)
def test_their_pass_leaves_raw_weights_buffers_and_draws_alone(own: dict[str, Any]) -> None:
    (with_it,), one = packs.alone([member(**own, average=LastK(2))], 4, dtype=torch.float32)
    (without,), other = packs.alone([member(**own)], 4, dtype=torch.float32)
    assert getattr(with_it.model, "passes", None) == getattr(without.model, "passes", None)
    apart = {"average": None, "best": None}
    assert packs.difference({**packs.state(with_it), **apart}, {**packs.state(without), **apart}) == 0.0
    assert [row["raw_val_loss"] for row in one["m"]] == [row["val_loss"] for row in other["m"]]
    assert with_it.average is not None and with_it.average.buffers["norm.num_batches_tracked"] > 0
    assert with_it.model.norm.momentum == 0.1


def test_their_passes_copy_frozen_weights_into_the_same_memory() -> None:
    live = packs.live(member(model=Following, average=LastK(2)))
    packs.train(Solo(live), 2, dtype=torch.float32)
    assert live.average is not None
    used = []
    for _ in range(2):
        with live.average.recomputing():
            used.append(live.model.slow.weight.data)
    assert used[0].data_ptr() == used[1].data_ptr() != live.model.slow.weight.data_ptr()


class Replacing(Normed):
    """`Normed` with a frozen weight that is another object after each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Parameter(torch.ones(16), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the outputs."""
        self.slow = nn.Parameter(self.slow * 0.9, requires_grad=False)
        return super().forward(x * self.slow)


def test_their_passes_keep_no_frozen_weights_that_a_network_has_replaced() -> None:
    live = packs.live(member(model=Replacing, average=LastK(1)))
    packs.train(Solo(live), 2, dtype=torch.float32)
    assert live.average is not None
    with live.average.recomputing():
        pass
    replaced = weakref.ref(live.model.slow)
    live.model.slow = nn.Parameter(torch.ones(16), requires_grad=False)
    assert replaced() is None


def test_their_pass_leaves_the_batch_alone_where_a_network_writes_into_it() -> None:
    ends = []
    for average in (LastK(1), None):
        live = packs.live(member(model=Writing, average=average))
        live.private = True
        packs.train(Solo(live), 3, dtype=torch.float32)
        ends.append(dict(live.model.state_dict()))
    assert packs.difference(*ends) == 0.0


def test_they_are_validated_on_samples_that_a_network_has_not_written_into() -> None:
    live = packs.live(member(model=Writing, average=EMA(1e-30)))  # the weights of the last step
    live.private = True
    (rows,) = packs.train(Solo(live), 2, dtype=torch.float32).values()
    assert [row["average_val_loss"] for row in rows] == [row["raw_val_loss"] for row in rows]


@pytest.mark.parametrize("model", [ResNet, Normed, Following])
@pytest.mark.parametrize("rule", MEANS)
def test_in_a_fused_program_statistics_are_those_of_alone(rule: str, model: Any) -> None:
    averages = {"swa": [SWA(1), SWA(3), SWA(10)], "last": [LastK(1), LastK(3), LastK(9)]}[rule]
    fleet = [
        packs.member(f"m{n}", model=model, average=average, subset=packs.FOLD if n == 1 else None)
        for n, average in enumerate(averages)
    ]
    (found, rows), (wanted, others) = packs.together(fleet, 4), packs.alone(fleet, 4)
    for one, other in zip(found, wanted, strict=True):
        assert packs.difference(packs.state(one), packs.state(other)) <= 1e-10
    assert packs.difference(rows, others) <= 1e-10


def test_members_of_a_program_count_their_batches_apart() -> None:
    fleet = [packs.member(f"m{n}", model=Normed, average=LastK(2)) for n in range(3)]
    lives, others = [packs.live(one) for one in fleet], [packs.live(one) for one in fleet]
    programs = [Fused.of(lives), *(Solo(live) for live in others)]
    arrays, val = packs.samples()
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for program in programs:
        packs.train(program, 1)
        for live in program.members:
            live.begin_epoch(orders, 1)
            assert live.average is not None
            live.average.batches = 3 * (live.member.name == "m2")  # as if the first batches of the others were broken
        for block in blocks(orders.epoch("train", 1), 40, arrays=arrays, epoch=1):
            with program.active():
                for batch in program.cut(block):
                    program.begin(batch)
                    program.finish()
    for one, other in zip(lives, others, strict=True):
        assert one.average is not None and other.average is not None
        assert one.average.batches == other.average.batches > 0
        assert packs.difference(one.average.state_dict(), other.average.state_dict()) <= 1e-10


@pytest.mark.parametrize("rule", MEANS)
def test_a_member_killed_in_their_pass_goes_on_as_if_it_had_not_been(rule: str, tmp_path: Path) -> None:
    one = studies.member("m", model=partial(Normed, 12, 10), batch_size=16, average=MEANS[rule])
    whole, cut = test_member.start(one), test_member.start(one)
    rows = test_member.run(whole, 4, sections=2)
    assert test_member.run(cut, 3, sections=2) == rows[:6]
    cut.live.begin_epoch(test_member.ORDERS, 3)
    list(test_member.train(cut, 3, 0, 40))
    cut, position = test_member.resumed(cut.live.state_dict(), tmp_path, one)
    assert position == 32 and cut.live.average is not None and cut.live.average.batches == 2
    cut.live.begin_epoch(test_member.ORDERS, 3, position)
    list(test_member.train(cut, 3, 32, 100))
    test_member.validate(cut)
    assert packs.difference(cut.live.end_section(1), rows[-1]) == 0.0
    assert test_member.outcome(cut.live) == test_member.outcome(whole.live)


@pytest.mark.usefixtures("replayable")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 3])
def test_behind_captured_steps_statistics_are_those_of_alone(count: int, device: str) -> None:
    fleet = [packs.member(f"m{n}", model=ResNet, average=LastK(2)) for n in range(count)]
    lives = [packs.live(one, device) for one in fleet]
    program = Graphed.of(Solo(lives[0]) if count == 1 else Fused.of(lives))
    packs.train(program, 3)
    assert program.replays
    program.release()
    for one, other in zip(lives, packs.alone(fleet, 3)[0], strict=True):
        assert one.average is not None and other.average is not None
        assert packs.difference(one.average.state_dict(), other.average.state_dict()) <= 1e-9


@pytest.mark.usefixtures("replayable")
@pytest.mark.parametrize(
    ("of", "count"),
    [
        (Fused.of, 1),
        (Fused.of, 2),
        (lambda lives: Graphed.of(Solo(*lives)), 1),
        (lambda lives: Graphed.of(Fused.of(lives)), 2),
    ],
    ids=["one", "two", "one captured", "two captured"],
)
def test_a_step_that_is_made_again_measures_its_batch_once(of: Callable[[list[LiveMember]], Any], count: int) -> None:
    fleet = [packs.member(f"m{n}", model=ResNet, average=LastK(2)) for n in range(count)]
    lives = [packs.live(one) for one in fleet]
    program = of(lives)
    packs.train(program, 1)
    arrays, val = packs.samples()
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for live in lives:
        live.begin_epoch(orders, 1)
    (block, *_) = blocks(orders.epoch("train", 1), 40, arrays=arrays, epoch=1)
    with program.active():
        for batch in program.cut(block):
            before = [copy.deepcopy(live.average.state_dict()) for live in lives if live.average is not None]
            program.begin(batch)
            program.undo()
            assert packs.difference([live.average.state_dict() for live in lives if live.average], before) == 0.0
            program.begin(batch)
            program.finish()
    assert [live.average.batches for live in lives if live.average] == [2] * len(lives)


@pytest.mark.parametrize("then", ["the same program", "each alone"])
@pytest.mark.parametrize("rules", [(EMA(0.9), EMA(0.9)), (SWA(1), SWA(2))])
def test_a_validation_that_averaged_weights_have_interrupted_counts_each_batch_once(
    then: str, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [{"average": rule, "optimizer": partial(SGD, lr=0.1 * n)} for n, rule in enumerate(rules, 1)]
    fleet = [packs.member(f"m{n}", metrics=DRAWING, **each) for n, each in enumerate(settings)]
    lives, like = ([packs.live(one) for one in fleet] for _ in range(2))
    arrays, (inputs, labels) = packs.samples()
    orders = Orders(0, {"train": len(inputs), "val": len(inputs)})
    (block,) = blocks(orders.epoch("train", 0), len(inputs), arrays=arrays)
    (shown,) = blocks(orders.epoch("val", 0), len(inputs), arrays=(inputs, labels), split="val")
    values, calls = Forward.values, list[int]()

    def interrupted(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # the first pass is that of raw weights
            raise torch.OutOfMemoryError("no memory")
        return values(*given)

    for each in (lives, like):
        program = Fused.of(each)
        for one in each:
            one.begin_epoch(orders, 0)
        with program.active():
            for batch in program.cut(block):
                program.begin(batch)
                program.finish()
        programs: list[Any] = [program]
        if each is lives:
            with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError), program.active(keep=True):
                patched.setattr(Forward, "values", interrupted)
                next(program.evaluate(shown))
            program.undo()
            if then == "each alone":
                program.release()
                programs = [Solo(one) for one in lives]
        for again in programs:
            with again.active(keep=True):
                assert list(again.evaluate(shown))
    for one, other in zip(lives, like, strict=True):
        for mine, theirs in ((one.val, other.val), (one.average_val, other.average_val))[: 1 + bool(one.averaged)]:
            assert (mine.digest, mine.sums.rows) == (theirs.digest, theirs.sums.rows)
            assert packs.difference(mine.values(), theirs.values()) <= 1e-10


def drawing(output: Any, target: Any) -> Any:
    """A metric that draws random numbers."""
    return torch.rand(len(target)) + output.detach().argmax(1)


DRAWING = {"drawing": drawing}


class Noisy(nn.Linear):
    """A network that draws noise in validation too, as a diffusion model does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x))


@pytest.mark.parametrize("train", [packs.alone, packs.together])
def test_averaged_weights_are_validated_with_the_draws_of_raw_weights(train: Callable[..., Any]) -> None:
    unmoved = {"model": partial(Noisy, 16, 4), "optimizer": partial(SGD, lr=0.0), "metrics": DRAWING}
    fleet = [member(f"m{n}", average=EMA(0.9), **unmoved) for n in range(2)]
    for rows in train(fleet, 2, dtype=torch.float32)[1].values():
        for row in rows:
            for name in ("loss", "drawing"):
                assert row[f"average_val_{name}"] == row[f"raw_val_{name}"]


def test_the_objective_chooses_between_raw_and_averaged_weights() -> None:
    (live,), history = packs.alone([member(average=EMA(0.9))], 6, dtype=torch.float32)
    chosen = set()
    for row in history["m"]:
        averaged = row["average_val_loss"] < row["raw_val_loss"]
        kind = "average" if averaged else "raw"
        assert row["averaged"] == averaged
        assert (row["val_loss"], row["val_accuracy"]) == (row[f"{kind}_val_loss"], row[f"{kind}_val_accuracy"])
        chosen.add(kind)
    assert chosen == {"average", "raw"}
    best = live.best.section
    assert best is not None and best.value == min(row["val_loss"] for row in history["m"])


def test_before_there_is_an_average_it_is_not_a_number_and_never_chosen() -> None:
    _, history = packs.alone([member(average=SWA(from_epoch=3))], 4, dtype=torch.float32)
    assert [row["average_val_loss"] == row["average_val_loss"] for row in history["m"]] == [False, False, True, True]
    assert [row["averaged"] for row in history["m"]][:2] == [0.0, 0.0]


def test_an_average_that_begins_after_the_member_has_ended_is_refused() -> None:
    late, data = studies.member(average=SWA(from_epoch=4)), studies.study().data
    for rule in (argosy.MaxEpochs(3.5), argosy.MaxEpochs(3) | argosy.Plateau("val_loss", patience=9)):
        with pytest.raises(StudyError, match="starts at the end of epoch 4, but its stopping rule ends it after 3"):
            argosy.Study(data=data, members=[late], stop=rule)
        own = replace(late, stop=argosy.MaxEpochs(4))
        assert argosy.Study(data=data, members=[own], stop=rule)
    for rule in (argosy.MaxSteps(9), argosy.MaxEpochs(3) & argosy.Plateau("val_loss", patience=9)):
        assert argosy.Study(data=data, members=[late], stop=rule), "the member may train long enough"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", [mlp, convnet, Transformer])
def test_in_a_fused_program_it_is_that_of_alone(rule: str, model: Any) -> None:
    averages = {
        "ema": [EMA(0.9), EMA(0.99), EMA(0.9)],
        "swa": [SWA(1), SWA(3), SWA(10)],
        "last": [LastK(1), LastK(3), LastK(9)],
    }
    fleet = [
        packs.member(f"m{n}", model=model, average=average, subset=packs.FOLD if n == 1 else None, metrics=DRAWING)
        for n, average in enumerate(averages[rule])
    ]
    (found, rows), (wanted, others) = packs.together(fleet, 4), packs.alone(fleet, 4)
    for one, other in zip(found, wanted, strict=True):
        assert packs.difference(packs.state(one), packs.state(other)) <= 1e-10
    assert packs.difference(rows, others) <= 1e-10


def normed() -> nn.Module:
    """Return a network with BatchNorm whose matrix products are large enough to give the same bits fused and alone."""
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)
    )


@pytest.mark.parametrize(
    ("model", "one", "other"), [(test_bits.mlp, EMA(0.9), EMA(0.95)), (normed, LastK(1), LastK(2))]
)
def test_of_networks_that_have_the_bits_of_alone_it_has_them_too(model: Any, one: Any, other: Any) -> None:
    fleet = packs.pack(model, average=one)
    fleet[1] = replace(fleet[1], average=other)
    admission = packs.admission(fleet)
    (names,) = admission.packs
    assert admission.packs[names] is not None
    lives = [packs.live(one) for one in fleet]
    rows = packs.train(Fused.of(lives, lengths=admission.packs[names]), 3, dtype=torch.float32)
    wanted, others = packs.alone(fleet, 3, dtype=torch.float32)
    assert packs.difference([packs.state(live) for live in lives], [packs.state(live) for live in wanted]) == 0.0
    assert packs.difference(rows, others) == 0.0


@pytest.mark.usefixtures("replayable")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [1, 3])
def test_behind_captured_steps_it_is_that_of_alone(rule: str, count: int, device: str) -> None:
    fleet = [packs.member(f"m{n}", average=RULES[rule], optimizer=partial(SGD, lr=0.1)) for n in range(count)]
    lives = [packs.live(one, device) for one in fleet]
    program = Graphed.of(Solo(lives[0]) if count == 1 else Fused.of(lives))
    history = packs.train(program, 3)
    assert program.replays
    program.release()
    wanted, rows = packs.alone(fleet, 3)
    for one, other in zip(lives, wanted, strict=True):
        assert one.average is not None and other.average is not None
        assert one.average.count == other.average.count
        assert packs.difference(one.average.state_dict(), other.average.state_dict()) <= 1e-9
        assert history[one.member.name][-1]["average_val_loss"] == pytest.approx(
            rows[one.member.name][-1]["average_val_loss"], rel=1e-9
        )


@pytest.mark.parametrize("rule", RULES)
def test_each_rank_of_a_split_member_has_it(rule: str, tmp_path: Path) -> None:
    one = packs.member("m", average=RULES[rule])
    ranks = trained([Placed(one, (0, 1), (0.3, 0.7))], tmp_path, epochs=3)["m"]
    (alone,), _ = packs.alone([one], 3)
    assert alone.average is not None
    for live in ranks:
        assert live.average is not None
        assert live.average.count == alone.average.count
        assert packs.difference(live.average.values, alone.average.values) <= 1e-9
    assert packs.difference(ranks[0].average.values, ranks[1].average.values) == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_resumed_is_uninterrupted(rule: str, tmp_path: Path) -> None:
    one = member(average=RULES[rule], optimizer=Adam)
    (wanted,), rows = packs.alone([one], 5, dtype=torch.float32)
    live, history = packs.live(one), []
    for number in range(5):
        history += packs.train(Solo(live), 1, dtype=torch.float32)["m"]
        digest = checkpoint.save(checkpoint.to_plain(live.state_dict()), tmp_path / f"{number}.pt")
        live = packs.live(one)
        live.load_state_dict(checkpoint.load(tmp_path / f"{number}.pt", digest))
    assert packs.difference(packs.state(live), packs.state(wanted)) == 0.0
    assert packs.difference(history, rows["m"]) == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_it_depends_on_no_sections(rule: str) -> None:
    one = studies.member("m", model=partial(nn.Linear, 12, 10), batch_size=16, average=RULES[rule])
    whole, cut = test_member.start(one), test_member.start(one)
    rows, of_sections = test_member.run(whole, 3), test_member.run(cut, 3, sections=4)
    assert test_member.outcome(whole.live) == test_member.outcome(cut.live)
    assert packs.difference(rows, of_sections[3::4]) == 0.0


def test_a_run_that_goes_on_is_one_that_was_never_interrupted(tmp_path: Path) -> None:
    data = packs.samples(torch.float32)
    given = argosy.Data(arrays=data[0], val_arrays=data[1])
    fleet = [member(f"m{number}", average=EMA(0.9 + number / 100)) for number in range(3)]
    fleet += [member(average=LastK(2)), member("normed", model=Normed, average=SWA(from_epoch=1))]
    for directory, epochs in (("whole", 4), ("parts", 1), ("parts", 2), ("parts", 4)):
        study = argosy.Study(data=given, members=fleet, stop=argosy.MaxEpochs(epochs))
        argosy.train(study, directory=tmp_path / directory, launcher="inline", devices="cpu:1", progress=False)
    whole, parts = (evidence.results(tmp_path / directory) for directory in ("whole", "parts"))
    assert parts == whole
    for one in fleet:
        saved = [checkpoint.load(tmp_path / way / "members" / one.name / "last.pt") for way in ("whole", "parts")]
        assert packs.difference(*(state["average"] for state in saved)) == 0.0


@pytest.mark.parametrize("epochs", [1, 6])
def test_the_file_of_the_best_weights_holds_the_averaged_ones_where_these_are_better(
    epochs: int, tmp_path: Path
) -> None:
    data = packs.samples(torch.float32)
    averages = {"ema": EMA(0.9), "raw": None}
    fleet = [member(name, seed=0, optimizer=partial(SGD, lr=8.0), average=one) for name, one in averages.items()]
    study = argosy.Study(
        data=argosy.Data(arrays=data[0], val_arrays=data[1]), members=fleet, stop=argosy.MaxEpochs(epochs)
    )
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", devices="cpu:1", progress=False)
    rows = {row.name: row for row in report.rows}
    assert rows["ema"].metrics["averaged"] == 1.0 and "averaged" not in rows["raw"].metrics
    for row in rows.values():
        loss = nn.functional.cross_entropy(row.load()(data[1][0]), data[1][1]).item()
        assert loss == pytest.approx(row.metrics["val_loss"], rel=1e-5)
    assert rows["ema"].metrics["val_loss"] < rows["raw"].metrics["val_loss"]
    assert {"averaged", "raw_val_loss", "average_val_loss"} <= report.table()[0].keys()


def test_the_file_of_the_best_weights_holds_the_statistics_of_averaged_ones(tmp_path: Path) -> None:
    data = packs.samples(torch.float32)
    fleet = [
        member(f"m{n}", model=Normed, optimizer=partial(SGD, lr=lr), average=LastK(2))
        for n, lr in enumerate((2.0, 4.0))
    ]
    study = argosy.Study(data=argosy.Data(arrays=data[0], val_arrays=data[1]), members=fleet, stop=argosy.MaxEpochs(6))
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", devices="cpu:1", progress=False)
    assert any(row.metrics["averaged"] for row in report.rows)
    for row in report.rows:
        loss = nn.functional.cross_entropy(row.load()(data[1][0]), data[1][1]).item()
        assert loss == pytest.approx(row.metrics["val_loss"], rel=1e-5)


@pytest.mark.parametrize(("rule", "copies"), [(EMA(), 1), (SWA(1), 1), (LastK(3), 4)])
def test_what_an_average_holds_is_part_of_the_memory_that_plans_go_by(rule: Any, copies: int) -> None:
    plain, averaged = (packs.live(member(average=one)) for one in (None, rule))
    weights = sum(weight.numel() * weight.itemsize for weight in plain.model.parameters())
    assert state_bytes(averaged) - state_bytes(plain) == copies * weights
    for most_bytes, sections in ((3 * weights + 1, 3), (weights - 1, 0), (100 * weights, MAX_SECTIONS)):
        averaged.snapshots = Snapshots(most_bytes)
        assert state_bytes(averaged) - state_bytes(plain) == (copies + sections) * weights
