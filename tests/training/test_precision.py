"""Tests that loss scales of float16 equal those of torch's GradScaler, and that each member of a program has its own."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import packs
import pytest
import torch
from packs import alone, difference, member, state, together
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import StepLR

from argosy.errors import StudyError
from argosy.study import Member
from argosy.training.member import checkpoint, precision
from argosy.training.member.precision import MIN_SCALE, LossScale
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.program import MemberFaults
from argosy.training.programs.solo import Solo

EXACT = 1e-10
POISON = 2.0


class Poisoned(nn.Module):
    """A network whose gradient is NaN, but not its loss, if the first feature of a sample equals `at`."""

    at: Tensor

    def __init__(self, at: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 12), nn.Linear(12, 4)
        self.register_buffer("at", torch.tensor(at))

    def forward(self, x: Tensor) -> Tensor:
        distance = ((x[:, 0] - self.at) * self.first.weight.sum()).square().sqrt()
        return self.second(self.first(x).tanh()) * (1 + distance.tanh().unsqueeze(1))


def loud(gain: float) -> nn.Module:
    """Return a network whose gradients grow with `gain`."""
    model = packs.mlp()
    with torch.no_grad():
        model[-1].weight.mul_(gain)  # type: ignore[index, operator]
    return model


def poisoned(**rest: Any) -> list[Member]:
    """Return members, some of which lose steps, with optimizers of every kernel and without one."""
    optimizers: list[Any] = [
        partial(SGD, lr=0.05, momentum=0.9),
        partial(SGD, lr=0.02),
        partial(Adam, lr=0.003),
        partial(AdamW, lr=0.004, weight_decay=0.1),
        partial(RMSprop, lr=0.001),
    ]
    clipped = {0: 0.5, 3: 1.0}
    return [
        member(f"m{n}", model=partial(Poisoned, POISON if n in (0, 2, 4) else 9.0), optimizer=optimizer,
               precision="float16", clip_grad_norm=clipped.get(n), schedule=partial(StepLR, step_size=5),
               schedule_per="step", **rest)
        for n, optimizer in enumerate(optimizers)
    ]  # fmt: skip


def poison() -> Any:
    """Return samples of which two cost poisoned members their step."""
    (inputs, targets), val = packs.samples()
    inputs[[5, 50], 0] = POISON
    return (inputs, targets), val


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scales grow after four steps without overflow."""
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 4)


@pytest.mark.parametrize("gain", [1.0, 300.0])
@pytest.mark.parametrize("optimizer", [partial(SGD, lr=0.01, momentum=0.9), partial(Adam, lr=0.001)])
def test_alone_it_is_what_torchs_scaler_makes_of_it(gain: float, optimizer: Any) -> None:
    live = packs.live(member("m", model=partial(loud, gain), dtype=torch.float32, optimizer=optimizer,
                             precision="float16", clip_grad_norm=0.7))  # fmt: skip
    copied = live.trial()
    scaler = torch.amp.GradScaler("cpu")
    (arrays, _), orders = packs.samples(torch.float32), packs.Orders(0, {"train": packs.TRAIN})
    program = Solo(live)
    live.begin_epoch(orders, 0)
    for block in packs.blocks(orders.epoch("train", 0), 40, arrays=arrays):
        with program.active():
            for batch in program.cut(block):
                inputs, targets = (leaf.clone() for leaf in batch.data)
                program.begin(batch)
                program.finish()
                with torch.autocast("cpu", torch.float16):
                    losses = functional.cross_entropy(copied.model(inputs), targets, reduction="none")
                scaler.scale(losses.float().mean()).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(copied.optimizer)
                nn.utils.clip_grad_norm_(copied.model.parameters(), 0.7)
                scaler.step(copied.optimizer)
                scaler.update()
                copied.optimizer.zero_grad()
    assert difference(live.model.state_dict(), copied.model.state_dict()) == 0.0
    assert live.loss_scale is not None
    assert live.loss_scale.value == scaler.get_scale() and (live.loss_scale.value < 2.0**16) == (gain > 1)
    assert live.loss_scale.steps == scaler.state_dict()["_growth_tracker"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "fields", [{}, {"accumulate": 2, "subset": range(3, 90)}], ids=["one batch for all", "parts of its own"]
)
def test_in_a_program_one_loses_its_step_and_the_others_make_theirs(fields: dict[str, Any]) -> None:
    members = poisoned(**fields)
    (lives, history), (fused, found) = (run(members, 3, data=poison()) for run in (alone, together))
    for one, other in zip(lives, fused, strict=True):
        assert difference(state(one), state(other)) <= EXACT, one.member.name
    assert difference(history, found) <= EXACT
    scales = [one.loss_scale.value for one in fused]
    assert scales[0] == scales[2] == scales[4] < scales[1] == scales[3]
    assert all(math.isfinite(float(weight.sum())) for one in fused for weight in one.model.state_dict().values())
    # Of six steps in an epoch two are lost, or one if a batch holds both samples.
    made = [int(next(iter(one.optimizer.state.values()))["step"]) for one in (fused[2], fused[3])]
    assert 12 <= made[0] <= 15 and made[1] == 18


def test_what_overflows_in_float16_does_in_a_program_too() -> None:
    """Even the first step may overflow; its schedule must not warn that it moves before the optimizer."""
    members = [
        member(f"m{n}", model=partial(loud, gain), dtype=torch.float32, optimizer=partial(SGD, lr=0.01),
               precision="float16", schedule=partial(StepLR, step_size=3), schedule_per="step")
        for n, gain in enumerate((1.0, 300.0, 1.0))
    ]  # fmt: skip
    (lives, _), (fused, _) = (run(members, 2, dtype=torch.float32) for run in (alone, together))
    assert [one.loss_scale for one in lives] == [one.loss_scale for one in fused]
    assert fused[1].loss_scale.value < fused[0].loss_scale.value == 2.0**16
    for one, other in zip(lives, fused, strict=True):
        assert difference(one.model.state_dict(), other.model.state_dict()) <= 0.02
        assert one.schedule.last_epoch == other.schedule.last_epoch == 12


@pytest.mark.usefixtures("eager")
def test_saved_from_a_pack_and_resumed_alone(tmp_path: Path) -> None:
    lives = [packs.live(one) for one in poisoned()]
    program = Fused.of(lives)
    packs.train(program, 2, data=poison())
    program.release()
    for one in lives:
        path = tmp_path / f"{one.member.name}.pt"
        checkpoint.save(checkpoint.to_plain(one.state_dict()), path)
        resumed = packs.live(one.member)
        resumed.load_state_dict(checkpoint.load(path))
        assert resumed.loss_scale == one.loss_scale != packs.live(one.member).loss_scale
        for each in (one, resumed):
            packs.train(Solo(each), 1, data=poison())
        assert difference(state(resumed), state(one)) == 0.0


def test_overflow_at_the_smallest_scale_ends_that_member_only() -> None:
    lives = [packs.live(one) for one in poisoned()]
    for one in (lives[0], lives[1]):
        assert one.loss_scale is not None
        one.loss_scale.value = MIN_SCALE
    with pytest.raises(MemberFaults) as raised:
        packs.train(Fused.of(lives), 1, data=poison())
    assert list(raised.value.errors) == ["m0"]
    assert isinstance(raised.value.errors["m0"], StudyError)
    assert len({one.steps for one in lives}) == 1


def test_a_scale_grows_up_to_the_largest_number() -> None:
    scale = LossScale("m", value=2.0**126, steps=precision.GROWTH_INTERVAL - 1)
    for _ in range(3):
        scale.follow(overflowed=False)
        scale.steps = precision.GROWTH_INTERVAL - 1
    assert scale.value == 2.0**127
