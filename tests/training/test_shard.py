"""Tests that a member split over several devices trains as on one, whatever other members these devices carry."""

import copy
import time
from functools import partial
from pathlib import Path
from typing import Any

import packs
import pytest
import torch
from blocks import blocks
from groups import Placed, distance, steps, trained
from packs import member
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from argosy.errors import StudyError
from argosy.stream.schedule import Orders
from argosy.study import IGNORED
from argosy.training.member.live import LiveMember
from argosy.training.programs.shard.ends import HOST
from argosy.training.programs.shard.parallel import Group
from argosy.training.programs.shard.shard import Shard
from argosy.training.programs.solo import Solo
from argosy.training.trainer.merged import Move


class Keeping(AdamW):
    """An optimizer that keeps gradients, as zeros."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)


EPOCHS = 3
SGDM = partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
ADAMW = partial(AdamW, lr=0.004, weight_decay=0.1)
SHARES: dict[str, tuple[float, ...]] = {
    "one": (1.0,),
    "two": (0.5, 0.5),
    "uneven": (0.3, 0.7),
    "three": (0.2, 0.5, 0.3),
    "four": (0.25, 0.25, 0.25, 0.25),
    "slight": (0.01, 0.01, 0.08, 0.9),
}


def alone(one: Any, epochs: int = EPOCHS, **how: Any) -> LiveMember:
    live = packs.live(one)
    packs.train(Solo(live), epochs, **how)
    return live


def split(one: Any, shares: tuple[float, ...], folder: Path, epochs: int = EPOCHS, **how: Any) -> list[LiveMember]:
    placed = Placed(one, tuple(range(len(shares))), shares)
    return trained([placed], folder, epochs=epochs, **how)[one.name]


def state_of(live: LiveMember) -> dict[str, Any]:
    """Return a rank's state without the best section, which only the first rank has, and random states, which threads share."""
    return {key: value for key, value in packs.state(live).items() if key not in ("best", "random")}


def same_bits(lives: list[LiveMember]) -> bool:
    """Return whether all ranks hold equal weights, optimizer states, sums and digests."""
    states = [state_of(live) for live in lives]
    return all(packs.difference(states[0], state) == 0.0 for state in states[1:])


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": SGDM, "batch_size": 63, "clip_grad_norm": 0.5},
        {"optimizer": ADAMW, "batch_size": 16, "accumulate": 3},
        {"optimizer": ADAMW, "batch_size": 63, "accumulate": 2, "clip_grad_norm": 0.1},
        {"optimizer": partial(Keeping, lr=0.004), "batch_size": 20, "accumulate": 2},
    ],
    ids=["sgd", "adamw", "clipped", "kept"],
)
def test_split_is_alone(shares: str, fields: dict[str, Any], tmp_path: Path) -> None:
    schedule = partial(OneCycleLR, max_lr=0.02, total_steps=60)
    one = member("m", schedule=schedule, schedule_per="step", **fields)
    lives = split(one, SHARES[shares], tmp_path)
    assert distance(lives[0], alone(one)) <= 1e-9
    assert same_bits(lives)


def test_in_float32_it_is_as_near_as_the_network_is_sensitive(tmp_path: Path) -> None:
    single = partial(member, "m", dtype=torch.float32, optimizer=SGDM, batch_size=63)
    data = packs.samples(torch.float32)
    control = packs.live(single())
    with torch.no_grad():
        for weight in control.model.parameters():
            weight.copy_(torch.nextafter(weight, torch.full_like(weight, torch.inf)))
    packs.train(Solo(control), EPOCHS, data=data)
    first = packs.samples(torch.float32, train=63)
    (tmp_path / "first").mkdir()
    step = split(single(), SHARES["three"], tmp_path / "first", 1, data=first)[0]
    assert distance(step, alone(single(), 1, data=first)) <= 1e-6
    solo, lives = alone(single(), data=data), split(single(), SHARES["three"], tmp_path, data=data)
    assert distance(lives[0], solo) <= 3 * distance(control, solo)
    assert same_bits(lives)


def test_broken_samples_and_subsets_are_shared_as_they_come(tmp_path: Path) -> None:
    subset = [3, 3, 5, *range(20, 90)]
    for number, fields in enumerate(({}, {"subset": subset}, {"subset": subset, "drop_last": True})):
        one = member(f"m{number}", batch_size=20, **fields)
        holes = [*range(0, 40, 3), 41]
        lives = split(one, SHARES["three"], tmp_path, size=13, holes=holes)
        assert distance(lives[0], alone(one, size=13, holes=holes)) <= 1e-9
        assert lives[0].train.digest == lives[1].train.digest


def stepped(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(
    ("ignored", "fields"),
    [
        (3, {"loss": nn.CrossEntropyLoss(ignore_index=3)}),
        (IGNORED, {"loss": nn.CrossEntropyLoss(), "accumulate": 2}),
        (IGNORED, {"step": stepped}),
    ],
)
def test_batches_with_ignored_targets_are_whole(ignored: int, fields: dict[str, Any], tmp_path: Path) -> None:
    (x, y), val = packs.samples()
    late = y.where(y != 3, ignored).index_fill(0, torch.arange(len(y) // 2), 0)
    one = member("m", batch_size=20, metrics={}, **fields)
    lives = split(one, SHARES["three"], tmp_path, data=((x, late), val))
    assert distance(lives[0], alone(one, data=((x, late), val))) <= 1e-9
    assert same_bits(lives)


def test_losses_per_sample_need_no_whole_batches(tmp_path: Path) -> None:
    (x, y), val = packs.samples()
    data = (x, y.where(y != 3, IGNORED)), val
    one = member(
        "m", batch_size=20, metrics={}, loss=lambda output, y: nn.functional.cross_entropy(output, y, reduction="none")
    )
    found, ignores = [], Shard._ignores

    def noted(shard: Shard, batch: Any) -> bool:
        found.append(ignores(shard, batch))
        return found[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Shard, "_ignores", noted)
        lives = split(one, SHARES["three"], tmp_path, data=data)
    assert found and not any(found)
    assert distance(lives[0], alone(one, data=data)) <= 1e-9


def drop_class(batch: Any) -> Any:
    x, y, *_ = batch
    return x, y.masked_fill_(y == 3, IGNORED)


def test_targets_that_an_augmentation_makes_are_seen(tmp_path: Path) -> None:
    (x, y), val = packs.samples()
    late = y.index_fill(0, torch.arange(len(y) // 2), 0)
    one = member("m", batch_size=20, metrics={}, augment=drop_class, loss=nn.CrossEntropyLoss())
    data = ((x, late, late), val)
    lives = split(one, SHARES["three"], tmp_path, data=data)
    assert distance(lives[0], alone(one, data=data)) <= 1e-9
    assert same_bits(lives)


class Gated(nn.Module):
    """A network with one layer that is never used, and one that is used only if a device's part of the batch is large."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.rarely, self.never = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.used(x)
        return out + self.rarely(x) if len(x) > 5 else out


def test_weights_without_a_gradient_are_left_alone(tmp_path: Path) -> None:
    one = member("m", model=Gated, optimizer=ADAMW)
    live, solo = split(one, (0.1, 0.9), tmp_path)[0], alone(one)
    assert torch.equal(live.model.never.weight, solo.model.never.weight)
    assert not torch.equal(live.model.rarely.weight, packs.live(one).model.rarely.weight)


def test_groups_of_all_kinds_with_packs_beside_them(tmp_path: Path) -> None:
    step = partial(StepLR, step_size=1, gamma=0.5)
    fleet = [
        Placed(member("wide", batch_size=30, optimizer=ADAMW), (0, 1, 2), (0.2, 0.3, 0.5)),
        Placed(member("left", batch_size=7, schedule=step), (1, 0), (0.6, 0.4)),
        Placed(member("right", batch_size=16, optimizer=SGDM), (1, 2), (0.5, 0.5)),
        *(Placed(member(f"whole-{n}", batch_size=9 + n), (n,)) for n in range(3)),
        Placed(member("beside", batch_size=63), (1,)),
    ]
    lives = trained(fleet, tmp_path, epochs=EPOCHS, size=25)
    for one in fleet:
        solo = alone(one.member, size=25)
        if len(one.devices) == 1:
            assert packs.difference(state_of(lives[one.member.name][0]), state_of(solo)) == 0.0
        else:
            assert distance(lives[one.member.name][0], solo) <= 1e-9
            assert same_bits(lives[one.member.name])


def test_a_batch_under_way_is_no_part_of_a_saved_member(tmp_path: Path) -> None:
    # Between begin and finish, while the next batch is gathered, the state is that after the last finished step.
    one, arrays = member("m", batch_size=30), packs.samples()[0]
    orders = Orders(0, {"train": len(arrays[0])})
    live = packs.live(one)
    shard = Shard(live, Group.form(str(tmp_path / "m"), 0, 1, on=HOST), (1.0,), number=0)
    live.begin_epoch(orders, 0)
    first, second, *_ = blocks(orders.epoch("train", 0), 40, arrays=arrays)
    begun = [move for move in steps({"m": shard}, first) if move is Move.BEGIN]
    assert len(begun) == 1 and shard.under_way
    saved = copy.deepcopy(live.state_dict(carried=True))
    assert (saved["position"], saved["carried"], saved["steps"]) == (0, None, 0)
    assert [move for move in steps({"m": shard}, second) if move is not Move.WAIT] == [Move.FINISH, Move.BEGIN]
    assert live.position == 30
    shard.release()


def test_a_label_that_comes_late_is_refused(tmp_path: Path) -> None:
    orders, (inputs, labels) = Orders(0, {"train": packs.TRAIN}), packs.samples()[0]
    late = labels.index_fill(0, torch.tensor(int(orders.epoch("train", 0)[35])), IGNORED)
    live = packs.live(member("m", batch_size=10))
    shard = Shard(live, Group.form(str(tmp_path / "m"), 0, 1, on=HOST), (1.0,), number=0)
    live.begin_epoch(orders, 0)
    first, second, *_ = blocks(orders.epoch("train", 0), 20, arrays=(inputs, late))
    list(steps({"m": shard}, packs.there(first, shard)))
    with pytest.raises(StudyError, match="1 of 20 samples have the label -100"):
        list(steps({"m": shard}, packs.there(second, shard)))
    shard.release()


class Moded(SGD):
    """Trains three times the weights that are validated; schedule-free optimizers train other weights too."""

    trains = False

    def train(self, mode: bool = True) -> None:
        if self.trains is not mode:
            torch._foreach_mul_([weight.data for weight in self.param_groups[0]["params"]], 3.0 if mode else 1 / 3)
        self.trains = mode

    def eval(self) -> None:
        self.train(False)


def test_a_batch_under_way_leaves_the_weights_that_are_validated(tmp_path: Path) -> None:
    one, arrays = member("m", batch_size=30, optimizer=partial(Moded, lr=0.1)), packs.samples()[0]
    orders = Orders(0, {"train": len(arrays[0])})
    live = packs.live(one)
    shard = Shard(live, Group.form(str(tmp_path / "m"), 0, 1, on=HOST), (1.0,), number=0)
    live.begin_epoch(orders, 0)
    at_first = copy.deepcopy(live.model.state_dict())
    (block, *_) = blocks(orders.epoch("train", 0), 40, arrays=arrays)
    assert Move.BEGIN in list(steps({"m": shard}, block)) and shard.under_way
    assert packs.difference(at_first, live.state_dict()["model"]) == 0.0
    assert not live.optimizer.trains
    shard.release()


def test_a_split_member_whose_optimizer_has_modes_is_what_it_is_alone(tmp_path: Path) -> None:
    one = member("m", batch_size=63, optimizer=partial(Moded, lr=0.01))
    lives = split(one, (0.3, 0.7), tmp_path)
    assert distance(lives[0], alone(one)) <= 1e-9 and same_bits(lives)


def on_cuda(places: Any, count: int, folder: Path, on: torch.device | None = None) -> None:
    """Check that a member on this many ranks gets what it gets alone on one CUDA device."""
    one = member("m", batch_size=63, accumulate=2, optimizer=ADAMW, clip_grad_norm=0.1)
    placed = Placed(one, tuple(range(count)), tuple([1 / count] * count))
    lives = trained([placed], folder, epochs=EPOCHS, places=places, on=on)["m"]
    solo = trained([Placed(one)], folder, epochs=EPOCHS, places=places)["m"][0]
    assert {weight.device.type for live in lives for weight in live.model.parameters()} == {"cuda"}
    assert distance(lives[0], solo) <= 1e-9
    assert same_bits(lives)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("ranks", "on"), [(1, None), (2, HOST)], ids=["by NCCL", "by gloo"])
def test_split_is_alone_on_one_cuda_device(ranks: int, on: torch.device | None, tmp_path: Path) -> None:
    on_cuda(lambda number: "cuda:0", ranks, tmp_path, on)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_split_is_alone_on_two_cuda_devices(tmp_path: Path) -> None:
    on_cuda("cuda:{}".format, 2, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_leaving_in_the_middle_of_a_sum_frees_a_cuda_device(tmp_path: Path) -> None:
    devices = [torch.device("cuda", number) for number in range(2)]
    groups = [Group.form(str(tmp_path / "m"), rank, 2, on=device) for rank, device in enumerate(devices)]
    deadline = time.monotonic() + 60.0
    while not all(group.formed for group in groups) and time.monotonic() < deadline:
        time.sleep(0.01)
    under_way = groups[0].add_up(torch.ones(8, device=devices[0]))
    assert not under_way.done
    groups[0].leave()
    torch.cuda.synchronize(devices[0])  # would hang if the sum's kernel were still running
    groups[1].leave()
